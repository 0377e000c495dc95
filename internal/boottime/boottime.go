// Package boottime is the clock of every deadline: monotonic, and it goes on while the machine is suspended.
//
// Go's own monotonic clock is CLOCK_MONOTONIC, which stops in suspend: a lease counted on it would outlive the store's.
package boottime

import "time"

// Clock returns the time since boot. The library takes it as a value, since testing/synctest fakes time.Now but no system call.
type Clock func() time.Duration
