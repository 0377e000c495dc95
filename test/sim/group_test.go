package sim

import (
	"os"
	"testing"
)

// TestSeedsOfShards has groups of shards, their decisions those that ship: no shard ever has two
// owners, each is owned again once faults are over, and no more move than events demand.
func TestSeedsOfShards(t *testing.T) {
	seeds := few(1200)
	if os.Getenv("MUTATION") != "" {
		seeds = 3000
	}
	total, failure := Batch{First: 1, Seeds: seeds, Store: "shards"}.Run(t.Context(), nil)
	if failure != nil {
		t.Fatalf("seed %d: %v\n%s", failure.Seed, failure.Violation, smallest(failure.Plan, 300))
	}
	t.Logf("%d seeds, %d terms; %d moves, %d demanded, %d for nothing; in %d loads were even in the end", seeds,
		total.Terms, total.Moves, total.Demand, total.Wasted, total.Even)
	for d, n := range total.Deeds {
		if n == 0 {
			t.Errorf("no seed had the fault %q", deedNames[d])
		}
	}
	if total.Moves < seeds/2 || total.Staled == 0 || total.Strangers == 0 || total.Even < seeds/2 {
		t.Errorf("too little has happened: %+v", total)
	}
}

// TestControlsOfShards leaves a rule out at a time, and the judge must see each.
func TestControlsOfShards(t *testing.T) {
	for _, c := range []struct {
		name, rule string
		b          Broken
	}{
		{"an owner hands over whichever of its terms was asked", RuleAsked, Broken{AnyTerm: true}},
		{"an owner hands over before its work has stopped", RuleRelease, Broken{EarlyHand: true}},
		{"members follow an earlier plan", RuleEpoch, Broken{OldPlan: true}},
		{"nobody follows the assigner", RuleLiveness, Broken{OneAssigner: true}},
		{"a member says that it will be back after it has gone", RuleKept, Broken{RecordLast: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &World{}
			defer w.Close()
			for seed := range uint64(2000) {
				p := NewPlan(seed+1, "shards", Within)
				p.Broken = c.b
				if r := w.Run(p, nil); r.Violation != nil {
					if r.Violation.Rule != c.rule {
						t.Fatalf("seed %d: %v; want %q", seed+1, r.Violation, c.rule)
					}
					t.Logf("seed %d: %v", seed+1, r.Violation)
					return
				}
			}
			t.Error("nothing was found in 2000 seeds")
		})
	}
}

// TestReplayOfShards plays seeds twice: what decides for members must not depend on the order of a
// map.
func TestReplayOfShards(t *testing.T) {
	one, other := &World{}, &World{}
	defer one.Close()
	defer other.Close()
	for seed := range few(120) {
		p := NewPlan(seed+1, "shards", Within)
		if a, b := one.Run(p, nil), other.Run(p, nil); !same(a, b) {
			t.Fatalf("seed %d: %+v, then %+v", seed+1, a, b)
		}
	}
}
