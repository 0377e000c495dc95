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
	limit    core.Time // how long that one could wait for its answer
	from, to core.Time // of the last outage that is over
}

// answered takes what a renewal or a grant has returned: lease.renew and Session.grantOne call it
// after each call. Limit is how long that call could wait for its answer.
//
// While there is no lease, or this process is frozen, no call is made. Then the last failed call of
// an outage may be long ago, and nobody knows whether the store answered since. Such an outage
// counts only to that call.
func (s *outages) answered(now core.Time, ttl, limit time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	noAnswer := err != nil && !driver.IsFinal(err)
	if s.since != 0 {
		to := now
		idle := now-s.failed > 2*limit+min(time.Second, ttl/5) // a pause and a call take less
		if idle {
			to = s.failed
		}
		if idle || !noAnswer {
			// A shorter outage ends no term. Who waits may see it late: after two fifths of a ttl.
			if s.calls > 1 && to-s.since >= ttl*3/10 {
				s.from, s.to = s.since, to
			}
			s.since, s.calls = 0, 0
		}
	}
	if noAnswer {
		if s.since == 0 {
			// If the call was sent earlier than this, this process was frozen. Then the store may
			// have been there.
			s.since, s.calls = max(1, now-limit), 0
		}
		s.calls++
		s.failed, s.limit = now, limit
	}
}

// underWay returns since when the store has not answered; 0: it answered the last call, or too few
// calls show until then that a term of that ttl could end by it. If no call was made after the last
// one that failed, this process was frozen. Then the store may have been there.
func (s *outages) underWay(until core.Time, ttl time.Duration) (since core.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls < 2 || min(until, s.failed+s.limit)-s.since < ttl*2/5 {
		return 0
	}
	return s.since
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
