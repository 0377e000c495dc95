package main

import (
	"context"
	"time"
)

// A lock that a process keeps until somebody else wants it: row 16.

const strangers = 40 // how often another process takes it

func keepBenches() []*Bench {
	return []*Bench{{Name: "kept lock", Run: kept, Lines: []Line{
		{Row: 16, Key: "again", What: "lock + Check + unlock of a kept lock (the peer's: of a free one)", Unit: Seconds, Chart: "a kept lock", Goal: Goal{Ratio: 2500}},
		{Row: 16, Key: "stranger", What: "… another process locks it (the peer's: a free one)", Unit: Seconds, Goal: Goal{Ratio: 0.4, Text: "≤ 2.5x of a free lock"}}}}}
}

func kept(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, err := e.team(ctx, c, 2, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	name := e.Name("kept")
	var g guard
	mine := t.members[0].session.Lock(name, LockOptions{Keep: true})
	again, err := lockAgain(ctx, mine, &g)
	if err != nil {
		return nil, err
	}
	each, err := take(ctx, mine, t.members[1].session.Lock(name, LockOptions{}), &g)
	return Sample{"again": value(again), "stranger": times(each)}, err
}

// lockAgain locks and unlocks for a while and returns how many seconds each took.
func lockAgain(ctx context.Context, l Lock, g *guard) (float64, error) {
	n, begin := 0, time.Now()
	for time.Since(begin) < 1300*time.Millisecond {
		for range 16 {
			if err := lockOnce(ctx, l, g); err != nil {
				return 0, err
			}
			n++
		}
		if n == 16 || n == 32 {
			begin = time.Now() // the first ones open connections and win the claim
		}
	}
	return time.Since(begin).Seconds() / float64(n-32), nil
}

func lockOnce(ctx context.Context, l Lock, g *guard) error {
	h, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if err := g.enter(h); err != nil {
		return err
	}
	g.leave()
	return h.Release(ctx)
}

// take has a stranger lock what its keeper has just released, again and again, and returns how long each took.
func take(ctx context.Context, keeper, stranger Lock, g *guard) ([]float64, error) {
	var each []float64
	for i := range strangers + 4 {
		if err := lockOnce(ctx, keeper, g); err != nil {
			return nil, err
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
		begin := time.Now()
		h, err := stranger.Lock(ctx)
		took := time.Since(begin)
		if err != nil {
			return nil, err
		}
		if err := g.enter(h); err != nil {
			return nil, err
		}
		g.leave()
		if err := h.Release(ctx); err != nil {
			return nil, err
		}
		if i >= 4 {
			each = append(each, took.Seconds())
		}
	}
	return each, nil
}
