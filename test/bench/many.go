package main

import (
	"context"
	"fmt"
	"time"
)

// Many elections in one process: rows 17 to 20.

const many = 10_000

func manyBenches() []*Bench {
	win := func(at int, goal Goal) *Bench {
		name := fmt.Sprintf("win %d elections, %d at a time", many, at)
		return &Bench{Name: name, Run: winAll(many, at), Floor: bareWins(many), Lines: []Line{
			{Row: 17, Key: "time", What: fmt.Sprintf("one process wins 10,000 elections, %d at a time", at), Unit: Seconds,
				Chart: fmt.Sprintf("win 10,000 elections, %d at a time", at), Goal: goal},
			{Row: 17, Key: "requests", What: "… requests", Unit: Count}}}
	}
	return []*Bench{win(64, Goal{Ratio: 4}), win(256, Goal{Ratio: 4})}
}

// winAll has one session win n elections.
func winAll(n, at int) func(context.Context, *Env, *Contender) (Sample, error) {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		t, err := e.team(ctx, c, 1, 1, lease)
		if err != nil {
			return nil, err
		}
		defer t.close()
		before, err := count(e.Cluster)
		if err != nil {
			return nil, err
		}
		names := e.Names("many", n)
		begin := time.Now()
		held, err := win(ctx, t.sessions[0], names, at)
		took := time.Since(begin)
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			if err := h.Check(); err != nil {
				return nil, fmt.Errorf("not all are led in the end: %w", err)
			}
		}
		after, err := countWhenQuiet(ctx, e, before)
		return Sample{"time": value(took.Seconds()), "requests": value(after.since(before).requests())}, err
	}
}

// countWhenQuiet counts when the last request that the wins have caused is over: a win may be
// followed by others, which write its record. A session that only keeps its lease makes fewer than
// idle in quiet.
func countWhenQuiet(ctx context.Context, e *Env, before Counts) (Counts, error) {
	const idle, quiet = 8, 2 * time.Second
	last := before
	for {
		now, err := count(e.Cluster)
		if err != nil || now.since(last).requests() < idle {
			return now, err
		}
		last = now
		select {
		case <-time.After(quiet):
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// win campaigns for all names, so many at a time.
func win(ctx context.Context, s Session, names []string, at int) ([]Held, error) {
	held := make([]Held, len(names))
	err := parallel(ctx, len(names), at, func(ctx context.Context, i int) (err error) {
		held[i], err = s.Campaign(ctx, names[i])
		return err
	})
	return held, err
}
