package sim

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestSeeds plays a fixed set of seeds in order and stops at the first violation.
func TestSeeds(t *testing.T) {
	seeds := uint64(3200)
	if raceEnabled || testing.Short() {
		seeds = 300
		t.Logf("under the race detector, or with -short, only %d seeds", seeds)
	}
	if os.Getenv("MUTATION") != "" {
		seeds = 15000
	}
	total, failure := Batch{First: 1, Seeds: seeds, Store: "all"}.Run(t.Context(), nil)
	if failure != nil {
		t.Fatalf("seed %d: %v\n%s", failure.Seed, failure.Violation, smallest(failure.Plan, 1500))
	}
	t.Logf("%d seeds, %d terms, %d hand-overs, %d fenced writes refused, %d unfenced stale writes",
		total.Seeds, total.Terms, total.HandOvers, total.Refused, total.Stale)
	for k, n := range total.Faults {
		if n == 0 {
			t.Errorf("no seed had the fault %q", FaultKind(k))
		}
	}
	for what, n := range map[string]uint64{"stale writes without a fence": total.Stale,
		"fenced writes refused": total.Refused, "lost messages": total.Lost,
		"doubled messages": total.Doubled, "late messages": total.Late, "stopped goroutines": total.Stalls,
		"hanging clients":        total.Hangs,
		"elections in the store": total.Elections, "overruns": total.Overruns, "refused claims": total.Refusals} {
		if n == 0 {
			t.Errorf("no seed had %s: the simulation is too tame", what)
		}
	}
}

// TestEveryStore plays some seeds of each store by itself: in each somebody must lead, and another
// one after him.
func TestEveryStore(t *testing.T) {
	for _, store := range Stores() {
		t.Run(store, func(t *testing.T) {
			seeds := few(30)
			total, failure := Batch{First: 1, Seeds: seeds, Store: store}.Run(t.Context(), nil)
			if failure != nil {
				t.Fatalf("seed %d: %v\n%s", failure.Seed, failure.Violation, smallest(failure.Plan, 500))
			}
			if total.Terms < 2*seeds || total.HandOvers < seeds/2 || total.Renewals < 10*seeds {
				t.Errorf("too little has happened in %d seeds: %d terms, %d hand-overs, %d renewals", seeds,
					total.Terms, total.HandOvers, total.Renewals)
			}
		})
	}
}

// TestSeedsOfHeartbeats has leases of 0.3 to 1.9 s that waiters end, under the same faults and the
// same judges.
func TestSeedsOfHeartbeats(t *testing.T) {
	seeds := few(1500)
	if os.Getenv("MUTATION") != "" {
		seeds *= 3
	}
	total, failure := Batch{First: 1, Seeds: seeds, Store: "beat"}.Run(t.Context(), nil)
	if failure != nil {
		t.Fatalf("seed %d: %v\n%s", failure.Seed, failure.Violation, smallest(failure.Plan, 500))
	}
	t.Logf("%d seeds, %d terms, %d sessions ended by who waited", total.Seeds, total.Terms, total.Strikes)
	if total.Strikes < seeds || total.Terms < seeds {
		t.Error("too little has happened")
	}
}

func smallest(p *Plan, runs int) string {
	small, _ := Shrink(p, runs)
	w, tl := &World{}, &Timeline{}
	defer w.Close()
	w.Run(small, tl)
	var b bytes.Buffer
	fmt.Fprintf(&b, "shrunk: %v\n", small)
	_ = tl.Print(&b, 40)
	return b.String()
}

// few is less under the race detector, which takes ten times as long, and in a short run.
func few(n uint64) uint64 {
	if raceEnabled || testing.Short() {
		return n / 10
	}
	return n
}

// TestBeyondTheBound has clocks that differ by more than the drift bound: there two leaders do
// appear, and still no fenced write goes back.
func TestBeyondTheBound(t *testing.T) {
	total, failure := Batch{First: 1, Seeds: few(1300), Store: "all", Drift: Beyond}.Run(t.Context(), nil)
	if failure != nil {
		t.Fatalf("seed %d: %v\n%s", failure.Seed, failure.Violation, smallest(failure.Plan, 1500))
	}
	if total.Overlaps == 0 {
		t.Fatal("clocks ran beyond the bound and there were never two leaders: the judge sees nothing")
	}
	t.Logf("%d seeds: %d times two leaders at once, %d fenced writes refused", total.Seeds, total.Overlaps,
		total.Refused)
}

// TestControls breaks the world in one respect at a time, and the judge must see each. Where a
// violation is rare, the search begins at a seed that has shown it, and not at 1.
func TestControls(t *testing.T) {
	for _, c := range []struct {
		name, store, rule string
		b                 Broken
		first             uint64
	}{
		{"a register without a fence", "plain", RuleFence, Broken{NoFence: true}, 1},
		{"a store that wakes all waiters", "plain", RuleHerd, Broken{Herd: true}, 1},
		{"a heartbeat deleted whatever its revision", "beat", RuleOneLeader, Broken{Blind: true}, 1},
		{"a heartbeat timed from the question", "beat", RuleOneLeader, Broken{Hasty: true}, 1495},
		{"a heartbeat above a lease that has run out", "beat", RuleOneLeader, Broken{Unproven: true}, 254},
		{"a Redis that has forgotten grants at once", "redis", RuleOneLeader, Broken{NoCalm: true}, 1},
		{"and one that waits for half the ttl", "redis", RuleOneLeader, Broken{HalfCalm: true}, 1},
		{"and one that remembers only the last ttl", "redis", RuleOneLeader, Broken{LastTTL: true}, 1},
		{"and one that forgets the period before", "redis", RuleOneLeader, Broken{OnePeriod: true}, 141},
		{"tokens by the time of a replica whose clock is behind", "redis", RuleOvertake, Broken{EarlyTicket: true}, 1},
		{"a former primary that needs nobody to confirm", "redis", RuleOneLeader, Broken{NoWait: true}, 1},
		{"a PostgreSQL whose standby lags", "postgres", RuleOvertake, Broken{Async: true}, 1},
		{"times of another server's clock", "postgres", RuleOneLeader, Broken{OneClock: true}, 1},
		{"a former PostgreSQL primary that commits alone", "postgres", RuleOneLeader, Broken{NoWait: true}, 164},
		{"a lease register ended whatever its version", "register", RuleOneLeader, Broken{Blind: true}, 1},
		{"a lease register timed from the question", "register", RuleOneLeader, Broken{Hasty: true}, 1910},
		{"a Lease ended whatever its version", "kubernetes", RuleOneLeader, Broken{Blind: true}, 1},
		{"a Lease timed from when a watch began", "kubernetes", RuleOneLeader, Broken{Hasty: true}, 57},
		{"a list that failed is an empty one", "kubernetes", RuleOneLeader, Broken{EmptyList: true}, 760},
		{"a write that names no uid", "kubernetes", RuleDeaf, Broken{NoUID: true}, 10443},
		{"a read from a server's cache", "kubernetes", RuleOneLeader, Broken{Cached: true}, 3242},
		{"a refusal after a 503 is final", "kubernetes", RuleGhost, Broken{FinalAfter503: true}, 24299},
		{"a line put back by hand, by its numbers", "kubernetes", RuleLiveness, Broken{Numbers: true}, 1},
		{"a late answer of a line that was removed", "kubernetes", RuleLiveness, Broken{LateAnswers: true}, 8595},
		{"a watch that nobody polls beside", "kubernetes", RuleLiveness, Broken{OneSignal: true}, 1},
		{"a server of a quorum that has lost its memory", "quorum", RuleOneLeader, Broken{NoGuard: true}, 1},
		{"a quorum whose answers came late", "quorum", RuleOneLeader, Broken{NoRecheck: true}, 57},
		{"a ZooKeeper session renewed by a read", "zk", RuleOneLeader, Broken{ReadProof: true}, 1},
		{"a ZooKeeper session renewed by one write", "zk", RuleOneLeader, Broken{OneWrite: true}, 1096},
		{"a chain of writes whose last follows at once", "zk", RuleProof, Broken{Hurry: true}, 285},
		{"a chain of two writes", "zk", RuleProof, Broken{Short: true}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &World{}
			defer w.Close()
			for seed := c.first; seed < c.first+5000; seed++ {
				p := NewPlan(seed, c.store, Within)
				p.Broken = c.b
				p.misfit()
				if r := w.Run(p, nil); r.Violation != nil {
					if r.Violation.Rule != c.rule {
						t.Fatalf("seed %d: %v; want %q", seed, r.Violation, c.rule)
					}
					t.Logf("seed %d: %v", seed, r.Violation)
					return
				}
			}
			t.Error("nothing was found in 5000 seeds")
		})
	}
}

func same(a, b Result) bool {
	if a.Violation != nil && b.Violation != nil {
		return *a.Violation == *b.Violation && a.Hash == b.Hash && a.Counts == b.Counts
	}
	return a == b
}

// TestReplay plays seeds twice, in worlds that did other things before, and on one processor and
// several.
func TestReplay(t *testing.T) {
	const n = 60
	hashes := func(procs int, backwards bool) (all [n]Result) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		w := &World{}
		defer w.Close()
		for i := range n {
			if backwards {
				i = n - 1 - i
			}
			all[i] = w.Run(NewPlan(uint64(i+1), "all", Within), nil)
		}
		return all
	}
	once, again := hashes(1, false), hashes(4, true)
	for i := range once {
		if !same(once[i], again[i]) {
			t.Errorf("seed %d: %+v, then %+v", i+1, once[i], again[i])
		}
		if i > 0 && once[i].Hash == once[i-1].Hash {
			t.Errorf("seeds %d and %d have one hash", i, i+1)
		}
	}
	alone, _ := Batch{First: 1, Seeds: n, Store: "all", Workers: 1}.Run(t.Context(), nil)
	shared, _ := Batch{First: 1, Seeds: n, Store: "all", Workers: 4}.Run(t.Context(), nil)
	if alone != shared {
		t.Errorf("on one worker %+v, on four %+v", alone, shared)
	}
}

// TestTimeline: writing a run down changes nothing in it, and equal runs read equal.
func TestTimeline(t *testing.T) {
	var text [2]string
	for i := range text {
		w, tl := &World{}, &Timeline{}
		p := NewPlan(3, "redis", Within)
		quiet, loud := w.Run(p, nil), w.Run(p, tl)
		w.Close()
		if !same(quiet, loud) {
			t.Fatalf("%+v, and with a timeline %+v", quiet, loud)
		}
		var b bytes.Buffer
		if err := tl.Print(&b, 0); err != nil {
			t.Fatal(err)
		}
		text[i] = b.String()
	}
	if text[0] != text[1] || !strings.Contains(text[0], "LEADS a under token") {
		t.Errorf("two timelines of one seed:\n%s\n%s", text[0], text[1])
	}
}

// TestShrink shrinks a run with clocks beyond the bound to what is needed for two leaders.
func TestShrink(t *testing.T) {
	w := &World{}
	defer w.Close()
	for seed := uint64(1); seed <= 2000; seed++ {
		p := NewPlan(seed, "plain", Beyond)
		p.Overlaps = false
		r := w.Run(p, nil)
		if r.Violation == nil || len(p.Faults) < 8 {
			continue
		}
		small, got := Shrink(p, 3000)
		if got.Violation == nil || got.Violation.Rule != r.Violation.Rule {
			t.Fatalf("seed %d: %v became %v", seed, r.Violation, got.Violation)
		}
		tl := &Timeline{}
		if again := w.Run(small, tl); !same(again, got) {
			t.Fatalf("the small plan gives %+v, then %+v", got, again)
		}
		var b bytes.Buffer
		_ = tl.Print(&b, 40)
		t.Logf("seed %d: %d faults, %d nodes → %v\n%s", seed, len(p.Faults), p.Nodes, small, b.String())
		if len(small.Faults) > 3 || small.Nodes > 2 || strings.Count(b.String(), "\n") > 40 ||
			!strings.Contains(b.String(), ">>> VIOLATION: two leaders") {
			t.Errorf("%d faults and %d nodes are left", len(small.Faults), small.Nodes)
		}
		return
	}
	t.Fatal("no seed has two leaders")
}
