//go:build unix && !linux

package servertest

import (
	"os"
	"syscall"
)

// freeze stops a process. Whether its threads have stopped cannot be seen here.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
