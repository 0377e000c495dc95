//go:build !linux

package libpq

import (
	"syscall"
	"time"
)

func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
