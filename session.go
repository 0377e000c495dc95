package primacy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/core"
	pauses "github.com/primacy-go/primacy/pause"
)

// Session keeps a lease alive in a store, for all elections of this process: one heartbeat serves
// them all. When the lease is lost every term under it ends, and the next campaign gets a new
// lease. It is safe for concurrent use.
type Session struct {
	uptimeClock
	retrier
	store   driver.Store
	o       Options
	clock   boottime.Clock // of deadlines
	log     *logQueue
	exit    func(code int) // os.Exit
	givenID bool           // Options gave the ID; one that the library has made is nobody else's
	stats   counters
	readers eventReaders
	tallies tallies
	outages outages
	pauses  *pauses.Reader
	// The seats that claims of this process have, and what Restate and Proclaim have set.
	seats     seatTable
	announced announcementTable

	// The observers of each kind of claim. Entrants are the claims of an Elections.
	lockObservers, semaphoreObservers, electionObservers, entrantObservers []observer
	history                                                                *historyWriter

	mu     sync.Mutex
	lease  *lease              // the present one; nil before the first
	leases map[*lease]struct{} // those that are not over, and those under which work still runs
	queues map[string]*queue   // locks that this process holds or waits for
	closed bool
	shut   chan struct{} // closed when closed is set
	// The leases of other processes with this session's ID that were reported last.
	duplicates []string
	sampling   bool          // a look for duplicates on behalf of an Elections is due
	mayGrant   chan struct{} // holds one element: whoever has taken it may grant
}

// NewSession returns a session on store; nil options are the zero value. It does no I/O: the lease
// is granted when it is first needed. Options that the store cannot honour, or whose relations
// cannot work, are an ErrInvalid. The store stays the caller's to close, after the session.
func NewSession(store driver.Store, o *Options) (*Session, error) {
	if o == nil {
		o = &Options{}
	}
	return newSession(store, *o, clockFor(store))
}

// clockFor returns the clock of deadlines. It is the boot clock, unless the store's leases end by
// Go's timers, as memstore's do: then it is Go's clock, so that both stand still in suspend, and
// both obey testing/synctest.
func clockFor(store driver.Store) boottime.Clock {
	if !store.Caps().ProcessClock {
		return boottime.Now
	}
	began, at := time.Now(), boottime.Now()
	return func() time.Duration { return at + time.Since(began) }
}

func newSession(store driver.Store, o Options, clock boottime.Clock) (*Session, error) {
	if !boottime.Reliable {
		return nil, invalid("this operating system offers no clock that goes on in suspend; " +
			"Primacy runs on Linux and macOS")
	}
	givenID := o.ID != ""
	o, err := o.fill(store.Caps())
	if err != nil {
		return nil, err
	}
	s := &Session{
		givenID:     givenID,
		uptimeClock: uptimeClock{time.Now()},
		retrier:     retrier{max(o.timing(o.TTL).Attempt, time.Second)},
		store:       store, o: o, clock: clock, exit: exitProcess, log: newLogQueue(o.Logger),
		seats:     seatTable{taken: map[seat]takenSeat{}},
		announced: announcementTable{byName: map[string]*announcements{}},
		leases:    map[*lease]struct{}{}, queues: map[string]*queue{},
		shut: make(chan struct{}), mayGrant: make(chan struct{}, 1),
	}
	s.seats.shut = s.shut
	s.history = newHistoryWriter(s)
	s.pauses = pauses.NewReader(store, s.callLimit)
	s.readers.closed = make(chan struct{})
	info, debug := termLog{s.log, slog.LevelInfo}, termLog{s.log, slog.LevelDebug}
	s.lockObservers = []observer{debug}
	s.semaphoreObservers = []observer{&s.stats, debug}
	s.electionObservers = []observer{&s.stats, info, &s.tallies, campaignHistory{s.history}, &s.readers}
	s.entrantObservers = []observer{&s.stats, debug, &s.tallies, s.history, &s.readers}
	s.mayGrant <- struct{}{}
	return s, nil
}

// ID returns this process's identity among the candidates.
func (s *Session) ID() string { return s.o.ID }

// Ready grants the lease if there is none, and returns nil when there is a live one. It tries until
// ctx ends; then the error is ErrUnreachable with what the store said last. An ErrRefused is
// returned at once.
func (s *Session) Ready(ctx context.Context) error {
	_, err := s.liveLease(ctx)
	return err
}

// Close ends every term for ErrClosed. It waits until each has been resigned, and until the work
// that candidates run has returned. Then it ends the lease, so that others lead at once. When ctx
// ends before that, the lease is left to run out by itself in the store, so that no successor
// starts beside work that still runs; the error says so. No campaign is possible afterwards, and
// places that wait are given up at once. Work that calls Close waits for itself, until ctx ends.
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
		l.end(core.Closed) // the terms' contexts end; grantOne sees closed, and adds no lease any more
	}
	errs := make([]error, len(leases)) // all at the same time: one that cannot end must not hold up another
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() { errs[i] = l.close(ctx) }) // when the terms have been resigned
	}
	wg.Wait()
	s.history.close(ctx)
	return errors.Join(errs...)
}

// Unrecorded yields the records of history that Close could not write, each with the name of its
// journal. Whoever reaches the store later appends them, as those of [RecordDeath]. Call it after
// Close.
func (s *Session) Unrecorded() iter.Seq2[string, driver.Record] {
	return func(yield func(string, driver.Record) bool) {
		// The claims come before the writer: if a claim ends in between, its record moves to the
		// writer, and is yielded twice. Appending it twice does no harm.
		for _, c := range s.standingClaims() {
			if journal, r, ok := c.recordInFlight(); ok && !yield(journal, r) {
				return
			}
		}
		s.history.unrecorded(yield)
	}
}

// liveLease returns the lease if it is alive, or grants one.
func (s *Session) liveLease(ctx context.Context) (*lease, error) {
	if l, err := s.presentLease(); l != nil || err != nil {
		return l, err // also if ctx has ended
	}
	select {
	case <-s.mayGrant:
		defer func() { s.mayGrant <- struct{}{} }()
	case <-ctx.Done():
		return nil, unreachable(ctx, "wait for a lease", nil)
	}
	var last error
	for try := 1; ; try++ {
		if l, err := s.presentLease(); l != nil || err != nil {
			return l, err
		}
		l, err := s.grantOne(ctx)
		switch {
		case err == nil && l.alive():
			return l, nil
		case err == nil: // the grant took so long that the lease is ending already
		case isRefusal(err):
			return nil, fmt.Errorf("primacy: no lease: %w", err)
		}
		if err != nil && (last == nil || ctx.Err() == nil) {
			last = err // once ctx has ended err says only that
		}
		if pause(ctx, try) != nil {
			return nil, unreachable(ctx, "no lease", last)
		}
	}
}

// presentLease returns the lease if it is alive, nil if there is none, and ErrClosed once the
// session is closed.
func (s *Session) presentLease() (*lease, error) {
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

func (s *Session) grantOne(parent context.Context) (*lease, error) {
	limit := max(s.o.timing(s.o.TTL).Attempt, 2*time.Second) // a first call may have to connect
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()
	sent := s.uptime()
	asked := s.clock() // before the call: the lease is counted from here
	stored, err := s.store.Grant(ctx, s.o.ID, s.o.TTL)
	took := s.uptime() - sent
	if err == nil || parent.Err() == nil { // else the caller gave up, which says nothing of the store
		s.outages.answered(s.clock(), s.o.TTL, limit, took, err)
	}
	if err != nil {
		s.readers.publish(Event{Kind: GrantFailed, Took: took, Cause: err})
		return nil, err
	}
	l := newLease(s, stored, asked)
	if stored.TTL() < s.o.TTL {
		go l.abandon()
		return nil, fmt.Errorf("%w: it granted a ttl of %v, less than the %v asked for",
			ErrRefused, stored.TTL(), s.o.TTL)
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
	l.start() // under mu: the only lock that it takes is logQueue.mu
	s.readers.publish(Event{Kind: LeaseGranted, Lease: stored.ID(), Took: took})
	return l, nil
}

// Terms returns the terms of elections that have begun and whose right is not over, in no order.
// Locks are not among them.
func (s *Session) Terms() []*Term {
	var all []*Term
	for _, c := range s.standingClaims() {
		c.mu.Lock()
		t, begun := c.term, !c.lock && (c.termState == nil || !c.untold)
		c.mu.Unlock()
		if t != nil && begun && t.Check() == nil {
			all = append(all, t)
		}
	}
	return all
}

// standingClaims returns the claims under all leases.
func (s *Session) standingClaims() (all []*claim) {
	s.mu.Lock()
	leases := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	for _, l := range leases {
		all = append(all, l.standingClaims()...)
	}
	return all
}

// showAt brings the last announcement to the store for the claims with that seat.
func (s *Session) showAt(at seat) {
	s.mu.Lock()
	leases := slices.Collect(maps.Keys(s.leases))
	s.mu.Unlock()
	for _, l := range leases {
		l.mu.Lock()
		c := l.claims[at]
		l.mu.Unlock()
		if c != nil {
			c.mu.Lock()
			announcer{c}.showLocked()
			c.mu.Unlock()
		}
	}
}

// Names returns the names of the elections that this process stands for or leads, in no order.
// Locks are not among them, and what this process stands for while it holds the lock of that name.
func (s *Session) Names() []string {
	s.seats.mu.Lock()
	defer s.seats.mu.Unlock()
	names := make([]string, 0, len(s.seats.taken))
	for at, by := range s.seats.taken {
		if at.label == "" && !by.lock {
			names = append(names, at.name)
		}
	}
	return names
}

// Store returns the store that the session is on. Claims that are made on it directly are no part
// of the session.
func (s *Session) Store() driver.Store { return s.store }

// StoreName returns what kind of store the session is on, in a word: "etcd", "memory".
func (s *Session) StoreName() string {
	kind, _, _ := strings.Cut(s.store.Caps().Store, " ")
	return kind
}

// Events yields what happens to this session from now on, in order. A reader that is slow loses the
// oldest events, counted in Missed, and holds up nothing; what must be exact is in [Session.Stats]
// and [Session.Tallies]. It ends when ctx ends, or after Close once all events are yielded; range
// over it once. Nothing here says who leads at this instant: that is [Term.Check].
func (s *Session) Events(ctx context.Context) iter.Seq[Event] {
	f := newFeed[Event](eventsSize)
	s.readers.join(f) // now: events that come before the first iteration are yielded too
	stop := context.AfterFunc(ctx, func() { s.readers.quit(f) })
	return func(yield func(Event) bool) {
		defer s.readers.quit(f)
		defer stop() // ctx may live for long, and would keep f
		for {
			ev, missed, ok := f.next(ctx, s.readers.closed)
			if ev.Missed = missed; !ok || !yield(ev) {
				return
			}
		}
	}
}

// Stats returns what has been counted so far.
func (s *Session) Stats() Stats {
	n, late := &s.stats, s.stats.late.Load() // one reading for both, so that Misses less Late never shrinks
	return Stats{n.leases.Load(), n.renewals.Load(), n.otherMisses.Load() + late, late, n.terms.Load(),
		n.overruns.Load(), n.unreadable.Load()}
}

// Tallies returns the counts of all elections that this session has led, ordered by name.
func (s *Session) Tallies() []Tally {
	s.tallies.mu.Lock()
	defer s.tallies.mu.Unlock()
	all := make([]Tally, 0, len(s.tallies.byName))
	for name, n := range s.tallies.byName {
		t := Tally{Name: name, Elected: n.elected, Ended: map[Reason]uint64{}}
		for i, r := range countedReasons {
			if n.ended[i] > 0 {
				t.Ended[r] = n.ended[i]
			}
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Tally) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// notWon publishes that a campaign ended without a term.
func (s *Session) notWon(name string, began time.Duration, why error) {
	if s.readers.any() {
		s.readers.publish(Event{Kind: CampaignEnded, Name: name, Took: s.uptime() - began, Cause: why})
	}
}

// checkReentry refuses to let a caller wait for itself: ctx may be the context of a term that holds
// the name already. One caller may hold several slots of a semaphore; if it holds all, one more
// would wait for itself.
func (s *Session) checkReentry(ctx context.Context, name string, slots int) error {
	h, _ := ctx.Value(heldKey{}).(*heldTerms)
	for held := 0; h != nil; h = h.outer {
		t := h.t
		if t.c.l.s != s || t.c.name != name || t.rightEnded.Load() != nil {
			continue
		}
		if slots > 0 && t.c.slots > 0 { // both of a semaphore: 0 is a writer, driver.Unlimited (-1) a reader
			if held++; held < slots {
				continue
			}
		}
		err := ErrReentrant
		if t.c.slots == driver.Unlimited && slots == 0 {
			err = ErrUpgrade
		}
		return fmt.Errorf("primacy: lock %s: %w, under token %d", name, err, t.token)
	}
	return nil
}

// duplicateAge is how long a claim has stood when other claims of its ID are looked for. By then
// this process's earlier leases have run out. So has the lease of a process that crashed and was
// started again under its ID and TTL. Another claim of the same ID is then another process's.
func duplicateAge(l *lease) time.Duration { return l.timing.TTL * 3 / 2 }

// lookForDuplicates reads the line of a name once, duplicateAge from now, and reports other
// processes that stand there under this session's ID. Of two such processes the one that came later
// always sees the other one. Stop calls the look off, as a campaign does when it ends; done, if not
// nil, is called after the look.
func (s *Session) lookForDuplicates(l *lease, name string, lock bool, done func()) (stop func() bool) {
	return time.AfterFunc(duplicateAge(l), func() {
		if done != nil {
			defer done()
		}
		ctx, cancel := context.WithTimeout(l.ctx, l.timing.TTL)
		defer cancel()
		_ = s.retry(ctx, "read "+name, func(ctx context.Context) error { // it is only a hint
			line, err := s.store.Line(ctx, name)
			if err != nil {
				return err
			}
			if line.Holder != nil {
				s.reportDuplicate(name, lock, *line.Holder)
			}
			for _, e := range line.Waiters {
				s.reportDuplicate(name, lock, e)
			}
			return nil
		})
	}).Stop
}

// sampleForDuplicates is lookForDuplicates for an Elections, which would read ten thousand lines:
// it looks at one of them at a time.
func (s *Session) sampleForDuplicates(l *lease, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.givenID || s.sampling {
		return
	}
	s.sampling = true
	s.lookForDuplicates(l, name, false, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sampling = false
	})
}

// maxDuplicates is how many leases of other processes are remembered as reported.
const maxDuplicates = 16

// reportDuplicate reports another process, by the log and an event, if e is its claim and has this
// session's ID. It does so once for each lease.
func (s *Session) reportDuplicate(name string, lock bool, e driver.Entry) {
	if e.Owner != s.o.ID || e.Lease == "" || !s.isNewDuplicate(e.Lease) {
		return
	}
	value := strings.ToValidUTF8(string(e.Value), "?")
	s.log.log(slog.LevelWarn, "another process has this ID: give each its own or leave Options.ID empty",
		"election", name, "id", e.Owner, "its lease", e.Lease, "its value", value)
	s.readers.publish(Event{Kind: DuplicateID, Name: name, Lock: lock, Lease: e.Lease, Text: value})
}

// isNewDuplicate notes that the process with that lease is reported. It returns false if it was
// reported before, or if the lease is this session's own.
func (s *Session) isNewDuplicate(lease string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.leases {
		if l.stored.ID() == lease {
			return false
		}
	}
	if slices.Contains(s.duplicates, lease) {
		return false
	}
	s.duplicates = append(s.duplicates[max(0, len(s.duplicates)+1-maxDuplicates):], lease)
	return true
}
