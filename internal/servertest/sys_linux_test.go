package servertest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/internal/servertest"
)

// A process that waits for a core when it is stopped has not stopped yet when the signal is sent:
// here more processes want to run than there are cores.
func TestAHaltedProcessDoesNotRunAnyMore(t *testing.T) {
	var pids []int
	for range 8 {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		pids = append(pids, cmd.Process.Pid)
	}
	for i := range 40 {
		pid := pids[i%len(pids)]
		if err := servertest.Halt(pid); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !strings.Contains(string(text), ") T ") {
			t.Fatalf("halt %d: the process is not stopped: %.40q %v", i, text, err)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}
