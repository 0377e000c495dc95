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
	return nil
}

// endWork marks that work which beginWork let begin has returned.
func (c *claim) endWork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.working--; c.working == 0 && c.freed {
		c.settle()
	}
}

// watchOverrun acts on work that is still running though its right is over. Where the right ended without warning the work gets the
// grace to stop, but never more than the time for which the store keeps others out.
func (c *claim) watchOverrun() {
	if c.working == 0 || c.overdue {
		return
	}
	c.overdue = true
	clock := c.l.s.clock
	c.waitOverrun(min(clock()+c.l.timing.Grace, core.Time(c.l.trusted.Load())))
}

// waitOverrun looks at the clock once a second at least: timers stand still in suspend.
func (c *claim) waitOverrun(until core.Time) {
	left := until - c.l.s.clock()
	if left <= 0 {
		go c.overrun()
		return
	}
	time.AfterFunc(min(left, time.Second), func() { c.waitOverrun(until) })
}

func (c *claim) overrun() {
	c.mu.Lock()
	working, cause := c.working, c.core.Cause()
	c.mu.Unlock()
	if working == 0 {
		return
	}
	s := c.l.s
	s.stats.overruns.Add(1)
	s.log.log(slog.LevelError, "work outlived its right", "election", c.name, "token", c.place.Token, "cause", cause.String())
	if s.o.Overrun == OverrunExit {
		s.log.flush()
		s.exit(exitOverrun)
	}
}
