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
		func(dir string) ([]string, error) { return ClockOverlay(dir, percent) })
}

// Edit is a change of one source file.
type Edit struct{ File, Old, New string }

// ClockOverlay writes into dir the files of Go's runtime by which all clocks and timers of a
// program run faster by that many percent, with more edits where they are given, and returns the
// flags by which a build takes them. An edit whose old text is not there exactly once is an error.
func ClockOverlay(dir string, percent int, more ...Edit) ([]string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src", "runtime")
	now := "func time_runtimeNow() (sec int64, nsec int32, mono int64) {"
	files := map[string]string{}
	for _, edit := range append([]Edit{
		{filepath.Join(src, "time_nofake.go"), "return nanotime1()",
			fmt.Sprintf("n := nanotime1(); return n + n/100*(%d)", percent)},
		// time.Now reads the machine's clock directly: its monotonic part is scaled the same way.
		{filepath.Join(src, "time.go"), now,
			now + fmt.Sprintf("\n\tdefer func() { mono += mono / 100 * (%d) }()", percent)},
	}, more...) {
		text, err := os.ReadFile(edit.File)
		if err != nil {
			return nil, err
		}
		if strings.Count(string(text), edit.Old) != 1 {
			return nil, fmt.Errorf("%s (%s) has no single %q to change: the source has changed", edit.File,
				runtime.Version(), edit.Old)
		}
		files[edit.File] = filepath.Join(dir, filepath.Base(edit.File)+".txt")
		if err := os.WriteFile(files[edit.File], []byte(strings.Replace(string(text), edit.Old, edit.New, 1)),
			0o644); err != nil {
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
