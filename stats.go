package primacy

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Stats counts what a session has done.
type Stats struct {
	Leases   uint64 // granted
	Renewals uint64 // accepted
	Misses   uint64 // renewals refused, late or without an answer
	Late     uint64 // of these, without an answer in time
	Terms    uint64 // won
	Overruns uint64 // work that outlived its right
	// Unreadable is how many records Election.History has left out.
	Unreadable uint64
}

type counters struct{ leases, renewals, failed, late, terms, overruns, unreadable atomic.Uint64 }

func (n *counters) begunLocked(*claim, time.Duration) { n.terms.Add(1) }

func (n *counters) steppedLocked(*claim, step) {}

// Stats returns what has been counted so far.
func (s *Session) Stats() Stats {
	n, late := &s.stats, s.stats.late.Load() // read once: who takes it from Misses must never see that difference go back
	return Stats{n.leases.Load(), n.renewals.Load(), n.failed.Load() + late, late, n.terms.Load(), n.overruns.Load(), n.unreadable.Load()}
}

// Tally counts what a session has done in one election since it began. Unlike [Session.Events] it
// misses nothing.
type Tally struct {
	Name    string // empty: all elections beyond the first 100,000 that this session has led
	Elected uint64
	Ended   map[Reason]uint64 // terms whose right is over, by why
}

// maxTallies bounds what is kept for names that are led once and never again.
const maxTallies = 100_000

// tallies are those of a session.
type tallies struct {
	mu     sync.Mutex
	byName map[string]*tallied
}

type tallied struct {
	elected uint64
	ended   [len(reasons)]uint64
}

// Tallies returns the counts of all elections that this session has led, ordered by name.
func (s *Session) Tallies() []Tally {
	s.tallies.mu.Lock()
	defer s.tallies.mu.Unlock()
	all := make([]Tally, 0, len(s.tallies.byName))
	for name, n := range s.tallies.byName {
		t := Tally{Name: name, Elected: n.elected, Ended: map[Reason]uint64{}}
		for i, r := range reasons {
			if n.ended[i] > 0 {
				t.Ended[r] = n.ended[i]
			}
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Tally) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (all *tallies) begunLocked(c *claim, _ time.Duration) { all.elected(c.name) }

func (all *tallies) steppedLocked(c *claim, s step) {
	if s.rightEnded {
		all.ended(c.name, c.reasonLocked(s.order.Cause))
	}
}

func (all *tallies) elected(name string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ofLocked(name).elected++
}

func (all *tallies) ended(name string, r Reason) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.ofLocked(name).ended[slices.Index(reasons[:], r)]++
}

// ofLocked returns the counts of a name, made if there is none.
func (all *tallies) ofLocked(name string) *tallied {
	if all.byName == nil {
		all.byName = map[string]*tallied{}
	}
	t := all.byName[name]
	if t == nil && len(all.byName) >= maxTallies {
		name = ""
		t = all.byName[name]
	}
	if t == nil {
		t = &tallied{}
		all.byName[name] = t
	}
	return t
}
