package zktest

import (
	"os"
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel kill the server when the test process dies, however it dies.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// freeze and thaw stop and continue a process.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
