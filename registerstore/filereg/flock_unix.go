//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filereg

import (
	"errors"
	"os"
	"syscall"
)

// flock waits for the lock on f, or gives it up. It may block for long, and nothing calls it off.
func flock(f *os.File, take bool) error {
	how := syscall.LOCK_UN
	if take {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
