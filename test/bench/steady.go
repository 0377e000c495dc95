package main

import (
	"context"
	"sync"
	"time"
)

// What it costs to go on leading, and to go on waiting, when nothing happens: row 20.

const (
	steadyTerms   = 1000
	steadyWindow  = 6 * time.Second // three renewals of ours, one and a half or more of a peer's
	standbys      = 100
	standbyWindow = 12 * time.Second // three renewals of ours, three or more of a peer's
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
		{Name: "100 standbys", Run: standBy, Reps: 2,
			Lines: lines("100 sessions wait for one election, TTL 10 s: requests and messages, one of them", Goal{})},
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
		sent, err := quiet(ctx, e, steadyWindow)
		return Sample{"requests": value(sent)}, err
	}
}

// standBy has many sessions wait for one election and counts what one of them sends meanwhile.
func standBy(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	name := e.Name("standby")
	if _, err := t.sessions[0].Campaign(ctx, name); err != nil {
		return nil, err
	}
	waits, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { end(); all.Wait() }()
	for range standbys {
		s, err := t.procs[0].Session(ctx, lease)
		if err != nil {
			return nil, err
		}
		t.sessions = append(t.sessions, s)
		all.Go(func() { _, _ = s.Campaign(waits, name) })
	}
	sent, err := quiet(ctx, e, standbyWindow)
	return Sample{"requests": value(sent / standbys)}, err
}

// quiet counts what etcd is sent in a second while nobody asks for anything.
func quiet(ctx context.Context, e *Env, window time.Duration) (float64, error) {
	if err := sleep(ctx, time.Second); err != nil {
		return 0, err
	}
	before, err := count(e.Cluster)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := sleep(ctx, window); err != nil {
		return 0, err
	}
	after, err := count(e.Cluster)
	sent := after.since(before)
	n := sent.requests() + sent.Stream["Watch"] + sent.Stream["LeaseKeepAlive"]
	return n / time.Since(begin).Seconds(), err
}
