package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// pause waits before try number n+1, with jitter so that a fleet does not come back in step. It
// returns at once for n = 0.
func pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(jittered(n))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jittered is how long to wait after n failed calls, n at least 1: half to all of core.Pause(n),
// which is 25 ms after the first, and doubles with each further one up to 1 s.
func jittered(n int) time.Duration {
	d := core.Pause(n)
	return d/2 + rand.N(d/2+1)
}

// retrier repeats calls on the store that belong to no claim. One call takes at most callLimit: an
// attempt (Options.RenewAttempt), but at least a second.
type retrier struct{ callLimit time.Duration }

// retry repeats a call until the store accepts or refuses it, or ctx ends. Every call on a store is
// safe to repeat.
func (s retrier) retry(ctx context.Context, what string, call func(context.Context) error) error {
	var last error
	for try := 1; ; try++ {
		callCtx, cancel := context.WithTimeout(ctx, s.callLimit)
		err := call(callCtx)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) {
			return err
		}
		if isRefusal(err) {
			return fmt.Errorf("primacy: %s: %w", what, err)
		}
		if last == nil || ctx.Err() == nil {
			last = err // once ctx has ended err says only that
		}
		if pause(ctx, try) != nil {
			return unreachable(ctx, what, last)
		}
	}
}

// uptimeClock counts from when the session was made, for events and statistics. Unlike the boot
// clock, which deadlines are on, it stands still while the machine sleeps.
type uptimeClock struct{ born time.Time }

// uptime is the age of the session, without the time that the machine slept.
func (w uptimeClock) uptime() time.Duration { return time.Since(w.born) }

// outages keeps, for the history, when the store did not answer this session's calls for its lease:
// the outage under way, and the last one that is over.
type outages struct {
	mu       sync.Mutex
	since    core.Time // when the outage under way began; 0: there is none
	calls    int       // how many calls of it failed
	failed   core.Time // when the last of them did
	from, to core.Time // of the last outage that is over
}

// answered takes what a renewal or a grant has returned, and how long that took: lease.renew and
// Session.grantOne call it after each call. A call that took longer than its limit did so because
// this process was frozen. Then the store may have been there.
//
// While there is no lease, or this process is frozen, no call is made. Then the last failed call of
// an outage may be long ago, and nobody knows whether the store answered since. Such an outage is
// taken to have ended with that call.
func (s *outages) answered(now core.Time, ttl, limit, took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took = min(took, limit)
	noAnswer := err != nil && !driver.IsFinal(err)
	if s.since != 0 {
		to := now
		untried := now-took-s.failed > max(time.Second, ttl/5)+ttl/10 // longer than a pause between two calls
		if untried {
			to = s.failed
		}
		if untried || !noAnswer {
			if s.calls > 1 && to-s.since >= longEnough(ttl) {
				s.from, s.to = s.since, to
			}
			s.since, s.calls = 0, 0
		}
	}
	if noAnswer {
		if s.since == 0 {
			s.since = max(1, now-took)
		}
		s.calls++
		s.failed = now
	}
}

// longEnough is how long an outage must be for the history to tell of it. One that ends a term
// lasts for some seven tenths of a ttl, of which who waits may miss the first four. Two calls in a
// row that hang, before this process is frozen, show three tenths.
func longEnough(ttl time.Duration) time.Duration { return ttl * 7 / 20 }

// endedTerm returns since when the store had not answered when a term ended, if that can have ended
// it; otherwise 0. The term's context ended at contextEnd by the clock and its right at until. An
// outage may be over by the time that the work has returned.
func (s *outages) endedTerm(contextEnd, until core.Time, ttl time.Duration) (since core.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.calls > 1 && min(until, s.failed+ttl/10)-s.since >= longEnough(ttl):
		return s.since
	case s.to > contextEnd && s.from < contextEnd:
		return s.from
	}
	return 0
}

// lastOver returns the last outage that is over; ok: it ended later than since.
func (s *outages) lastOver(since core.Time) (from, to core.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from, s.to, s.to > since
}

// stalls knows for how long this process did not run, and so could not renew one lease: it was
// frozen, or its machine was.
type stalls struct {
	clock     func() core.Time
	timing    core.Timing
	wakeBy    atomic.Int64 // lease.beat runs by then, if the process runs
	overslept atomic.Int64 // by how much it ran too late, at most, since the last accepted renewal
	last      atomic.Pointer[stallText]
}

// stallText is what inWords has returned, kept for the next claim: all claims of a lease end
// together, and there may be 100,000.
type stallText struct {
	format string
	took   time.Duration
	text   string
}

// woke notes that lease.beat runs.
func (s *stalls) woke(now core.Time) {
	s.overslept.Store(max(s.overslept.Load(), int64(now)-s.wakeBy.Load()))
}

// paused returns for how long the process did not run, at least. It returns 0 for a time that left
// the time for a renewal.
func (s *stalls) paused(now core.Time) time.Duration {
	t := s.timing
	d := time.Duration(max(s.overslept.Load(), int64(now)-s.wakeBy.Load()))
	if d < min(t.TTL/2, t.Span()-t.Grace-t.Every-t.Attempt) {
		return 0
	}
	return d
}

// inWords returns what kept the lease with that deadline from being renewed until now, or until the
// deadline, if that has passed. What kept the store from confirming a renewal is not known here.
func (s *stalls) inWords(deadline core.Time) string {
	now := s.clock()
	format, took := "this process did not run for %v", s.paused(now)
	if took == 0 {
		format, took = "the store confirmed no renewal for %v", min(now, deadline)-(deadline-s.timing.Span())
	}
	took = took.Round(10 * time.Millisecond)
	last := s.last.Load()
	if last == nil || last.format != format || last.took != took {
		last = &stallText{format, took, fmt.Sprintf(format, took)}
		s.last.Store(last)
	}
	return last.text
}
