package main

import (
	"context"
	"fmt"
	"time"
)

// Elections on the Leases of a Kubernetes API server, beside client-go's electors. Rows 51 to 54.

const (
	kubeElections = 100
	kubeTTL       = 15 * time.Second // Kubernetes' own
	kubeWindow    = 40 * time.Second
)

func kubernetesBenches() []*Bench {
	ttls := []time.Duration{2 * time.Second, kubeTTL}
	crashed := &Bench{Name: "crash", Reps: 3}
	crashed.Together = func(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error) {
		return crash(ctx, e, cs, func(Process) []time.Duration { return ttls })
	}
	for i, ttl := range ttls {
		crashed.Lines = append(crashed.Lines,
			Line{Row: 52, Key: fmt.Sprint(i), What: fmt.Sprintf("leader killed → next leads, TTL %v", ttl),
				Unit: Seconds, Goal: Goal{P99: 1.12*ttl.Seconds() + 1, Text: "p99 ≤ 1.12 TTL + 1 s"}})
	}
	return []*Bench{
		{Name: "hand-over", Reps: 3, Run: handover(time.Second, 16), Lines: []Line{{Row: 51, Key: "handover",
			What: "release → next leads, waiter has stood 1 s, TTL 10 s", Unit: Seconds, Goal: Goal{Most: 0.05}}}},
		crashed,
		{Name: fmt.Sprintf("%d elections, two stand by", kubeElections), Reps: 2, Run: kubeSteady, Lines: []Line{
			{Row: 53, Key: "writes", What: "100 elections of one process, two others stand by, TTL 15 s: writes",
				Unit: Rate, Goal: Goal{Most: 2}},
			{Row: 53, Key: "reads", What: "… reads", Unit: Rate},
			{Row: 53, Key: "watches", What: "… watches begun anew", Unit: Rate}}},
		{Name: fmt.Sprintf("memory, second in %d elections", kubeElections), Reps: 2, Run: kubeMemory, Lines: []Line{
			{Row: 54, Key: "memory", What: "stands second in 100 elections: memory of the process", Unit: Bytes},
			{Row: 54, Key: "anonymous", What: "… of it heap and stacks, not the program itself", Unit: Bytes},
			{Row: 54, Key: "goroutines", What: "… its goroutines", Unit: Count}}},
	}
}

// kubeSteady has one process lead and two stand by, and counts what the API server is asked.
func kubeSteady(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, err := e.team(ctx, c, 3, 1, kubeTTL)
	if err != nil {
		return nil, err
	}
	defer t.close()
	names := e.Names("steady", kubeElections)
	if _, err := win(ctx, t.sessions[0], names, 16); err != nil {
		return nil, err
	}
	standing, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	for _, s := range t.sessions[1:] {
		go func() { ended <- standAll(standing, s, names, func() {}) }()
	}
	defer func() { stop(); <-ended; <-ended }()
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	before, err := e.leases()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := sleep(ctx, kubeWindow); err != nil {
		return nil, err
	}
	after, err := e.leases()
	a := func(n float64) Figure { return value(n / time.Since(begin).Seconds()) }
	return Sample{"writes": a(after.writes - before.writes), "reads": a(after.reads - before.reads),
		"watches": a(after.watches - before.watches)}, err
}

// kubeMemory has a worker stand in elections that this process leads.
func kubeMemory(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, kubeTTL)
	if err != nil {
		return nil, err
	}
	defer t.close()
	j := job{Do: "stand", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("second"),
		N: kubeElections, TTLs: []time.Duration{kubeTTL}}
	if _, err := win(ctx, t.sessions[0], j.names(), 16); err != nil {
		return nil, err
	}
	w, err := hire(j)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	if _, err := w.await(ctx, "ready"); err != nil {
		return nil, err
	}
	if err := sleep(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	u, err := w.stats(ctx)
	return Sample{"memory": value(u.resident), "anonymous": value(u.anonymous),
		"goroutines": value(float64(u.goroutines))}, err
}
