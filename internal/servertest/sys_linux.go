package servertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// dieWithUs has the kernel kill the server when the test process dies, however it dies.
func dieWithUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// Halt freezes a process (SIGSTOP) and returns when none of its threads runs any more. The signal
// alone returns at once, and on a busy machine a server answered a request that was sent after it.
func Halt(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		if Halted(pid) {
			return nil
		}
	}
	return fmt.Errorf("process %d runs on a minute after SIGSTOP", pid)
}

// Halted says whether each thread of a process is stopped, or the process is dead.
func Halted(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// "123 (a name) T ...": the name may hold anything.
		at := bytes.LastIndexByte(text, ')')
		if at < 0 || len(text) < at+3 || !strings.ContainsRune("TtZXx", rune(text[at+2])) {
			return false
		}
	}
	return true
}

func freeze(p *os.Process) error { return Halt(p.Pid) }
