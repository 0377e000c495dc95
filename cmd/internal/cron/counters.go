package cron

import (
	"maps"
	"sync"
)

// Suppressed counts the instants that this process was ready for and another had decided already; it is no verdict of a record.
const Suppressed = "duplicate_suppressed"

// Result is what Counters count by: primacy_cron_runs_total{job,result}. Results are the verdicts and Suppressed.
type Result struct{ Job, Result string }

// Counters count what became of instants in this process, since it began.
type Counters struct {
	mu sync.Mutex
	n  map[Result]uint64
}

// Add counts n more.
func (c *Counters) Add(job, result string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Result]uint64{}
	}
	c.n[Result{job, result}] += n
}

// All returns a copy of the counts.
func (c *Counters) All() map[Result]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}
