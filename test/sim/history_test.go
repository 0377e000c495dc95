package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

// acts plays a seed and returns from when to when each term acted, as a record of real processes
// would show it.
func acts(w *World, p *Plan) []safety.Interval {
	seen := map[*term]*safety.Interval{}
	var order []*term
	w.acted = func(tm *term) {
		in := seen[tm]
		if in == nil {
			// A line whose tokens have begun anew is another one.
			name := fmt.Sprint(nameOf(tm.c.name), w.judge.anew[tm.c.name])
			in = &safety.Interval{Name: name, Token: tm.token, Who: tm.n.name, From: time.Duration(w.now)}
			seen[tm], order = in, append(order, tm)
		}
		if !tm.excused { // what comes between the hand of an operator and the news of it is nobody's promise
			in.To = time.Duration(w.now)
		}
	}
	defer func() { w.acted = nil }()
	w.Run(p, nil)
	var all []safety.Interval
	for _, tm := range order {
		if in := seen[tm]; in.To != 0 {
			all = append(all, *in)
		}
	}
	return all
}

// TestHistory has the judge of real records (package history) judge the same runs: it must find
// nothing where this package's finds nothing, and two leaders where clocks run beyond the bound.
func TestHistory(t *testing.T) {
	w := &World{}
	defer w.Close()
	terms, bad := 0, 0
	for seed := uint64(1); seed <= few(700); seed++ {
		all := acts(w, NewPlan(seed, "all", Within))
		terms += len(all)
		if err := safety.Check(all); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if safety.Check(acts(w, NewPlan(seed, "all", Beyond))) != nil {
			bad++
		}
	}
	if terms == 0 || bad == 0 {
		t.Errorf("%d terms acted; beyond the bound %d runs had two leaders", terms, bad)
	}
	t.Logf("%d terms that acted; beyond the bound %d runs with two leaders", terms, bad)
}
