package primacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
)

// The locks of this package, from the outer to the inner. Whoever holds one takes only those of
// lines below it. A method whose caller holds one ends in Locked or says so.
//
//	queue.mu, Candidate.mu
//	claim.mu                                            of one claim at a time
//	Elections.mu
//	lease.mu, Session.mu                                neither under the other
//	historyWriter.mu, tallies.mu, eventReaders.mu
//	feed.mu, logQueue.mu
//
// What happens to a claim reaches its queue on a goroutine of its own, since the queue's lock comes
// first.

// Session keeps a lease alive in a store, for all elections of this process: one heartbeat serves
// them all. When the lease is lost every term under it ends, and the next campaign gets a new
// lease. It is safe for concurrent use.
type Session struct {
	born    time.Time
	store   driver.Store
	o       Options
	clock   boottime.Clock
	log     *logQueue
	exit    func(code int) // os.Exit
	stats   counters
	readers eventReaders
	tallies tallies

	watchQueues, watchSlots, watchElections, watchEntrants []observer // of claims, by what they are for
	history                                                *historyWriter

	mu     sync.Mutex
	lease  *lease              // the present one; nil before the first
	leases map[*lease]struct{} // that are not over yet, or whose work runs on: an earlier one may still be ending
	locals map[seat]*localRun  // seats this process stands for; nil where nobody else waits
	queues map[string]*queue   // locks that this process holds or waits for
	seats  map[string]*seats   // semaphores, likewise
	closed bool
	shut   chan struct{} // closed with it
	grant  chan struct{} // holds one token: who has it may grant
}

// localRun lets one claim of this process stand for a seat at a time: a lease has one claim for
// each. The others wait here, in order.
type localRun struct{ next []*localTurn }

// localTurn is one who waits for a seat.
type localTurn struct {
	ready     chan struct{} // closed when the seat is his
	elections *Elections    // its turn is called instead
	stand     uint32        // which of its stands waits
}

// NewSession returns a session on store; nil options are the zero value. It does no I/O: the lease
// is granted when it is first needed. Options that the store cannot honour, or whose relations
// cannot work, are an ErrInvalid. The store stays the caller's to close, after the session.
func NewSession(store driver.Store, o *Options) (*Session, error) {
	if o == nil {
		o = &Options{}
	}
	return newSession(store, *o, boottime.Now)
}

func newSession(store driver.Store, o Options, clock boottime.Clock) (*Session, error) {
	if !boottime.Reliable {
		return nil, invalid("this operating system offers no clock that goes on in suspend; Primacy runs on Linux and macOS")
	}
	o, err := o.fill(store.Caps())
	if err != nil {
		return nil, err
	}
	s := &Session{born: time.Now(), store: store, o: o, clock: clock, exit: exitProcess, log: newLogQueue(o.Logger),
		leases: map[*lease]struct{}{}, locals: map[seat]*localRun{}, queues: map[string]*queue{}, seats: map[string]*seats{}, shut: make(chan struct{}), grant: make(chan struct{}, 1)}
	s.history = newHistoryWriter(s)
	s.readers.closed = make(chan struct{})
	loud, quiet := termLog{s.log, slog.LevelInfo}, termLog{s.log, slog.LevelDebug}
	s.watchQueues = []observer{quiet}
	s.watchSlots = []observer{&s.stats, quiet}
	s.watchElections = []observer{&s.stats, loud, &s.tallies, s.history, &s.readers}
	s.watchEntrants = []observer{&s.stats, quiet, &s.tallies, s.history, &s.readers}
	s.grant <- struct{}{}
	return s, nil
}

// ID returns this process's identity among the candidates.
func (s *Session) ID() string { return s.o.ID }

// Election returns the election of that name. It does no I/O; a name that cannot be used is told by
// the first call.
func (s *Session) Election(name string) *Election { return &Election{s: s, name: name} }

// RWMutex returns the lock of that name. It does no I/O. A store that has no shared locks refuses
// to read, with an ErrInvalid.
func (s *Session) RWMutex(name string) *RWMutex { return &RWMutex{Mutex{s: s, name: name}} }

// Mutex returns the lock of that name; nil options are the zero value. It does no I/O; a name or an
// option that cannot be used is told by the first call.
func (s *Session) Mutex(name string, o *MutexOptions) *Mutex {
	if o == nil {
		o = &MutexOptions{}
	}
	return &Mutex{s: s, name: name, o: *o}
}

// Semaphore returns the semaphore of that name. It does no I/O. All who use it must name the same
// number of slots: the store refuses another one (ErrRefused) while somebody stands in the line.
func (s *Session) Semaphore(name string, slots int) *Semaphore { return &Semaphore{s, name, slots} }

// Elections returns a candidate for many elections; nil options are the zero value. It does no I/O.
// Close it, or the session.
func (s *Session) Elections(o *ElectionsOptions) *Elections {
	if o == nil {
		o = &ElectionsOptions{}
	}
	es := &Elections{s: s, names: map[string]stand{}, ready: make(chan struct{}, 1)}
	es.spec = claimSpec{value: o.Value, watched: s.watchEntrants}
	es.pool.limit = maxTogether
	es.ctx, es.stop = context.WithCancel(context.Background())
	return es
}

// Candidate returns a candidate for name; nil options are the zero value.
func (s *Session) Candidate(name string, o *CampaignOptions) *Candidate {
	if o == nil {
		o = &CampaignOptions{}
	}
	return &Candidate{e: s.Election(name), o: *o, subs: map[*candidateFeed]struct{}{}}
}

// Ready grants the lease if there is none, and returns nil when there is a live one. It tries until
// ctx ends; then the error is ErrUnreachable with what the store said last. An ErrRefused is
// returned at once.
func (s *Session) Ready(ctx context.Context) error {
	_, err := s.live(ctx)
	return err
}

// Run stands for name until ctx ends or the work returns, and runs work while leading: see
// [Candidate.Run].
func (s *Session) Run(ctx context.Context, name string, work func(ctx context.Context, t *Term) error) error {
	return s.Candidate(name, nil).Run(ctx, work)
}

// List returns the elections whose name begins with prefix and in whose line somebody stands,
// ordered by name. It needs no lease.
func (s *Session) List(ctx context.Context, prefix string) ([]State, error) {
	var states []State
	err := s.retry(ctx, "list "+prefix, func(ctx context.Context) error {
		lines, err := s.store.Lines(ctx, prefix)
		states = nil
		for _, l := range lines {
			states = append(states, stateOf(l))
		}
		return err
	})
	return states, err
}

// Close ends every term for ErrClosed, waits until each has been resigned (which says that its work
// has stopped), then ends the lease, so that others lead at once. Work that a candidate runs is
// waited for also when its term is over. When ctx ends before that, the lease is left to run out by
// itself in the store, so that no successor starts beside work that still runs; the error says so.
// No campaign is possible afterwards.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.shut)
	}
	leases := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	defer s.log.flush()
	defer s.readers.end()
	for _, l := range leases {
		l.end(core.Closed)
	}
	errs := make([]error, len(leases)) // each in its own time: one that cannot end must not keep another
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() { errs[i] = l.close(ctx) })
	}
	wg.Wait()
	s.history.close(ctx)
	return errors.Join(errs...)
}

// live returns the lease if it is alive, or grants one.
func (s *Session) live(ctx context.Context) (*lease, error) {
	if l, err := s.present(); l != nil || err != nil {
		return l, err // whatever ctx says: it is the caller's to ask
	}
	select {
	case <-s.grant:
		defer func() { s.grant <- struct{}{} }()
	case <-ctx.Done():
		return nil, unreachable(ctx, "wait for a lease", nil)
	}
	var last error
	for try := 1; ; try++ {
		if l, err := s.present(); l != nil || err != nil {
			return l, err
		}
		l, err := s.grantOne(ctx)
		switch {
		case err == nil && l.alive():
			return l, nil
		case err == nil: // it took so long that the lease is as good as over: not again without a pause
		case isFinal(err):
			return nil, fmt.Errorf("primacy: no lease: %w", err)
		}
		if err != nil && (last == nil || ctx.Err() == nil) {
			last = err // an error of the context itself says less than the one before
		}
		if pause(ctx, try) != nil {
			return nil, unreachable(ctx, "no lease", last)
		}
	}
}

// present returns the lease if it is alive, nil if there is none, and ErrClosed once the session is
// closed.
func (s *Session) present() (*lease, error) {
	s.mu.Lock()
	l, closed := s.lease, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("primacy: %w", ErrClosed)
	case l != nil && l.alive():
		return l, nil
	}
	return nil, nil
}

func (s *Session) grantOne(ctx context.Context) (*lease, error) {
	limit := max(s.o.timing(s.o.TTL).Attempt, 2*time.Second) // a first call may have to connect
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sent := s.uptime()
	asked := s.clock() // before the call: the lease is counted from here
	dl, err := s.store.Grant(ctx, s.o.ID, s.o.TTL)
	if err != nil {
		s.readers.event(Event{Kind: GrantFailed, Took: s.uptime() - sent, Cause: err})
		return nil, err
	}
	l := newLease(s, dl, core.NewLease(s.o.timing(dl.TTL()), asked))
	if dl.TTL() < s.o.TTL {
		go l.abandon()
		return nil, fmt.Errorf("%w: it granted a ttl of %v, less than the %v asked for", ErrRefused, dl.TTL(), s.o.TTL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go l.abandon()
		return nil, ErrClosed
	}
	s.lease = l
	s.leases[l] = struct{}{}
	s.stats.leases.Add(1)
	l.start()
	s.readers.event(Event{Kind: LeaseGranted, Lease: dl.ID(), Took: s.uptime() - sent})
	return l, nil
}

// retry repeats a call, each under the attempt limit, until it gets a final answer or ctx ends: an
// unknown outcome is not a failure, and every call on a store is safe to repeat.
func (s *Session) retry(ctx context.Context, what string, call func(context.Context) error) error {
	limit := max(s.o.timing(s.o.TTL).Attempt, time.Second)
	var last error
	for try := 1; ; try++ {
		callCtx, cancel := context.WithTimeout(ctx, limit)
		err := call(callCtx)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) {
			return err
		}
		if isFinal(err) {
			return fmt.Errorf("primacy: %s: %w", what, err)
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if pause(ctx, try) != nil {
			return unreachable(ctx, what, last)
		}
	}
}

// campaign stands in the line for one seat and returns when this process holds it.
func (s *Session) campaign(ctx context.Context, spec claimSpec) (*Term, error) {
	if ctx.Err() != nil {
		return nil, unreachableOr(ctx, "campaign for "+spec.name, nil)
	}
	leave, err := s.enterLocal(ctx, spec.seat, spec.try)
	if errors.Is(err, driver.ErrTaken) {
		return nil, err
	}
	if err != nil {
		return nil, unreachableOr(ctx, "campaign for "+spec.name, nil)
	}
	return s.campaignIn(ctx, spec, leave)
}

// campaignIn stands in the line for a seat that the caller has taken. Leave gives the seat back
// once nothing stands there any more.
func (s *Session) campaignIn(ctx context.Context, spec claimSpec, leave func()) (*Term, error) {
	for {
		l, err := s.live(ctx)
		if err != nil {
			leave()
			return nil, err
		}
		k := newCampaign(ctx, l, spec, leave)
		if !l.join(k.c) {
			_ = pause(ctx, 1) // the lease is ending: live sees it in a moment
			continue
		}
		t, err := k.run(ctx)
		if !errors.Is(err, errLeaseEnded) {
			return t, err
		}
		_ = pause(ctx, 1) // the session hears of the lease's end a moment later; live sees ctx
	}
}

// enterLocal waits until no other claim of this process stands for the seat, and returns what lets
// the next one in. With try it does not wait: ErrTaken.
func (s *Session) enterLocal(ctx context.Context, at seat, try bool) (leave func(), err error) {
	leave = sync.OnceFunc(func() { s.leaveSeat(at) })
	if try {
		if !s.takeSeat(at, nil) {
			return nil, driver.ErrTaken
		}
		return leave, nil
	}
	w := &localTurn{ready: make(chan struct{})}
	if s.takeSeat(at, w) {
		return leave, nil
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		if !s.quitSeat(at, w) {
			leave() // it has become his in this moment
		}
		return nil, context.Cause(ctx)
	}
}

// takeSeat says whether the seat is the caller's now. If not he waits for it as w, unless that is
// nil.
func (s *Session) takeSeat(at seat, w *localTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, taken := s.locals[at]
	if !taken {
		s.locals[at] = nil
		return true
	}
	if w != nil && r == nil {
		r = &localRun{}
		s.locals[at] = r
	}
	if w != nil {
		r.next = append(r.next, w)
	}
	return false
}

// quitSeat takes out one who waits. It says whether he still did.
func (s *Session) quitSeat(at seat, w *localTurn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.locals[at]
	if r == nil {
		return false
	}
	before := len(r.next)
	r.next = slices.DeleteFunc(r.next, func(o *localTurn) bool { return *o == *w })
	return len(r.next) < before
}

// leaveSeat lets the next one in.
func (s *Session) leaveSeat(at seat) {
	s.mu.Lock()
	r := s.locals[at]
	if r == nil || len(r.next) == 0 {
		delete(s.locals, at)
		s.mu.Unlock()
		return
	}
	w := r.next[0]
	r.next = slices.Delete(r.next, 0, 1)
	s.mu.Unlock()
	if w.elections != nil {
		w.elections.turn(at.name, w.stand)
		return
	}
	close(w.ready)
}

// Terms returns the terms of elections whose right is not over, in no order. Locks are not among
// them.
func (s *Session) Terms() []*Term {
	s.mu.Lock()
	leases := make([]*lease, 0, len(s.leases))
	for l := range s.leases {
		leases = append(leases, l)
	}
	s.mu.Unlock()
	var all []*Term
	for _, l := range leases {
		for _, c := range l.standing() {
			c.mu.Lock()
			t := c.term
			c.mu.Unlock()
			if t != nil && !c.lock && t.Check() == nil {
				all = append(all, t)
			}
		}
	}
	return all
}

// Names returns the names of the elections that this process stands for or leads, in no order. A
// name whose lock it wants too is not among them.
func (s *Session) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.locals))
	for at := range s.locals {
		if s.queues[at.name] == nil && at.id == "" {
			names = append(names, at.name)
		}
	}
	return names
}

// StoreName returns what kind of store the session is on, in a word: "etcd", "memory".
func (s *Session) StoreName() string {
	kind, _, _ := strings.Cut(s.store.Caps().Store, " ")
	return kind
}

// uptime is how long the session has been there, without the time that the machine slept. What
// events tell is measured by it, since the boot clock decides, and is read where nothing else
// waits.
func (s *Session) uptime() time.Duration { return time.Since(s.born) }
