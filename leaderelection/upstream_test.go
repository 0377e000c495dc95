package leaderelection

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	// What client-go's tests import.
	_ "github.com/stretchr/testify/assert"
	_ "k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/client-go/tools/record"
	_ "k8s.io/klog/v2/ktesting"
	_ "k8s.io/utils/clock/testing"
)

// Of client-go's own tests these two are not run: coordinated election is refused, and a Lease with
// our identity that we did not write is not ours (TestANamesakeWaits).
const notUpstream = "^(TestTryCoordinatedRenew|TestReleaseLeaseLeases)$"

// shim has a method that only a test which is not run calls, and one for release, which has no
// parameter in the tests of older versions.
const shim = `package leaderelection

import (
	"context"

	"k8s.io/klog/v2"
)

func (le *LeaderElector) tryCoordinatedRenew(context.Context) bool { panic("not here") }

func (le *LeaderElector) releaseNow() bool { return le.release(klog.Background()) }
`

// client-go's own tests of the elector and of the health check, on this package.
func TestUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the package anew: without -short")
	}
	t.Parallel()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/client-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(strings.TrimSpace(string(out)), "tools", "leaderelection")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{}
	add := func(as, file string) { replace[filepath.Join(here, "upstream_"+as+"_test.go")] = file }
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var names []string
	for as, file := range map[string]string{"elector": "leaderelection_test.go", "healthz": "healthzadaptor_test.go"} {
		text, err := os.ReadFile(filepath.Join(theirs, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		add(as, write(file, strings.ReplaceAll(string(text), "le.release()", "le.releaseNow()")))
	}
	if len(names) < 6 {
		t.Fatalf("client-go has only the tests %v", names)
	}
	add("shim", write("shim.go", shim))
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-overlay", write("overlay.json", string(overlay)), "-count=1", "-timeout=5m",
		"-v", "-run", "^("+strings.Join(names, "|")+")$", "-skip", notUpstream, ".")
	all, err := cmd.CombinedOutput()
	passed := strings.Count(string(all), "\n--- PASS: ") // each but perhaps the first
	if err != nil || passed < len(names)-3 {
		t.Errorf("%d of %d passed, %v\n%s", passed, len(names), err, all)
	}
}
