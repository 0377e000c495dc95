package concurrency

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Session is a lease that this process keeps alive, for any number of elections and locks. It is
// safe for concurrent use.
//
// Locks are taken in this order: place.mu (of an election or a mutex), claims.mu, leases.mu,
// Session.mu. Nothing else is called while one of the others is held. Ending a session takes all
// but the first, one after another.
type Session struct {
	client      *v3.Client
	wire        *wire
	clock       boottime.Clock
	inner       *orig.Session // the original's, for its options, Ctx and Done
	innerClient *v3.Client    // what inner was made on: its Lease, KV and Watcher are ours

	id      v3.LeaseID
	granted time.Duration // the ttl of the session's lease
	brought bool          // with WithLease
	timing  core.Timing

	renewals *renewals
	leases   *leases
	claims   *claims
	lines    *lines
	removals *removals
	watcher  *watcher

	base   context.Context                 // WithContext's, or the client's
	made   chan struct{}                   // closed when NewSession is through
	ended  chan *v3.LeaseKeepAliveResponse // closed when the session ends, which ends inner
	over   context.Context                 // ends with the session
	cancel context.CancelFunc              // ends over
	detach []func() bool

	soft     atomic.Int64 // on the boot clock, when the session ends unless it is renewed; 0: it is over
	deadline atomic.Int64 // by which all work under it must be over
	mu       sync.Mutex
	state    state
	why      string
}

type state int

const (
	live     state = iota
	orphaned       // given up by its owner: its lease may live, kept by others
	dropped        // the same, but by the end of its context: nobody hands it over to anybody
	lost           // it can no longer be relied upon
)

// Bounds of how long NewSession and clean-ups try, whatever the ttl.
const (
	minPatience = 10 * time.Second
	maxPatience = 60 * time.Second
)

// baseKey is where the context made by WithContext carries the user's own.
type baseKey struct{}

// NewSession makes a session on a client: it grants a lease, or takes the one of WithLease, and
// keeps it alive until Close, Orphan, or the end of the client or of WithContext's context. It
// tries for as long as the ttl, at least 10 s and at most 60 s, then it returns what etcd said
// last; an answer that will not change is returned at once. A client that answers reads from a
// cache (client/v3/leasing) is refused.
//
// WithLease with a lease that is gone is no error: Done is closed then. etcd is asked three
// times, as one that has just elected a leader may not know yet what it has granted.
func NewSession(client *v3.Client, opts ...SessionOption) (*Session, error) {
	return newSession(client, boottime.Now, opts)
}

func newSession(client *v3.Client, clock boottime.Clock, opts []SessionOption) (*Session, error) {
	if !boottime.Reliable {
		return nil, errors.New("concurrency: this operating system offers no clock that goes on in suspend")
	}
	w, err := wireOf(client)
	if err != nil {
		return nil, err
	}
	life := client.Ctx()
	s := &Session{client: client, wire: w, clock: clock, base: life, made: make(chan struct{}),
		ended: make(chan *v3.LeaseKeepAliveResponse)}
	defer close(s.made)
	s.over, s.cancel = context.WithCancel(life)
	s.renewals = &renewals{s: s, renewer: w.renewer(), events: make(chan core.LeaseEvent, 4)}
	s.leases = &leases{s: s, granting: make(chan struct{}, 1)}
	s.claims = &claims{s: s, by: map[string]*claim{}, givenUp: map[string]map[int64]bool{}}
	s.lines, s.removals = newLines(s), &removals{s: s, doubts: map[string]int64{}}
	s.watcher = &watcher{s: s, wake: make(chan struct{}, 1), suspect: map[string]bool{}}
	s.innerClient = v3.NewCtxClient(life, v3.WithZapLogger(client.GetLogger()))
	s.innerClient.Lease = &innerLease{s: s}
	s.innerClient.KV, s.innerClient.Watcher = &reader{w: w, life: life}, &follower{w: w, life: life}
	if s.inner, err = orig.NewSession(s.innerClient, opts...); err != nil {
		s.cancel()
		s.renewals.renewer.close()
		s.innerClient.Close()
		return nil, err
	}
	s.detach = append(s.detach,
		context.AfterFunc(s.inner.Ctx(), func() { s.end(dropped, "its context ended") }),
		context.AfterFunc(life, func() { s.end(lost, "the client was closed") }))
	return s, nil
}

// innerLease is the lease interface below the original's session, which calls Grant, unless it was
// given a lease, and then KeepAlive.
type innerLease struct {
	v3.Lease
	s     *Session
	asked core.Time
	resp  *v3.LeaseGrantResponse
}

func (l *innerLease) Close() error { return nil }

// Grant grants the session's own lease.
func (l *innerLease) Grant(ctx context.Context, ttl int64) (*v3.LeaseGrantResponse, error) {
	if ctx != l.s.innerClient.Ctx() { // which ends with the session
		l.s.base = ctx
	}
	err := l.s.patiently(ctx, time.Duration(ttl)*time.Second, func(ctx context.Context) (err error) {
		l.asked = l.s.clock() // before the call: the lease is counted from here
		l.resp, err = l.s.wire.grant(ctx, ttl)
		return err
	})
	return l.resp, err
}

// KeepAlive starts what keeps the lease alive. The channel says nothing and is closed when the
// session ends.
func (l *innerLease) KeepAlive(ctx context.Context, id v3.LeaseID) (<-chan *v3.LeaseKeepAliveResponse, error) {
	s := l.s
	s.id = id
	var seconds int64
	var err error
	if l.resp != nil {
		seconds = l.resp.TTL
		h := l.resp.ResponseHeader
		s.leases.set(anchor{id: id, term: h.GetRaftTerm()}, h.GetRevision())
	} else {
		s.brought = true
		if base, ok := ctx.Value(baseKey{}).(context.Context); ok {
			s.base = base
		}
		if seconds, err = l.ttl(ctx); err != nil {
			return nil, err
		}
	}
	if seconds <= 0 {
		s.end(lost, "its lease does not exist")
		return s.ended, nil
	}
	s.granted = time.Duration(seconds) * time.Second
	// Above this a checkpoint of etcd's may shorten a lease that was renewed since.
	s.timing = timing(min(s.granted, 300*time.Second))
	s.renewals.core = core.NewLease(s.timing, l.asked)
	s.extend(s.renewals.core)
	go s.renewals.run()
	go s.watcher.run()
	return s.ended, nil
}

// ttl returns the ttl in seconds of a lease that was brought along, as a first keepalive says it; 0
// where three of them did not know the lease. Nothing else is known of it: neither when it was
// renewed last nor in which raft term it was granted, so no claim is attached to it (see anchor).
func (l *innerLease) ttl(ctx context.Context) (seconds int64, err error) {
	asked := 0
	err = l.s.patiently(ctx, minPatience, func(ctx context.Context) error {
		l.asked = l.s.clock()
		p, err := l.s.renewals.renewer.renew(ctx, []v3.LeaseID{l.s.id}, "", nil)
		if err != nil {
			return err
		}
		seconds = p.TTL[0]
		if asked++; seconds > 0 || asked == 3 {
			return nil
		}
		_ = storeutil.Sleep(ctx, etcdwire.RetryPause/2)
		return errVague
	})
	return seconds, err
}

// timing says how a lease is kept. A short one gets more time for each renewal than the part of
// the ttl that is usual: a busy machine needs it.
func timing(ttl time.Duration) core.Timing {
	return core.Timing{Attempt: max(ttl/10, min(500*time.Millisecond, ttl/5))}.Fill(ttl)
}

// patiently does what may have to wait for etcd, for a limited time.
func (s *Session) patiently(ctx context.Context, limit time.Duration, do func(ctx context.Context) error) error {
	pctx, cancel := context.WithTimeout(ctx, min(max(limit, minPatience), maxPatience))
	defer cancel()
	defer context.AfterFunc(s.client.Ctx(), cancel)()
	err := retry(pctx, func() error {
		if err := s.wire.open(pctx); err != nil {
			return err
		}
		return do(pctx)
	})
	switch {
	case err == nil || final(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case s.client.Ctx().Err() != nil:
		return s.client.Ctx().Err()
	}
	return fmt.Errorf("concurrency: no session: etcd does not answer; last: %w", err)
}

// retry repeats do until it succeeds, its error is final, or ctx ends. It returns the last error
// from before the end of ctx, which says more than one that came of that.
func retry(ctx context.Context, do func() error) (last error) {
	for try := 1; ; try++ {
		err := do()
		if err == nil || final(err) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if storeutil.Sleep(ctx, core.Pause(try)) != nil {
			return last
		}
	}
}

// Client is the client that the session was made on.
func (s *Session) Client() *v3.Client { return s.client }

// Lease is the session's lease, for the user's own keys. The keys of elections and locks end in
// it, in hex; they may be attached to another lease of this session's while it lives.
func (s *Session) Lease() v3.LeaseID { return s.id }

// Ctx is a context that is cancelled when Done is closed. It has the values of WithContext's.
func (s *Session) Ctx() context.Context { return s.inner.Ctx() }

// Done returns a channel that is closed when the session is orphaned or closed, or can no longer
// be relied upon: a tenth of the ttl before the lease can be gone, also when etcd does not answer
// and when a claim was deleted by somebody else.
//
// A channel is told late to a process that was paused. Before each act that nobody else may do,
// ask Check.
func (s *Session) Done() <-chan struct{} { return s.inner.Done() }

// Check returns nil if at this instant the session can be relied upon: no one else can hold what
// it holds. It compares the clock, which counts suspended time, at each call, so it is right also
// in a process that was paused. Once it has returned an error it always does: one that
// [errors.Is] finds ErrSessionExpired in.
func (s *Session) Check() error {
	if s.clock() < core.Time(s.soft.Load()) {
		return nil
	}
	s.end(lost, "it was not renewed in time")
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("%w: %s", ErrSessionExpired, s.why)
}

// Orphan ends the refresh of the session's lease and leaves it to expire, with the claims under it,
// unless somebody else keeps it alive. Done is closed when it returns. Claims that are attached to
// another lease are put back under the session's own: for 2 s at most.
func (s *Session) Orphan() {
	// All claims, wherever they are thought to be attached: a late answer to a read may show a
	// claim under the lease that it was moved from, and the guard is revoked.
	guard := s.guard(s.leases.current())
	s.claims.mu.Lock()
	claims := s.claims.standingLocked()
	s.claims.mu.Unlock()
	was := s.end(orphaned, "it was orphaned")
	<-s.Done()
	if !was || guard == 0 || len(claims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.client.Ctx(), etcdwire.CallLimit)
	defer cancel()
	if s.leases.move(ctx, claims, s.id) == nil {
		s.wire.later(func(ctx context.Context) { _ = s.wire.revoke(ctx, guard) })
	}
}

// Close orphans the session and revokes its lease, so that others need not wait for its end. If
// WithContext's context has ended nothing is revoked. It tries for as long as the ttl and at most
// 10 s; then it returns the error, and the lease expires by itself.
func (s *Session) Close() error {
	guard := s.guard(s.leases.set(anchor{}, 0)) // revoked here, and not at the deadline
	s.end(lost, "it was closed")                // not orphaned: who waits under it must hear
	<-s.Done()
	ctx, cancel := context.WithTimeout(s.base, min(max(s.timing.TTL, time.Second), 10*time.Second))
	defer cancel()
	defer context.AfterFunc(s.client.Ctx(), cancel)()
	err := s.revoke(ctx, s.id)
	if guard != 0 {
		if gerr := s.revoke(ctx, guard); err == nil && !missing(gerr) {
			err = gerr
		}
	}
	return err
}

// revoke ends a lease, trying until ctx ends.
func (s *Session) revoke(ctx context.Context, id v3.LeaseID) error {
	tried := false
	return retry(ctx, func() error {
		err := s.wire.revoke(ctx, id)
		if tried && missing(err) {
			return nil // an earlier attempt's work
		}
		tried = true
		return err
	})
}

// end ends the session, once. It reports whether it did.
func (s *Session) end(st state, why string) bool {
	s.mu.Lock()
	if s.state != live {
		s.mu.Unlock()
		return false
	}
	s.state, s.why = st, why
	s.soft.Store(0) // first: Check must say no before anybody is told
	s.mu.Unlock()
	guard := s.guard(s.leases.current())
	close(s.ended)
	s.cancel()
	for _, stop := range s.claims.close() {
		stop()
	}
	go s.finish(st, guard)
	return true
}

// guard returns the lease of an anchor that is a guard, else 0.
func (s *Session) guard(a anchor) v3.LeaseID {
	if a.id == s.id {
		return 0
	}
	return a.id
}

// extend takes the deadlines over, unless the session is over.
func (s *Session) extend(l *core.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == live {
		s.soft.Store(int64(l.SoftEnd()))
		s.deadline.Store(int64(l.Deadline()))
	}
}

// is reports where the session stands.
func (s *Session) is(st state) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == st
}

func (s *Session) live() bool { return s.is(live) }

// finish ends what belongs to the session. A guard lease outlives its session by the time that
// work has to stop in.
func (s *Session) finish(st state, guard v3.LeaseID) {
	<-s.made
	s.renewals.renewer.close()
	if s.inner == nil {
		return // never begun
	}
	<-s.inner.Done()
	for _, stop := range s.detach {
		stop()
	}
	s.innerClient.Close()
	if st != lost || guard == 0 {
		return
	}
	_ = storeutil.Sleep(s.client.Ctx(), core.Time(s.deadline.Load())-s.clock())
	ctx, cancel := context.WithTimeout(s.client.Ctx(), 2*etcdwire.CallLimit)
	defer cancel()
	_ = s.revoke(ctx, guard) // if it fails, it expires
}

// gone reports whether the session was lost, which an orphaned one is not.
func (s *Session) gone() bool {
	s.mu.Lock()
	st := s.state
	s.mu.Unlock()
	return st == lost || st == live && s.Check() != nil
}

// abandoned reports whether the session was orphaned with a lease that it had granted itself, so
// that nobody keeps it alive. The original's tests want such a candidate to be told that it has
// won when all before it are gone, though its own lease may have run out first.
func (s *Session) abandoned() bool { return s.is(orphaned) && !s.brought }

// key returns the key of the session's claim under a prefix.
func (s *Session) key(prefix string) string { return prefix + strconv.FormatInt(int64(s.id), 16) }
