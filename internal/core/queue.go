package core

import (
	"cmp"
	"slices"
	"time"
)

// The queue of those in one process who want one lock. They stand behind one claim at a time, and
// hand it on among themselves for a while: first come, first served, but no more than Turns times
// and not after Window, or other processes would wait for ever.
//
//	Arrive ──▶ waiting ── Won: a claim holds ──▶ Grant ── Unlock ──▶ Grant to the next of this process, or Close the tenure
//	             └── Leave: gave up
//
// Readers hold a tenure together. A reader that comes when the newest of them is used up gets
// another one, and does not wait for those who read: so nobody waits for a reader but a writer.

const (
	// Turns is how many holders one tenure has at most while others may wait, unless a waiter asks
	// for another bound.
	Turns = 64
	// MaxTurns is how many holders one tenure has at most, ever: a holder's token is its claim's
	// times 65,536, plus its turn.
	MaxTurns = 1<<16 - 1
	// Window is how long a tenure is still handed on after it was won.
	Window = 200 * time.Millisecond
)

// QueueEventKind is what happened to a queue.
type QueueEventKind int

const (
	Arrive QueueEventKind = iota // Waiter wants the lock
	Quit                         // Waiter does not wait any more
	Win                          // the campaign under way ended with a claim that holds: Tenure
	Lose                         // the campaign under way ended without one: taken by others, cancelled, or refused
	Unlock                       // a holder of Tenure has given it back
	Fade                         // Tenure is ending: nobody gets it any more
	Void                         // Tenure is over: whoever held it has lost it
	Return                       // Waiter was granted Tenure, which had just ended: it waits on, as the first, unless it only tried
)

// QueueEvent is something that happened to a queue. Waiters and tenures are numbered by the caller,
// never twice the same.
type QueueEvent struct {
	Kind    QueueEventKind
	Waiter  int
	Tenure  int
	Read    bool // for Arrive: it shares the lock with other readers
	Try     bool // for Arrive and Return: only if it gets it at once
	Turns   int  // for Arrive and Return: its bound, if it is not the usual one
	Refused bool // for Lose: whoever asks for the same would be told the same
}

// QueueAction is what to do.
type QueueAction int

const (
	Campaign QueueAction = iota // campaign for a claim
	Cancel                      // cancel the campaign under way; Lose or Win tells of its end
	Grant                       // Waiter holds Tenure from now on
	Deny                        // Waiter does not get it
	CloseIt                     // release Tenure: nobody holds it and nobody will
)

// QueueOrder is one thing to do, in the order given.
type QueueOrder struct {
	Do     QueueAction
	Waiter int
	Tenure int
	Turn   int // for Grant: how many had this tenure before
	Read   bool
	Try    bool

	Refused bool // for Deny: by the store
	Again   bool // for CloseIt: the Campaign that follows is of the same kind, so that both may be one request
}

type waiter struct {
	id        int
	read, try bool
	turns     int
}

type tenure struct {
	id      int
	read    bool
	holders int
	turns   int
	until   Time
	fading  bool
}

// fits reports whether w can have it now.
func (t *tenure) fits(now Time, w waiter) bool {
	if t.read != w.read || t.fading || !t.read && t.holders > 0 {
		return false
	}
	return t.turns < w.turns && (t.turns == 0 || now < t.until)
}

// Queue decides who in this process gets a lock next.
type Queue struct {
	waiting   []waiter
	tenures   []*tenure
	campaign  *waiter // what the campaign under way is for; its id does not matter
	cancelled bool
	closed    int // the tenure for writing that this step has closed
	orders    []QueueOrder
}

// Idle reports whether nobody waits or holds and nothing is under way.
func (q *Queue) Idle() bool { return len(q.waiting) == 0 && len(q.tenures) == 0 && q.campaign == nil }

// Timed reports whether Step looks at the time for e. To read the clock costs more than all the
// rest.
func (q *Queue) Timed(e QueueEvent) bool {
	if e.Kind == Win {
		return true
	}
	return (len(q.waiting) > 0 || e.Kind == Arrive || e.Kind == Return) && slices.ContainsFunc(q.tenures, func(t *tenure) bool {
		return t.read || t.holders == 0 || t.id == e.Tenure
	})
}

// Step takes one event and returns what to do, which is overwritten by the next step. Now counts
// where Timed says so.
func (q *Queue) Step(now Time, e QueueEvent) []QueueOrder {
	q.orders, q.closed = q.orders[:0], 0
	switch e.Kind {
	case Arrive:
		q.arrive(now, e)
	case Quit:
		q.waiting = slices.DeleteFunc(q.waiting, func(w waiter) bool { return w.id == e.Waiter })
	case Win:
		q.tenures = append(q.tenures, &tenure{id: e.Tenure, read: q.campaign.read, until: now + Window})
		q.campaign = nil
	case Lose:
		q.lose(e)
	case Unlock, Fade, Void, Return:
		q.tenureEvent(e)
	}
	q.advance(now)
	return q.orders
}

// arrive lets a waiter in. One that only tries is sent away if anybody stands before it, here or
// with a tenure it cannot share.
func (q *Queue) arrive(now Time, e QueueEvent) {
	w := waiter{e.Waiter, e.Read, e.Try, cmp.Or(e.Turns, Turns)}
	busy := len(q.waiting) > 0 || q.campaign != nil || q.blocked(w)
	if e.Try && busy && q.open(now, w) == nil && !q.together(w) {
		q.order(QueueOrder{Do: Deny, Waiter: w.id})
		return
	}
	q.waiting = append(q.waiting, w)
}

// together reports whether w, who tries to read, can share the fate of those who are trying that
// now: no reader keeps another out.
func (q *Queue) together(w waiter) bool {
	c := q.campaign
	return w.read && c != nil && c.read && c.try && !q.cancelled && !slices.ContainsFunc(q.waiting, func(o waiter) bool { return !o.read || !o.try })
}

// blocked reports whether somebody of this process holds what w cannot share.
func (q *Queue) blocked(w waiter) bool {
	return slices.ContainsFunc(q.tenures, func(t *tenure) bool { return !(t.read && w.read) })
}

func (q *Queue) lose(e QueueEvent) {
	was := q.campaign
	q.campaign = nil
	if e.Refused {
		q.waiting = slices.DeleteFunc(q.waiting, func(w waiter) bool {
			if w.read == was.read {
				q.order(QueueOrder{Do: Deny, Waiter: w.id, Refused: true})
			}
			return w.read == was.read
		})
		return
	}
	for was.try && len(q.waiting) > 0 && q.waiting[0].try && q.waiting[0].read == was.read {
		q.order(QueueOrder{Do: Deny, Waiter: q.waiting[0].id})
		q.waiting = q.waiting[1:]
	}
}

func (q *Queue) tenureEvent(e QueueEvent) {
	i := slices.IndexFunc(q.tenures, func(t *tenure) bool { return t.id == e.Tenure })
	if i < 0 {
		return
	}
	t := q.tenures[i]
	switch e.Kind {
	case Unlock:
		t.holders--
	case Fade:
		t.fading = true
	case Void:
		t.fading, t.holders = true, 0
	case Return:
		t.holders--
		t.fading = true
		if e.Try {
			q.order(QueueOrder{Do: Deny, Waiter: e.Waiter})
			return
		}
		q.waiting = slices.Insert(q.waiting, 0, waiter{id: e.Waiter, read: t.read, turns: cmp.Or(e.Turns, Turns)})
	}
}

// open returns a tenure that w can have now.
func (q *Queue) open(now Time, w waiter) *tenure {
	if len(q.waiting) > 0 && q.waiting[0].id != w.id {
		return nil
	}
	for _, t := range q.tenures {
		if t.fits(now, w) {
			return t
		}
	}
	return nil
}

// advance gives the lock to those who can have it, closes what nobody holds, and sees to it that a
// campaign is under way for the first of those who wait, and for nobody else.
func (q *Queue) advance(now Time) {
	for len(q.waiting) > 0 {
		w := q.waiting[0]
		t := q.open(now, w)
		if t == nil {
			break
		}
		q.order(QueueOrder{Do: Grant, Waiter: w.id, Tenure: t.id, Turn: t.turns, Read: t.read})
		t.holders++
		t.turns++
		q.waiting = q.waiting[1:]
	}
	q.tenures = slices.DeleteFunc(q.tenures, func(t *tenure) bool {
		if t.holders > 0 {
			return false
		}
		if !t.read && !t.fading {
			q.closed = t.id
		}
		q.order(QueueOrder{Do: CloseIt, Tenure: t.id})
		return true
	})
	q.stand()
}

// stand begins, keeps or cancels the campaign. A writer whose process writes already waits for
// that: one claim has one turn at a time. One whose process reads stands in the line meanwhile, so
// that it loses no time to those of other processes.
func (q *Queue) stand() {
	var want *waiter
	if len(q.waiting) > 0 {
		want = &q.waiting[0]
	}
	writing := slices.ContainsFunc(q.tenures, func(t *tenure) bool { return !t.read })
	switch {
	case q.campaign != nil && (want == nil || want.read != q.campaign.read || q.campaign.try && !want.try):
		if !q.cancelled {
			q.cancelled = true
			q.order(QueueOrder{Do: Cancel})
		}
	case q.campaign == nil && want != nil && !writing:
		w := *want
		q.campaign, q.cancelled = &w, false
		for i, o := range q.orders {
			q.orders[i].Again = o.Do == CloseIt && o.Tenure == q.closed && !w.read && !w.try
		}
		q.order(QueueOrder{Do: Campaign, Read: w.read, Try: w.try})
	}
}

func (q *Queue) order(o QueueOrder) { q.orders = append(q.orders, o) }
