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
// number of goroutines: at most four calls on the store are under way, and nobody waits on a
// goroutine of his own. All else is as with [Election.Campaign]: who leads asks [Term.Check], a
// place that is lost is taken again at the end of the line, with a lost lease under the next one,
// and nothing is left behind. It is safe for concurrent use.
//
// Where there is a Logger, it gets one line a second with figures instead of one for each term;
// those come at Debug.
type Elections struct {
	s    *Session
	spec claimSpec // of all its claims, but for their seats
	ctx  context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	names    map[string]stand
	stands   uint32 // the last number of a stand
	open     int    // names that wait or whose term was not yielded, and claims that are given up
	closed   bool
	idle     chan struct{}  // closed when open is 0; nil while nobody waits for that
	news     []electionNews // not yielded yet
	stale    int            // how many of them are of dropped claims
	ready    chan struct{}  // holds a token if news is not empty
	tally    electionCounts
	unleased []string // names for which a lease is looked for
	finding  bool     // findLeases runs
	pool     workers
}

// ElectionsOptions of elections. The zero value works.
type ElectionsOptions struct {
	Value []byte // what observers see; Term.Proclaim replaces it
}

// stand is how far the process has come with a name. With c the claim stands in the line or leads.
// Without c the name waits for its seat in this process, or with seated for a lease.
type stand struct {
	c      *entrant
	id     uint32 // while it is not seated: an earlier stand of the name may be leaving
	seated bool   // no other claim of this process has the seat
	leads  bool
	began  time.Duration // by uptime, to stand
}

// electionNews is a term that was won, or one that ended, or with t nil a name that was refused.
type electionNews struct {
	t    *Term
	err  error
	last bool // no more terms will be won
}

// NotInLineError says that the store will not have a name, now or when asked again, so that
// [Elections] stands for it no more.
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

// Stand takes places in the lines of names, in the background, and returns at once. A name that it
// stands for or leads already is no error and nothing happens to it; one whose term has ended is
// stood for again, as soon as that was resigned. A name that cannot be used is ErrInvalid, and then
// none of them is stood for; after Close, or the session's, it is ErrClosed.
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
	first := es.stands + 1
	for _, name := range names {
		if _, known := es.names[name]; !known {
			es.standAnewLocked(name)
			fresh = append(fresh, name)
		}
	}
	es.mu.Unlock()
	for i, name := range fresh {
		es.queueUp(name, first+uint32(i))
	}
	return nil
}

// Terms yields each term as it is won, with a nil error. It yields the term again, with the
// [*EndedError], when its context has ended and it was not resigned yet: stop the work, resign it,
// and Stand again if you like. A name that the store refuses for good is a nil term with a
// [*NotInLineError]. Terms are won while nobody iterates, too: they wait, and none is lost; one
// that ends before it was yielded is not, and its name is stood for again.
//
// It ends with ctx and with Close, and once the session is closed and nothing is left to tell. Each
// thing is told once: two who iterate at the same time share them.
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
			continue // its owner knows
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
			es.wake() // another reader
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
			es.closeOneLocked()
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

// dropLocked marks a claim whose term will not be yielded. Its news is taken out once half of all
// are such, or they would pile up while nobody iterates. The caller holds mu.
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

// closeOneLocked counts one name or claim less that Close waits for. The caller holds mu.
func (es *Elections) closeOneLocked() {
	if es.open--; es.open == 0 && es.idle != nil {
		close(es.idle)
		es.idle = nil
	}
}

var errWithdrawn = errors.New("withdrawn")

// Withdraw gives up places that wait, in the background. Terms that were yielded stay until they
// are resigned; one that was not is resigned, and is yielded no more.
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
			es.closeOneLocked()
			es.s.notWon(name, st.began, errWithdrawn)
			es.wake() // there may be nothing left to tell
			es.mu.Unlock()
			if st.seated {
				es.s.locals.leave(seat{name: name}, 0)
			} else {
				es.s.locals.quit(seat{name: name}, es.waiterOf(st.id)) // if it came in this moment, turn leaves it
			}
			return
		}
		es.mu.Unlock()
		if st.c.withdraw() {
			return
		}
	}
}

// withdraw gives up a claim whose term was not yielded, also one that waits still. It returns false
// if the name stands with another claim by now: then the caller looks again.
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

// Resign resigns terms, as [Term.Resign] does for one, with as few calls on the store as possible.
// It returns the first error.
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

// Close gives up all that waits and resigns terms that were not yielded, and returns nil when
// nothing of them stands any more. Terms that were yielded stay. When ctx ends before that, it goes
// on in the background, and the error is ErrUnreachable.
func (es *Elections) Close(ctx context.Context) error {
	es.mu.Lock()
	es.closed = true
	names := slices.Collect(maps.Keys(es.names))
	es.news, es.stale = nil, 0
	es.wake()
	es.mu.Unlock()
	es.stop()
	es.Withdraw(names...)
	es.mu.Lock()
	if es.open == 0 {
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

// standAnewLocked has a name stand anew, and returns the number of this stand: the caller has
// queueUp wait for the seat, without mu. The caller holds mu.
func (es *Elections) standAnewLocked(name string) uint32 {
	es.stands++
	es.names[name] = stand{id: es.stands, began: es.s.uptime()}
	es.s.readers.event(Event{Kind: CampaignBegun, Name: name})
	es.open++
	return es.stands
}

// waiterOf returns what stands in the process's own line for a stand.
func (es *Elections) waiterOf(id uint32) *localTurn { return &localTurn{caller: es, stand: id} }

// queueUp waits for the seat of a name among this process's own claims.
func (es *Elections) queueUp(name string, id uint32) {
	if _, taken, _ := es.s.locals.take(seat{name: name}, 1, es.waiterOf(id)); taken {
		es.turn(name, id)
		return
	}
	es.mu.Lock()
	waits := es.names[name].id == id
	es.mu.Unlock()
	if !waits { // it was withdrawn before it waited here
		es.s.locals.quit(seat{name: name}, es.waiterOf(id))
	}
}

// turn is called when a stand has got the seat of its name.
func (es *Elections) turn(name string, id uint32) {
	es.mu.Lock()
	st, known := es.names[name]
	if !known || st.seated || st.c != nil || st.id != id {
		es.mu.Unlock()
		es.s.locals.leave(seat{name: name}, 0) // it was withdrawn meanwhile
		return
	}
	es.names[name] = stand{seated: true, began: st.began}
	es.findLeaseLocked(name)
	es.mu.Unlock()
}

// findLeaseLocked has a name stand under the present lease, or the next one. The caller holds mu.
func (es *Elections) findLeaseLocked(name string) {
	es.unleased = append(es.unleased, name)
	if !es.finding {
		es.finding = true
		go es.findLeases()
	}
}

// findLeases finds a lease for all names that have none.
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

// abandon ends the stand of a name for which no lease can be had.
func (es *Elections) abandon(name string, err error) {
	es.mu.Lock()
	st := es.names[name]
	waits := st.seated && st.c == nil
	if waits {
		delete(es.names, name)
		es.closeOneLocked()
		es.s.notWon(name, st.began, err)
		if !errors.Is(err, ErrClosed) && !es.closed {
			es.addNewsLocked(electionNews{err: &NotInLineError{name, err}})
		} else {
			es.wake() // there may be nothing left to tell
		}
	}
	es.mu.Unlock()
	if waits {
		es.s.locals.leave(seat{name: name}, 0)
	}
}

// newEntrant returns a claim that the workers carry out.
func (es *Elections) newEntrant(l *lease, name string) *entrant {
	c := &entrant{es: es, claim: claim{l: l, seat: seat{name: name}, claimSpec: &es.spec, values: context.Background()}}
	c.owner = c
	c.step(core.ClaimEvent{Kind: core.Stand})
	return c
}

// enter makes the claim of a name. It returns false if the lease is ending: then the name waits for
// the next one.
func (es *Elections) enter(l *lease, name string) bool {
	c := es.newEntrant(l, name)
	c.mu.Lock() // till it has joined: one that was withdrawn before would stay with the lease for ever
	defer c.mu.Unlock()
	es.mu.Lock()
	st := es.names[name]
	if !st.seated || st.c != nil {
		es.mu.Unlock()
		return true // withdrawn meanwhile
	}
	es.names[name] = stand{c: c, seated: true, began: st.began}
	es.mu.Unlock()
	if l.join(&c.claim) {
		c.carryLocked(core.ClaimOrder{Do: core.Enter})
		return true
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	es.names[name] = stand{seated: true, began: st.began}
	es.findLeaseLocked(name)
	return false
}

func (c *entrant) wonLocked() time.Duration {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	began := es.names[c.name].began
	es.names[c.name] = stand{c: c, seated: true, leads: true, began: began}
	es.addNewsLocked(electionNews{t: c.term})
	es.tally.won++
	es.logSoonLocked()
	return began
}

// endedLocked reports the end of a term that was yielded. A term that was not yielded never will
// be: its claim is resigned here, unless somebody has done so (see Session.Terms), and the name is
// stood for again behind it. The caller holds the claim's lock, which comes before Elections.mu.
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
		id = es.standAnewLocked(c.name)
	}
	es.mu.Unlock()
	if notYielded {
		es.queueUp(c.name, id)
	}
	if notYielded && !resigned {
		es.postLocked(c, core.Nothing, 0) // nobody works under it: it is resigned
	}
}

func (c *entrant) leaveSeatLocked() { c.es.s.locals.leave(c.seat, 0) }

func (c *entrant) freedLocked(_ core.ClaimPhase, again bool) {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if again && es.names[c.name].c == c {
		es.names[c.name] = stand{seated: true, began: es.names[c.name].began}
		es.findLeaseLocked(c.name)
		return
	}
	if es.names[c.name].c == c && !c.yielded {
		delete(es.names, c.name)
	}
	if !c.yielded {
		es.closeOneLocked()
	}
	es.wake() // there may be nothing left to tell
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

// logSoonLocked has one line logged for all that happens within a second. The caller holds mu.
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
	es := &Elections{s: s, names: map[string]stand{}, ready: make(chan struct{}, 1)}
	es.spec = claimSpec{value: o.Value, watched: s.watchEntrants}
	es.pool.limit = maxTogether
	es.ctx, es.stop = context.WithCancel(context.Background())
	return es
}
