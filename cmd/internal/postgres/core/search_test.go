package core

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// found is what a search says.
type found struct {
	states, depth int
	violated      string
	story         string
	took          time.Duration
}

// came is how a state was reached.
type came struct{ from uint64 }

type reached struct {
	world
	sum uint64
}

// search visits every state within the bounds, breadth first, so that a story of what goes wrong is
// one of the shortest. States that differ in the names of members only are one. It ends at the
// first violation.
func (b bounds) search() (f found) {
	start := time.Now()
	first, sum := b.firstState()
	seen := map[uint64]came{sum: {}}
	level := []reached{{first, sum}}
	st := &stepper{bounds: b, memo: map[choice]Change{}}
	defer func() { f.states, f.took = len(seen), time.Since(start) }()
	for f.depth = 0; len(level) > 0; f.depth++ {
		var next []reached
		for i := range level {
			w, from := &level[i].world, level[i].sum
			st.emit = func(_ act, x world, bad string) {
				if f.violated != "" {
					return
				}
				c, sum := x.clean().canonical(b.members)
				if _, old := seen[sum]; !old {
					seen[sum] = came{from}
					next = append(next, reached{c, sum})
				}
				if bad == "" && b.broken == "" { // a broken rule must lose something
					bad = holds(&x)
				}
				if bad != "" {
					f.violated = bad
					f.story = b.tell(seen, from, sum)
				}
			}
			st.all(w)
			if f.violated != "" {
				return f
			}
		}
		level = next
	}
	return f
}

// firstState is the state after the steps of the script, which all must be possible.
func (b bounds) firstState() (world, uint64) {
	w := b.first()
	st := &stepper{bounds: b, memo: map[choice]Change{}}
	for _, step := range b.script {
		now, done := w, false
		st.emit = func(a act, x world, _ string) {
			if a.String() == step {
				w, done = x, true
			}
		}
		if st.all(&now); !done {
			panic("this cannot happen: " + step)
		}
	}
	return w.clean().canonical(b.members)
}

// clean forgets what no step depends on.
func (w *world) clean() *world {
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.said.token < w.token {
			n.said = answer{}
		}
	}
	return w
}

// tell takes the same steps again, from the first state, and returns what happens in each.
func (b bounds) tell(seen map[uint64]came, last, end uint64) string {
	sums := []uint64{end}
	first, start := b.firstState()
	for sum := last; ; sum = seen[sum].from {
		sums = append(sums, sum)
		if sum == start {
			break
		}
	}
	var text strings.Builder
	w := first
	st := &stepper{bounds: b, memo: map[choice]Change{}}
	for i := len(sums) - 2; i >= 0; i-- {
		done := false
		now := w
		st.emit = func(a act, x world, bad string) {
			if _, sum := x.clean().canonical(b.members); done || sum != sums[i] {
				return
			}
			done, w = true, x
			fmt.Fprintf(&text, "%3d  %v", len(sums)-1-i, a)
			if bad != "" {
				fmt.Fprintf(&text, ": %s", bad)
			}
			text.WriteByte('\n')
		}
		st.all(&now)
	}
	return text.String() + "     " + w.String()
}

// searches are the bounds within which nothing may go wrong.
var searches = []struct {
	what  string
	large bool // only with SEAL_SEARCH=large: minutes
	bounds
}{
	{"two members, clean stops", false,
		bounds{members: 2, acks: 1, commits: 2, terms: 2, changes: 1, adds: true, stops: true}},
	{"three members, other voters", false,
		bounds{members: 3, acks: 1, commits: 1, terms: 1, changes: 1, adds: true}},
	{"three members, k up to 2, a voter may be dropped", false,
		bounds{members: 3, acks: 2, commits: 1, terms: 1, changes: 1}},
	{"two members, alone at times", false,
		bounds{members: 2, acks: 1, commits: 2, terms: 1, changes: 3, adds: true, alone: true}},
	{"two members, a wiped disk", true,
		bounds{members: 2, acks: 1, commits: 2, terms: 2, changes: 2, wipes: 1, adds: true}},
	{"three members, two elections", true, bounds{members: 3, acks: 1, commits: 1, terms: 2}},
	{"three members, two elections, k = 2", true, bounds{members: 3, acks: 2, commits: 1, terms: 2}},
	{"three members, two commits, k up to 2, other voters", true,
		bounds{members: 3, acks: 2, commits: 2, terms: 1, changes: 1, adds: true}},
	{"three members, two changes", true, bounds{members: 3, acks: 2, commits: 1, terms: 1, changes: 2, adds: true}},
	{"three members, a wiped disk", true, bounds{members: 3, acks: 1, commits: 1, terms: 1, wipes: 1}},
	{"three members, one promoted by hand", true, bounds{members: 3, acks: 1, commits: 1, terms: 1, byHand: 1}},
	{"four members, k = 2", true, bounds{members: 4, acks: 2, commits: 1, terms: 1}},
}

// TestNothingIsLostInAnyOrder searches every order of steps within the bounds, with the decisions
// that ship. What it judges: each commit that was acknowledged is in the WAL of whoever is promoted
// later; a former primary acknowledges nothing that the present one has not; and k + q is above the
// number of those who may have voted or acknowledged, in every state.
func TestNothingIsLostInAnyOrder(t *testing.T) {
	for _, s := range searches {
		t.Run(s.what, func(t *testing.T) {
			if s.large && os.Getenv("SEAL_SEARCH") != "large" {
				t.Skip("SEAL_SEARCH=large")
			}
			if testing.Short() && s.members > 2 {
				t.Skip("long: make verify VERIFY=race-program, or make seals")
			}
			f := s.search()
			t.Logf("%d states, depth %d, %v", f.states, f.depth, f.took.Round(time.Millisecond))
			if f.violated != "" {
				t.Errorf("%s\n%s", f.violated, f.story)
			}
			if f.states < 10_000 {
				t.Error("hardly anything happens within these bounds")
			}
		})
	}
}

// behind leaves b behind with a longer WAL than that of c, which was promoted by its own answer.
var behind = []string{"a commits", "a commits", "b flushes a record of a", "b flushes a record of a",
	"somebody wins the next term", "c is sealed and answers", "c writes the record: it is to be promoted",
	"c sets its first SSN: (any 1 of b@0)", "c is promoted"}

// TestTheSearchFindsEachBrokenRule takes one rule out at a time: something must be lost.
func TestTheSearchFindsEachBrokenRule(t *testing.T) {
	for _, c := range []struct {
		says string
		bounds
	}{
		{"an answer counts of a member that is not sealed",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, broken: "seal"}},
		{"a member answers before its walreceiver is gone",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, broken: "receiver"}},
		{"a member answers while its own promotion is under way",
			bounds{members: 3, acks: 1, commits: 1, terms: 2, broken: "pending"}},
		{"one voter less is enough", bounds{members: 3, acks: 1, commits: 1, terms: 1, broken: "fewer"}},
		{"q falls at a promotion", bounds{members: 3, acks: 1, commits: 1, terms: 2, broken: "falls"}},
		{"a voter is dropped by the record first",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, changes: 1, broken: "drop"}},
		{"a voter is added by the SSN first",
			bounds{members: 3, voters: 1, acks: 1, commits: 1, terms: 1, changes: 1, adds: true, broken: "add"}},
		{"a primary goes on alone before the record says so",
			bounds{members: 2, acks: 1, commits: 1, terms: 1, changes: 1, alone: true, broken: "alone"}},
		{"q falls before the voters have flushed the barrier",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, changes: 1, broken: "barrier"}},
		{"the SSN counts as loaded at once",
			bounds{members: 3, acks: 2, commits: 2, terms: 1, changes: 2, broken: "evidence"}},
		{"the SSN counts as loaded though the checkpointer has not loaded it",
			bounds{members: 2, acks: 1, commits: 1, terms: 1, changes: 2, adds: true, alone: true,
				broken: "checkpointer"}},
		{"a standby connects without its slot, so that two walsenders of it count",
			bounds{members: 3, acks: 2, commits: 1, terms: 1, breaks: 1, broken: "slot"}},
		{"a member that has lost its data keeps its incarnation",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, wipes: 1, broken: "incarnation"}},
		{"the LSN comes before the timeline",
			bounds{members: 3, acks: 2, commits: 3, terms: 2, changes: 1, adds: true, script: behind,
				broken: "timeline"}},
		{"an answer of a timeline that was never given out counts",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, byHand: 1, broken: "void"}},
		{"the record says that the WAL ends before it does",
			bounds{members: 3, acks: 1, commits: 1, terms: 1, stops: true, broken: "stopped"}},
	} {
		t.Run(c.broken, func(t *testing.T) {
			f := c.search()
			t.Logf("%s: %d states, depth %d, %v: %s\n%s", c.says, f.states, f.depth, f.took.Round(time.Millisecond),
				f.violated, f.story)
			if f.violated == "" {
				t.Error("nothing is lost: the rule is not needed, or the search does not show what for")
			}
		})
	}
}

// Found by the search: a primary that went on alone and took voters back, twice, had q = 1 before
// the voter had what was acknowledged alone.
func TestAloneDoesNotLowerQ(t *testing.T) {
	b := Identity{"b", "1"}
	v := NewVoters(AnyOf([]Identity{b}, 1))
	r := Record{Seq: 5, Voters: []Identity{b}, Acks: 1, Needed: 2, Durability: Available} // 2: not settled
	c := v.Next(r, Wanted{Alone: true, Durability: Available}, nil)
	if c.Record == nil || len(c.Record.Voters) != 0 {
		t.Fatalf("alone: %+v, want a record without voters", c)
	}
	c = v.Next(*c.Record, Wanted{Members: []Identity{b}, Acks: 1, Durability: Available}, nil)
	if c.Record == nil || c.Record.Needed != 2 {
		t.Errorf("with its voter again: %+v, want a record with q = 2", c.Record)
	}
}

// Found by the search: the record named a primary that was not promoted, and then another.
func TestTheLineageHasOnlyTimelinesOfThePrimary(t *testing.T) {
	a, b := Identity{"a", "1"}, Identity{"b", "1"}
	r := Record{Primary: a, Timeline: 1, Granted: 1, Voters: []Identity{b}, Acks: 1, Needed: 1, Lineage: []Fork{{1, 0}}}
	r = r.Promotion(2, Answer{Identity: a, Position: Position{1, 20}}) // which never happens
	r = r.Promotion(3, Answer{Identity: b, Position: Position{1, 10}})
	if want := []Fork{{1, 0}, {r.Timeline, 10}}; !slices.Equal(r.Lineage, want) {
		t.Errorf("lineage %v, want %v", r.Lineage, want)
	}
	if how := RejoinFor(Position{1, 20}, r); how != RejoinRewind {
		t.Errorf("a has WAL that b has not: RejoinFor returns %v, want %v", how, RejoinRewind)
	}
}
