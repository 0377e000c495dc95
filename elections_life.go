package primacy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// The locks, from the outer to the inner: a claim's; then Elections' or the session's or the lease's, of which none is taken under another.

// await has a name stand anew. It returns the number for queueUp. Elections.mu is held.
func (es *Elections) await(name string) uint32 {
	es.stands++
	es.names[name] = stand{no: es.stands, began: es.s.uptime()}
	es.s.tell.event(Event{Kind: CampaignBegun, Name: name})
	es.open++
	return es.stands
}

// turnOf is what waits for the seat of a stand.
func (es *Elections) turnOf(no uint32) *localTurn { return &localTurn{many: es, stand: no} }

// queueUp waits for the seat of a name among this process's own claims.
func (es *Elections) queueUp(name string, no uint32) {
	if es.s.takeSeat(seat{name: name}, es.turnOf(no)) {
		es.turn(name, no)
		return
	}
	es.mu.Lock()
	waits := es.names[name].no == no
	es.mu.Unlock()
	if !waits { // it was withdrawn before it waited here
		es.s.quitSeat(seat{name: name}, es.turnOf(no))
	}
}

// turn hears that the seat of a name is that stand's.
func (es *Elections) turn(name string, no uint32) {
	es.mu.Lock()
	st, known := es.names[name]
	if !known || st.seated || st.c != nil || st.no != no {
		es.mu.Unlock()
		es.s.leaveSeat(seat{name: name}) // it was withdrawn meanwhile
		return
	}
	es.names[name] = stand{seated: true, began: st.began}
	es.findLease(name)
	es.mu.Unlock()
}

// findLease has a name stand under the present lease, or the next one.
func (es *Elections) findLease(name string) {
	es.unleased = append(es.unleased, name)
	if !es.grounding {
		es.grounding = true
		go es.ground()
	}
}

// ground finds a lease for all names that have none.
func (es *Elections) ground() {
	for try := 0; ; try++ {
		_ = pause(es.ctx, min(try, 1)) // live sees a lease that is ending in a moment
		l, err := es.s.live(es.ctx)
		es.mu.Lock()
		names := es.unleased
		es.unleased = nil
		if es.grounding = len(names) > 0; !es.grounding {
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

// abandon stands no more for a name that waits for a lease.
func (es *Elections) abandon(name string, err error) {
	es.mu.Lock()
	st := es.names[name]
	waits := st.seated && st.c == nil
	if waits {
		delete(es.names, name)
		es.less()
		es.s.notWon(name, st.began, err)
		if !errors.Is(err, ErrClosed) && !es.closed {
			es.tell(manyNews{err: &NotStandingError{name, err}})
		} else {
			es.wake() // there may be nothing left to tell
		}
	}
	es.mu.Unlock()
	if waits {
		es.s.leaveSeat(seat{name: name})
	}
}

// newEntrant returns a claim that the workers carry out.
func (es *Elections) newEntrant(l *lease, name string) *entrant {
	c := &entrant{es: es, claim: claim{l: l, seat: seat{name: name}, claimSpec: &es.spec, values: context.Background()}}
	c.owner = c
	c.step(core.ClaimEvent{Kind: core.Stand})
	return c
}

// enter makes the claim of a name, unless the lease is ending.
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
	es.findLease(name)
	return false
}

func (c *entrant) wonLocked() time.Duration {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	began := es.names[c.name].began
	es.names[c.name] = stand{c: c, seated: true, leads: true, began: began}
	es.tell(manyNews{t: c.term})
	es.tally.won++
	es.logSoon()
	return began
}

// endedLocked has a term that nobody was told of resigned, and its name stood for again.
func (c *entrant) endedLocked(cause core.Cause) {
	es := c.es
	resigned := c.core.Phase() > core.Stopping
	es.mu.Lock()
	es.tally.ended++
	es.logSoon()
	if es.names[c.name].c == c {
		delete(es.names, c.name)
	}
	var no uint32
	untold := !c.told && !c.dropped && !resigned
	switch {
	case c.told && !resigned:
		es.tell(manyNews{t: c.term, err: c.ended(c.term.token, cause)})
	case untold:
		es.drop(c, true)
		no = es.await(c.name)
	}
	es.mu.Unlock()
	if untold {
		es.queueUp(c.name, no)
		es.post(c, core.Nothing, 0) // nobody works under it: it is resigned
	}
}

func (c *entrant) leaveSeatLocked() { c.es.s.leaveSeat(c.seat) }

func (c *entrant) freedLocked(_ core.ClaimPhase, again bool) {
	es := c.es
	es.mu.Lock()
	defer es.mu.Unlock()
	if again && es.names[c.name].c == c {
		es.names[c.name] = stand{seated: true, began: es.names[c.name].began}
		es.findLease(c.name)
		return
	}
	if es.names[c.name].c == c && !c.told {
		delete(es.names, c.name)
	}
	if !c.told {
		es.less()
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
		es.tell(manyNews{err: &NotStandingError{c.name, err}})
	}
}

// manyTally is what the next line of the log tells.
type manyTally struct {
	won, ended int
	due        bool
}

// logSoon has one line written for all that happens within a second.
func (es *Elections) logSoon() {
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
		es.tally = manyTally{}
		es.mu.Unlock()
		es.s.log.log(slog.LevelInfo, "elections", "elected", n.won, "ended", n.ended, "leading", leads, "waiting", names-leads, "id", es.s.o.ID)
	})
}
