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

// led is a term that is not over, and who leads.
type led struct {
	*primacy.Term
	id string
}

// scrape is what one answer to Prometheus is made of.
type scrape struct {
	now      map[string]*led        // what is stood for, nil where it is not led
	renewals map[*figures]*renewals // of stands that are not over
	terms    map[*figures]*terms
	overran  uint64
}

// snapshot returns all samples. The reader is not waited for.
func (c *Collector) snapshot() []prometheus.Metric {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	s := c.t.look()
	out := make([]prometheus.Metric, 0, 64+32*len(c.t.names))
	leads := 0
	for name, l := range s.now {
		if l != nil {
			leads++
		}
		if c.t.own(name) != nil {
			out = c.addNow(out, name, l)
		}
	}
	out = c.addCounts(out, s)
	out = append(out,
		elections.number(float64(leads), "leader"),
		elections.number(float64(len(s.now)-leads), "candidate"),
		clockJump.number(c.t.jumped.Seconds()),
		eventsLost.number(float64(c.t.lost)),
		c.build)
	checks := map[string]bool{} // two sessions may have one ID
	for m := range c.t.sessions {
		if m.check != nil {
			was, twice := checks[m.s.ID()]
			checks[m.s.ID()] = *m.check && (was || !twice)
		}
	}
	for id, ok := range checks {
		out = append(out, healthy.number(yes(ok), id))
	}
	for name, st := range c.t.stores {
		out = append(out, storeErrors.number(float64(st.errors), name))
		if st.asked {
			out = append(out, storeUp.number(yes(st.up), name))
		}
	}
	return c.addCandidates(out)
}

// look asks all sessions.
func (t *tally) look() scrape {
	s := scrape{now: map[string]*led{}, renewals: map[*figures]*renewals{}, terms: map[*figures]*terms{}, overran: t.overran}
	for m := range t.sessions {
		standing := m.s.Names()
		m.resync(standing)
		for _, name := range standing {
			if _, known := s.now[name]; !known {
				s.now[name] = nil // it only stands for it, unless a term says otherwise
			}
		}
		for _, term := range m.s.Terms() {
			s.now[term.Name()] = &led{term, m.s.ID()}
		}
		counted := m.renewals()
		s.overran += m.overran()
		for f, since := range m.since {
			r := part(s.renewals, f)
			r.add(&counted, 1)
			r.add(&since, -1)
		}
		for _, n := range m.s.Tallies() {
			part(s.terms, t.of(n.Name)).add(n)
		}
	}
	return s
}

// part returns the part of f, made if there is none.
func part[V any](of map[*figures]*V, f *figures) *V {
	if of[f] == nil {
		of[f] = new(V)
	}
	return of[f]
}

// addNow adds what is so at this moment, with a nil term of an election that this process only waits for.
func (c *Collector) addNow(out []prometheus.Metric, name string, l *led) []prometheus.Metric {
	leads := l != nil && l.Check() == nil
	out = append(out, isLeader.number(yes(leads), name))
	if c.o.ClientGo {
		out = append(out, masterStatus.number(yes(leads), name))
	}
	if !leads {
		return out
	}
	return append(out,
		termInfo.number(1, name, l.id, l.Token().String()),
		leaseRemaining.number(l.Remaining().Seconds(), name),
		leaseTTL.number(l.TTL().Seconds(), name))
}

// addCounts adds what has been counted. Counters are there from zero on: one that appears with its first count would show no increase.
func (c *Collector) addCounts(out []prometheus.Metric, s scrape) []prometheus.Metric {
	for name, f := range c.t.names {
		out = addElection(out, name, f, s)
		out = append(out, overruns.number(float64(f.overruns), name))
		s.overran -= min(s.overran, f.overruns)
	}
	if len(c.t.names) >= c.t.max {
		out = addElection(out, "", &c.t.rest, s)
	}
	return append(out, overruns.number(float64(s.overran), "")) // those of locks too
}

func addElection(out []prometheus.Metric, name string, f *figures, s scrape) []prometheus.Metric {
	r, n := f.renewals, f.terms
	if now := s.renewals[f]; now != nil {
		r.add(now, 1)
	}
	if now := s.terms[f]; now != nil {
		n.elected += now.elected
		for i := range n.ended {
			n.ended[i] += now.ended[i]
		}
	}
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
