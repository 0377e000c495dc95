package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// How cost grows with the number of elections, locks or waiters. All times are for one of them:
// where they grow with the number, the whole grows faster than the number does.

func growBenches(n int) []*Bench {
	each := func(row int, key, what string, unit Unit) Line {
		return Line{Row: row, Key: key, What: fmt.Sprintf("%s, %s", what, number(float64(n))), Unit: unit}
	}
	return []*Bench{
		{Name: fmt.Sprintf("%d distinct locks", n), Run: perOne(keys(n), n, "rate"), Lines: []Line{
			{Row: 14, Key: "rate", What: fmt.Sprintf("lock + unlock of distinct locks in all, goroutines: %s", number(float64(n))), Unit: Rate, Higher: true}}},
		{Name: fmt.Sprintf("win %d elections", n), Run: perOne(winAll(n, 64), n, "time"), Lines: []Line{each(17, "time", "win one of many elections, 64 at a time", Seconds)}},
		{Name: fmt.Sprintf("stand second in %d elections", n), Run: perOne(secondIn(n), n, "setup", "takeover", "anonymous", "server"), Lines: []Line{
			each(18, "setup", "stand in one of many elections", Seconds), each(18, "anonymous", "… memory of the process for one", Single),
			each(18, "server", "… memory of the server for one", Single), each(19, "takeover", "take over one of many elections", Seconds)}},
		{Name: fmt.Sprintf("%d waiters in one line", n), Run: perOne(oneLine(n), n, "pass"), Lines: []Line{each(10, "pass", "hand-over in a line of waiters", Seconds)}},
	}
}

type run = func(context.Context, *Env, *Contender) (Sample, error)

// perOne divides figures by n; a rate stays.
func perOne(f run, n int, keys ...string) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		s, err := f(ctx, e, c)
		if err != nil {
			return nil, err
		}
		one := Sample{}
		for _, k := range keys {
			one[k] = value(s[k].Value / float64(n))
			if k == "rate" {
				one[k] = value(s[k].Value)
			}
		}
		return one, nil
	}
}

func secondIn(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) { return second(ctx, e, c, n) }
}

// grow measures one size, once for each contender. A line that cannot be measured at that size is
// said to be so.
func grow(ctx context.Context, e *Env, ours, peer *Contender, n int) ([]Result, error) {
	var all []Result
	for _, b := range growBenches(n) {
		b.Reps = 1
		found, err := b.run(ctx, e, ours, peer)
		if ctx.Err() != nil {
			return all, err
		}
		if err != nil {
			e.box.failed = true
			e.logf("  %v", err)
			continue
		}
		all = append(all, found...)
	}
	return all, nil
}

// oneLine has n sessions wait for one name; then it passes through all of them.
func oneLine(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		t := &team{}
		defer func() { t.close() }()
		for range 4 {
			p, err := e.dial(ctx, c)
			if err != nil {
				return nil, err
			}
			t.procs = append(t.procs, p)
		}
		sessions, begin := make([]Session, n+1), time.Now()
		err := parallel(ctx, n+1, 64, func(_ context.Context, i int) (err error) {
			sessions[i], err = t.procs[i%len(t.procs)].Session(ctx, 120*time.Second)
			return err
		})
		if err != nil {
			return nil, err
		}
		t.sessions = sessions
		e.debugf("    %s: %d sessions after %.1f s", c.Name, n+1, time.Since(begin).Seconds())
		took, err := pass(ctx, e, sessions, e.Name("line"))
		return Sample{"pass": value(took.Seconds())}, err
	}
}

// pass returns how long it takes from the first's release until the last has held.
func pass(ctx context.Context, e *Env, sessions []Session, name string) (time.Duration, error) {
	h, err := sessions[0].Campaign(ctx, name)
	if err != nil {
		return 0, err
	}
	before, err := count(e.Cluster)
	if err != nil {
		return 0, err
	}
	n := len(sessions) - 1
	entering := time.Now()
	var g guard
	var held atomic.Int64
	done := make(chan error, 1)
	go func() {
		done <- parallel(ctx, n, n, func(ctx context.Context, i int) error {
			h, err := campaignOn(ctx, sessions[i+1], name)
			if err != nil {
				return err
			}
			if err := g.enter(h); err != nil {
				return err
			}
			g.leave()
			held.Add(1)
			return h.Release(ctx)
		})
	}()
	if err := e.grown(ctx, before, n, done); err != nil {
		return 0, err
	}
	e.debugf("    %d stand in one line after %.1f s", n, time.Since(entering).Seconds())
	if _, err := settled(ctx, e); err != nil {
		return 0, err
	}
	begin := time.Now()
	if held.Load() > 0 {
		return 0, fmt.Errorf("two held: %d beside the first", held.Load())
	}
	if err := h.Release(ctx); err != nil {
		return 0, err
	}
	err = <-done
	return time.Since(begin), err
}
