package primacy

import (
	"log/slog"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// beginWork marks that work runs under the term, so that it is seen when it outlives its right. It returns why
// not if the term is over already.
func (c *claim) beginWork(t *Term) error {
	if err := t.Check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := t.ended.Load(); e != nil {
		return t.told(e)
	}
	c.working++
	t.working++
	return nil
}

// endWork marks that work which beginWork let begin has returned.
func (c *claim) endWork(t *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.working--
	if c.working--; c.working == 0 && c.freed {
		c.settle()
	}
}

// watchOverrun acts on work that is still running though the right of its term is over. Where the right ended without warning the work gets the
// grace to stop, but never more than the time for which the store keeps others out.
// The claim's lock is held.
func (t *Term) watchOverrun() {
	if t.working == 0 || t.overdue {
		return
	}
	t.overdue = true
	t.waitOverrun(min(t.l.s.clock()+t.l.timing.Grace, core.Time(t.l.trusted.Load())))
}

// waitOverrun looks at the clock once a second at least: timers stand still in suspend.
func (t *Term) waitOverrun(until core.Time) {
	left := until - t.l.s.clock()
	if left <= 0 {
		go t.overrun()
		return
	}
	time.AfterFunc(min(left, time.Second), func() { t.waitOverrun(until) })
}

func (t *Term) overrun() {
	c := t.c
	c.mu.Lock()
	working, cause := t.working, c.core.Cause()
	c.mu.Unlock()
	if working == 0 {
		return
	}
	if cause == core.None {
		cause = core.Resigned // the claim stands: the work has given its own term back
	}
	s := c.l.s
	s.stats.overruns.Add(1)
	s.tell.event(Event{Kind: WorkOverran, Name: c.name, Token: t.token, Lease: c.l.dl.ID(), Lock: c.lock})
	s.log.log(slog.LevelError, "work outlived its right", "election", c.name, "token", t.token, "cause", cause.String())
	if s.o.Overrun == OverrunExit {
		s.log.flush()
		s.exit(exitOverrun)
	}
}
