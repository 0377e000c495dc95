package primacy

import (
	"bytes"
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

// Elections stands for many elections at once, ten thousand or a hundred thousand. No goroutine
// waits for a single name, and at most four calls at a time enter or release claims, many in one
// call. Only a hand-over to a named successor and [Term.Proclaim] cost a goroutine and a call for
// each term. All else is as with [Election.Campaign]: ask [Term.Check] before each act; a place
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
	names    map[string]*attempt // the present attempt of each name
	pending  int                 // how many attempts are in a pending phase
	closed   bool
	idle     chan struct{}  // closed when pending is 0; nil while nobody waits for that
	untold   []electionNews // what Terms has not yielded yet
	dropped  int            // how many of untold are terms that Terms will not yield
	ready    chan struct{}  // holds a token if untold is not empty
	tally    electionCounts
	unleased []*attempt // those in the phase wantsLease
	finding  bool       // findLeases runs
	pool     workers
}

// ElectionsOptions of elections. The zero value works.
type ElectionsOptions struct {
	Value []byte // what observers see; it is copied; Term.Proclaim replaces it
}

// electionNews is a term that was won (err is nil), a term that ended (err says why), or a name
// that was refused (t is nil).
type electionNews struct {
	t           *Term
	err         error
	noMoreTerms bool // no more will be won
}

// NotInLineError says that [Elections] does not stand for a name any more: the store refuses it,
// now and when asked again.
type NotInLineError struct {
	Name string
	Err  error
}

// Error returns one line.
func (e *NotInLineError) Error() string {
	return "primacy: campaign for " + e.Name + ": " + e.Err.Error()
}

// Unwrap returns what the store said.
func (e *NotInLineError) Unwrap() error { return e.Err }

// Stand takes places in the lines of names, in the background, and returns at once. It ignores
// names that it stands for or leads already. A name whose term has ended is none of these: the new
// claim enters the line as soon as that term is resigned. If one name cannot be used it stands for
// none: ErrInvalid. After Close, or after the session's, it returns ErrClosed.
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
		return fmt.Errorf("primacy: campaign: %w", ErrClosed)
	}
	var fresh []*attempt
	for _, name := range names {
		if es.names[name] == nil {
			fresh = append(fresh, es.beginAttemptLocked(name))
		}
	}
	es.mu.Unlock()
	for _, a := range fresh {
		es.queueUp(a)
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
		if n.noMoreTerms {
			// Shut is closed: a select on it would return at once, again and again. When the last
			// attempt is over, ready wakes us.
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

// take returns the oldest news, if there is any. Done says that there will be no more: ctx has
// ended, Close was called, or the session is closed and no attempt is left. A call wakes one reader
// only (wake), so a reader that has not taken everything wakes another one.
func (es *Elections) take(ctx context.Context) (n electionNews, done bool) {
	es.s.mu.Lock()
	closed := es.s.closed
	es.s.mu.Unlock()
	es.mu.Lock()
	defer es.mu.Unlock()
	defer func() {
		if len(es.untold) > 0 || es.closed || closed && len(es.names) == 0 {
			es.wake()
		}
	}()
	if es.closed || ctx.Err() != nil {
		return n, true
	}
	for len(es.untold) > 0 {
		n, es.untold[0] = es.untold[0], electionNews{} // so that the array does not keep the term
		es.untold = es.untold[1:]
		if n.t == nil || n.err != nil {
			return n, false
		}
		if a := entrantOf(n.t).attempt; a.phase == leads {
			es.moveLocked(a, yielded)
			return n, false
		}
		es.dropped = max(0, es.dropped-1)
	}
	return electionNews{noMoreTerms: closed}, closed && len(es.names) == 0
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
	es.untold = append(es.untold, n)
	es.wake()
}

// moveLocked sets the phase of an attempt. The caller holds mu.
func (es *Elections) moveLocked(a *attempt, to attemptPhase) {
	was := a.phase
	a.phase = to
	if to == leaves || to == attemptOver {
		es.forgetLocked(a)
	}
	if was.pending() && !to.pending() {
		if es.pending--; es.pending == 0 && es.idle != nil {
			close(es.idle)
			es.idle = nil
		}
	}
	if to == attemptOver {
		es.wake() // this may have been the last attempt
	}
}

// forgetLocked lets another attempt of the name begin. The caller holds mu.
func (es *Elections) forgetLocked(a *attempt) {
	if es.names[a.name] == a {
		delete(es.names, a.name)
	}
}

// dropLocked ends an attempt of which Terms will yield no term: it has won none, or one that was
// not yielded yet. Why is for the event CampaignEnded, if it has won none. A dropped term stays in
// untold, since to find it there is slow. Once half of untold are such, all are removed: if nobody
// iterates they would pile up. The caller holds mu, and gives up the claim if there is one.
func (es *Elections) dropLocked(a *attempt, why error) {
	won := a.phase == leads
	if a.c != nil {
		es.moveLocked(a, leaves)
	} else {
		es.moveLocked(a, attemptOver)
	}
	if !won {
		es.s.notWon(a.name, a.began, why)
		return
	}
	if es.dropped++; 2*es.dropped > len(es.untold) {
		es.untold = slices.DeleteFunc(es.untold, func(n electionNews) bool {
			return n.t != nil && n.err == nil && entrantOf(n.t).attempt.phase != leads
		})
		es.dropped = 0
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

// withdraw ends the attempt of a name. First it sets the phase under mu; who comes later finds that
// the attempt is over. So its seat is given back once:
//
//	phase before                        who gives the seat back
//	wantsSeat, waits for the seat       nobody has it: cancel takes the attempt out of the queue
//	wantsSeat, queueUp is yet to come   nobody has it: queueUp takes the attempt out of the queue
//	wantsSeat, is being given it        gotSeat
//	wantsLease                          withdraw; enter and abandon then do nothing
//	stands, leads                       the claim, when it is freed
func (es *Elections) withdraw(name string) {
	for {
		es.mu.Lock()
		a := es.names[name]
		if a == nil || a.phase == yielded {
			es.mu.Unlock()
			return
		}
		c, was := a.c, a.phase
		if c == nil {
			es.dropLocked(a, errWithdrawn)
		}
		es.mu.Unlock()
		switch {
		case was == wantsSeat:
			es.s.seats.cancel(seat{name: name}, &seatWaiter{attempt: a})
			return
		case was == wantsLease:
			es.s.seats.vacate(seat{name: name}, 0)
			return
		case c.withdraw():
			return
		}
	}
}

// withdraw gives up a claim that waits, or whose term was not yielded. It returns false if its
// attempt has come further meanwhile: then the caller looks again.
func (c *entrant) withdraw() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, es := c.attempt, c.attempt.es
	es.mu.Lock()
	drop := a.c == c && (a.phase == stands || a.phase == leads)
	if drop {
		es.dropLocked(a, errWithdrawn)
	}
	es.mu.Unlock()
	if drop {
		c.followLocked(c.stepLocked(core.ClaimEvent{Kind: core.GiveUp}))
	}
	return drop
}

// Resign resigns terms with as few calls on the store as possible. It waits as [Term.Resign] does,
// and returns the first error.
func (es *Elections) Resign(ctx context.Context, terms ...*Term) error {
	for _, t := range terms {
		if t.share.q == nil { // else it is a lock's: other terms may be under its claim
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
	es.untold, es.dropped = nil, 0
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

// beginAttemptLocked begins an attempt for a name. The caller holds mu, and calls queueUp when it
// does not hold it any more.
func (es *Elections) beginAttemptLocked(name string) *attempt {
	a := &attempt{es: es, name: name, began: es.s.uptime()}
	es.names[name] = a
	es.s.readers.publish(Event{Kind: CampaignBegun, Name: name})
	es.pending++
	return a
}

// queueUp has an attempt wait for its seat. The caller does not hold mu.
func (es *Elections) queueUp(a *attempt) {
	if _, taken, _ := es.s.seats.takeOrWait(seat{name: a.name}, 1, &seatWaiter{attempt: a}); taken {
		a.gotSeat()
		return
	}
	es.mu.Lock()
	withdrawn := a.phase == attemptOver
	es.mu.Unlock()
	if withdrawn { // Withdraw may have run before takeOrWait, and found nothing to cancel
		es.s.seats.cancel(seat{name: a.name}, &seatWaiter{attempt: a})
	}
}

// gotSeat is called when the attempt has got its seat.
func (a *attempt) gotSeat() {
	es := a.es
	es.mu.Lock()
	withdrawn := a.phase != wantsSeat
	if !withdrawn {
		es.findLeaseLocked(a)
	}
	es.mu.Unlock()
	if withdrawn {
		es.s.seats.vacate(seat{name: a.name}, 0)
	}
}

// findLeaseLocked finds a lease for an attempt that has its seat. The caller holds mu.
func (es *Elections) findLeaseLocked(a *attempt) {
	a.c = nil
	es.moveLocked(a, wantsLease)
	es.unleased = append(es.unleased, a)
	if !es.finding {
		es.finding = true
		go es.findLeases()
	}
}

// findLeases finds a lease for all attempts that wait for one.
func (es *Elections) findLeases() {
	for again := false; ; {
		if again { // no claim got in: the lease ended at once, and the next may do the same
			_ = pause(es.ctx, 1)
		}
		l, err := es.s.liveLease(es.ctx)
		es.mu.Lock()
		attempts := es.unleased
		es.unleased = nil
		if es.finding = len(attempts) > 0; !es.finding {
			es.mu.Unlock()
			return
		}
		es.mu.Unlock()
		again = true
		for _, a := range attempts {
			if err != nil {
				es.abandon(a, err)
			} else if es.enter(l, a) {
				again = false
			}
		}
	}
}

// abandon ends an attempt, since no lease can be had.
func (es *Elections) abandon(a *attempt, err error) {
	es.mu.Lock()
	waits := a.phase == wantsLease
	if waits {
		es.dropLocked(a, err)
		if !errors.Is(err, ErrClosed) && !es.closed {
			es.addNewsLocked(electionNews{err: &NotInLineError{a.name, err}})
		}
	}
	es.mu.Unlock()
	if waits {
		es.s.seats.vacate(seat{name: a.name}, 0)
	}
}

// newEntrant returns a claim whose calls the workers make.
func (es *Elections) newEntrant(l *lease, a *attempt) *entrant {
	c := &entrant{attempt: a}
	c.claim = claim{l: l, seat: seat{name: a.name}, claimSpec: &es.spec, campaignCtx: context.Background(), executor: c}
	c.step(core.ClaimEvent{Kind: core.Stand})
	return c
}

// enter makes the claim of an attempt. It returns false if the lease is ending: then the attempt
// waits for the next lease.
func (es *Elections) enter(l *lease, a *attempt) bool {
	c := es.newEntrant(l, a)
	// From the phase stands on, Withdraw ends c, for which it needs c.mu. It must not do so before
	// c has joined: c would never be forgotten.
	c.mu.Lock()
	defer c.mu.Unlock()
	es.mu.Lock()
	if a.phase != wantsLease {
		es.mu.Unlock()
		return true // withdrawn meanwhile
	}
	a.c = c
	es.moveLocked(a, stands)
	es.mu.Unlock()
	if l.join(&c.claim) {
		c.followLocked(core.ClaimOrder{Do: core.Enter})
		return true
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	es.findLeaseLocked(a) // c is dropped: neither the store nor the lease has heard of it
	return false
}

// The claim calls the following methods of its executor while it holds its lock. That comes before
// Elections.mu.

func (c *entrant) wonLocked() time.Duration {
	a, es := c.attempt, c.attempt.es
	es.mu.Lock()
	defer es.mu.Unlock()
	es.moveLocked(a, leads)
	es.addNewsLocked(electionNews{t: c.term})
	es.tally.won++
	es.logSoonLocked()
	return a.began
}

// contextEndedLocked is called when the context of a term has ended. What it does depends on the
// attempt's phase; in leaves it does nothing:
//
//	yielded  Terms yields the term again, with the error. If the user has resigned it, there is
//	         nothing to tell
//	leads    nobody knows the term from Terms, so it is resigned here. The next attempt begins,
//	         and waits until this claim gives the seat back
//
// All this runs in a step of the claim, under its lock: also queueUp for the next attempt, which
// takes the seats' lock, and after it Elections.mu if the seat is free.
func (c *entrant) contextEndedLocked(cause core.Cause) {
	a, es := c.attempt, c.attempt.es
	resigned := c.core.Phase().GivenUp()
	var next *attempt
	es.mu.Lock()
	es.tally.ended++
	es.logSoonLocked()
	switch a.phase {
	case yielded:
		es.forgetLocked(a)
		if !resigned {
			es.addNewsLocked(electionNews{t: c.term, err: c.endedErrorLocked(c.term.token, cause)})
		}
	case leads:
		es.dropLocked(a, nil)
		next = es.beginAttemptLocked(a.name)
	}
	es.mu.Unlock()
	if next == nil {
		return
	}
	es.queueUp(next)
	if !resigned { // it may be: somebody can have found the term by Session.Terms
		c.postLocked(taskResign, 0) // not here: the claim is in the middle of a step
	}
}

func (c *entrant) vacateSeatLocked() { c.attempt.es.s.seats.vacate(c.seat, 0) }

func (c *entrant) freedLocked(_ core.ClaimPhase, nextLease bool) {
	a, es := c.attempt, c.attempt.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if nextLease && a.phase == stands {
		es.findLeaseLocked(a)
		return
	}
	es.moveLocked(a, attemptOver)
}

func (c *entrant) refusedLocked(err error) {
	a, es := c.attempt, c.attempt.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if a.phase == stands {
		es.dropLocked(a, err)
		if !errors.Is(err, ErrClosed) {
			es.addNewsLocked(electionNews{err: &NotInLineError{a.name, err}})
		}
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
		n, names, leading := es.tally, len(es.names), 0
		for _, a := range es.names {
			if a.phase == leads || a.phase == yielded {
				leading++
			}
		}
		es.tally = electionCounts{}
		es.mu.Unlock()
		es.s.log.log(slog.LevelInfo, "elections", "elected", n.won, "ended", n.ended, "leading", leading,
			"waiting", names-leading, "id", es.s.o.ID)
	})
}

// Elections returns a candidate for many elections; nil options are the zero value. It does no I/O.
// Close it, or the session.
func (s *Session) Elections(o *ElectionsOptions) *Elections {
	if o == nil {
		o = &ElectionsOptions{}
	}
	es := &Elections{s: s, names: map[string]*attempt{}, ready: make(chan struct{}, 1)}
	es.spec = claimSpec{value: bytes.Clone(o.Value), observers: s.entrantObservers}
	es.pool.limit = maxTogether
	es.ctx, es.cancel = context.WithCancel(context.Background())
	return es
}
