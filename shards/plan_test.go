package shards

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// names returns n members of equal weight with names made by r.
func names(r *rand.Rand, n int) (all []Member) {
	for range n {
		all = append(all, Member{ID: fmt.Sprintf("host-%08x", r.Uint32()), Ready: true})
	}
	return all
}

// loads counts the shards of each member.
func loads(owners []string) map[string]int {
	n := map[string]int{}
	for _, id := range owners {
		n[id]++
	}
	return n
}

// moved counts the shards that have an owner among the members and get another one.
func moved(from, to []string, members []Member) (n int) {
	for i := range from {
		if slices.ContainsFunc(members, func(m Member) bool { return m.ID == from[i] }) && from[i] != to[i] {
			n++
		}
	}
	return n
}

// least returns the floor: how many shards must change hands at least so that loads differ by at
// most one. Of the members, those that hold most keep the larger parts.
func least(from []string, members []Member) (n int) {
	held := loads(from)
	var all []int
	for _, m := range members {
		all = append(all, held[m.ID])
	}
	slices.Sort(all)
	slices.Reverse(all)
	part, larger := len(from)/len(members), len(from)%len(members)
	for i, load := range all {
		quota := part
		if i < larger {
			quota++
		}
		n += max(0, load-quota)
	}
	return n
}

func spread(owners []string, members []Member) int {
	n := loads(owners)
	low, high := len(owners), 0
	for _, m := range members {
		low, high = min(low, n[m.ID]), max(high, n[m.ID])
	}
	return high - low
}

// 256 shards, 8 members: members join and leave at random, and each time the fewest shards move
// that even loads allow.
func TestMovesMeetTheFloorOver720JoinsAndLeaves(t *testing.T) {
	for set := range uint64(6) {
		r := rand.New(rand.NewPCG(19, set))
		members := names(r, 8)
		owners := Plan(make([]string, 256), members)
		total, floor := 0, 0
		for step := range 120 {
			if len(members) < 3 || len(members) < 16 && r.IntN(2) == 0 {
				members = append(members, names(r, 1)...)
			} else {
				members = slices.Delete(members, 0, 1)
				r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			}
			next := Plan(owners, members)
			if got, want := moved(owners, next, members), least(owners, members); got != want {
				t.Fatalf("set %d, step %d: %d shards moved, the floor is %d", set, step, got, want)
			}
			total, floor = total+moved(owners, next, members), floor+least(owners, members)
			if n := spread(next, members); n > 1 || slices.Contains(next, "") {
				t.Fatalf("set %d, step %d: loads differ by %d: %v", set, step, n, loads(next))
			}
			owners = next
		}
		if total != floor || total == 0 {
			t.Fatalf("set %d: %d moves, the floor is %d", set, total, floor)
		}
	}
}

func TestAJoinOfTheNinthMovesTwentyEight(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	for range 100 {
		members := names(r, 8)
		before := Plan(make([]string, 256), members)
		after := Plan(before, append(members, names(r, 1)...))
		if n := moved(before, after, members); n != 28 {
			t.Fatalf("%d shards moved from 8 to 9 members, want 28", n)
		}
		for i, id := range after {
			if id != before[i] && slices.ContainsFunc(members, func(m Member) bool { return m.ID == id }) {
				t.Fatalf("shard %d moved between two that stayed", i)
			}
		}
	}
}

// TestLoadsEqualTheQuotas: with weights, and members that take nothing, each member has its part of
// the shards, within one.
func TestLoadsEqualTheQuotas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		n := 1 + r.IntN(300)
		members := names(r, 1+r.IntN(12))
		owners := make([]string, n)
		total := 0
		for i := range members {
			m := &members[i]
			m.Weight = 1 + r.IntN(5)
			m.Ready, m.Draining = i == 0 || r.IntN(4) > 0, i > 0 && r.IntN(5) == 0
			if m.Ready && !m.Draining {
				total += m.Weight
			}
		}
		for i := range owners {
			if r.IntN(3) > 0 {
				owners[i] = members[r.IntN(len(members))].ID
			}
		}
		target := Plan(owners, members)
		got := loads(target)
		for _, m := range members {
			part := n * m.Weight / total
			if takes := m.Ready && !m.Draining; !takes && got[m.ID] != 0 ||
				takes && (got[m.ID] < part || got[m.ID] > part+1) {
				t.Fatalf("round %d: %+v has %d of %d shards, total weight %d", round, m, got[m.ID], n, total)
			}
		}
		if again := Plan(target, members); !slices.Equal(again, target) {
			t.Fatalf("round %d: a plan that was carried out plans more", round)
		}
	}
}

// TestPlansDependOnNoOrder: members in any order give the same plan.
func TestPlansDependOnNoOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		members := names(r, 1+r.IntN(20))
		owners := make([]string, 128)
		for i := range owners {
			if r.IntN(2) == 0 {
				owners[i] = members[r.IntN(len(members))].ID
			}
		}
		want := Plan(owners, members)
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if got := Plan(owners, members); !slices.Equal(got, want) {
			t.Fatal("the order of the members changes the plan")
		}
	}
}

func TestWhereNobodyIsReadyNothingMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	members := names(r, 4)
	owners := Plan(make([]string, 64), members)
	for i := range members {
		members[i].Ready = false
	}
	if got := Plan(owners, members); !slices.Equal(got, owners) {
		t.Errorf("shards move although no member is ready: %d", moved(owners, got, members))
	}
	owners[7] = ""
	if got := Plan(owners, members); got[7] == "" {
		t.Error("a shard without an owner stays so, since no member is ready")
	}
	for i := range members {
		members[i].Draining = true
	}
	if got := Plan(owners, members); !slices.Equal(got, owners) {
		t.Error("shards move although all members leave")
	}
}

func TestWhoIsAwayKeepsAndGetsNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	members := names(r, 4)
	owners := Plan(make([]string, 64), members)
	members[2].Away, members[2].Ready = true, false
	if got := Plan(owners, members); !slices.Equal(got, owners) {
		t.Errorf("%d shards move while a member is away", moved(owners, got, members))
	}
	gone := slices.Index(owners, members[0].ID)
	owners[gone] = ""
	for i, id := range owners {
		if id == members[2].ID {
			owners[i] = "" // it has less than its quota, and still gets nothing
			break
		}
	}
	if got := Plan(owners, members); loads(got)[members[2].ID] != loads(owners)[members[2].ID] || got[gone] == "" {
		t.Errorf("loads %v after %v", loads(got), loads(owners))
	}
}

func TestAShardThatIsAvoidedGoesToSomebodyElse(t *testing.T) {
	members := []Member{{ID: "a", Ready: true}, {ID: "b", Ready: true, Avoid: []int{0, 1, 2}}}
	for range 3 {
		owners := Plan([]string{"", "", "", "b"}, members)
		if want := []string{"a", "a", "a", "b"}; !reflect.DeepEqual(owners, want) {
			t.Fatalf("Plan = %v, want %v", owners, want)
		}
	}
	if got := Plan([]string{"", "b"}, []Member{{ID: "b", Ready: true, Avoid: []int{0}}}); got[0] != "" {
		t.Errorf("a shard goes to the only member, which avoids it: %v", got)
	}
	if got := Plan([]string{"x", ""}, nil); got[0] != "" || got[1] != "" {
		t.Errorf("without members Plan = %v", got)
	}
}

// TestOtherAlgorithms is the table of docs/shards.md: what Kafka's cooperative-sticky rules and
// rendezvous hashing do with 256 shards when a ninth member joins and one of nine leaves.
func TestOtherAlgorithms(t *testing.T) {
	type figures struct{ joins, leaves, between, worst int }
	algorithms := map[string]func([]string, []Member) []string{
		"sticky, quotas":     Plan,
		"cooperative-sticky": kafka,
		"rendezvous":         rendezvous,
	}
	const sets = 60
	got := map[string]figures{}
	for _, name := range slices.Sorted(maps.Keys(algorithms)) {
		assign := algorithms[name]
		r := rand.New(rand.NewPCG(42, 42))
		var f figures
		for range sets {
			members := names(r, 9)
			eight := assign(assign(make([]string, 256), members[:8]), members[:8])
			nine := assign(eight, members)
			back := assign(nine, members[1:])
			f.joins += moved(eight, nine, members[:8])
			f.worst = max(f.worst, spread(nine, members))
			for i, id := range nine {
				if id != eight[i] && id != members[8].ID {
					f.between++
				}
				if back[i] != id {
					f.leaves++
				}
			}
		}
		got[name] = f
		t.Logf("%-20s 8→9 moves %.1f, between two that stayed %.1f, largest spread %d, 9→8 moves %.1f", name,
			float64(f.joins)/sets, float64(f.between)/sets, f.worst, float64(f.leaves)/sets)
	}
	ours, theirs, hash := got["sticky, quotas"], got["cooperative-sticky"], got["rendezvous"]
	if ours.joins != 28*sets || ours.between != 0 || ours.worst != 1 {
		t.Errorf("ours: %+v", ours)
	}
	if theirs.joins < ours.joins || theirs.worst > 1 {
		t.Errorf("cooperative-sticky, which keeps loads even too, moves fewer than the floor: %+v", theirs)
	}
	if hash.worst < 10 {
		t.Errorf("rendezvous hashing has even loads: %+v", hash)
	}
}

// rendezvous gives each shard to the member with the highest score.
func rendezvous(owners []string, members []Member) []string {
	target := make([]string, len(owners))
	for i := range target {
		best := uint64(0)
		for _, m := range members {
			if s := (planMember{hash: hashText(m.ID)}).score(i); s > best {
				best, target[i] = s, m.ID
			}
		}
	}
	return target
}

// kafka follows AbstractStickyAssignor for one topic whose members all subscribe to it
// (constrainedAssign), as CooperativeStickyAssignor calls it: members in the order of their names
// keep what they own up to the larger quota while some may have it, else up to the smaller; what is
// left goes to those with too few, in the order of names.
func kafka(owners []string, members []Member) []string {
	ids := make([]string, 0, len(members))
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	small, larger := len(owners)/len(ids), len(owners)%len(ids)
	large := small
	if larger > 0 {
		large++
	}
	target, free := make([]string, len(owners)), []int{}
	owned, load := map[string][]int{}, map[string]int{}
	for i, id := range owners {
		owned[id] = append(owned[id], i)
	}
	full := 0 // members that have the larger quota
	for _, id := range ids {
		keep := small
		if full < larger && len(owned[id]) >= large {
			keep = large
			full++
		}
		for n, i := range owned[id] {
			if n < keep {
				target[i] = id
				load[id]++
			}
		}
	}
	for i := range target {
		if target[i] == "" {
			free = append(free, i)
		}
	}
	for next := 0; len(free) > 0; next++ {
		id := ids[next%len(ids)]
		quota := small
		if full < larger && next >= len(ids) {
			quota = large // all have the smaller one by now
		}
		for len(free) > 0 && load[id] < quota {
			if load[id]++; load[id] == large && large != small {
				full++
			}
			target[free[0]], free = id, free[1:]
		}
	}
	return target
}
