package metrics

import (
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

// tally counts what sessions do.
type tally struct {
	mu       sync.Mutex
	max      int                  // names with series of their own
	names    map[string]*figures  // who has them keeps them, so that no counter goes back
	rest     figures              // the sum of all others
	sessions map[*member]struct{} // that are not over
	stores   map[string]*store
	overran  uint64 // work under sessions that are over
	lost     uint64 // events
	jumped   time.Duration
	killed   map[reign]struct{} // whose work was killed
	wins     chan win
}

// reign is one term.
type reign struct {
	name  string
	token primacy.Token
}

// store is what is known of a store from the leases that were asked of it.
type store struct {
	up     bool // it has answered last
	asked  bool
	errors uint64
}

// figures are those of one election.
type figures struct {
	renewals renewals // of stands that are over
	terms    terms    // of sessions that are over
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

// terms are how many were won, and how many ended for each of the reasons.
type terms struct {
	elected uint64
	ended   [len(ends)]uint64
}

func newTally(limit int) *tally {
	return &tally{max: limit, names: map[string]*figures{}, sessions: map[*member]struct{}{}, stores: map[string]*store{}, killed: map[reign]struct{}{},
		wins: make(chan win, maxWins)}
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

// own returns the figures for name, nil if it is part of the sum.
func (t *tally) own(name string) *figures {
	if f := t.of(name); f != &t.rest {
		return f
	}
	return nil
}

func (t *tally) store(name string) *store {
	s := t.stores[name]
	if s == nil {
		s = &store{}
		t.stores[name] = s
	}
	return s
}

func (t *tally) stopped(r reign, took time.Duration) {
	how := 0
	if _, killed := t.killed[r]; killed {
		delete(t.killed, r)
		how = 1
	}
	t.of(r.name).stop[how].observe(&stopBounds, took)
}

func (r *renewals) add(o *renewals, sign int) {
	for i := range r.results {
		r.results[i] += uint64(sign) * o.results[i]
	}
	r.took.add(&o.took, sign)
}

func (n *terms) add(t primacy.Tally) {
	n.elected += t.Elected
	for i, r := range ends {
		n.ended[i] += t.Ended[r]
	}
}
