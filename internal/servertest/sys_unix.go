//go:build unix

package servertest

import (
	"os"
	"syscall"
)

// freeze and thaw stop and continue a process.
func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
