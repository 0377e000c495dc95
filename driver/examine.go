package driver

import (
	"context"
	"time"
)

// What follows is for people: `primacy doctor`, `top` and operators. No decision about leadership
// ever rests on it, and the interfaces are optional.

// Level says how serious a finding is.
type Level string

// Levels of a [Finding].
const (
	Fine    Level = "ok"
	Warning Level = "warning" // it works, and somebody should know
	Failed  Level = "failed"  // it does not work, or not as promised
)

// Finding is one thing that was looked at, in words for people: one line each, without passwords.
type Finding struct {
	Topic  string // what was looked at: "member 10.0.0.1:2379"
	Level  Level
	Found  string // what was found
	Advice string // what to do; empty where nothing is
}

// LeaseTimer is a [Lease] that can tell how much of it is left.
type LeaseTimer interface {
	// Left asks how much is left of the lease on the very clock that ends it, rounded down to a
	// multiple of step. Two answers without a renewal between them show at which rate that clock
	// runs. [ErrGone] if the lease has ended.
	Left(ctx context.Context) (left, step time.Duration, err error)
}

// LeaseViewer is a [Store] that can tell how much is left of anybody's lease, for people who watch.
type LeaseViewer interface {
	// Remaining tells of these leases, by [Entry.Lease], how much was left of each at some instant
	// during the call. One that has ended, or of which the store does not know what its waiters go
	// by, is missing from the answer.
	Remaining(ctx context.Context, leases ...string) (map[string]Remaining, error)
}

// Remaining is how much is left of a lease.
type Remaining struct {
	Left time.Duration // on the clock that ends it, rounded down to a multiple of Step
	TTL  time.Duration // as it was granted
	Step time.Duration
}

// Admin does to leases and claims by hand what an operator may: no holder is asked, so one may lead
// on beside the next until it has heard of it.
type Admin interface {
	// Leases returns the IDs of the leases whose owner begins with prefix.
	Leases(ctx context.Context, prefix string) ([]string, error)
	// RemoveClaim deletes the claim on name that has this token, and nothing else. What is gone
	// already is no error. No claim has the token 0: then it deletes nothing.
	RemoveClaim(ctx context.Context, name string, token uint64) error
}
