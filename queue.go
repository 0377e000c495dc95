package primacy

import (
	"context"
	"errors"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// queue carries out core.Queue for one name: those in this process who want the lock stand behind one claim, and hand it on.
//
// Its lock comes before a claim's and a lease's; what they tell it comes on a goroutine of its own.
type queue struct {
	s    *Session
	name string
	refs int // those who wait, and claims that are held; guarded by the session's lock

	mu      sync.Mutex
	core    core.Queue
	last    int // the last number given out
	waiting map[int]*waiter
	claims  map[int]*claim // by tenure
	cancel  context.CancelCauseFunc
	todo    []core.QueueOrder // not carried out yet, in their order
	busy    bool              // carryOut is at it
	ended   chan struct{}     // closed when the campaign under way has ended
	err     error             // what the last campaign ended with
	why     error             // why who waited last gave up
}

// waiter is one who waits.
type waiter struct {
	id    int
	try   bool
	ctx   context.Context
	ready chan struct{} // closed when term or err is set
	term  *Term
	err   error
}

// share is what a lock's term knows of the claim that it holds under, beside others.
type share struct {
	q      *queue
	tenure int
	once   sync.Once
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

// keep is open for a queue that somebody has.
func (q *queue) keep() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.refs++
}

// lock waits for the lock and returns its term, which is given back by Resign.
func (s *Session) lock(ctx context.Context, name string, read, try bool) (*Term, error) {
	if err := errors.Join(CheckName(name), s.sharable(read)); err != nil {
		return nil, err
	}
	slots := 0
	if read {
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
	w := &waiter{try: try, ctx: ctx, ready: make(chan struct{})}
	q.mu.Lock()
	q.last++
	w.id = q.last
	q.waiting[w.id] = w
	q.step(core.QueueEvent{Kind: core.Arrive, Waiter: w.id, Read: read, Try: try})
	q.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.quit(w)
	}
	return w.term, w.err
}

// sharable says whether the store can do what a reader asks for.
func (s *Session) sharable(read bool) error {
	if caps := s.store.Caps(); read && !caps.Shared {
		return invalid("%s has no shared locks: only exclusive ones", caps.Store)
	}
	return nil
}

// quit takes a waiter out, unless it has its answer already. The last to leave ends the campaign, and hears what it had met with.
func (q *queue) quit(w *waiter) {
	q.mu.Lock()
	if q.waiting[w.id] != w {
		q.mu.Unlock()
		return
	}
	delete(q.waiting, w.id)
	q.err, q.why = nil, context.Cause(w.ctx)
	q.step(core.QueueEvent{Kind: core.Quit, Waiter: w.id})
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

// step takes one event and carries out what follows. The caller holds q.mu.
func (q *queue) step(e core.QueueEvent) {
	for id, c := range q.claims {
		if c.term.ctx.Err() != nil || c.term.Check() != nil { // nobody gets it any more, whether or not we were told
			q.carryOut(q.core.Step(q.s.clock(), core.QueueEvent{Kind: core.Fade, Tenure: id}))
		}
	}
	q.carryOut(q.core.Step(q.s.clock(), e))
}

// carryOut carries out orders in the order in which they were given, also those that follow from carrying out.
func (q *queue) carryOut(orders []core.QueueOrder) {
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
			go q.campaign(ctx, q.ended, o)
		case core.Cancel:
			q.cancel(q.why)
		case core.Grant:
			q.grant(o)
		case core.Deny:
			err := ErrHeld
			if o.Refused {
				err = q.err
			}
			q.answer(o.Waiter, nil, err)
		case core.CloseIt:
			c := q.claims[o.Tenure]
			delete(q.claims, o.Tenure)
			c.giveUp()
			q.close()
		}
	}
}

// answer tells a waiter what became of it, if it still waits.
func (q *queue) answer(id int, t *Term, err error) {
	w := q.waiting[id]
	delete(q.waiting, id)
	w.term, w.err = t, err
	close(w.ready)
}

// grant makes the term of a waiter.
func (q *queue) grant(o core.QueueOrder) {
	c, w := q.claims[o.Tenure], q.waiting[o.Waiter]
	if t := c.takeShare(w.ctx, &share{q: q, tenure: o.Tenure}, o.Turn); t != nil {
		q.answer(o.Waiter, t, nil)
		return
	}
	q.carryOut(q.core.Step(q.s.clock(), core.QueueEvent{Kind: core.Return, Waiter: o.Waiter, Tenure: o.Tenure, Try: w.try}))
}

// campaign stands in the line for the queue.
func (q *queue) campaign(ctx context.Context, ended chan struct{}, o core.QueueOrder) {
	q.mu.Lock()
	q.last++
	id := q.last
	q.mu.Unlock()
	spec := claimSpec{seat: seat{name: q.name}, try: o.Try, lock: true, onFree: func() { q.freed(id) }}
	if o.Read {
		spec.no, spec.slots = "r"+Token(id).String(), driver.Unlimited
	}
	t, err := q.s.campaign(ctx, spec)
	q.mu.Lock()
	defer q.mu.Unlock()
	defer close(ended)
	q.err = err
	if err != nil {
		q.step(core.QueueEvent{Kind: core.Lose, Refused: isFinal(err) && !errors.Is(err, driver.ErrTaken)})
		return
	}
	q.claims[id] = t.c
	q.keep()
	q.step(core.QueueEvent{Kind: core.Win, Tenure: id})
}

// freed hears that nothing of a claim stands any more. Who held it has lost it, whether or not he has given it back; the others go on.
func (q *queue) freed(tenure int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.claims[tenure] != nil {
		q.step(core.QueueEvent{Kind: core.Void, Tenure: tenure})
	}
}

// giveBack ends a term of the lock: the right first, and only then the next one gets it.
func (h *share) giveBack(ctx context.Context, t *Term) error {
	h.once.Do(func() {
		t.c.dropShare(t)
		h.q.mu.Lock()
		h.q.step(core.QueueEvent{Kind: core.Unlock, Tenure: h.tenure})
		h.q.mu.Unlock()
	})
	h.q.mu.Lock()
	handedOn := h.q.claims[h.tenure] != nil
	h.q.mu.Unlock()
	if handedOn {
		return nil
	}
	return t.c.released(ctx)
}
