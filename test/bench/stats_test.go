package main

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestQuantilesAreNearestRank(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3, 6, 7, 8, 9, 10}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.1, 1}, {0.11, 2}, {0.5, 5}, {0.99, 10}, {1, 10}} {
		if got := quantile(v, c.q); got != c.want {
			t.Errorf("quantile %v: %v, want %v", c.q, got, c.want)
		}
	}
	if v[0] != 5 {
		t.Error("the caller's values were sorted")
	}
	if quantile(nil, 0.5) != 0 || median(nil) != 0 {
		t.Error("no values: want 0")
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("odd: %v, want 5", got)
	}
	if got := median([]float64{9, 1, 5, 6}); got != 5.5 {
		t.Errorf("even: %v, want 5.5", got)
	}
}

// The ratio is taken within each repetition, so that a machine that is slow for a while moves both
// sides.
func TestRatiosAreWithinARepetition(t *testing.T) {
	ours, peer := []float64{1, 2, 4}, []float64{10, 20, 80}
	got := spreadOf(ratios(ours, peer, false))
	if want := (Spread{10, 10, 20}); got != want {
		t.Errorf("smaller is better: %v, want %v", got, want)
	}
	got = spreadOf(ratios(ours, peer, true))
	if want := (Spread{0.1, 0.05, 0.1}); math.Abs(got.Median-want.Median)+math.Abs(got.Min-want.Min) > 1e-12 {
		t.Errorf("larger is better: %v, want %v", got, want)
	}
	if rs := ratios([]float64{0, 2}, []float64{3, 0}, true); len(rs) != 0 {
		t.Errorf("a figure of 0 has no ratio, got %v", rs)
	}
}

func TestAGoalIsJudged(t *testing.T) {
	sample := func(each ...float64) []Sample { return []Sample{{"k": times(each)}, {"k": times(each)}} }
	fast, slow := sample(1e-3, 1e-3, 2e-3), sample(50e-3, 75e-3, 80e-3)
	uneven := sample(1e-3, 1e-3, 90e-3)
	for _, c := range []struct {
		what       string
		goal       Goal
		ours, peer []Sample
		slack      float64
		want       string
	}{
		{"reached", Goal{Ratio: 50}, fast, slow, 0, "yes"},
		{"not by that much", Goal{Ratio: 100}, fast, slow, 0, "no"},
		{"a tail longer than the peer's", Goal{Ratio: 50}, uneven, slow, 0, "p99 worse"},
		{"within what chance makes of it", Goal{Ratio: 50}, uneven, slow, 0.2, "yes"},
		{"a tail longer than the goal's", Goal{Ratio: 50, P99: 1e-3}, fast, slow, 0, "p99 too large"},
		{"at most", Goal{Most: 1e-3}, fast, nil, 0, "yes"},
		{"more than that", Goal{Most: 0.9e-3}, fast, nil, 0, "no"},
		{"at least", Goal{Least: 2}, fast, nil, 0, "no"},
		{"a ratio without a peer", Goal{Ratio: 1}, fast, nil, 0, "no"},
		{"only the tail, worse", noWorse, uneven, slow, 0, "p99 worse"},
		{"only the tail", noWorse, fast, slow, 0, "yes"},
		{"a ratio to a floor that was not measured", Goal{Floor: 0.1}, fast, slow, 0, "no"},
		{"no goal", Goal{}, uneven, slow, 0, ""},
	} {
		l := Line{Key: "k", Unit: Seconds, Goal: c.goal, Slack: c.slack}
		if got := l.result(l.Goal, c.ours, c.peer, nil).Reached; got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func TestAGoalIsJudgedByTheFloor(t *testing.T) {
	sample := func(each ...float64) []Sample { return []Sample{{"k": times(each)}, {"k": times(each)}} }
	floor, peer := sample(10e-3, 10e-3, 11e-3), sample(20e-3, 20e-3, 90e-3)
	near, far := sample(11e-3, 11e-3, 20e-3), sample(13e-3, 13e-3, 20e-3)
	uneven := sample(10e-3, 10e-3, 30e-3)
	for _, c := range []struct {
		what string
		goal Goal
		ours []Sample
		want string
	}{
		{"near enough", Goal{Floor: 1 / 1.15}, near, "yes"},
		{"too far", Goal{Floor: 1 / 1.15}, far, "no"},
		{"faster than the floor", Goal{Floor: 1}, sample(9e-3, 9e-3, 9e-3), "yes"},
		{"the tail is near too", Goal{Floor: 0.9, FloorP99: 2}, near, "yes"},
		{"the tail is too far", Goal{Floor: 0.9, FloorP99: 2}, uneven, "p99 too large"},
		{"near the floor, but not better than the peer by as much", Goal{Floor: 0.9, Ratio: 2}, near, "no"},
	} {
		l := Line{Key: "k", Unit: Seconds}
		if got := l.result(c.goal, c.ours, peer, floor).Reached; got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// All three ratios of a line say how many times better the first of the two is, and each is of the
// two slices of one repetition: a machine that was slow for one of them moves none.
func TestTheRatiosToTheFloorAreWithinARepetition(t *testing.T) {
	sample := func(values ...float64) (all []Sample) {
		for _, v := range values {
			all = append(all, Sample{"k": value(v)})
		}
		return all
	}
	ours, floor, peer := sample(2, 20, 4), sample(1, 10, 4), sample(8, 80, 16)
	l := Line{Key: "k", Unit: Seconds}
	r := l.result(Goal{}, ours, peer, floor)
	if got, want := *r.OursFloor, (Spread{0.5, 0.5, 1}); got != want {
		t.Errorf("times, ours to the floor: %v, want %v", got, want)
	}
	if got, want := *r.FloorPeer, (Spread{8, 4, 8}); got != want {
		t.Errorf("times, the floor to the peer: %v, want %v", got, want)
	}
	if got, want := *r.Ratio, (Spread{4, 4, 4}); got != want {
		t.Errorf("times, ours to the peer: %v, want %v", got, want)
	}
	l = Line{Key: "k", Unit: Rate, Higher: true}
	r = l.result(Goal{}, ours, peer, floor)
	if got, want := *r.OursFloor, (Spread{2, 1, 2}); got != want {
		t.Errorf("rates, ours to the floor: %v, want %v", got, want)
	}
	if got, want := *r.FloorPeer, (Spread{0.125, 0.125, 0.25}); got != want {
		t.Errorf("rates, the floor to the peer: %v, want %v", got, want)
	}
}

func TestALineWithoutAFloorSaysSo(t *testing.T) {
	ours, peer := []Sample{{"k": value(1), "more": value(2)}}, []Sample{{"k": value(1), "more": value(2)}}
	floor := []Sample{{"k": value(0.5)}} // of one of the lines only
	with := Line{Key: "k", Row: 1}.result(Goal{}, ours, peer, floor)
	without := Line{Key: "more", Row: 2}.result(Goal{}, ours, peer, floor)
	alone := Line{Key: "k", Row: 3}.result(Goal{}, ours, nil, floor)
	if with.Floor == nil || with.OursFloor == nil || with.FloorPeer == nil {
		t.Errorf("no floor: %+v", with)
	}
	if without.Floor != nil || without.OursFloor != nil || without.FloorPeer != nil || without.Ratio == nil {
		t.Errorf("a floor where none was measured: %+v", without)
	}
	if alone.OursFloor == nil || alone.FloorPeer != nil || alone.Peer != nil {
		t.Errorf("without a peer: %+v", alone)
	}
	var b strings.Builder
	writeTable(&b, []Result{with, without, alone}, "peer")
	lines := strings.Split(b.String(), "\n")
	for i, want := range []int{0, 3, 3} { // cells of rows 1 to 3 that have no figure
		if got := strings.Count(lines[i+2], "| "+none+" "); got != want {
			t.Errorf("row %d: %d cells without a figure, want %d:\n%s", i+1, got, want, b.String())
		}
	}
}

func TestNoFloorIsAPeer(t *testing.T) {
	for _, c := range contenders {
		if !c.Floor {
			continue
		}
		if floorOf(c.Store) != c {
			t.Errorf("%s: not the only floor of %s", c.Name, c.Store)
		}
		if _, err := byName(c.Store, c.Name); err == nil {
			t.Errorf("-peer %q is taken", c.Name)
		}
		all, err := byName(c.Store, "")
		if err != nil || slices.Contains(all, c) || len(all) == 0 {
			t.Errorf("%s: all peers are %v: %v", c.Store, all, err)
		}
		if ours := oursFor(all[0]); ours == nil || ours.Floor {
			t.Errorf("%s: ours is %v", c.Store, ours)
		}
	}
}

func TestThreeMembersHaveTheirOwnGoals(t *testing.T) {
	l := Line{Goal: Goal{Most: 1}, Goal3: &Goal{Most: 2}}
	for members, want := range map[int]float64{1: 1, 3: 2} {
		if got := l.goal(&Env{Members: members}); got.Most != want {
			t.Errorf("%d members: at most %v, want %v", members, got.Most, want)
		}
	}
	l.Goal3 = nil
	if got := l.goal(&Env{Members: 3}); got != l.Goal {
		t.Errorf("no goal of its own: %v, want %v", got, l.Goal)
	}
}
