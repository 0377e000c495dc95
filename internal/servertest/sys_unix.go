//go:build unix

package servertest

import (
	"os"
	"syscall"
)

// thaw lets a frozen process go on.
func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
