package main

import (
	"math"
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
		{"no goal", Goal{}, uneven, slow, 0, ""},
	} {
		l := Line{Key: "k", Unit: Seconds, Goal: c.goal, Slack: c.slack}
		if got := l.result(l.Goal, c.ours, c.peer).Reached; got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func TestSlowDisksAndThreeMembersHaveTheirOwnGoals(t *testing.T) {
	l := Line{Goal: Goal{Most: 1}, Goal3: &Goal{Most: 2}, Slow: &Goal{Most: 3}}
	for _, c := range []struct {
		e    *Env
		want float64
	}{{&Env{Members: 1}, 1}, {&Env{Members: 3}, 2}, {&Env{Members: 1, Slow: true}, 3}, {&Env{Members: 3, Slow: true}, 3}} {
		if got := l.goal(c.e); got.Most != c.want {
			t.Errorf("%d members, slow %v: at most %v, want %v", c.e.Members, c.e.Slow, got.Most, c.want)
		}
	}
	l.Goal3, l.Slow = nil, nil
	if got := l.goal(&Env{Members: 3, Slow: true}); got != l.Goal {
		t.Errorf("no goal of its own: %v, want %v", got, l.Goal)
	}
}
