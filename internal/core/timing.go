// Package core holds every decision about leadership as pure state machines: an event and the
// clock's reading go in, orders come out. It starts no goroutine, reads no clock, does no I/O and
// draws no random number, so the simulator runs this very code, and a run can be replayed to the
// bit. Package primacy carries the orders out.
package core

import (
	"fmt"
	"time"
)

// Time is a reading of the boot clock: time since boot, suspended time included.
type Time = time.Duration

// Timing is how a lease is kept. All durations follow from the TTL that the store granted.
type Timing struct {
	TTL     time.Duration // as granted
	Drift   float64       // by how much the rates of our clock and of the store's may differ, as a part of the TTL
	Grace   time.Duration // from the end of the terms' contexts to the deadline
	Every   time.Duration // from one renewal to the next
	Attempt time.Duration // time limit of one renewal
	// HalfIdle: every second renewal may be left out while nothing is held under the lease.
	HalfIdle bool
}

// Fill returns t for a granted ttl, with what is zero derived from it. With these a store that
// needs three tenths of the ttl to elect a leader of its own costs no term: at 5 s etcd, whose
// frozen leader is replaced after one to two seconds.
func (t Timing) Fill(ttl time.Duration) Timing {
	t.TTL = ttl
	if t.Drift == 0 {
		t.Drift = 0.10
	}
	if t.Grace == 0 {
		t.Grace = ttl / 10
	}
	if t.Every == 0 {
		t.Every, t.HalfIdle = ttl/5, true
	}
	if t.Attempt == 0 {
		// A tenth of a short ttl is less than a busy store needs: there as much as two attempts may
		// take, up to what suits one.
		t.Attempt = max(ttl/10, min(250*time.Millisecond, (t.Span()-t.Every-t.Grace)/2))
	}
	return t
}

// Span is how long a lease may be trusted, counted from before the call that the store accepted.
func (t Timing) Span() time.Duration { return t.TTL - time.Duration(float64(t.TTL)*t.Drift) }

// Validate says which relation of t cannot work, or nil. A renewal that hangs for its whole time
// limit, and a second one after it, must fit in before the contexts end: otherwise a single slow
// answer costs every term.
func (t Timing) Validate() error {
	switch {
	case !(t.Drift >= 0.005 && t.Drift <= 0.5): // also when it is not a number
		return fmt.Errorf("drift %v is outside 0.005 … 0.5 (a part of the ttl; 0.10 suits clocks kept by NTP)", t.Drift)
	case t.Grace < 0 || t.Every <= 0 || t.Attempt <= 0:
		return fmt.Errorf("grace %v, renew interval %v and attempt limit %v must be positive", t.Grace, t.Every, t.Attempt)
	case max(t.Grace, t.Every, t.Attempt) > t.TTL: // the sum below could overflow, and seem small
		return fmt.Errorf("grace %v, renew interval %v, attempt limit %v: raise the ttl or lower what is above %v",
			t.Grace, t.Every, t.Attempt, t.TTL)
	}
	if need, have := t.Every+2*t.Attempt+t.Grace, t.Span(); need > have {
		return fmt.Errorf("renew interval %v + 2 × attempt limit %v + grace %v = %v is more than the %v that a ttl of %v can be trusted"+
			" (ttl less drift): raise the ttl or lower one of the others", t.Every, t.Attempt, t.Grace, need, have, t.TTL)
	}
	return nil
}

// Pause is how long to wait before try number n (from 1) of a call that failed: it doubles from 25
// ms to a second.
func Pause(n int) time.Duration {
	return min(time.Second, 25*time.Millisecond<<min(n-1, 6))
}

// Cause says why something ended. A new one needs an error and a Reason, in causes of errors.go in
// the root package.
type Cause uint8

const (
	None        Cause = iota
	Expired           // renewals failed until the deadline came near, or the store ended the lease
	Deposed           // the claim or the lease was removed by somebody else
	Resigned          // given up on purpose
	Transferred       // handed to another candidate
	Closed            // the session was closed

	CauseCount // how many there are
)

// String returns the cause as one word.
func (c Cause) String() string {
	return [...]string{"none", "expired", "deposed", "resigned", "transferred", "closed"}[c]
}
