package primacy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// queue carries out core.Queue for one name: those in this process who want the lock stand behind
// one claim, and hand it on.
type queue struct {
	s    *Session
	name string
	refs int // those who wait, and claims that are held; guarded by the session's lock

	mu       sync.Mutex
	core     core.Queue
	last     int // the last number given out
	waiting  map[int]*waiter
	claims   map[int]*claim // by tenure
	cancel   context.CancelCauseFunc
	exchange *exchange         // what the campaign that is ordered next gives up
	todo     []core.QueueOrder // not carried out yet, in their order
	busy     bool              // carryOut is at it
	ended    chan struct{}     // closed when the campaign under way has ended
	err      error             // what the last campaign ended with
	why      error             // why who waited last gave up
}

// want is what somebody wants of a lock.
type want struct {
	read, try bool
	turns     int // 0: as ever
}

// waiter is one who waits.
type waiter struct {
	want
	id    int
	ctx   context.Context
	ready chan struct{} // closed when term or err is set; made when it has to wait
	term  *Term
	err   error
}

// share is what a lock's term knows of the claim that it holds under, beside others.
type share struct {
	q      *queue
	tenure int
	given  bool // back; guarded by the queue's lock
}

// openQueue returns the queue of name, made if there is none. Each open needs a close.
func (s *Session) openQueue(name string) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if q == nil {
		q = &queue{s: s, name: name, waiting: map[int]*waiter{}, claims: map[int]*claim{}}
		s.queues[name] = q
	}
	q.refs++
	return q
}

func (q *queue) close() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.refs--; q.refs == 0 && q.s.queues[q.name] == q {
		delete(q.s.queues, q.name)
	}
}

// ref counts one more claim that is held. Each ref needs a close.
func (q *queue) ref() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.refs++
}

// lock waits for the lock and returns its term, which is given back by Resign.
func (s *Session) lock(ctx context.Context, name string, o want) (*Term, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	slots := 0
	if o.read {
		if err := s.sharable(); err != nil {
			return nil, err
		}
		slots = driver.Unlimited
	}
	if err := reentry(ctx, s, name, slots); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, unreachableOr(ctx, "lock "+name, nil)
	}
	q := s.openQueue(name)
	defer q.close()
	w := &waiter{want: o, ctx: ctx}
	q.mu.Lock()
	q.last++
	w.id = q.last
	q.waiting[w.id] = w
	q.stepLocked(w.event(core.Arrive, 0))
	if q.waiting[w.id] == nil {
		q.mu.Unlock()
		return w.term, w.err
	}
	w.ready = make(chan struct{})
	q.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.quit(w)
	}
	return w.term, w.err
}

func (w *waiter) event(kind core.QueueEventKind, tenure int) core.QueueEvent {
	return core.QueueEvent{Kind: kind, Waiter: w.id, Tenure: tenure, Read: w.read, Try: w.try, Turns: w.turns}
}

// sharable says whether the store can do what a reader asks for.
func (s *Session) sharable() error {
	if caps := s.store.Caps(); !caps.Shared {
		return invalid("%s has no shared locks: only exclusive ones", caps.Store)
	}
	return nil
}

// quit takes a waiter out, unless it has its answer already. The last one to leave ends the
// campaign, and returns the error that it ended with.
func (q *queue) quit(w *waiter) {
	q.mu.Lock()
	if q.waiting[w.id] != w {
		q.mu.Unlock()
		return
	}
	delete(q.waiting, w.id)
	q.err, q.why = nil, context.Cause(w.ctx)
	q.stepLocked(core.QueueEvent{Kind: core.Quit, Waiter: w.id})
	last, ended := len(q.waiting) == 0, q.ended
	q.mu.Unlock()
	if last && ended != nil {
		limit, cancel := context.WithTimeout(context.Background(), core.Pause(4)) // a store client that ignores its context must not hold us
		defer cancel()
		select {
		case <-ended:
		case <-limit.Done():
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.err = q.err; !last || !errors.Is(q.err, ErrUnreachable) {
		w.err = unreachableOr(w.ctx, "lock "+q.name, nil)
	}
}

// stepLocked takes one event and carries out what follows. The caller holds mu.
func (q *queue) stepLocked(e core.QueueEvent) {
	var now core.Time
	if q.core.Timed(e) || e.Kind == core.Arrive && len(q.claims) > 0 {
		now = q.s.clock()
	}
	for id, c := range q.claims {
		if c.term.isOver(now) { // nobody gets it any more, whether or not we were told
			q.carryOutLocked(q.core.Step(now, core.QueueEvent{Kind: core.Fade, Tenure: id}))
		}
	}
	q.carryOutLocked(q.core.Step(now, e))
}

// carryOutLocked carries out orders in the order given. What follows from one is appended to them:
// the step that asked for it is not over yet. The caller holds mu.
func (q *queue) carryOutLocked(orders []core.QueueOrder) {
	q.todo = append(q.todo, orders...)
	if q.busy {
		return
	}
	q.busy = true
	defer func() { q.busy = false }()
	for len(q.todo) > 0 {
		o := q.todo[0]
		q.todo = q.todo[1:]
		switch o.Do {
		case core.Campaign:
			ctx, cancel := context.WithCancelCause(context.Background())
			q.cancel, q.ended = cancel, make(chan struct{})
			go q.campaign(ctx, q.ended, o, q.exchange)
			q.exchange = nil
		case core.Cancel:
			q.cancel(q.why)
		case core.Grant:
			q.grantLocked(o)
		case core.Deny:
			err := ErrHeld
			if o.Refused {
				err = q.err
			}
			q.answerLocked(o.Waiter, nil, err)
		case core.CloseIt:
			c := q.claims[o.Tenure]
			delete(q.claims, o.Tenure)
			if x := c.part(o.Again); x != nil {
				q.exchange = x
			}
			q.close()
		}
	}
}

// answerLocked gives a waiter its term, or the error it ends with. The caller holds mu.
func (q *queue) answerLocked(id int, t *Term, err error) {
	w := q.waiting[id]
	delete(q.waiting, id)
	w.term, w.err = t, err
	if w.ready != nil {
		close(w.ready)
	}
}

// grantLocked makes the term of a waiter.
func (q *queue) grantLocked(o core.QueueOrder) {
	c, w := q.claims[o.Tenure], q.waiting[o.Waiter]
	if t := q.takeShareLocked(c, w.ctx, o.Tenure, o.Turn); t != nil {
		q.answerLocked(o.Waiter, t, nil)
		return
	}
	q.carryOutLocked(q.core.Step(q.s.clock(), w.event(core.Return, o.Tenure)))
}

// campaign stands in the line for the queue.
func (q *queue) campaign(ctx context.Context, ended chan struct{}, o core.QueueOrder, x *exchange) {
	q.mu.Lock()
	q.last++
	id := q.last
	q.mu.Unlock()
	spec := claimSpec{seat: seat{name: q.name}, try: o.Try, lock: true, turnBits: turnBits, watched: q.s.watchQueues,
		onEvent: func(what core.QueueEventKind) { q.claimEvent(id, what) }}
	if o.Read {
		spec.id, spec.slots = "r"+Token(id).String(), driver.Unlimited
	}
	campaign := q.s.campaign
	if x != nil {
		spec.seat = x.at
		campaign = func(ctx context.Context, spec claimSpec) (*Term, error) { return q.s.campaignAgain(ctx, spec, x) }
	}
	t, err := campaign(ctx, spec)
	q.mu.Lock()
	defer q.mu.Unlock()
	defer close(ended)
	q.err = err
	if err != nil {
		q.stepLocked(core.QueueEvent{Kind: core.Lose, Refused: isFinal(err) && !errors.Is(err, driver.ErrTaken)})
		return
	}
	q.claims[id] = t.c
	q.ref()
	q.stepLocked(core.QueueEvent{Kind: core.Win, Tenure: id})
}

// queueClaim is the owner of a queue's claim. The queue's lock comes before the claim's, so it
// hears what becomes of the claim on a goroutine of its own.
type queueClaim struct {
	*campaign
	onEvent func(core.QueueEventKind)
}

// endedLocked has the queue give the claim up: nobody may be there who would.
func (k *queueClaim) endedLocked(core.Cause) {
	if k.c.core.Phase() == core.Stopping {
		go k.onEvent(core.Fade)
	}
}

// freedLocked tells the queue that who held the claim has lost it, unless the queue itself has
// given it up.
func (k *queueClaim) freedLocked(was core.ClaimPhase, _ bool) {
	if k.c.term != nil && was != core.Leaving {
		go k.onEvent(core.Void)
	}
}

// claimEvent takes what became of a claim. When nothing of it stands any more, whoever held the
// lock under it has lost that, even if he has not given it back; the others go on.
func (q *queue) claimEvent(tenure int, what core.QueueEventKind) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.claims[tenure] != nil {
		q.stepLocked(core.QueueEvent{Kind: what, Tenure: tenure})
	}
}

// giveBack ends a term of the lock. The right ends first: only then may the next one get the lock.
func (t *Term) giveBack(ctx context.Context) error {
	h, q := &t.share, t.share.q
	t.endShare()
	q.mu.Lock()
	if first := !h.given; first {
		h.given = true
		q.stepLocked(core.QueueEvent{Kind: core.Unlock, Tenure: h.tenure})
	}
	handedOn := q.claims[h.tenure] != nil
	q.mu.Unlock()
	if handedOn {
		return nil
	}
	return t.c.released(ctx)
}

// takeShareLocked makes a term for one more holder in this process, nil if the claim is ending. The
// caller holds mu.
func (q *queue) takeShareLocked(c *claim, values context.Context, tenure, turn int) *Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() != core.Leading {
		return nil
	}
	t := newTerm(c, values, lockToken(c.place.Token, turn))
	t.share = share{q: q, tenure: tenure}
	c.l.s.stats.terms.Add(1)
	c.shares = append(c.shares, t)
	return t
}

// endShare ends the right of one holder among several under the claim, and then its context.
func (t *Term) endShare() {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e := givenBack
	if c.why != nil || c.request != nil {
		e = c.endedErrorLocked(t.token, core.Resigned)
	}
	t.endRight(e)
	t.stopWork(e)
	t.watchOverrunLocked() // now: others may hold under the claim for long
	if i := slices.Index(c.shares, t); i >= 0 {
		c.shares = slices.Delete(c.shares, i, i+1)
	}
}

// isOver says whether the term is ending or over. A now other than 0 is the clock's reading, which
// may say so before anybody else does.
func (t *Term) isOver(now core.Time) bool {
	switch {
	case t.stopped.Load() != nil || t.ended.Load() != nil:
		return true
	case now >= core.Time(t.l.deadline.Load()):
		return t.Check() != nil
	}
	return false
}

// exchange is a claim whose right is over, and that is given up in the request that enters the next
// one of the same queue: behind all who wait, and with one trip to the store instead of two.
// Whatever becomes of that request, the claim is given up once and for all.
type exchange struct {
	old   *claim          // nil once it is begun: the next claim keeps the exchange, and would keep all that were before it
	order core.ClaimOrder // the release
	at    seat            // of the next claim
	leave func()          // gives that seat back
	begun atomic.Bool
}

// part gives the claim up. Where the store can do it and another seat is free, the release is left
// to the exchange that it returns.
func (c *claim) part(again bool) *exchange {
	x := &exchange{old: c, at: seat{c.name, ""}}
	if c.id == "" {
		x.at.id = "w"
	}
	if _, can := c.l.dl.(driver.Exchanger); can && again && c.slots == 0 {
		x.leave, _ = c.l.s.enterLocal(context.Background(), x.at, true)
	}
	x.order = c.step(core.ClaimEvent{Kind: core.GiveUp})
	switch {
	case x.leave != nil && x.order.Do == core.Leave:
		return x
	case x.leave != nil:
		x.leave()
	}
	x.release()
	return nil
}

// release gives the claim up by itself, unless it is or was done.
func (x *exchange) release() {
	if !x.begun.CompareAndSwap(false, true) {
		return
	}
	old := x.old
	x.old = nil
	if x.order.Do == core.Leave || x.order.Do == core.HandOver {
		go old.release(x.order)
	}
}

// swap makes the request, once. ErrRefused says that nothing was done, and that the claim has to be
// entered by itself.
func (x *exchange) swap(ctx context.Context, next driver.Claim) (driver.Place, error) {
	if !x.begun.CompareAndSwap(false, true) {
		return driver.Place{}, driver.ErrRefused
	}
	old := x.old
	x.old = nil
	old.mu.Lock()
	p := old.place
	old.mu.Unlock()
	got, err := old.l.dl.(driver.Exchanger).Exchange(ctx, p, next)
	if err == nil {
		old.step(core.ClaimEvent{Kind: core.Left})
	} else {
		go old.release(x.order) // it may stand or not
	}
	return got, err
}

// campaignAgain stands in the line once more, for a queue that gives up its claim on the same name
// in the same request.
func (s *Session) campaignAgain(ctx context.Context, spec claimSpec, x *exchange) (*Term, error) {
	spec.exchange = x.swap
	k := newCampaign(ctx, x.old.l, spec, x.leave)
	spec.exchange = nil
	if ctx.Err() != nil || !x.old.l.join(k.c) {
		x.release()
		return s.campaignIn(ctx, spec, x.leave)
	}
	t, err := k.run(ctx)
	x.release() // it came to no request
	if errors.Is(err, errLeaseEnded) {
		_ = pause(ctx, 1)
		return s.campaignIn(ctx, spec, x.leave)
	}
	return t, err
}
