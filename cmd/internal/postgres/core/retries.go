package core

import (
	"fmt"
	"strings"
	"time"
)

// retries holds, for each kind of order that failed, the time before which it is not given again.
type retries map[string]time.Duration

// NameOf returns the name of an action, for people.
func NameOf(do Action) string {
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", do), "core."))
}

// note takes the result of an order. A stop is never delayed. fails is how many clones and rewinds
// have failed in a row.
func (r retries) note(do Action, d Done, fails int, now time.Duration) {
	wait := retrySoon
	switch do.(type) {
	case Stop:
		return
	case Read:
		if !d.Complete {
			r[NameOf(do)] = now + readEvery
		}
		return
	case Start, Initdb:
		wait = retryLater
	case Reinit, Mark:
		wait = 10 * retryLater
	case Clone, Rewind:
		wait = min(retryMost, retryLater<<min(fails, 10))
	}
	if d.Err == nil {
		delete(r, NameOf(do))
	} else {
		r[NameOf(do)] = now + wait
	}
}

// delayed says whether an order like this has failed a moment ago. It has the member wake when it
// may be given again.
func (r retries) delayed(do Action, now time.Duration, wake *time.Duration) bool {
	at := r[NameOf(do)]
	if at <= now {
		return false
	}
	if *wake == 0 || at < *wake {
		*wake = at
	}
	return true
}

// shortLife is how long a server lives at least that can be started.
const shortLife = 10 * time.Second

// lifetimes remembers servers that ended by themselves soon after their start: for a full disk, a
// port that is in use, damaged data.
type lifetimes struct {
	up    bool // one was started, and no stop was ordered since
	since time.Duration
	short int // how many in a row
}

// note takes the result of an order.
func (l *lifetimes) note(do Action, d Done, now time.Duration) {
	switch do.(type) {
	case Start:
		if d.Err == nil {
			l.up, l.since = true, now
		}
	case Stop:
		l.up = false
	}
}

// ended is for a server that does not run. It returns how long none is to be started: more, the
// more have ended soon.
func (l *lifetimes) ended(now time.Duration) time.Duration {
	switch {
	case !l.up:
		return 0
	case now-l.since > shortLife:
		l.up, l.short = false, 0
		return 0
	}
	l.up, l.short = false, l.short+1
	return min(retryMost, retrySoon<<min(l.short, 10))
}
