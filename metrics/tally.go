package metrics

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
)

// The values of labels, in the order in which they are counted.
var (
	reasons = [...]string{"expired", "deposed", "transferred", "resigned", "failed", "shutdown"} // of primacy_transitions_total with to="follower"
	ends    = [...]primacy.Reason{primacy.Expired, primacy.Deposed, primacy.Transferred, primacy.Resigned, primacy.Failed, primacy.Closed}
	results = [...]string{"ok", "error", "late"} // of primacy_renewals_total
	hows    = [...]string{"term", "kill"}        // of primacy_stop_duration_seconds
)

// tally counts what a session does. A renewal costs it the same however many elections hang on the lease: each notes what the session had counted when its
// stand began, and reads the difference.
type tally struct {
	s      *primacy.Session
	mu     sync.Mutex
	max    int                 // names with series of their own
	names  map[string]*figures // who has them keeps them, so that no counter goes back
	rest   figures             // the sum of all others
	took   histogram           // renewals of the session
	up     bool                // the store has answered last
	asked  bool                // it was asked at all
	errors uint64              // of the store
	lost   uint64              // events
	jumped time.Duration
	killed map[reign]struct{} // whose work was killed
}

// reign is one term.
type reign struct {
	name  string
	token primacy.Token
}

// figures are those of one election.
type figures struct {
	stands   bool     // this process stands for it or leads it
	since    renewals // what the session had counted when it began to
	before   renewals // in earlier stands
	overruns uint64
	wait     histogram
	gap      histogram
	stop     [len(hows)]histogram
}

// renewals are how many there were by results, and how long those took that were accepted.
type renewals struct {
	results [len(results)]uint64
	took    histogram
}

func newTally(s *primacy.Session, limit int) *tally {
	return &tally{s: s, max: limit, names: map[string]*figures{}, killed: map[reign]struct{}{}}
}

// of returns the figures for name: its own, or those of the sum. The lock is held, as in all that follow.
func (t *tally) of(name string) *figures {
	f := t.names[name]
	switch {
	case f != nil:
		return f
	case name == "" || len(t.names) >= t.max:
		return &t.rest
	}
	f = &figures{}
	t.names[name] = f
	return f
}

// renewals returns what the session has counted. The counts are exact, though events may have been lost.
func (t *tally) renewals() renewals {
	st := t.s.Stats()
	late := min(st.Late, st.Misses) // the two are not read together
	return renewals{results: [...]uint64{st.Renewals, st.Misses - late, late}, took: t.took}
}

// stand says whether the election is stood for or led from now on.
func (t *tally) stand(f *figures, yes bool) {
	if yes == f.stands {
		return
	}
	session := t.renewals()
	if yes {
		f.since = session
	} else {
		f.before = f.renewed(session)
	}
	f.stands = yes
}

// renewed returns the renewals that happened while the election was stood for.
func (f *figures) renewed(session renewals) renewals {
	r := f.before
	if !f.stands {
		return r
	}
	for i := range r.results {
		r.results[i] += session.results[i] - f.since.results[i]
	}
	r.took.add(&session.took, 1)
	r.took.add(&f.since.took, -1)
	return r
}

// resync finds out what is stood for: events may have been lost, and of two campaigns of this process for one name the end of one is not that of the other.
func (t *tally) resync(standing []string) {
	stands := make(map[*figures]bool, len(standing))
	for _, name := range standing {
		stands[t.of(name)] = true
	}
	for _, f := range t.names {
		t.stand(f, stands[f])
	}
	t.stand(&t.rest, stands[&t.rest])
}

// count takes one event.
func (t *tally) count(e primacy.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost += uint64(e.Missed)
	switch e.Kind {
	case primacy.Renewed:
		t.took.observe(&renewBounds, e.Took)
		t.answered(nil)
	case primacy.LeaseGranted:
		t.answered(nil)
	case primacy.RenewalMissed, primacy.GrantFailed:
		t.answered(e.Cause)
	case primacy.CampaignBegun:
		t.stand(t.of(e.Name), true)
	case primacy.CampaignEnded, primacy.Ended:
		if f := t.of(e.Name); f != &t.rest {
			t.stand(f, false)
		}
	case primacy.Elected:
		t.of(e.Name).wait.observe(&waitBounds, e.Took)
	case primacy.WorkStopped:
		t.stopped(reign{e.Name, e.Token}, e.Took)
	case primacy.WorkOverran:
		if !e.Lock { // else it is in the sum
			t.of(e.Name).overruns++
		}
	}
}

// answered notes what the store said to who asked for a lease.
func (t *tally) answered(err error) {
	if errors.Is(err, context.Canceled) {
		return // the caller gave up
	}
	t.asked, t.up = true, err == nil
	if err != nil {
		t.errors++
	}
}

func (t *tally) stopped(r reign, took time.Duration) {
	how := 0
	if _, killed := t.killed[r]; killed {
		delete(t.killed, r)
		how = 1
	}
	t.of(r.name).stop[how].observe(&stopBounds, took)
}

// bounds of a histogram's buckets, in seconds: a value is counted in the first that is not smaller.
type bounds [8]float64

var (
	renewBounds = bounds{0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5}
	waitBounds  = bounds{0.05, 0.25, 1, 5, 10, 15, 30, 60}
	stopBounds  = bounds{0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30}
)

// histogram counts observations by bounds; the last count is of those above all of them.
type histogram struct {
	counts [len(bounds{}) + 1]uint64
	sum    time.Duration
}

func (h *histogram) observe(b *bounds, d time.Duration) {
	d = max(0, d)
	i, _ := slices.BinarySearch(b[:], d.Seconds())
	h.counts[i]++
	h.sum += d
}

// add adds o, or takes it away with the sign -1.
func (h *histogram) add(o *histogram, sign int) {
	for i := range h.counts {
		h.counts[i] += uint64(sign) * o.counts[i]
	}
	h.sum += time.Duration(sign) * o.sum
}

// snapshot returns what Prometheus wants: how many there were, and for each bound how many of them are not above it.
func (h *histogram) snapshot(b *bounds) (count uint64, cumulative map[float64]uint64) {
	cumulative = make(map[float64]uint64, len(b))
	for i, at := range b {
		count += h.counts[i]
		cumulative[at] = count
	}
	return count + h.counts[len(b)], cumulative
}
