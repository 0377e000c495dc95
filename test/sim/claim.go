package sim

import (
	"errors"

	"github.com/primacy-go/primacy/internal/core"
)

// claim is claim.go of the root package: it carries out what core.Claim orders for one claim under
// one lease.
type claim struct {
	l        *lease
	name     int
	leave    func() // lets the next claim of this process stand for the name
	first    core.ClaimOrder
	core     core.Claim
	place    place
	inflight *life // the call under way; ended by tell
	next     *core.ClaimOrder
	term     *term
	working  bool
	freed    bool
	overdue  bool
	wished   uint64  // the claim ID under which somebody asked to resign
	waiters  []waker // wait until it is free, or quiet
}

// term is term.go: one reign. What the judge wants to know about it stands here too.
type term struct {
	c     *claim
	n     *node
	l     *lease
	inc   uint32
	token uint64
	ctx   *life // ends when the work has to stop
	ended bool  // the right is over: Check says no, for good
	began int64 // true time
	// an operator removed its claim or lease: nobody can promise that no other leads before it
	// hears of it
	excused bool
	removed int64 // when, if it is excused
	undone  bool  // and the store has forgotten that
	beside  bool  // it began beside another, and that was counted
	counted bool  // Check has said yes, or would have
	late    bool  // its work does not stop in time, on purpose
}

func newClaim(l *lease, name int, leave func()) *claim {
	c := &claim{l: l, name: name, leave: leave}
	c.first = c.step(core.ClaimEvent{Kind: core.Stand})
	return c
}

// campaign stands in the line; it returns the term, nil if there is none, and whether to stand
// again under the next lease.
func (c *claim) campaign(t *task, ctx *life) (tm *term, again bool) {
	final := false
	for o := c.first; ; {
		switch o.Do {
		case core.Enter, core.Await:
			o, final = c.call(t, ctx, o)
		case core.Lead:
			return c.term, false
		case core.Leave:
			c.l.s.w.spawn(&c.l.s.n.host, func(t *task) { c.release(t, o) })
			return nil, false
		default:
			return nil, !final
		}
	}
}

// call makes one call for the order o and returns the order that follows, and whether an answer was
// final.
func (c *claim) call(t *task, ctx *life, o core.ClaimOrder) (core.ClaimOrder, bool) {
	op := &life{parent: ctx, h: &c.l.s.n.host}
	asked, next := c.place, c.next
	c.inflight = op
	var got place
	err := errUnknown
	if next == nil && t.pause(op, o.Tries) {
		if o.Do == core.Enter {
			got, err = c.l.dl.claim(t, op.child(op.h, c.l.attempt()), asked.name, asked.id)
		} else {
			got, err = c.l.dl.wait(t, op, asked)
		}
		t.stumble() // the answer has come; news may come between
	}
	op.done = true
	c.inflight = nil
	if err == nil && (got.id != asked.id || o.Do == core.Await && !got.held || got.held && got.token == 0) {
		err = errUnknown
	}
	if err == nil && c.place.id == asked.id {
		c.place = got
	}
	switch {
	case c.next != nil:
		next, c.next = c.next, nil
		return *next, false
	case ctx.over():
		return c.step(core.ClaimEvent{Kind: core.GiveUp}), true
	case errors.Is(err, errGone):
		return c.step(core.ClaimEvent{Kind: core.Lost}), false
	case errors.Is(err, errRefused):
		return c.step(core.ClaimEvent{Kind: core.Rejected}), true
	case err != nil:
		return c.step(core.ClaimEvent{Kind: core.Failed}), false
	case o.Do == core.Await:
		return c.step(core.ClaimEvent{Kind: core.Woken}), false
	}
	return c.step(core.ClaimEvent{Kind: core.Entered, Held: got.held}), false
}

// tell brings news from outside. With an id it is meant for the claim under that ID only.
func (c *claim) tell(id uint64, e core.ClaimEvent) {
	if id != 0 && id != c.place.id {
		return
	}
	phase := c.core.Phase()
	leading := phase >= core.Leading && phase <= core.Ended
	o := c.step(e)
	if leading && (e.Kind == core.Lost || e.Kind == core.LeaseOver) {
		c.l.s.w.judge.lostTold(c.term)
	}
	if o.Do == core.Nothing || c.core.Phase() == core.Leaving {
		return
	}
	c.next = &o
	if c.inflight != nil {
		c.inflight.cancel()
	}
}

// step takes one event and does at once what needs no store.
func (c *claim) step(e core.ClaimEvent) core.ClaimOrder {
	w, h := c.l.s.w, &c.l.s.n.host
	standing := c.core.Phase() == core.Entering || c.core.Phase() == core.Waiting
	o := c.core.Step(e)
	if o.NewID {
		w.ids++
		c.place = place{name: c.name, id: w.ids}
		if w.tr != nil {
			w.say(h, detail, "stands for %s as claim #%d under lease %x", nameOf(c.name), c.place.id, c.l.dl.id())
		}
	}
	if o.Do == core.Lead {
		c.term = &term{c: c, n: c.l.s.n, l: c.l, inc: h.inc, token: c.place.token, ctx: &life{}, began: w.now}
		w.say(h, news, "LEADS %s under token %d, until %v on its clock", nameOf(c.name), c.place.token,
			span(c.l.deadline))
		w.judge.begins(c.term)
	}
	if o.EndRight {
		c.term.endRight(o.Cause)
		c.watchOverrun()
	}
	if o.Stop {
		w.judge.stops(c.term)
		if !c.term.ctx.done {
			w.say(h, news, "is told to stop leading %s (token %d): %v", nameOf(c.name), c.term.token, o.Cause)
		}
		c.term.ctx.cancel()
	}
	if o.Free && !c.freed {
		c.freed = true
		c.settle()
		if !standing || o.Cause == core.None {
			c.leave()
		}
	}
	return o
}

func (c *claim) settle() {
	c.l.forget(c, c.freed && !c.working)
	for _, k := range c.waiters {
		k.wake()
	}
	c.waiters = nil
}

// release gives the claim up and repeats it until the store has confirmed it or the lease is over.
func (c *claim) release(t *task, o core.ClaimOrder) {
	for o.Do == core.Leave || o.Do == core.HandOver {
		if !t.pause(c.l.life, o.Tries) {
			c.step(core.ClaimEvent{Kind: core.LeaseOver})
			return
		}
		c.l.s.w.judge.releases(c)
		limit, e := c.l.life.child(&c.l.s.n.host, c.l.attempt()), core.ClaimEvent{Kind: core.Left}
		var err error
		if o.Do == core.Leave {
			err = c.l.dl.release(t, limit, c.place)
		} else if err = c.l.dl.(*plainHandle).transfer(t, limit, c.place, o.Successor); errors.Is(err, errNoSuccessor) {
			err, e.Kind = nil, core.NoSuccessor
		} else if errors.Is(err, errGone) {
			err, e.Kind = nil, core.Missing
		}
		if err != nil && !errors.Is(err, errGone) {
			e.Kind = core.Failed
		}
		o = c.step(e)
	}
}

// check is Term.Check: the clock is compared at each ask.
func (tm *term) check() bool {
	if tm.ended {
		return false
	}
	if tm.n.clock() >= tm.l.deadline {
		tm.endRight(core.Expired)
		tm.c.tell(0, core.ClaimEvent{Kind: core.LeaseEnding, Cause: core.Expired})
		return false
	}
	return true
}

func (tm *term) endRight(cause core.Cause) {
	if !tm.ended {
		tm.n.w.say(&tm.n.host, news, "right to lead %s (token %d) is over: %v", nameOf(tm.c.name), tm.token, cause)
	}
	tm.ended = true
}

// resign says that the work has stopped, and waits for the store's answer for a while.
func (tm *term) resign(t *task) {
	c := tm.c
	if o := c.step(core.ClaimEvent{Kind: core.GiveUp}); o.Do == core.Leave || o.Do == core.HandOver {
		c.l.s.w.spawn(&tm.n.host, func(t *task) { c.release(t, o) })
	}
	limit := (*life)(nil).child(&tm.n.host, 2*c.l.attempt())
	for !c.freed && !limit.over() {
		k := t.arm()
		c.waiters = append(c.waiters, k)
		t.wait(limit, k, forever)
	}
}

// watchOverrun acts on work that still runs though its right is over: the process ends itself,
// where it is set up so.
func (c *claim) watchOverrun() {
	if !c.working || c.overdue {
		return
	}
	c.overdue = true
	s := c.l.s
	if !s.w.plan.Exit {
		return
	}
	until := min(s.n.clock()+c.l.grace(), c.l.trusted)
	s.w.spawn(&s.n.host, func(t *task) {
		for left := until - s.n.clock(); left > 0; left = until - s.n.clock() {
			t.sleep(nil, min(left, sec))
		}
		if c.working {
			s.w.count.Overruns++
			s.w.say(&s.n.host, news, "work on %s outlived its right: the process ends itself", nameOf(c.name))
			s.w.die(s.n)
		}
	})
}
