package metrics

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// CronResult is what became of an instant of a cron job, as this process saw it.
type CronResult uint8

const (
	CronOK         CronResult = iota // it ran here, with success
	CronFailed                       // it ran here, and failed
	CronSuppressed                   // another process has it
	CronMissed                       // nobody ran it in time
	cronResults
)

// String returns the value of the label result.
func (r CronResult) String() string {
	if r >= cronResults {
		return "unknown"
	}
	return [cronResults]string{"ok", "failed", "duplicate_suppressed", "missed"}[r]
}

// maxJobs is how many jobs have series of their own; what the others do is summed under job="".
const maxJobs = 1000

// CronRuns is primacy_cron_runs_total. It is safe for concurrent use; register it beside the [Collector].
type CronRuns struct {
	mu   sync.Mutex
	jobs map[string][cronResults]uint64
}

// NewCronRuns returns the counter. Each of jobs has a series of zero for each result from the start, so that its first failure shows as an increase.
func NewCronRuns(jobs ...string) *CronRuns {
	c := &CronRuns{jobs: map[string][cronResults]uint64{}}
	for _, job := range jobs[:min(len(jobs), maxJobs)] {
		c.jobs[job] = [cronResults]uint64{}
	}
	return c
}

// Add counts one instant of a job.
func (c *CronRuns) Add(job string, r CronResult) {
	if r >= cronResults {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, known := c.jobs[job]
	if !known && len(c.jobs) >= maxJobs {
		job = ""
		counts = c.jobs[job]
	}
	counts[r]++
	c.jobs[job] = counts
}

// Describe implements prometheus.Collector.
func (c *CronRuns) Describe(ch chan<- *prometheus.Desc) { ch <- cronRuns.desc }

// Collect implements prometheus.Collector.
func (c *CronRuns) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	jobs := maps.Clone(c.jobs) // a reader that is slow holds up no job
	c.mu.Unlock()
	for job, counts := range jobs {
		for r, n := range counts {
			ch <- cronRuns.number(float64(n), job, CronResult(r).String())
		}
	}
}
