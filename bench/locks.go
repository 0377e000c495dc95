package main

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// One lock that all want: rows 10 to 13.

// noWorse asks for nothing but a 99th percentile that is no worse than the peer's.
var noWorse = Goal{Text: "p99 no worse"}

// contention is who wants one lock, and with what bound on local hand-overs.
type contention struct {
	procs, goroutines, turns int
	warm, window             time.Duration
}

func crowd(procs, goroutines, turns int) contention {
	return contention{procs, goroutines, turns, 300 * time.Millisecond, time.Second}
}

func lockBenches() []*Bench {
	remote, mixed, local := crowd(8, 1, 0), crowd(4, 8, 16), crowd(1, 8, 64)
	return []*Bench{
		{Name: "one lock, 8 processes", Run: remote.run, Lines: []Line{
			{Row: 10, Key: "rate", What: "one lock, 8 processes × 1: hand-overs", Unit: Rate, Higher: true, Chart: "contended lock, 8 processes",
				Goal: Goal{Ratio: 10}, Goal3: &Goal{Ratio: 7}},
			{Row: 10, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse},
			{Row: 10, Key: "longest", What: "… the longest wait", Unit: Seconds},
			{Row: 10, Key: "share", What: "… share, least to most of a process", Unit: Share, Higher: true}}},
		{Name: "one lock, 4 processes × 8", Run: mixed.run, Lines: []Line{
			{Row: 11, Key: "rate", What: "one lock, 4 processes × 8 goroutines, ≤ 16 local: hand-overs", Unit: Rate, Higher: true, Chart: "contended lock, 4 processes × 8",
				Goal: Goal{Ratio: 70}, Goal3: &Goal{Ratio: 50}},
			{Row: 11, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse},
			{Row: 11, Key: "longest", What: "… the longest wait", Unit: Seconds},
			{Row: 11, Key: "share", What: "… share, least to most of a process", Unit: Share, Higher: true, Goal: Goal{Least: 0.95}}}},
		{Name: "one lock, one process × 8", Run: local.run, Lines: []Line{
			{Row: 12, Key: "rate", What: "one lock, one process × 8 goroutines, ≤ 64 local: hand-overs", Unit: Rate, Higher: true, Chart: "contended lock, one process × 8",
				Goal: Goal{Ratio: 1000}},
			{Row: 12, Key: "wait", What: "… one waits for it", Unit: Seconds, Goal: noWorse}}},
		{Name: "what a hand-over costs etcd", Run: remote.metered, Lines: []Line{
			{Row: 13, Key: "requests", What: "requests for each hand-over, 8 processes × 1", Unit: Count, Goal: Goal{Most: 2.05, Text: "≤ 2"}},
			{Row: 13, Key: "stream", What: "… and messages on watches", Unit: Count},
			{Row: 13, Key: "proposals", What: "… and proposals in raft", Unit: Count, Goal: Goal{Most: 2.05, Text: "≤ 2"}}}},
		{Name: "what a hand-over costs etcd, others wait", Run: crowd(4, 8, 1).metered, Lines: []Line{
			{Row: 13, Key: "requests", What: "requests for each hand-over, 4 processes × 8, none local", Unit: Count, Goal: Goal{Most: 1.05, Text: "≤ 1"}},
			{Row: 13, Key: "stream", What: "… and messages on watches", Unit: Count},
			{Row: 13, Key: "proposals", What: "… and proposals in raft", Unit: Count, Goal: Goal{Most: 1.05, Text: "≤ 1"}}}},
	}
}

// contest is one contention under way.
type contest struct {
	g         guard
	measuring atomic.Bool
	stop      atomic.Bool
	all       atomic.Int64 // holds, from the beginning
	passed    float64      // holds between the two readings of the servers
	holds     []int64      // by process, while measuring
	waits     [][]float64  // by goroutine: seconds
	longest   []float64
}

func (k contention) run(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	s, _, err := k.contend(ctx, e, c, lease, false)
	return s, err
}

// metered also asks etcd what it cost. The leases are long, so that no renewal is among it.
func (k contention) metered(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	s, n, err := k.contend(ctx, e, c, 120*time.Second, true)
	if err != nil {
		return nil, err
	}
	holds := s["remote"].Value
	return Sample{"requests": value(n.requests() / holds), "stream": value(n.Stream["Watch"] / holds),
		"proposals": value(n.Proposals / holds)}, nil
}

// contend has all members take the lock again and again, holding it for no longer than a look at it.
func (k contention) contend(ctx context.Context, e *Env, c *Contender, ttl time.Duration, metered bool) (Sample, Counts, error) {
	t, err := e.team(ctx, c, k.procs, k.goroutines, ttl)
	if err != nil {
		return nil, Counts{}, err
	}
	defer t.close()
	x := &contest{holds: make([]int64, k.procs), waits: make([][]float64, len(t.members)), longest: make([]float64, len(t.members))}
	name := e.Name("lock")
	done := make(chan error, 1)
	go func() {
		done <- t.each(func(i int, m *member) error {
			defer x.stop.Store(true) // also when it fails, or the others would go on for ever
			return x.work(ctx, i, m, m.session.Lock(name, LockOptions{Turns: k.turns}))
		})
	}()
	var cost Counts
	took, err := x.measure(ctx, k, func() (err error) {
		if metered {
			cost, err = x.read(e, cost)
		}
		return err
	})
	x.stop.Store(true)
	if failed := <-done; failed != nil {
		err = failed
	}
	s := x.sample(took)
	s["remote"] = value(math.Max(1, x.passed))
	return s, cost, err
}

// read asks the servers what they have handled, and notes how often the lock had been passed on at that moment.
func (x *contest) read(e *Env, before Counts) (Counts, error) {
	first := x.all.Load()
	now, err := count(e.Cluster)
	x.passed = float64(first+x.all.Load())/2 - x.passed
	return now.since(before), err
}

// measure lets the contest run warm, then counts for the window. Around asks the servers; it is called at the window's start and end.
func (x *contest) measure(ctx context.Context, k contention, around func() error) (time.Duration, error) {
	if err := sleep(ctx, k.warm); err != nil {
		return 0, err
	}
	if err := around(); err != nil {
		return 0, err
	}
	x.measuring.Store(true)
	begin := time.Now()
	err := sleep(ctx, k.window)
	x.measuring.Store(false)
	took := time.Since(begin)
	if err == nil {
		err = around()
	}
	return took, err
}

func (x *contest) work(ctx context.Context, i int, m *member, l Lock) error {
	for !x.stop.Load() {
		begin := time.Now()
		h, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		if err := x.g.enter(h); err != nil {
			return err
		}
		if x.measuring.Load() {
			x.note(i, m.proc, time.Since(begin).Seconds())
		}
		x.all.Add(1)
		x.g.leave()
		if err := h.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// note is called by the holder, so holds needs no lock of its own.
func (x *contest) note(i, proc int, wait float64) {
	x.holds[proc]++
	x.longest[i] = max(x.longest[i], wait)
	if len(x.waits[i]) < 100_000 {
		x.waits[i] = append(x.waits[i], wait)
	}
}

func (x *contest) sample(took time.Duration) Sample {
	all := int64(0)
	for _, n := range x.holds {
		all += n
	}
	share := 0.0
	if most := slices.Max(x.holds); most > 0 {
		share = float64(slices.Min(x.holds)) / float64(most)
	}
	return Sample{"rate": value(float64(all) / took.Seconds()), "share": value(share),
		"longest": value(slices.Max(x.longest)), "wait": times(slices.Concat(x.waits...))}
}
