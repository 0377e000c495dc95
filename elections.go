package primacy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// Elections stands for many elections at once, ten thousand or a hundred thousand, on a fixed
// number of goroutines: at most four calls on the store are under way, and no goroutine waits for a
// single name. All else is as with [Election.Campaign]: ask [Term.Check] before each act; a place
// that is lost is taken again at the end of the line, if need be under the next lease. It is safe
// for concurrent use.
//
// A Logger gets one line a second with figures. The lines for single terms come at Debug.
type Elections struct {
	s      *Session
	spec   claimSpec // all its claims have it; only their seats differ
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	names    map[string]attempt
	attempts uint32 // the last number of an attempt
	pending  int    // attempts whose term was not yielded, until their claims do not stand any more
	closed   bool
	idle     chan struct{}  // closed when pending is 0; nil while nobody waits for that
	news     []electionNews // what Terms has not yielded yet
	stale    int            // how many of news are of dropped claims
	ready    chan struct{}  // holds a token if news is not empty
	tally    electionCounts
	unleased []string // names that wait for a lease
	finding  bool     // findLeases runs
	pool     workers
}

// ElectionsOptions of elections. The zero value works.
type ElectionsOptions struct {
	Value []byte // what observers see; Term.Proclaim replaces it
}

// attempt is how far the process has come with a name:
//
//	Stand ──▶ waits for its seat ── turn ──▶ waits for a lease ── enter ──▶ has a claim
//	                │                            │        ▲                 │   │   │
//	                │                            │        └── lease ended ──┘   │  won
//	                │                            │                              │   ▼
//	                └────────── Withdraw ────────┴──────────▶ gone ◀────────────┘  leads
//	                                                            ▲                   │
//	                                                            └─── term ended ────┘
//
// Another claim of this process may have the seat, for example that of an earlier attempt whose
// term has ended. An attempt that is gone is not in Elections.names. If its term ended before Terms
// yielded it, the next attempt begins by itself.
type attempt struct {
	c      *entrant      // nil while it waits for its seat or for a lease
	id     uint32        // its number, while it waits for its seat: other attempts of the name may wait too
	seated bool          // it has its seat
	leads  bool          // its claim has a term
	began  time.Duration // when it began, by uptime
}

// electionNews is a term that was won, or one that ended (err), or a name that was refused (t is
// nil).
type electionNews struct {
	t    *Term
	err  error
	last bool // no more terms will be won
}

// NotInLineError says that [Elections] does not stand for a name any more: the store refuses it,
// now and when asked again.
type NotInLineError struct {
	Name string
	Err  error
}

// Error returns one line.
func (e *NotInLineError) Error() string {
	return "primacy: stand for " + e.Name + ": " + e.Err.Error()
}

// Unwrap returns what the store said.
func (e *NotInLineError) Unwrap() error { return e.Err }

// Stand takes places in the lines of names, in the background, and returns at once. It ignores
// names that it stands for or leads already. It stands again for a name whose term has ended, as
// soon as that term is resigned. If one name cannot be used it stands for none: ErrInvalid. After
// Close, or after the session's, it returns ErrClosed.
func (es *Elections) Stand(names ...string) error {
	if err := checkValue(es.spec.value); err != nil {
		return err
	}
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	es.s.mu.Lock()
	closed := es.s.closed
	es.s.mu.Unlock()
	es.mu.Lock()
	if es.closed || closed {
		es.mu.Unlock()
		return fmt.Errorf("primacy: stand: %w", ErrClosed)
	}
	var fresh []string
	first := es.attempts + 1
	for _, name := range names {
		if _, known := es.names[name]; !known {
			es.beginAttemptLocked(name)
			fresh = append(fresh, name)
		}
	}
	es.mu.Unlock()
	for i, name := range fresh {
		es.queueUp(name, first+uint32(i))
	}
	return nil
}

// Terms yields each term as it is won, with a nil error. When the context of that term has ended,
// and the term was not resigned yet, it yields it again, with the [*EndedError]: stop the work,
// resign the term, and Stand again if you like. For a name that the store refuses for good it
// yields a nil term with a [*NotInLineError].
//
// Terms are won also while nobody iterates, and are yielded later. A term that ends before that is
// never yielded: Elections resigns it and stands for its name again.
//
// It ends with ctx and with Close, and once the session is closed and all is told. Each thing is
// told once: two who iterate at the same time share them.
func (es *Elections) Terms(ctx context.Context) iter.Seq2[*Term, error] {
	return func(yield func(*Term, error) bool) {
		for {
			n, ok := es.next(ctx)
			if !ok || !yield(n.t, n.err) {
				return
			}
		}
	}
}

// next waits for news. It returns false when there will be none any more, or ctx has ended.
func (es *Elections) next(ctx context.Context) (electionNews, bool) {
	for {
		n, done := es.take(ctx)
		switch {
		case done:
			return n, false
		case n.t != nil && n.err != nil && n.t.c.givenUp():
			continue // it was resigned, so its end is no news
		case n.t != nil || n.err != nil:
			return n, true
		}
		shut := es.s.shut
		if n.last {
			shut = nil
		}
		select {
		case <-es.ready:
		case <-shut:
		case <-ctx.Done():
			return electionNews{}, false
		}
	}
}

// take returns the oldest news, if there is any, and whether there will never be more.
func (es *Elections) take(ctx context.Context) (n electionNews, done bool) {
	es.s.mu.Lock()
	last := es.s.closed
	es.s.mu.Unlock()
	es.mu.Lock()
	defer es.mu.Unlock()
	defer func() {
		if len(es.news) > 0 || es.closed || last && len(es.names) == 0 {
			es.wake() // another reader may go on
		}
	}()
	if es.closed || ctx.Err() != nil {
		return n, true
	}
	for len(es.news) > 0 {
		n, es.news[0] = es.news[0], n
		es.news = es.news[1:]
		if n.t == nil || n.err != nil {
			return n, false
		}
		if !of(n.t).dropped {
			of(n.t).yielded = true
			es.oneLessLocked()
			return n, false
		}
		es.stale = max(0, es.stale-1)
	}
	return electionNews{last: last}, last && len(es.names) == 0
}

// wake lets one reader look.
func (es *Elections) wake() {
	select {
	case es.ready <- struct{}{}:
	default:
	}
}

// addNewsLocked adds news for Terms. The caller holds mu.
func (es *Elections) addNewsLocked(n electionNews) {
	es.news = append(es.news, n)
	es.wake()
}

// dropLocked marks a claim whose term will not be yielded. The news of such claims is taken out
// once it is half of all, or it would pile up while nobody iterates. The caller holds mu.
func (es *Elections) dropLocked(c *entrant, won bool) {
	c.dropped = true
	if !won {
		return
	}
	if es.stale++; 2*es.stale > len(es.news) {
		es.news = slices.DeleteFunc(es.news, func(n electionNews) bool { return n.t != nil && n.err == nil && of(n.t).dropped })
		es.stale = 0
	}
}

// oneLessLocked counts one attempt less that Close waits for. The caller holds mu.
func (es *Elections) oneLessLocked() {
	if es.pending--; es.pending == 0 && es.idle != nil {
		close(es.idle)
		es.idle = nil
	}
}

var errWithdrawn = errors.New("withdrawn")

// Withdraw gives up places that wait, in the background. It resigns terms that were not yielded
// yet, and Terms never yields them. Terms that were yielded go on until they are resigned.
func (es *Elections) Withdraw(names ...string) {
	for _, name := range names {
		es.withdraw(name)
	}
}

func (es *Elections) withdraw(name string) {
	for {
		es.mu.Lock()
		st, known := es.names[name]
		if !known || st.c != nil && st.c.yielded {
			es.mu.Unlock()
			return
		}
		if st.c == nil {
			delete(es.names, name)
			es.oneLessLocked()
			es.s.notWon(name, st.began, errWithdrawn)
			es.wake() // this may have been the last attempt
			es.mu.Unlock()
			if st.seated {
				es.s.localLines.vacate(seat{name: name}, 0)
			} else {
				es.s.localLines.cancel(seat{name: name}, es.waiterOf(st.id)) // if it came just now, turn vacates it
			}
			return
		}
		es.mu.Unlock()
		if st.c.withdraw() {
			return
		}
	}
}

// withdraw gives up a claim that waits, or whose term was not yielded. It returns false if the name
// has another claim by now: then the caller looks again.
func (c *entrant) withdraw() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	es := c.es
	es.mu.Lock()
	st := es.names[c.name]
	mine := st.c == c
	drop := mine && !c.yielded
	if drop {
		delete(es.names, c.name)
		es.dropLocked(c, st.leads)
		if !st.leads {
			es.s.notWon(c.name, st.began, errWithdrawn)
		}
	}
	es.mu.Unlock()
	if drop {
		c.carryLocked(c.stepLocked(core.ClaimEvent{Kind: core.GiveUp}))
	}
	return mine
}

// Resign resigns terms with as few calls on the store as possible. It waits as [Term.Resign] does,
// and returns the first error.
func (es *Elections) Resign(ctx context.Context, terms ...*Term) error {
	for _, t := range terms {
		if t.share.q == nil {
			t.c.giveUp()
		}
	}
	var first error
	for _, t := range terms {
		if err := t.Resign(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Close gives up all places that wait, resigns terms that were not yielded, and returns nil when no
// claim of these stands any more. Terms that were yielded go on. When ctx ends before that, it goes
// on in the background, and the error is ErrUnreachable.
func (es *Elections) Close(ctx context.Context) error {
	es.mu.Lock()
	es.closed = true
	names := slices.Collect(maps.Keys(es.names))
	es.news, es.stale = nil, 0
	es.wake()
	es.mu.Unlock()
	es.cancel()
	es.Withdraw(names...)
	es.mu.Lock()
	if es.pending == 0 {
		es.mu.Unlock()
		return nil
	}
	if es.idle == nil {
		es.idle = make(chan struct{})
	}
	idle := es.idle
	es.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return unreachable(ctx, "close elections (it goes on in the background)", nil)
	}
}

// beginAttemptLocked begins an attempt for a name and returns its number. The caller holds mu, and
// calls queueUp after it.
func (es *Elections) beginAttemptLocked(name string) uint32 {
	es.attempts++
	es.names[name] = attempt{id: es.attempts, began: es.s.uptime()}
	es.s.readers.event(Event{Kind: CampaignBegun, Name: name})
	es.pending++
	return es.attempts
}

// waiterOf returns what waits for the seat of an attempt.
func (es *Elections) waiterOf(id uint32) *seatWaiter { return &seatWaiter{elections: es, attempt: id} }

// queueUp has an attempt wait for its seat. The caller does not hold mu.
func (es *Elections) queueUp(name string, id uint32) {
	if _, taken, _ := es.s.localLines.takeOrWait(seat{name: name}, 1, es.waiterOf(id)); taken {
		es.turn(name, id)
		return
	}
	es.mu.Lock()
	waits := es.names[name].id == id
	es.mu.Unlock()
	if !waits { // it was withdrawn before it waited here
		es.s.localLines.cancel(seat{name: name}, es.waiterOf(id))
	}
}

// turn is called when an attempt has got its seat.
func (es *Elections) turn(name string, id uint32) {
	es.mu.Lock()
	st, known := es.names[name]
	if !known || st.seated || st.c != nil || st.id != id {
		es.mu.Unlock()
		es.s.localLines.vacate(seat{name: name}, 0) // it was withdrawn meanwhile
		return
	}
	es.names[name] = attempt{seated: true, began: st.began}
	es.findLeaseLocked(name)
	es.mu.Unlock()
}

// findLeaseLocked finds a lease for the attempt of a name. The caller holds mu.
func (es *Elections) findLeaseLocked(name string) {
	es.unleased = append(es.unleased, name)
	if !es.finding {
		es.finding = true
		go es.findLeases()
	}
}

// findLeases finds a lease for all attempts that wait for one.
func (es *Elections) findLeases() {
	for try := 0; ; try++ {
		_ = pause(es.ctx, min(try, 1)) // live sees a lease that is ending in a moment
		l, err := es.s.live(es.ctx)
		es.mu.Lock()
		names := es.unleased
		es.unleased = nil
		if es.finding = len(names) > 0; !es.finding {
			es.mu.Unlock()
			return
		}
		es.mu.Unlock()
		for _, name := range names {
			if err != nil {
				es.abandon(name, err)
			} else if es.enter(l, name) {
				try = -1
			}
		}
	}
}

// abandon ends the attempt of a name, since no lease can be had.
func (es *Elections) abandon(name string, err error) {
	es.mu.Lock()
	st := es.names[name]
	waits := st.seated && st.c == nil
	if waits {
		delete(es.names, name)
		es.oneLessLocked()
		es.s.notWon(name, st.began, err)
		if !errors.Is(err, ErrClosed) && !es.closed {
			es.addNewsLocked(electionNews{err: &NotInLineError{name, err}})
		} else {
			es.wake() // this may have been the last attempt
		}
	}
	es.mu.Unlock()
	if waits {
		es.s.localLines.vacate(seat{name: name}, 0)
	}
}

// newEntrant returns a claim whose calls the workers make.
func (es *Elections) newEntrant(l *lease, name string) *entrant {
	c := &entrant{es: es, claim: claim{l: l, seat: seat{name: name}, claimSpec: &es.spec, values: context.Background()}}
	c.executor = c
	c.step(core.ClaimEvent{Kind: core.Stand})
	return c
}

// enter makes the claim of an attempt. It returns false if the lease is ending: then the attempt
// waits for the next lease.
func (es *Elections) enter(l *lease, name string) bool {
	c := es.newEntrant(l, name)
	c.mu.Lock() // until it has joined: a claim withdrawn before that would stay with the lease for ever
	defer c.mu.Unlock()
	es.mu.Lock()
	st := es.names[name]
	if !st.seated || st.c != nil {
		es.mu.Unlock()
		return true // withdrawn meanwhile
	}
	es.names[name] = attempt{c: c, seated: true, began: st.began}
	es.mu.Unlock()
	if l.join(&c.claim) {
		c.carryLocked(core.ClaimOrder{Do: core.Enter})
		return true
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	es.names[name] = attempt{seated: true, began: st.began}
	es.findLeaseLocked(name)
	return false
}

func (c *entrant) wonLocked() time.Duration {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	began := es.names[c.name].began
	es.names[c.name] = attempt{c: c, seated: true, leads: true, began: began}
	es.addNewsLocked(electionNews{t: c.term})
	es.tally.won++
	es.logSoonLocked()
	return began
}

// endedLocked reports the end of a term that was yielded. A term that was not yielded is resigned
// here, unless somebody found it by Session.Terms and resigned it, and the next attempt begins. The
// caller holds the claim's lock, which comes before Elections.mu.
func (c *entrant) endedLocked(cause core.Cause) {
	es := c.es
	resigned := c.core.Phase() > core.Stopping
	es.mu.Lock()
	es.tally.ended++
	es.logSoonLocked()
	if es.names[c.name].c == c {
		delete(es.names, c.name)
	}
	var id uint32
	notYielded := !c.yielded && !c.dropped
	switch {
	case c.yielded && !resigned:
		es.addNewsLocked(electionNews{t: c.term, err: c.endedErrorLocked(c.term.token, cause)})
	case notYielded:
		es.dropLocked(c, true)
		id = es.beginAttemptLocked(c.name)
	}
	es.mu.Unlock()
	if notYielded {
		es.queueUp(c.name, id)
	}
	if notYielded && !resigned {
		es.postLocked(c, core.Nothing, 0) // a worker resigns it: no work runs under it
	}
}

func (c *entrant) vacateSeatLocked() { c.es.s.localLines.vacate(c.seat, 0) }

func (c *entrant) freedLocked(_ core.ClaimPhase, again bool) {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if again && es.names[c.name].c == c {
		es.names[c.name] = attempt{seated: true, began: es.names[c.name].began}
		es.findLeaseLocked(c.name)
		return
	}
	if es.names[c.name].c == c && !c.yielded {
		delete(es.names, c.name)
	}
	if !c.yielded {
		es.oneLessLocked()
	}
	es.wake() // this may have been the last attempt
}

func (c *entrant) refusedLocked(err error) {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if st := es.names[c.name]; st.c == c {
		delete(es.names, c.name)
		es.s.notWon(c.name, st.began, err)
		es.addNewsLocked(electionNews{err: &NotInLineError{c.name, err}})
	}
}

// electionCounts is what the next line of the log tells.
type electionCounts struct {
	won, ended int
	due        bool
}

// logSoonLocked logs one line for all that happens within a second. The caller holds mu.
func (es *Elections) logSoonLocked() {
	if es.tally.due || es.s.log.logger == nil {
		return
	}
	es.tally.due = true
	time.AfterFunc(time.Second, func() {
		es.mu.Lock()
		n, names, leads := es.tally, len(es.names), 0
		for _, st := range es.names {
			if st.leads {
				leads++
			}
		}
		es.tally = electionCounts{}
		es.mu.Unlock()
		es.s.log.log(slog.LevelInfo, "elections", "elected", n.won, "ended", n.ended, "leading", leads, "waiting", names-leads, "id", es.s.o.ID)
	})
}

// Elections returns a candidate for many elections; nil options are the zero value. It does no I/O.
// Close it, or the session.
func (s *Session) Elections(o *ElectionsOptions) *Elections {
	if o == nil {
		o = &ElectionsOptions{}
	}
	es := &Elections{s: s, names: map[string]attempt{}, ready: make(chan struct{}, 1)}
	es.spec = claimSpec{value: o.Value, watched: s.watchEntrants}
	es.pool.limit = maxTogether
	es.ctx, es.cancel = context.WithCancel(context.Background())
	return es
}
