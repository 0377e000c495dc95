package main

import (
	"context"
	"fmt"
	"time"
)

// The rows that are the same on every store: locks that nobody else wants, and one that all want.
// Rows 31 to 37, 41 and 42.

// tails lets a 99th percentile be worse than the peer's where that is not what a line is about: who
// polls and starves the others has a short one.
const tails = 1e9

func aloneBenches() []*Bench {
	line := func(row, n int) *Bench {
		what := fmt.Sprintf("lock + unlock, %d goroutines, nobody else wants them", n)
		if n == 1 {
			what = "lock + unlock, one goroutine, nobody else wants it"
		}
		return &Bench{Name: what, Run: alone(n), Floor: alone(n), Lines: []Line{
			{Row: row, Key: "rate", What: what, Unit: Rate, Higher: true, Chart: fmt.Sprintf("%d distinct locks", n)},
			{Row: row, Key: "each", What: "… one lock + unlock", Unit: Seconds},
			{Row: row, Key: "server", What: "… CPU of the server for each", Unit: Seconds},
			{Row: row, Key: "client", What: "… CPU of the clients for each", Unit: Seconds}}}
	}
	return []*Bench{line(31, 1), line(32, 16)}
}

// alone measures locks of n goroutines of one process, each on a name of its own, with what they
// take of the CPU.
func alone(n int) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		m, err := e.cpu()
		if err != nil {
			return nil, err
		}
		return keysMetered(ctx, e, c, n, m)
	}
}

// Goals of hand-overs under contention, by store: where none is inside a process, beside the floor,
// otherwise beside the peer.
var (
	passGoal  = map[string]Goal{"redis": {Floor: 0.85}, "postgres": {Floor: 1 / 1.2}, "zookeeper": {Floor: 1 / 1.2}}
	localGoal = map[string]Goal{"redis": {Ratio: 1.3}, "zookeeper": {Ratio: 1.5}}
	shareGoal = map[string]Goal{"redis": {Least: 0.95}}
	tripGoal  = map[string]Goal{"redis": {Most: 2.05, Text: "≤ 2"}}
)

func passBenches() []*Bench {
	remote, mixed, natural, slow := crowd(8, 1, 1), crowd(4, 2, 1), crowd(8, 1, 0), crowd(8, 1, 1)
	local, alone := crowd(4, 8, 16), crowd(1, 8, 64)
	remote.forced, mixed.forced, slow.forced, local.forced, alone.forced = true, true, true, true, true
	slow.hold = 2 * time.Millisecond
	return []*Bench{
		passBench(33, "one lock, 8 processes, each again only after another: hand-overs", "8 processes, forced hand-overs", remote),
		passBench(34, "one lock, 4 processes × 2, each again only after another, none local: hand-overs", "4 processes × 2, forced", mixed),
		{Name: "one lock, 8 processes, natural loop", Run: natural.run, Lines: []Line{
			{Row: 35, Key: "others", What: "one lock, 8 processes, each again at once: hand-overs", Unit: Rate, Higher: true, Chart: "8 processes, natural loop"},
			{Row: 35, Key: "rate", What: "… acquisitions, with those of who has just released", Unit: Rate, Higher: true},
			{Row: 35, Key: "fair", What: "… share, least to most of a process", Unit: Share, Higher: true},
			{Row: 35, Key: "longest", What: "… the longest wait", Unit: Seconds}}},
		{Name: "one lock, 8 processes, each holds for 2 ms", Run: slow.run, Floor: slow.run, Lines: []Line{
			{Row: 36, Key: "pass", What: "one lock, 8 processes, each holds for 2 ms: release → next holds", Unit: Seconds, Slack: tails, Chart: "release → next, held for 2 ms"},
			{Row: 36, Key: "rate", What: "… hand-overs", Unit: Rate, Higher: true},
			{Row: 36, Key: "fair", What: "… share, least to most of a process", Unit: Share, Higher: true}}},
		localBench(41, "one lock, 4 processes × 8, each again only after another, ours ≤ 16 in a row inside a process: hand-overs", "4 processes × 8, forced, 16 local", local),
		localBench(42, "one lock, 1 process × 8, each again only after another, ours ≤ 64 in a row inside it: hand-overs", "1 process × 8, forced, 64 local", alone),
	}
}

// localBench lets a library hand a lock on inside a process: each hold is still by another than the
// one before.
func localBench(row int, what, chart string, k contention) *Bench {
	return &Bench{Name: what, Run: k.weighed, Lines: []Line{
		{Row: row, Key: "rate", What: what, Unit: Rate, Higher: true, On: localGoal, Chart: chart},
		{Row: row, Key: "longest", What: "… the longest wait", Unit: Seconds},
		{Row: row, Key: "share", What: "… share, least to most of a process", Unit: Share, Higher: true, On: shareGoal}}}
}

func passBench(row int, what, chart string, k contention) *Bench {
	return &Bench{Name: what, Run: k.weighed, Floor: k.weighed, Lines: []Line{
		{Row: row, Key: "rate", What: what, Unit: Rate, Higher: true, On: passGoal, Chart: chart},
		{Row: row, Key: "pass", What: "… release → next holds", Unit: Seconds},
		{Row: row, Key: "wait", What: "… one waits for it", Unit: Seconds},
		{Row: row, Key: "longest", What: "… the longest wait", Unit: Seconds},
		{Row: row, Key: "fair", What: "… share, least to most of a contender", Unit: Share, Higher: true, On: shareGoal},
		{Row: row, Key: "server", What: "… CPU of the server for each", Unit: Seconds},
		{Row: row, Key: "client", What: "… CPU of the clients for each", Unit: Seconds},
		{Row: row, Key: "hung", What: fmt.Sprintf("… calls that hung for %v and were made again", stallLimit), Unit: Count}}}
}

// weighed also has what a hold took of the CPU.
func (k contention) weighed(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	m, err := e.cpu()
	if err != nil {
		return nil, err
	}
	return k.contend(ctx, e, c, lease, m)
}

func wireBenches() []*Bench {
	forced, slow := crowd(8, 1, 1), crowd(8, 1, 1)
	forced.forced, slow.forced, slow.hold = true, true, 2*time.Millisecond
	lines := func(what string, goal map[string]Goal) []Line {
		return []Line{{Row: 37, Key: "requests", What: "round trips for each " + what, Unit: Count, On: goal},
			{Row: 37, Key: "bytes", What: "… bytes to clients", Unit: Count}}
	}
	return []*Bench{
		{Name: "what a lone lock costs", Reps: 3, Lines: lines("lock + unlock, nobody else wants it", tripGoal), Run: wired(func(ctx context.Context, e *Env, c *Contender, m meter) (Sample, error) {
			return keysMetered(ctx, e, c, 1, m)
		})},
		{Name: "what a hand-over costs", Reps: 3, Lines: lines("hand-over, 8 processes, each again only after another", tripGoal), Run: wired(func(ctx context.Context, e *Env, c *Contender, m meter) (Sample, error) {
			return forced.contend(ctx, e, c, e.longLease(), m)
		})},
		{Name: "what a hand-over costs, each holds for 2 ms", Reps: 3, Lines: lines("hand-over, and each holds for 2 ms", tripGoal), Run: wired(func(ctx context.Context, e *Env, c *Contender, m meter) (Sample, error) {
			return slow.contend(ctx, e, c, e.longLease(), m)
		})},
	}
}

// wired measures through proxies that count requests. Leases are long, so that no renewal is among
// them.
func wired(f func(context.Context, *Env, *Contender, meter) (Sample, error)) run {
	return func(ctx context.Context, e *Env, c *Contender) (Sample, error) {
		there, wires, err := e.wired()
		defer func() {
			for _, w := range wires {
				w.close()
			}
		}()
		if err != nil {
			return nil, err
		}
		return f(ctx, there, c, func() (reading, error) {
			r := reading{}
			for _, w := range wires {
				r["requests"] += float64(w.requests.Load())
				r["bytes"] += float64(w.down.Load())
			}
			return r, nil
		})
	}
}
