package primacy

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// queue carries out core.Queue for one name. Those in this process who want the lock wait in it,
// not in the store's line. A campaign wins a claim for them, and they hold the lock under that
// claim one after the other; readers hold it together. core.Queue decides who gets the lock under
// which claim, when to campaign for one, and when to give one up.
type queue struct {
	s    *Session
	name string
	refs int // one for each who waits, one for each of claims; Session.mu guards it

	mu          sync.Mutex
	core        core.Queue
	lastID      int // the last number given to a waiter or a claim
	waiting     map[int]*waiter
	claims      map[int]*claim          // that are held, by their numbers
	cancel      context.CancelCauseFunc // ends the campaign under way
	ended       chan struct{}           // closed when the campaign under way has ended
	exchange    *exchange               // for the next campaign: gives the previous claim up; or nil
	todo        []core.QueueOrder       // not carried out yet, the oldest first
	carrying    bool                    // carryOutLocked runs
	campaignErr error                   // of the last campaign that has ended; nil if that won, and after quit
	quitCause   error                   // why the last waiter quit
}

// lockRequest is how somebody asks for a lock.
type lockRequest struct {
	read, try bool
	turns     int // as MutexOptions.Turns
}

type waiter struct {
	lockRequest
	id    int
	ctx   context.Context
	ready chan struct{} // closed when term or err is set; nil for one that gets its answer at once
	term  *Term
	err   error
}

// unref takes back one openQueue or ref. After the last the queue leaves Session.queues, and the
// next who wants the lock gets a new queue. A cancelled campaign of the old queue may still run: if
// it wins, core gives its claim up, since nobody waits there. Two queues of one name do no harm:
// each seat of the session has one claim at a time.
func (q *queue) unref() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.refs--; q.refs == 0 && q.s.queues[q.name] == q {
		delete(q.s.queues, q.name)
	}
}

// ref counts one more claim that is held. Each call needs an unref.
func (q *queue) ref() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.refs++
}

func (w *waiter) event(kind core.QueueEventKind, claimNo int) core.QueueEvent {
	return core.QueueEvent{Kind: kind, Waiter: w.id, Claim: claimNo, Read: w.read, Try: w.try, Turns: w.turns}
}

// quit takes a waiter out whose ctx has ended, or whose session is closed, unless it has its answer
// already. After the last one core orders the campaign cancelled, and quit waits for its end for
// 200 ms at most. If the campaign has ended with ErrUnreachable by then, so does the waiter; else
// its error is why. Another waiter may come during the 200 ms, and campaign or quit. Then
// campaignErr is of that campaign, or nil. The error is true all the same: the store did not
// answer, or ctx has ended.
func (q *queue) quit(w *waiter, why error) {
	q.mu.Lock()
	if q.waiting[w.id] != w {
		q.mu.Unlock()
		return
	}
	delete(q.waiting, w.id)
	if q.campaignErr, q.quitCause = nil, context.Cause(w.ctx); q.quitCause == nil {
		q.quitCause = ErrClosed
	}
	q.stepLocked(core.QueueEvent{Kind: core.Quit, Waiter: w.id})
	last, ended := len(q.waiting) == 0, q.ended
	q.mu.Unlock()
	if last && ended != nil {
		select {
		case <-ended:
		case <-time.After(core.Pause(4)): // the store's client may ignore its context
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.err = q.campaignErr; !last || !errors.Is(w.err, ErrUnreachable) {
		w.err = why
	}
}

// stepLocked takes one event and carries out what follows. To read the clock costs more than the
// rest of the step, so now is 0 for an event that does not need the time: core says which do. Who
// arrives needs it here, to see whether the claims still live: nobody may get the lock under one
// whose deadline has passed. The caller holds mu.
func (q *queue) stepLocked(e core.QueueEvent) {
	var now core.Time
	if q.core.NeedsClock(e) || e.Kind == core.Arrive && len(q.claims) > 0 {
		now = q.s.clock()
	}
	for id, c := range q.claims { // carryOutLocked may delete from it, which range allows
		// The claim tells its end by claimEvent, but on another goroutine, which may come after
		// this step. C.term is read without c.mu: it is set before Win, and then never changes.
		if isOver(c.term, now) {
			q.carryOutLocked(q.core.Step(now, core.QueueEvent{Kind: core.ClaimEnding, Claim: id}))
		}
	}
	q.carryOutLocked(q.core.Step(now, e))
}

// carryOutLocked carries out orders in the order given, those of an earlier step first. To carry
// out one may need another step of core, whose orders come here while the loop below runs: then
// they are only appended to todo. The caller holds mu.
func (q *queue) carryOutLocked(orders []core.QueueOrder) {
	q.todo = append(q.todo, orders...)
	if q.carrying {
		return
	}
	q.carrying = true
	defer func() { q.carrying, q.todo = false, q.todo[:0] }()
	for i := 0; i < len(q.todo); i++ {
		o := q.todo[i]
		switch o.Do {
		case core.Campaign:
			ctx, cancel := context.WithCancelCause(context.Background())
			q.cancel, q.ended = cancel, make(chan struct{})
			go q.campaign(ctx, q.ended, o, q.exchange)
			q.exchange = nil
		case core.Cancel:
			q.cancel(q.quitCause)
		case core.Grant:
			q.grantLocked(o)
		case core.Deny:
			err := ErrHeld
			if o.Refused {
				err = q.campaignErr
			}
			q.answerLocked(o.Waiter, nil, err)
		case core.GiveUpClaim:
			c := q.claims[o.Claim]
			delete(q.claims, o.Claim)
			if x := c.giveUpOrExchange(o.Again); x != nil { // nil: it is released in a call of its own
				q.exchange = x
			}
			q.unref() // for the ref of campaign, when the claim was won
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

// grantLocked gives the lock to a waiter. If the claim is ending, the waiter becomes the first in
// the queue again, or gets ErrHeld if it only tries. The caller holds mu.
func (q *queue) grantLocked(o core.QueueOrder) {
	c, w := q.claims[o.Claim], q.waiting[o.Waiter]
	if t := q.takeShareLocked(c, w.ctx, o.Claim, o.Turn); t != nil {
		q.answerLocked(o.Waiter, t, nil)
		return
	}
	q.carryOutLocked(q.core.Step(q.s.clock(), w.event(core.PutBack, o.Claim)))
}

// campaign wins a claim for the queue. X, if not nil, gives its previous claim up (see exchange).
func (q *queue) campaign(ctx context.Context, ended chan struct{}, o core.QueueOrder, x *exchange) {
	growStack(false)
	q.mu.Lock()
	q.lastID++
	id := q.lastID
	q.mu.Unlock()
	at := seat{name: q.name}
	spec := claimSpec{try: o.Try, lock: true, turnBits: turnBits, observers: q.s.lockObservers,
		onEvent: func(what core.QueueEventKind) { q.claimEvent(id, what) }}
	if o.Read { // this process may hold several claims for reading: each has a seat of its own
		at, spec.slots = readerSeat(q.name, id), driver.Unlimited
	}
	var t *Term
	var err error
	if x == nil {
		t, err = q.s.campaign(ctx, at, spec)
	} else {
		t, err = q.s.campaignSeated(ctx, x.at, spec, x.vacate, x)
	}
	defer close(ended)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.campaignErr = err
	if err != nil {
		q.stepLocked(core.QueueEvent{Kind: core.Lose, Refused: isRefusal(err) && !errors.Is(err, driver.ErrTaken)})
		return
	}
	q.claims[id] = t.c
	q.ref()
	q.stepLocked(core.QueueEvent{Kind: core.Win, Claim: id})
}

// growStack grows the stack of a goroutine that has just begun, in one step and while there is next
// to nothing to copy, to the 16 KB that a call on a store needs. Otherwise it grows twice in the
// depth of that call, and each time all frames are moved: a lock on etcd then costs this process
// 10 % more (measured with 1,024 goroutines). Go makes room for a whole frame where it enters a
// function, so nothing need use the room: use is false.
//
//go:noinline
func growStack(use bool) {
	if use {
		var room [9 << 10]byte
		runtime.KeepAlive(&room)
	}
}

// claimEvent takes ClaimEnding or ClaimOver of a claim that the queue has.
func (q *queue) claimEvent(claimNo int, what core.QueueEventKind) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.claims[claimNo] != nil {
		q.stepLocked(core.QueueEvent{Kind: what, Claim: claimNo})
	}
}

// giveBack takes the lock back: the holder's right ends before the next one gets it. If nobody gets
// it under this claim, stepLocked gives the claim up, and giveBack waits for the store's answer.
func (q *queue) giveBack(ctx context.Context, t *Term) error {
	h := &t.share
	proclaimed := t.endShare()
	q.mu.Lock()
	if first := !h.given; first {
		h.given = true
		q.stepLocked(core.QueueEvent{Kind: core.Unlock, Claim: h.claimNo})
	}
	kept := q.claims[h.claimNo] != nil // others of this process get the lock under it
	q.mu.Unlock()
	if kept {
		if proclaimed {
			announcer{t.c}.retract(t)
		}
		return nil
	}
	return t.c.waitFreed(ctx, "resign "+t.c.name)
}

// takeShareLocked makes a term for one more holder in this process, nil if the claim is ending. The
// caller holds mu.
func (q *queue) takeShareLocked(c *claim, parent context.Context, claimNo, turn int) *Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.Phase() != core.Leading {
		return nil
	}
	t := newTerm(c, parent, lockToken(c.place.Token, turn))
	t.share = share{q: q, claimNo: claimNo}
	c.l.s.stats.terms.Add(1)
	c.shares = append(c.shares, t)
	return t
}

// endShare ends the right of one holder among several under the claim, and then its context: the
// holder has given the lock back, so no work runs that has to hear of it first. Proclaimed says
// that the claim shows what this holder has proclaimed.
func (t *Term) endShare() (proclaimed bool) {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	e := endLocked(t, core.Resigned)
	t.endRight(e)
	t.endContext(e)
	t.watchOverrunLocked() // not only when the claim ends: others may hold the lock under it for long
	if i := slices.Index(c.shares, t); i >= 0 {
		c.shares = slices.Delete(c.shares, i, i+1)
	}
	return c.proclaimer == t
}

// isOver says whether the term is ending or over: its context or its right has ended, or its
// deadline is not after now. With now 0 that holds only once the lease is lost or closed: then the
// deadline is 0 too.
func isOver(t *Term, now core.Time) bool {
	switch {
	case t.contextEnded.Load() != nil || t.rightEnded.Load() != nil:
		return true
	case now >= core.Time(t.l.deadline.Load()):
		return t.Check() != nil
	}
	return false
}
