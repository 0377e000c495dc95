package servertest

import (
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel kill the server when the test process dies, however it dies.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
