package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// Locks that nobody else wants: rows 14 and 15.

func keyBenches() []*Bench {
	line := func(n int) *Bench {
		what := fmt.Sprintf("lock + unlock, %d goroutines on distinct keys", n)
		return &Bench{Name: what, Run: keys(n), Floor: bareKeys(n), Lines: []Line{
			{Row: 14, Key: "rate", What: what, Unit: Rate, Higher: true, Chart: fmt.Sprintf("%d distinct locks", n),
				Goal: Goal{Floor: 0.75}},
			{Row: 14, Key: "each", What: "… one lock + unlock", Unit: Seconds, Goal: noWorse}}}
	}
	return []*Bench{
		line(64),
		line(1024),
		{Name: "lock + unlock, one goroutine", Run: keys(1), Floor: keys(1), Lines: []Line{{
			Row: 15, Key: "each", What: "lock + unlock, one goroutine, nobody else", Unit: Seconds,
			Chart: "a lone lock", Goal: Goal{Floor: 1 / 1.05}}}},
	}
}

// keys has n goroutines of one process lock and unlock, each a name of its own.
func keys(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) { return keysMetered(ctx, e, c, n, nil) }
}

// keysMetered also has what the meter counted for each lock and unlock.
func keysMetered(ctx context.Context, e *Env, c *Contender, n int, m meter) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	x := &uncontested{each: make([][]float64, n)}
	names := e.Names("key", n)
	done := make(chan error, 1)
	go func() {
		done <- parallel(ctx, n, n, func(ctx context.Context, i int) error {
			defer x.stop.Store(true)
			return x.work(ctx, i, t.sessions[0].Lock(names[i], LockOptions{}))
		})
	}()
	took, err := x.measure(ctx, m)
	x.stop.Store(true)
	if failed := <-done; failed != nil {
		err = failed
	}
	return x.sample(took), err
}

// uncontested is a run of keys under way.
type uncontested struct {
	measuring, stop atomic.Bool
	each            [][]float64 // by goroutine: seconds of one lock and unlock
	cost            reading     // of all of them
}

// measure lets it run warm, then counts for a second.
func (x *uncontested) measure(ctx context.Context, m meter) (time.Duration, error) {
	if err := sleep(ctx, 300*time.Millisecond); err != nil {
		return 0, err
	}
	before, err := m.read()
	if err != nil {
		return 0, err
	}
	x.measuring.Store(true)
	begin := time.Now()
	err = sleep(ctx, time.Second)
	x.measuring.Store(false)
	took := time.Since(begin)
	after, failed := m.read()
	x.cost = after.since(before)
	return took, errors.Join(err, failed)
}

func (x *uncontested) work(ctx context.Context, i int, l Lock) error {
	var g guard
	for !x.stop.Load() {
		begin := time.Now()
		h, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		if err := g.enter(h); err != nil {
			return err
		}
		g.leave()
		if err := h.Release(ctx); err != nil {
			return err
		}
		if x.measuring.Load() {
			x.each[i] = append(x.each[i], time.Since(begin).Seconds())
		}
	}
	return nil
}

func (x *uncontested) sample(took time.Duration) Sample {
	var all []float64
	for _, each := range x.each {
		all = append(all, each...)
	}
	s := Sample{"rate": value(float64(len(all)) / took.Seconds()), "each": times(all)}
	for k, v := range x.cost {
		s[k] = value(v / math.Max(1, float64(len(all))))
	}
	return s
}
