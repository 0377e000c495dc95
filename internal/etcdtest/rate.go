package etcdtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// BinaryAt returns the path of an etcd server whose clocks and timers all run faster by that many
// percent, or slower if negative, built once on this machine. It is built from the same sources,
// with another version of Go's own clock laid over.
func BinaryAt(tb testing.TB, version string, percent int) string {
	tb.Helper()
	if percent == 0 {
		return Binary(tb, version)
	}
	return builtWith(tb, "go.etcd.io/etcd/server/v3", fmt.Sprintf("etcd%+d%%-%s", percent, version), version,
		func(dir string) ([]string, error) { return clockOverlay(dir, percent) })
}

// clockOverlay writes the changed files of Go's runtime into dir and returns the flags by which a
// build takes them.
func clockOverlay(dir string, percent int) ([]string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src", "runtime")
	now := "func time_runtimeNow() (sec int64, nsec int32, mono int64) {"
	files := map[string]string{}
	for _, edit := range []struct{ file, old, new string }{
		{"time_nofake.go", "return nanotime1()", fmt.Sprintf("n := nanotime1(); return n + n/100*(%d)", percent)},
		// time.Now reads the machine's clock directly: its monotonic part is scaled the same way.
		{"time.go", now, now + fmt.Sprintf("\n\tdefer func() { mono += mono / 100 * (%d) }()", percent)},
	} {
		text, err := os.ReadFile(filepath.Join(src, edit.file))
		if err != nil {
			return nil, err
		}
		if strings.Count(string(text), edit.old) != 1 {
			return nil, fmt.Errorf("%s of %s has no single %q to change: the Go source has changed", edit.file,
				runtime.Version(), edit.old)
		}
		files[filepath.Join(src, edit.file)] = filepath.Join(dir, edit.file+".txt")
		if err := os.WriteFile(filepath.Join(dir, edit.file+".txt"), []byte(strings.Replace(string(text), edit.old,
			edit.new, 1)), 0o644); err != nil {
			return nil, err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return nil, err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return []string{"-overlay", overlay}, os.WriteFile(overlay, list, 0o644)
}
