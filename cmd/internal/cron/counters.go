package cron

import (
	"maps"
	"sync"
)

// Suppressed counts the instants that this process was ready for and another had decided already;
// it is no verdict of a record.
const Suppressed = "duplicate_suppressed"

// Result is what Counters count by: primacy_cron_runs_total{job,result}. Results are the verdicts
// and Suppressed.
type Result struct{ Job, Result string }

// Counters count what became of instants in this process, since it began.
type Counters struct {
	mu sync.Mutex
	n  map[Result]uint64

	tell func(job, result string, n uint64)
}

// Tell lets f know of what has been counted already, and of each count from now on. Nil: no more.
func (c *Counters) Tell(f func(job, result string, n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tell = f; f != nil {
		for r, n := range c.n {
			f(r.Job, r.Result, n)
		}
	}
}

// Add counts n more.
func (c *Counters) Add(job, result string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Result]uint64{}
	}
	c.n[Result{job, result}] += n
	if c.tell != nil {
		c.tell(job, result, n)
	}
}

// All returns a copy of the counts.
func (c *Counters) All() map[Result]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}
