package main

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Each repetition measures all contenders, each is first in turn, and the floor by what the bench
// names for it.
func TestARepetitionMeasuresOursThePeerAndTheFloor(t *testing.T) {
	const store = "a store that is only in this test"
	ours, peer := &Contender{Name: "ours", Store: store, Ours: true}, &Contender{Name: "peer", Store: store}
	floor := &Contender{Name: "floor", Store: store, Floor: true}
	defer func(before []*Contender) { contenders = before }(contenders)
	contenders = append(slices.Clip(contenders), ours, peer, floor)
	for _, c := range []struct {
		solo, floor bool
		want        []string
	}{
		{false, true, []string{"run ours", "run peer", "floor floor", "run peer", "floor floor", "run ours"}},
		{false, false, []string{"run ours", "run peer", "run peer", "run ours"}},
		{true, true, []string{"run ours", "floor floor", "floor floor", "run ours"}},
	} {
		var done []string
		note := func(how string, v float64) run {
			return func(_ context.Context, _ *Env, c *Contender) (Sample, error) {
				done = append(done, how+" "+c.Name)
				return Sample{"k": value(v)}, nil
			}
		}
		b := &Bench{Run: note("run", 2), Solo: c.solo, Lines: []Line{{Row: 1, Key: "k"}}}
		if c.floor {
			b.Floor = note("floor", 1)
		}
		results, err := b.run(t.Context(), &Env{Reps: 2}, ours, peer)
		if err != nil || !slices.Equal(done, c.want) {
			t.Errorf("%+v: %q: %v", c, done, err)
		}
		r := results[0]
		if (r.Peer == nil) != c.solo || (r.Floor == nil) == c.floor {
			t.Errorf("%+v: peer %v, floor %v", c, r.Peer, r.Floor)
		}
		if want := (&Spread{0.5, 0.5, 0.5}); c.floor && (r.OursFloor == nil || *r.OursFloor != *want) {
			t.Errorf("%+v: ours to the floor %v, want %v", c, r.OursFloor, want)
		}
	}
}

// A peer whose hand-over takes a lease hands over a few times only. That must not be so of the
// others in the same bench.
func TestASlowPeerHasFewerRoundsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		contender := func(lease time.Duration) *Contender {
			o := &oneLock{free: make(chan struct{}, 1)}
			dial := func(context.Context, []string) (Process, error) { return o, nil }
			return &Contender{Lease: lease, Dial: dial}
		}
		measure := handover(25*time.Millisecond, 40)
		for i, c := range []struct {
			lease time.Duration
			want  int
		}{{0, 40}, {time.Second, 4}, {0, 40}} {
			s, err := measure(t.Context(), &Env{}, contender(c.lease))
			if got := len(s["handover"].Each); err != nil || got != c.want {
				t.Errorf("slice %d, a lease of %v: %d hand-overs, want %d: %v", i, c.lease, got, c.want, err)
			}
		}
	})
}
