// Package metrics shows a session to Prometheus: who leads, how much of the lease is left, how often and why that changed.
//
//	collector, err := metrics.New(session, metrics.Options{})
//	if err != nil {
//		return err
//	}
//	defer collector.Close()
//	prometheus.MustRegister(collector)
//
// Whether this process leads, and how much time it has left, is asked of each term at the scrape: an exporter that was frozen does not go on saying 1.
// A scrape makes no call on the store. Locks are not shown: they come and go too often for a series each.
//
// docs/metrics.md has all names, types and labels, and what to alert on.
package metrics

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/boottime"
)

// DefaultMaxElections is how many elections have series of their own where Options say nothing.
const DefaultMaxElections = 1000

// Options of a collector. The zero value works.
type Options struct {
	// MaxElections is how many elections have series of their own, some 50 each and 20 more for those led. The counters and histograms of all others
	// are summed under election="", their gauges are left out, and primacy_elections counts them. Who comes first has his own and keeps them.
	// Default 1,000; negative: none.
	MaxElections int
	// ClientGo adds leader_election_master_status{name}, which is primacy_is_leader under client-go's name, for alerts that exist already.
	ClientGo bool
	// Version is the label of primacy_build_info. Default: that of this library, as the program was built with it.
	Version string
	// LookEvery is how often the lines of the elections that have series of their own are read from
	// the store, for primacy_candidates, and their histories, for primacy_history_terms_total. Default: never.
	// What is older than three times that is not shown.
	LookEvery time.Duration
	// Observe names elections whose lines are read too, though this process does not stand for them.
	Observe []string
}

// Collector is a prometheus.Collector over a session, or several. It is safe for concurrent use.
type Collector struct {
	o     Options
	t     *tally
	looks looks
	build prometheus.Metric
	ctx   context.Context
	stop  context.CancelFunc
	all   sync.WaitGroup

	mu     sync.Mutex // of closed, and of Add beside Close
	closed bool
}

// New returns a collector that counts from now on, on three goroutines, with a fourth where the lines are looked at; Close ends them. New makes
// no call on the store; later the history is read once for each term that was won (see [primacy.Election.History]), for how long nobody had led
// before it. An option that cannot work is a [primacy.ErrInvalid].
func New(s *primacy.Session, o Options) (*Collector, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.MaxElections == 0 {
		o.MaxElections = DefaultMaxElections
	}
	if o.Version == "" {
		o.Version = libraryVersion()
	}
	o.Observe = slices.Clone(o.Observe)
	c := &Collector{o: o, t: newTally(max(0, o.MaxElections)), looks: looks{seen: map[string]look{}}}
	c.build = buildInfo.number(1, o.Version, runtime.Version())
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.follow(c.ctx, s)
	c.all.Go(func() { c.t.watchClock(c.ctx, boottime.Now) })
	c.all.Go(func() { c.t.watchGaps(c.ctx) })
	if o.LookEvery > 0 {
		c.all.Go(func() { c.look(c.ctx, s) })
	}
	return c, nil
}

func (o Options) check() error {
	switch {
	case o.LookEvery != 0 && o.LookEvery < time.Second:
		return fmt.Errorf("metrics: %w: LookEvery %v: reading every line more than once a second would burden the store", primacy.ErrInvalid, o.LookEvery)
	case o.LookEvery == 0 && len(o.Observe) > 0:
		return fmt.Errorf("metrics: %w: Observe needs LookEvery, how often to read their lines", primacy.ErrInvalid)
	}
	for _, name := range o.Observe {
		if err := primacy.CheckName(name); err != nil {
			return err
		}
	}
	return nil
}

// Add counts another session from now on, on one more goroutine, until that is closed; what it has done stays counted. Elections of one name are
// one election: of two sessions that stand for it at most one leads. Add each session once.
func (c *Collector) Add(s *primacy.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.follow(c.ctx, s)
	}
}

// Close ends the collector's goroutines. What it shows afterwards is what it had counted; who leads is still asked of the terms.
func (c *Collector) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.all.Wait()
}

// Killed says that the work of a term had to be killed, so that the time it took to stop is counted under how="kill". Call it before the term is resigned.
func (c *Collector) Killed(t *primacy.Term) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if len(c.t.killed) < maxKilled {
		c.t.killed[reign{t.Name(), t.Token()}] = struct{}{}
	}
}

// maxKilled bounds what waits for the event that takes it out, which may be lost.
const maxKilled = 1000

// libraryVersion returns the version of this module in the program that runs, "unknown" where the build says nothing.
func libraryVersion() string {
	const self = "github.com/primacy-go/primacy"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == self && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
}
