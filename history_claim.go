package primacy

import (
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// beginning returns the record of a term that was won and whose right is not over.
func (c *claim) beginning() (n endNote) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return n
	}
	c.noted = true
	return endNote{c.journal(), record{ID: c.l.s.o.ID, Value: c.announced(), From: c.won}.encode(recordKey(c.term.token))}
}

func (c *claim) journal() string { return historyPrefix + c.name }

// announced is the value that observers see. The claim's lock is held, as in what follows.
func (c *claim) announced() []byte {
	if c.said != nil {
		return c.said
	}
	return c.value
}

func (w *scribe) begunLocked(c *claim, _ time.Duration) { w.began(c) }

// steppedLocked sees that the end of the term is recorded: by the call that gives the place up if there is one, and otherwise by the
// writer.
func (w *scribe) steppedLocked(c *claim, s step) {
	e, o, was := s.event, s.order, s.was
	if w.journal == nil || c.filed {
		return
	}
	late := func() {
		c.filed = true
		w.ended(endNote{c.journal(), driver.Record{Key: c.tale.Key + endSuffix, Value: c.tale.Value}})
	}
	switch phase := c.core.Phase(); {
	case phase == core.Leaving && (e == core.GiveUp || e == core.NoHeir):
		c.tale = c.end(c.core.Cause())
		c.carried = c.noted || !sweeps(c.term.token)
	case phase == core.Stopping && c.over: // nothing stands that could be released
		c.tale = c.end(o.Cause)
		late()
	case was == core.Leaving && phase == core.Done && (e != core.Left || !c.carried):
		if c.unconfirmed() {
			c.tale = c.end(c.core.Cause()) // if it was handed over all the same, the record that travelled with that counts first
		}
		late()
	}
}

// parting is the place as it is given up: with what is recorded of it.
func (c *claim) parting() driver.Place {
	p := c.place
	if c.claimRest != nil && c.carried {
		r := c.tale // a copy: what is under way is not changed
		p.Record, p.Journal = &r, c.journal()
	}
	return p
}

// sweeps picks one term of sixteen. A release adds a record and removes none; where nothing but ends are written, since terms are short, the end of such a term is
// appended instead, which keeps the journal within bounds.
func sweeps(t Token) bool { return uint64(t)*0x9E3779B97F4A7C15>>60 == 0 }

// unconfirmed says whether the claim was to be handed over and nobody knows whether it was. An heir that stood no more is not that: it was released.
func (c *claim) unconfirmed() bool {
	return c.core.Phase() == core.Done && c.core.Heir() != 0 && (c.core.Fate() == core.Undecided || c.core.Fate() == core.Vanished)
}

// end makes the record of the end of the term. Cause is why its right is over: a term that was asked to end may have been lost before it did.
func (c *claim) end(cause core.Cause) driver.Record {
	r := record{ID: c.l.s.o.ID, Value: c.announced(), From: c.won, To: c.ledTo, Reason: c.reason(cause), Text: c.text(cause)}
	if c.request != nil && (cause == core.Resigned || cause == core.Transferred) {
		r.By = c.request.By
	}
	switch {
	case c.core.Heir() == 0 || c.core.Phase() == core.Stopping: // it was lost before anything was handed over
	case c.core.Fate() == core.HeirGone:
		r.Reason, r.Text = Resigned, "to be handed over to "+c.to+", which stood no more"
	case c.unconfirmed():
		r.Reason, r.Text = Resigned, "to be handed over to "+c.to+", which the store has not confirmed"
	default:
		r.Reason, r.Heir = Transferred, c.to
	}
	return r.encode(recordKey(c.term.token))
}

// rightEnded returns when the right ended by the wall clock: at the deadline at the latest, also for a process that was frozen and hears of it an hour later.
func (c *claim) rightEnded() time.Time {
	now := time.Now().Round(0)
	late := max(0, c.l.s.clock()-core.Time(c.l.trusted.Load()))
	if at := now.Add(-late); late == 0 || at.After(c.won) {
		return at
	}
	return c.won // it was won when it was as good as over
}
