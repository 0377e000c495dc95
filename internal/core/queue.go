package core

import (
	"cmp"
	"slices"
	"time"
)

// The queue of those in one process who want one lock. They share one claim on the store, and hand
// the lock on among themselves: first come, first served, but no more than Turns times and not
// after Window, or other processes would wait for ever.
//
//	Arrive ──▶ waiting ── Win: a claim holds ──▶ Grant ── Unlock ──▶ the next Grant, or GiveUpClaim
//	             └── Quit
//
// Readers hold the lock together, under one claim. When that has served all its turns, the next
// reader gets a further claim at once: only a writer waits for readers.

const (
	// Turns is how many holders one claim serves while others may wait, unless a waiter asks for
	// another bound.
	Turns = 64
	// MaxTurns is how many holders one claim serves, ever: a holder's token is its claim's times
	// 65,536, plus its turn.
	MaxTurns = 1<<16 - 1
	// Window is how long the lock is handed on under one claim, from when that was won.
	Window = 200 * time.Millisecond
)

// QueueEventKind is what happened to a queue.
type QueueEventKind int

const (
	Arrive      QueueEventKind = iota // Waiter wants the lock
	Quit                              // Waiter does not wait any more
	Win                               // the campaign under way ended with Claim, which holds
	Lose                              // the campaign under way ended without one: refused, cancelled, or others have it
	Unlock                            // a holder under Claim has given the lock back
	ClaimEnding                       // Claim is ending: nobody gets the lock under it any more
	ClaimOver                         // Claim is over: whoever held the lock under it has lost it
	PutBack                           // Claim had ended when Waiter was granted the lock: Waiter is the first again
)

// QueueEvent is something that happened to a queue. The caller numbers waiters and claims; none has
// the number of another.
type QueueEvent struct {
	Kind    QueueEventKind
	Waiter  int
	Claim   int
	Read    bool // for Arrive: it shares the lock with other readers
	Try     bool // for Arrive and PutBack: only if it gets it at once
	Turns   int  // for Arrive and PutBack: the waiter's bound; 0: Turns
	Refused bool // for Lose: whoever asks for the same would be told the same
}

// QueueAction is what to do.
type QueueAction int

const (
	Campaign    QueueAction = iota // campaign for a claim
	Cancel                         // cancel the campaign under way; Lose or Win tells of its end
	Grant                          // Waiter holds the lock from now on, under Claim
	Deny                           // Waiter does not get the lock
	GiveUpClaim                    // nobody holds the lock under Claim, and nobody will
)

// QueueOrder is one thing to do, in the order given.
type QueueOrder struct {
	Do     QueueAction
	Waiter int
	Claim  int
	Turn   int // for Grant: how many had the lock under Claim before
	Read   bool
	Try    bool

	Refused bool // for Deny: by the store
	Again   bool // for GiveUpClaim: the Campaign that follows is of the same kind, so that both may be one request
}

type waiter struct {
	id        int
	read, try bool
	turns     int
}

// heldClaim is a claim that the queue has won and not given up.
type heldClaim struct {
	id      int
	read    bool
	holders int  // how many hold the lock under it
	turns   int  // how many have held the lock under it
	until   Time // the end of its Window
	ending  bool
}

// fits reports whether w can have the lock under c now.
func (c *heldClaim) fits(now Time, w waiter) bool {
	if c.read != w.read || c.ending || !c.read && c.holders > 0 {
		return false
	}
	return c.turns < w.turns && (c.turns == 0 || now < c.until)
}

// Queue decides who in this process gets a lock next.
type Queue struct {
	waiting   []waiter
	claims    []*heldClaim
	campaign  *waiter // the waiter for whom the campaign under way began; nil: none is
	cancelled bool    // that campaign
	givenUp   int     // the claim for writing that this step has given up
	orders    []QueueOrder
}

// NeedsClock reports whether Step looks at the time for e. To read the clock costs more than all
// the rest.
func (q *Queue) NeedsClock(e QueueEvent) bool {
	if e.Kind == Win {
		return true
	}
	return (len(q.waiting) > 0 || e.Kind == Arrive || e.Kind == PutBack) && slices.ContainsFunc(q.claims, func(c *heldClaim) bool {
		return c.read || c.holders == 0 || c.id == e.Claim
	})
}

// Step takes one event and returns what to do. The next step overwrites that. Now may be 0 where
// NeedsClock says no.
func (q *Queue) Step(now Time, e QueueEvent) []QueueOrder {
	q.orders, q.givenUp = q.orders[:0], 0
	switch e.Kind {
	case Arrive:
		q.arrive(now, e)
	case Quit:
		q.waiting = slices.DeleteFunc(q.waiting, func(w waiter) bool { return w.id == e.Waiter })
	case Win:
		q.claims = append(q.claims, &heldClaim{id: e.Claim, read: q.campaign.read, until: now + Window})
		q.campaign = nil
	case Lose:
		q.lose(e)
	case Unlock, ClaimEnding, ClaimOver, PutBack:
		q.claimEvent(e)
	}
	q.advance(now)
	return q.orders
}

// arrive lets a waiter in. One that only tries is denied if somebody of this process waits before
// it, or holds the lock in a way that it cannot share.
func (q *Queue) arrive(now Time, e QueueEvent) {
	w := waiter{e.Waiter, e.Read, e.Try, cmp.Or(e.Turns, Turns)}
	busy := len(q.waiting) > 0 || q.campaign != nil || q.blocked(w)
	if e.Try && busy && q.claimFor(now, w) == nil && !q.joinsTry(w) {
		q.order(QueueOrder{Do: Deny, Waiter: w.id})
		return
	}
	q.waiting = append(q.waiting, w)
}

// joinsTry reports whether w only tries to read and all who wait do the same: then the campaign
// under way is also for w.
func (q *Queue) joinsTry(w waiter) bool {
	c := q.campaign
	return w.read && c != nil && c.read && c.try && !q.cancelled && !slices.ContainsFunc(q.waiting, func(o waiter) bool { return !o.read || !o.try })
}

// blocked reports whether somebody of this process holds what w cannot share.
func (q *Queue) blocked(w waiter) bool {
	return slices.ContainsFunc(q.claims, func(c *heldClaim) bool { return !(c.read && w.read) })
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

// claimEvent takes an event of one claim.
func (q *Queue) claimEvent(e QueueEvent) {
	i := slices.IndexFunc(q.claims, func(c *heldClaim) bool { return c.id == e.Claim })
	if i < 0 {
		return
	}
	c := q.claims[i]
	switch e.Kind {
	case Unlock:
		c.holders--
	case ClaimEnding:
		c.ending = true
	case ClaimOver:
		c.ending, c.holders = true, 0
	case PutBack:
		c.holders--
		c.ending = true
		if e.Try {
			q.order(QueueOrder{Do: Deny, Waiter: e.Waiter})
			return
		}
		q.waiting = slices.Insert(q.waiting, 0, waiter{id: e.Waiter, read: c.read, turns: cmp.Or(e.Turns, Turns)})
	}
}

// claimFor returns a claim under which w can have the lock now, nil if there is none.
func (q *Queue) claimFor(now Time, w waiter) *heldClaim {
	if len(q.waiting) > 0 && q.waiting[0].id != w.id {
		return nil
	}
	for _, c := range q.claims {
		if c.fits(now, w) {
			return c
		}
	}
	return nil
}

// advance gives the lock to those who can have it, and gives up the claims under which nobody holds
// it.
func (q *Queue) advance(now Time) {
	for len(q.waiting) > 0 {
		w := q.waiting[0]
		c := q.claimFor(now, w)
		if c == nil {
			break
		}
		q.order(QueueOrder{Do: Grant, Waiter: w.id, Claim: c.id, Turn: c.turns, Read: c.read})
		c.holders++
		c.turns++
		q.waiting = q.waiting[1:]
	}
	q.claims = slices.DeleteFunc(q.claims, func(c *heldClaim) bool {
		if c.holders > 0 {
			return false
		}
		if !c.read && !c.ending {
			q.givenUp = c.id
		}
		q.order(QueueOrder{Do: GiveUpClaim, Claim: c.id})
		return true
	})
	q.campaignForFirst()
}

// campaignForFirst begins, keeps or cancels the campaign: it is for the first of those who wait. A
// writer does not campaign while this process holds a claim for writing, which is handed on. While
// this process reads it does, and so does not fall behind those of other processes.
func (q *Queue) campaignForFirst() {
	var want *waiter
	if len(q.waiting) > 0 {
		want = &q.waiting[0]
	}
	writing := slices.ContainsFunc(q.claims, func(c *heldClaim) bool { return !c.read })
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
			q.orders[i].Again = o.Do == GiveUpClaim && o.Claim == q.givenUp && !w.read && !w.try
		}
		q.order(QueueOrder{Do: Campaign, Read: w.read, Try: w.try})
	}
}

func (q *Queue) order(o QueueOrder) { q.orders = append(q.orders, o) }
