package procfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// TestANameOfAnyBytes: a program whose name looks like the fields after it is read like any other,
// while it lives, and when it is dead and nobody has reaped it.
func TestANameOfAnyBytes(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it needs /proc")
	}
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(t.TempDir(), "a) Z 1 (b")
	text, err := os.ReadFile(cat)
	if err == nil {
		err = os.WriteFile(named, text, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(named)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	p, ok := procfs.Look(pid)
	if !ok || p.PID != pid || p.Parent != os.Getpid() || p.Dead() || p.Start == "" {
		t.Errorf("Look = %+v, %v", p, ok)
	}
	if !slices.ContainsFunc(procfs.All(), func(q procfs.Process) bool { return q.PID == pid && q.Start == p.Start }) {
		t.Error("All does not have it")
	}
	in.Close()
	for !p.Dead() { // it ends because its input has
		if p, ok = procfs.Look(pid); !ok {
			t.Fatal("it is gone, and nobody has reaped it")
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if p, ok := procfs.Look(pid); ok {
		t.Errorf("Look after its end = %+v", p)
	}
}
