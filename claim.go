package primacy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// claim carries out what core.Claim orders, for one claim under one lease. Calls on the store that the owner waits for run on
// the owner's goroutine; what happens meanwhile arrives through tell, interrupts the call and leaves the next order in next.
type claim struct {
	l *lease
	seat
	*claimSpec        // shared by all claims of an Elections
	leave      func() // lets the next claim of this process stand for the seat; nil: Session.leaveSeat

	mu        sync.Mutex
	free      chan struct{} // closed when nothing of this claim stands any more; made when somebody waits for that
	quiet     chan struct{} // closed when, besides, no work of a candidate runs under it; likewise
	core      core.Claim
	place     driver.Place
	interrupt context.CancelFunc // of the call under way
	next      *core.ClaimOrder   // set by tell during a call
	term      *Term
	values    context.Context // of the campaign, for the term's context
	freed     bool            // free is closed
	job       manyJob
	*claimRest
}

// claimRest is what a claim that waits among many others does without, until something happens to it: see unfold.
type claimRest struct {
	shares   []*Term // of those in this process who hold a lock under this claim
	request  *driver.Request
	why      error         // the cause of the owner's own context, where that ended the term
	working  int           // how much work of a candidate or a lock's Do runs under the claim
	last     error         // what the store said to the last call that failed
	refusal  error         // what the store said when it refused to tell of the place
	won      time.Time     // by the wall clock
	stopping time.Duration // by uptime, since when the context has ended
	over     bool          // the right is, and was told so
	ledTo    time.Time     // by the wall clock, when it ended
	words    string        // of the owner, why it ended
	failed   bool          // the work has
	to       string        // whom it is handed over to
	said     []byte        // the value proclaimed last
	noted    bool          // its beginning was recorded, or may be
	tale     driver.Record // its end
	carried  bool          // by the call that gives the place up
	filed    bool          // the scribe has it, or nobody needs it
	wishes   []wish        // to hand over, not looked at yet
	weighing bool          // somebody looks at them
}

// seat is what a lease has at most one claim for.
type seat struct{ name, no string }

// claimSpec is what a claim is for.
type claimSpec struct {
	seat
	slots    int  // as in driver.Claim
	try      bool // only if it holds at once
	lock     bool // its terms are a lock's: see lockToken
	priority int  // above 0: asks leaders of a smaller one to hand over, once it has stood for steady
	steady   time.Duration
	value    []byte
	heard    func(core.QueueEventKind) // of a queue's claim that holds: hears that it is ending, over, or wanted by another
	from     *exchange                 // what is given up in the request that enters this claim
	began    time.Duration             // of the campaign, as uptime has it; of an Elections' claim see stand
	many     *Elections                // carries the claim out; nil: a goroutine of its own does
}

// newClaim returns a claim that stands from now on: events that come before campaign are heard.
func newClaim(ctx context.Context, l *lease, spec claimSpec, leave func()) *claim {
	c := &struct {
		claim
		rest claimRest
		spec claimSpec
	}{spec: spec}
	c.claim = claim{l: l, seat: spec.seat, claimSpec: &c.spec, leave: leave, values: ctx, claimRest: &c.rest}
	c.step(core.ClaimEvent{Kind: core.Stand})
	return &c.claim
}

// unfold makes room for what a claim that only waits does without. The claim's lock is held.
func (c *claim) unfold() {
	if c.claimRest == nil {
		c.claimRest = &claimRest{}
	}
}

// errLeaseEnded says that the lease ended while the claim stood in the line: stand again under the next one.
var errLeaseEnded = errors.New("the lease ended")

// campaign stands in the line and returns when the claim is held, or will never be.
func (c *claim) campaign(ctx context.Context) (*Term, error) {
	if c.priority > 0 {
		pressCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		go c.press(pressCtx)
	}
	var final error
	for o := (core.ClaimOrder{Do: core.Enter}); ; {
		switch o.Do {
		case core.Enter:
			o, final = c.call(ctx, o, c.enter)
		case core.Await:
			o, final = c.call(ctx, o, c.await)
		case core.Lead:
			return c.term, nil
		case core.Leave:
			go c.release(o) // the caller is not kept waiting by a store that does not answer
			return nil, final
		default:
			if final == nil {
				final = errLeaseEnded
			}
			return nil, final
		}
	}
}

// call makes one call for the order o and returns the order that follows, with the error to return if it is the last.
func (c *claim) call(ctx context.Context, o core.ClaimOrder, do func(context.Context, driver.Place) (driver.Place, error)) (core.ClaimOrder, error) {
	opCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	asked, next := c.place, c.next
	c.interrupt = cancel
	c.mu.Unlock()
	var got driver.Place
	var err error
	err = context.Canceled // no answer of the store, unless it is asked
	if next == nil && pause(opCtx, o.Tries) == nil {
		got, err = do(opCtx, asked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt = nil
	err = c.take(asked, got, err)
	c.note(ctx, o.Do, err)
	switch {
	case c.next != nil:
		next, c.next = c.next, nil
		return *next, c.refusal
	case ctx.Err() != nil:
		return c.stepLocked(core.ClaimEvent{Kind: core.GiveUp}), unreachableOr(ctx, "campaign for "+c.name, c.last)
	case err != nil:
		return c.stepLocked(failed(err)), fmt.Errorf("primacy: campaign for %s: %w", c.name, err)
	}
	return c.stepLocked(core.ClaimEvent{Kind: core.Entered, Held: got.Held}), nil
}

// take keeps the place that the store has answered with. It returns the store's error, or what is wrong with the place.
func (c *claim) take(asked, got driver.Place, err error) error {
	if err == nil && !c.fits(asked, got) {
		err = fmt.Errorf("%s answered with the place %+v for the claim %s", c.l.s.store.Caps().Store, got, asked.ID)
	}
	if err == nil && c.place.ID == asked.ID {
		c.place = got // also when it came too late: then it is released by its token
	}
	return err
}

// fits says whether a place is what was asked for. A term made of another place would be a second leader's.
func (c *claim) fits(asked, got driver.Place) bool {
	return got.ID == asked.ID && got.Name == asked.Name && got.Seat == asked.Seat && got.Slots == asked.Slots &&
		(!got.Held || got.Token != 0 || c.l.s.store.Caps().Token == driver.TokenNone) && !(c.lock && got.Token > maxLockClaim)
}

// note keeps what the store said last, for the error of a campaign that is given up.
func (c *claim) note(ctx context.Context, did core.Action, err error) {
	switch {
	case did == core.Await:
		c.last = c.l.newsError()
	case err == nil || ctx.Err() == nil:
		c.last = err
	}
}

func (c *claim) enter(ctx context.Context, p driver.Place) (driver.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, c.l.timing.Attempt)
	defer cancel()
	claim := driver.Claim{Name: p.Name, Seat: p.Seat, Slots: p.Slots, ID: p.ID, Value: c.value, Try: c.try}
	if got, err := c.from.swap(ctx, claim); !errors.Is(err, driver.ErrRefused) {
		return got, err
	}
	places, err := c.l.dl.Claim(ctx, claim)
	if err == nil && len(places) == 1 {
		return places[0], nil
	}
	return driver.Place{}, err // with a nil error fits says what is wrong with it
}

// await follows the place until the call is interrupted: by woken, when the lease's news tell that the place is held, or by whatever else
// happens to the claim.
func (c *claim) await(ctx context.Context, p driver.Place) (driver.Place, error) {
	c.l.dl.Follow(p)
	<-ctx.Done()
	return p, ctx.Err()
}

// woken hears from the lease's news that the place is held.
func (c *claim) woken(p driver.Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case p.ID != c.place.ID || c.core.Phase() != core.Waiting || c.values.Err() != nil: // whose campaign was given up leaves, and never leads
	case !p.Held || !c.fits(c.place, p):
		c.pass(c.stepLocked(core.ClaimEvent{Kind: core.Failed})) // it is followed again, after a pause
	default:
		c.place = p
		c.pass(c.stepLocked(core.ClaimEvent{Kind: core.Woken}))
	}
}

// refused hears that the store will not tell what becomes of places, now or when asked again: who waits gives up.
func (c *claim) refused(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() != core.Waiting {
		return
	}
	if c.many != nil {
		c.many.refused(c, err)
	} else {
		c.refusal = fmt.Errorf("primacy: campaign for %s: %w", c.name, err)
	}
	c.pass(c.stepLocked(core.ClaimEvent{Kind: core.Rejected}))
}

func failed(err error) core.ClaimEvent {
	switch {
	case errors.Is(err, driver.ErrGone):
		return core.ClaimEvent{Kind: core.Lost}
	case isFinal(err):
		return core.ClaimEvent{Kind: core.Rejected}
	}
	return core.ClaimEvent{Kind: core.Failed}
}

// tell brings news from outside. With an id it is meant for the claim under that ID only.
func (c *claim) tell(id string, e core.ClaimEvent, r *driver.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != "" && id != c.place.ID {
		return
	}
	if r != nil && c.core.Phase() <= core.Leading {
		c.unfold()
		c.request = r
	}
	if r != nil && (c.core.Phase() < core.Leading || c.core.Phase() <= core.Stopping && c.core.Heir() == 0) {
		c.unfold()
		c.to = r.To
	}
	o := c.stepLocked(e)
	if o.Do == core.Nothing || c.core.Phase() == core.Leaving {
		return
	}
	c.pass(o)
}

// pass brings an order that came from outside to who carries the claim out.
func (c *claim) pass(o core.ClaimOrder) {
	if c.many != nil && !c.job.calling {
		c.many.carry(c, o)
		return
	}
	c.next = &o
	if c.interrupt != nil {
		c.interrupt()
	}
}

func (c *claim) step(e core.ClaimEvent) core.ClaimOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(e)
}

// stepLocked takes one event and does at once what needs no store: end contexts, end rights, free the name.
func (c *claim) stepLocked(e core.ClaimEvent) core.ClaimOrder {
	was := c.core.Phase()
	standing := was == core.Entering || was == core.Waiting
	o := c.core.Step(e)
	if o.Fresh {
		c.place = driver.Place{Name: c.name, Seat: c.no, Slots: c.slots, ID: rand.Text()} // now: news of the old ID is not for the new one
		if c.claimRest != nil {
			c.request, c.to = nil, ""
		}
	}
	if o.Do == core.Lead {
		c.unfold()
		c.term = newTerm(c, c.values, c.token())
		if c.heard == nil { // else those who share the claim are counted
			c.l.s.stats.terms.Add(1)
		}
		c.l.s.log.log(c.level(), "elected", "election", c.name, "token", c.term.token, "id", c.l.s.o.ID)
		began := c.began
		if c.many != nil {
			began = c.many.won(c)
		}
		c.begun(began)
	}
	if o.EndRight {
		for _, t := range c.terms() {
			t.endRight(c.ended(t.token, o.Cause))
			t.watchOverrun()
		}
	}
	if o.Stop {
		for _, t := range c.terms() {
			t.stopWork(c.ended(t.token, o.Cause))
		}
		c.l.s.log.log(c.level(), "term ending", "election", c.name, "token", c.term.token, "cause", c.ended(c.term.token, o.Cause).Cause)
		if c.many != nil {
			c.many.ended(c, o.Cause)
		}
	}
	if c.claimRest != nil && c.term != nil && !c.lock {
		c.ending(e.Kind, o, was)
	}
	if o.Free && !c.freed {
		c.freed = true
		again := standing && o.Cause != core.None // the campaign goes on under the next lease and keeps its turn
		if !again {
			c.leaveSeat()
		}
		if c.free != nil {
			close(c.free) // after leaveSeat: whoever hears of it finds the seat free
		}
		if c.many != nil {
			c.many.freed(c, again)
		}
		if c.heard != nil && c.term != nil && was != core.Leaving { // else the queue has given it up
			go c.heard(core.Void) // it takes locks that come before ours
		}
		c.settle()
	}
	if o.Stop && c.heard != nil && c.core.Phase() == core.Stopping {
		go c.heard(core.Fade) // nobody may be there who would give it up
	}
	return o
}

// terms returns all that lives and dies with the claim.
func (c *claim) terms() []*Term { return append(c.shares[:len(c.shares):len(c.shares)], c.term) }

// token returns the fencing token of the claim's own term.
func (c *claim) token() Token {
	if c.lock {
		return lockToken(c.place.Token, 0)
	}
	return Token(c.place.Token)
}

func (c *claim) leaveSeat() {
	if c.leave != nil {
		c.leave()
		return
	}
	c.l.s.leaveSeat(c.seat)
}

// level is that of a transition: locks come and go too often to be told each time, and of many elections there is one line for all.
func (c *claim) level() slog.Level {
	if c.lock || c.many != nil {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func (c *claim) ended(token Token, cause core.Cause) *EndedError {
	e := &EndedError{Name: c.name, Token: token, Cause: causeError(cause), lock: c.lock}
	if c.why != nil && cause == core.Resigned {
		e.Cause = c.why
	}
	if c.request != nil && (cause == core.Resigned || cause == core.Transferred) {
		e.By, e.Reason = c.request.By, c.request.Reason
	}
	return e
}

// release gives the claim up, or hands it over, and repeats it until the store has confirmed it or the lease is over.
func (c *claim) release(o core.ClaimOrder) {
	for o.Do == core.Leave || o.Do == core.HandOver {
		if pause(c.l.ctx, o.Tries) != nil {
			c.step(core.ClaimEvent{Kind: core.LeaseOver})
			return
		}
		ctx, cancel := context.WithTimeout(c.l.ctx, c.l.timing.Attempt)
		c.mu.Lock()
		p := c.parting()
		c.mu.Unlock()
		e := core.ClaimEvent{Kind: core.Left}
		if o.Do == core.HandOver {
			e.Kind = c.handOver(ctx, p, o)
		} else if err := c.l.dl.Release(ctx, p); err != nil && !errors.Is(err, driver.ErrGone) {
			e.Kind = core.Failed
			c.l.s.log.log(slog.LevelDebug, "release failed", "election", c.name, "try", o.Tries, "err", err)
		}
		cancel()
		o = c.step(e)
	}
}
