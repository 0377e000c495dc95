package metrics

import (
	"context"
	"errors"

	"github.com/primacy-go/primacy"
)

// member is a session that is followed. A renewal costs it the same however many elections hang on the lease: each notes what the session had counted when its
// stand began, and the difference is read. The tally's lock is held in all its methods.
type member struct {
	s     *primacy.Session
	t     *tally
	store *store
	took  histogram             // of its renewals
	told  uint64                // of work that outlived its right, also before it was followed
	lost  bool                  // some events were
	check *bool                 // whether its health check has succeeded; nil: nothing was told of it
	since map[*figures]renewals // what had been counted when a stand that is not over began
}

// follow counts what a session does until it is over or ctx ends.
func (c *Collector) follow(ctx context.Context, s *primacy.Session) {
	m := &member{s: s, t: c.t, since: map[*figures]renewals{}, told: s.Stats().Overruns}
	events := s.Events(ctx)
	c.t.mu.Lock()
	m.store = c.t.store(s.StoreName())
	c.t.sessions[m] = struct{}{}
	c.t.mu.Unlock()
	c.all.Go(func() {
		for e := range events {
			c.t.mu.Lock()
			m.count(e)
			c.t.mu.Unlock()
		}
		if ctx.Err() == nil {
			m.leave()
		}
	})
}

// leave keeps what was counted of a session that is over.
func (m *member) leave() {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	delete(m.t.sessions, m)
	for f := range m.since {
		m.stand(f, false)
	}
	for _, n := range m.s.Tallies() {
		m.t.of(n.Name).terms.add(n)
	}
	m.t.overran += m.s.Stats().Overruns
}

// renewals returns what the session has counted. The counts are exact, though events may have been lost.
func (m *member) renewals() renewals {
	st := m.s.Stats()
	return renewals{results: [...]uint64{st.Renewals, st.Misses - st.Late, st.Late}, took: m.took}
}

// overran returns how much work has outlived its right. What the session has counted and its event does not say yet would be of no election now, and of one at
// the next scrape: a counter that goes back.
func (m *member) overran() uint64 {
	if m.lost {
		return m.s.Stats().Overruns
	}
	return m.told
}

// stand says whether the election is stood for or led from now on.
func (m *member) stand(f *figures, yes bool) {
	since, stands := m.since[f]
	switch {
	case yes == stands:
	case yes:
		m.since[f] = m.renewals()
	default:
		now := m.renewals()
		f.renewals.add(&now, 1)
		f.renewals.add(&since, -1)
		delete(m.since, f)
	}
}

// resync finds out what is stood for: events may have been lost, and of two campaigns of one session for one name the end of one is not that of the other.
func (m *member) resync(standing []string) {
	stands := make(map[*figures]bool, len(standing))
	for _, name := range standing {
		f := m.t.of(name)
		stands[f] = true
		m.stand(f, true)
	}
	for f := range m.since {
		m.stand(f, stands[f])
	}
}

// count takes one event.
func (m *member) count(e primacy.Event) {
	m.t.lost += uint64(e.Missed)
	m.lost = m.lost || e.Missed > 0
	switch e.Kind {
	case primacy.Renewed:
		m.took.observe(&renewBounds, e.Took)
		m.store.answered(nil)
	case primacy.LeaseGranted:
		m.store.answered(nil)
	case primacy.RenewalMissed, primacy.GrantFailed:
		m.store.answered(e.Cause)
	case primacy.CampaignBegun:
		m.stand(m.t.of(e.Name), true)
	case primacy.CampaignEnded, primacy.Ended:
		if f := m.t.own(e.Name); f != nil {
			m.stand(f, false)
		}
	case primacy.Elected:
		m.t.of(e.Name).wait.observe(&waitBounds, e.Took)
		if m.t.own(e.Name) != nil {
			m.t.won(m.s, reign{e.Name, e.Token})
		}
	case primacy.HealthChanged:
		ok := e.Cause == nil
		m.check = &ok
	case primacy.WorkStopped:
		m.t.stopped(reign{e.Name, e.Token}, e.Took)
	case primacy.WorkOverran:
		m.told++
		if !e.Lock { // else it is in the sum
			m.t.of(e.Name).overruns++
		}
	}
}

// answered notes what the store said to who asked for a lease.
func (s *store) answered(err error) {
	if errors.Is(err, context.Canceled) {
		return // the caller gave up
	}
	s.asked, s.up = true, err == nil
	if err != nil {
		s.errors++
	}
}
