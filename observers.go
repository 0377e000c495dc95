package primacy

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// These are the observers of claims. The caller of all these methods holds the claim's lock.

func (n *counters) begunLocked(*claim, time.Duration) { n.terms.Add(1) }

func (n *counters) steppedLocked(*claim, step) {}

func (all *tallies) begunLocked(c *claim, _ time.Duration) { all.elected(c.name) }

func (all *tallies) steppedLocked(c *claim, s step) {
	if s.rightEnded {
		all.ended(c.name, c.reasonLocked(s.order.Cause))
	}
}

// begunLocked tells readers that a claim leads.
func (r *eventReaders) begunLocked(c *claim, began time.Duration) {
	if r.any() {
		r.publish(Event{Kind: Elected, Name: c.name, Token: c.term.token, Lease: c.l.stored.ID(),
			Took: c.l.s.uptime() - began})
	}
}

// steppedLocked tells readers how far the end of a term has come.
func (r *eventReaders) steppedLocked(c *claim, s step) {
	if s.order.Stop {
		r.tellEndLocked(c, Stopping, s.order.Cause)
	}
	if s.rightEnded {
		r.tellEndLocked(c, Ended, s.order.Cause)
	}
	if s.was == core.Leaving && c.handOverUnknownLocked() { // by LeaseOver or Missing, during a hand-over
		r.tellUnconfirmedLocked(c)
	}
	if s.event == core.GiveUp && s.was >= core.Leading && s.was <= core.Ended { // the work has stopped
		r.tellEndLocked(c, WorkStopped, c.core.Cause())
	}
}

// tellUnconfirmedLocked tells that the lease, or the claim, was gone before the store confirmed a
// hand-over.
func (r *eventReaders) tellUnconfirmedLocked(c *claim) {
	why := ErrExpired
	if c.core.Outcome() == core.ClaimMissing {
		why = ErrDeposed
	}
	r.publish(Event{Kind: NotHandedOver, Name: c.name, Token: c.term.token, Lease: c.l.stored.ID(),
		To: c.successorID, Cause: why})
}

// tellEndLocked tells one step of the end of a term.
func (r *eventReaders) tellEndLocked(c *claim, kind EventKind, cause core.Cause) {
	if !r.any() {
		return
	}
	ev := Event{Kind: kind, Name: c.name, Token: c.term.token, Lease: c.l.stored.ID(), Reason: c.reasonLocked(cause)}
	if kind != Stopping {
		ev.Took = c.l.s.uptime() - c.contextEndedAt
	}
	if kind != WorkStopped {
		e := c.endedErrorLocked(c.term.token, cause)
		ev.Cause, ev.By, ev.Text, ev.To = e.Cause, e.By, cmp.Or(c.textLocked(cause), e.Reason), c.successorID
	}
	r.publish(ev)
}

// termLog is the observer that logs terms. Its level is low if terms come and go too often for a
// line each: those of locks, and of Elections.
type termLog struct {
	log   *logQueue
	level slog.Level
}

func (w termLog) begunLocked(c *claim, _ time.Duration) {
	if w.log.logger == nil { // or each term of a lock would allocate a line that nobody writes
		return
	}
	w.log.log(w.level, "elected", "election", c.name, "token", c.term.token, "id", c.l.s.o.ID)
}

func (w termLog) steppedLocked(c *claim, s step) {
	if s.order.Stop && w.log.logger != nil {
		e := c.endedErrorLocked(c.term.token, s.order.Cause)
		about := []any{"election", c.name, "token", c.term.token, "cause", e.Cause}
		if e.Reason != "" {
			about = append(about, "why", e.Reason)
		}
		w.log.log(w.level, "term ending", about...)
	}
}
