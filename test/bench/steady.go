package main

import (
	"context"
	"time"
)

// What it costs to go on leading, when nothing happens: row 20.

const (
	steadyTerms  = 1000
	steadyWindow = 6 * time.Second // three renewals of ours, one and a half or more of a peer's
)

func steadyBenches() []*Bench {
	lines := func(what string, goal Goal) []Line {
		return []Line{{Row: 20, Key: "requests", What: what, Unit: Rate, Goal: goal}}
	}
	goal := Goal{Most: 2.5, Text: "one heartbeat a process"}
	return []*Bench{
		{Name: "1,000 held elections", Run: steady(false), Reps: 2, Lines: lines("1,000 held elections, TTL 10 s: requests and messages, one session", goal)},
		{Name: "1,000 held elections, a session each", Run: steady(true), Reps: 2,
			Lines: lines("… where the peer has a session for each, as its users mostly do", Goal{})},
	}
}

// steady holds many elections and counts what the client sends meanwhile. Ours never needs more
// than one session.
func steady(apart bool) func(context.Context, *Env, *Contender) (Sample, error) {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		sessions := 1
		if apart && !c.Ours {
			sessions = steadyTerms
		}
		t := &team{}
		defer func() { t.close() }()
		p, err := e.dial(ctx, c)
		if err != nil {
			return nil, err
		}
		t.procs, t.sessions = []Process{p}, make([]Session, sessions)
		err = parallel(ctx, sessions, 64, func(_ context.Context, i int) (err error) {
			t.sessions[i], err = p.Session(ctx, lease)
			return err
		})
		if err != nil {
			t.sessions = nil
			return nil, err
		}
		names := e.Names("steady", steadyTerms)
		err = parallel(ctx, steadyTerms, 64, func(_ context.Context, i int) error {
			_, err := t.sessions[i%sessions].Campaign(ctx, names[i])
			return err
		})
		if err != nil {
			return nil, err
		}
		return quiet(ctx, e)
	}
}

// quiet counts what etcd is sent while nobody asks for anything.
func quiet(ctx context.Context, e *Env) (Sample, error) {
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	before, err := count(e.Cluster)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := sleep(ctx, steadyWindow); err != nil {
		return nil, err
	}
	after, err := count(e.Cluster)
	sent := after.since(before)
	n := sent.requests() + sent.Stream["Watch"] + sent.Stream["LeaseKeepAlive"]
	return Sample{"requests": value(n / time.Since(begin).Seconds())}, err
}
