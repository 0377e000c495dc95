package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy"
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		ch <- f.desc
	}
	if c.o.ClientGo {
		ch <- masterStatus.desc
	}
}

// Collect implements prometheus.Collector. It makes no call on the store, and holds up nothing: who leads is asked of each term's own
// clock now, so a process that was frozen past its deadline says 0 at the first scrape after it.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, m := range c.snapshot() {
		ch <- m
	}
}

// snapshot returns all samples. Nobody waits for a reader meanwhile.
func (c *Collector) snapshot() []prometheus.Metric {
	led := map[string]*primacy.Term{}
	for _, t := range c.s.Terms() {
		if t.Check() == nil {
			led[t.Name()] = t
		}
	}
	standing, ended, stats := c.s.Standing(), c.s.Tallies(), c.s.Stats()
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	out := make([]prometheus.Metric, 0, 64+32*len(c.t.names))
	c.t.resync(standing)
	for _, name := range standing {
		if c.t.of(name) != &c.t.rest {
			out = c.addNow(out, name, led[name])
		}
	}
	out = c.addCounts(out, ended, stats.Overruns)
	out = append(out,
		elections.number(float64(len(led)), "leader"),
		elections.number(float64(max(0, len(standing)-len(led))), "candidate"),
		clockJump.number(c.t.jumped.Seconds()),
		eventsLost.number(float64(c.t.lost)),
		storeErrors.number(float64(c.t.errors), c.store),
		c.build)
	if c.t.asked {
		out = append(out, storeUp.number(yes(c.t.up), c.store))
	}
	return c.addCandidates(out)
}

// addNow adds what is so at this moment, with a nil term of an election that this process waits for.
func (c *Collector) addNow(out []prometheus.Metric, name string, t *primacy.Term) []prometheus.Metric {
	out = append(out, isLeader.number(yes(t != nil), name))
	if c.o.ClientGo {
		out = append(out, masterStatus.number(yes(t != nil), name))
	}
	if t == nil {
		return out
	}
	return append(out,
		termInfo.number(1, name, c.s.ID(), t.Token().String()),
		leaseRemaining.number(t.Remaining().Seconds(), name),
		leaseTTL.number(t.TTL().Seconds(), name))
}

// terms are how many of an election this process won, and how many ended for each of the reasons.
type terms struct {
	elected uint64
	ended   [len(ends)]uint64
}

func (n *terms) add(t primacy.Tally) {
	n.elected += t.Elected
	for i, r := range ends {
		n.ended[i] += t.Ended[r]
	}
}

// addCounts adds what has been counted. Counters are there from zero on: one that appears with its first count would show no increase.
func (c *Collector) addCounts(out []prometheus.Metric, tallies []primacy.Tally, overran uint64) []prometheus.Metric {
	rest, own := terms{}, make(map[*figures]terms, len(tallies))
	for _, n := range tallies {
		f := c.t.of(n.Name)
		if f == &c.t.rest {
			rest.add(n)
			continue
		}
		mine := terms{}
		mine.add(n)
		own[f] = mine
	}
	session := c.t.renewals()
	for name, f := range c.t.names {
		out = addElection(out, name, f, own[f], session)
		out = append(out, overruns.number(float64(f.overruns), name))
		overran -= min(overran, f.overruns)
	}
	if len(c.t.names) >= c.t.max {
		out = addElection(out, "", &c.t.rest, rest, session)
	}
	return append(out, overruns.number(float64(overran), "")) // those of locks too
}

func addElection(out []prometheus.Metric, name string, f *figures, n terms, session renewals) []prometheus.Metric {
	r := f.renewed(session)
	for i, n := range r.results {
		out = append(out, renewalsTotal.number(float64(n), name, results[i]))
	}
	out = append(out, transitions.number(float64(n.elected), name, "leader", "elected"))
	for i, n := range n.ended {
		out = append(out, transitions.number(float64(n), name, "follower", reasons[i]))
	}
	out = append(out,
		renewDuration.histogram(&r.took, &renewBounds, name),
		acquireWait.histogram(&f.wait, &waitBounds, name),
		handoverGap.histogram(&f.gap, &waitBounds, name))
	if n.elected == 0 {
		return out
	}
	for i := range f.stop {
		out = append(out, stopDuration.histogram(&f.stop[i], &stopBounds, name, hows[i]))
	}
	return out
}

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
