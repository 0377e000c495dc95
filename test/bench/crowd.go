package main

import (
	"context"
	"fmt"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
)

// One process stands second in many elections, then the one that leads them all is gone: rows 18
// and 19.

func crowdBenches() []*Bench {
	standing := &Bench{Name: fmt.Sprintf("stand second in %d elections, then take them over", many),
		Floor: bareTakeover,
		Run:   func(ctx context.Context, e *Env, c *Contender) (Sample, error) { return second(ctx, e, c, many) }}
	standing.Lines = []Line{
		{Row: 18, Key: "memory", What: "stands second in 10,000 elections: memory of the process", Unit: Bytes, Chart: "memory, second in 10,000", Goal: Goal{Most: 30e6}},
		{Row: 18, Key: "anonymous", What: "… of it heap and stacks, not the program itself", Unit: Bytes},
		{Row: 18, Key: "goroutines", What: "… its goroutines", Unit: Count, Goal: Goal{Most: 50}},
		{Row: 18, Key: "watches", What: "… its watches at the server", Unit: Count, Goal: Goal{Most: 2}},
		{Row: 18, Key: "setup", What: "… time until it stands in all", Unit: Seconds},
		{Row: 18, Key: "server", What: "… growth of the server's memory", Unit: Bytes},
		{Row: 19, Key: "takeover", What: "10,000 elections taken over after the leader's lease is revoked", Unit: Seconds, Chart: "take over 10,000 elections",
			Goal: Goal{Floor: 1 / 1.2}},
		{Row: 19, Key: "requests", What: "… requests", Unit: Count},
	}
	alone := &Bench{Name: "100,000 elections in one process", Solo: true, Reps: 1, Run: hundredThousand}
	alone.Lines = []Line{
		{Row: 22, Key: "time", What: "one process wins 100,000 elections", Unit: Seconds},
		{Row: 22, Key: "requests", What: "… requests", Unit: Count},
		{Row: 22, Key: "memory", What: "… memory of the process", Unit: Bytes},
		{Row: 22, Key: "goroutines", What: "… its goroutines", Unit: Count},
		{Row: 22, Key: "server", What: "… growth of the server's memory", Unit: Bytes},
	}
	return []*Bench{standing, alone}
}

// hundredThousand has a worker win that many names that nobody else wants.
func hundredThousand(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	before, err := count(e.Cluster)
	if err != nil {
		return nil, err
	}
	w, err := hire(job{Do: "stand", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("alone"), N: 100_000, TTLs: []time.Duration{lease}})
	if err != nil {
		return nil, err
	}
	defer w.kill()
	won, err := w.await(ctx, "won")
	if err != nil {
		return nil, err
	}
	after, err := count(e.Cluster)
	if err != nil {
		return nil, err
	}
	u, err := w.stats(ctx)
	if err != nil {
		return nil, err
	}
	return Sample{"time": value(won.Took.Seconds()), "requests": value(after.since(before).requests()), "memory": value(u.resident),
		"goroutines": value(float64(u.goroutines)), "server": value((after.Resident - before.Resident) / float64(e.Members))}, w.close(ctx)
}

// second has a worker stand in n elections that this process leads, and then win them.
func second(ctx context.Context, e *Env, c *Contender, n int) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	j := job{Do: "stand", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("second"), N: n, TTLs: []time.Duration{lease}}
	if _, err := win(ctx, t.sessions[0], j.names(), 256); err != nil {
		return nil, err
	}
	before, err := count(e.Cluster)
	if err != nil {
		return nil, err
	}
	w, err := hire(j)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	s := Sample{}
	if err := j.lineUp(ctx, e, w, before, s); err != nil {
		return nil, err
	}
	if err := j.takeAll(ctx, e, t.sessions[0], w, s); err != nil {
		return nil, err
	}
	return s, w.close(ctx)
}

// lineUp waits until the worker stands everywhere, and looks at what that takes.
func (j job) lineUp(ctx context.Context, e *Env, w *worker, before Counts, s Sample) error {
	if _, err := w.await(ctx, "ready"); err != nil {
		return err
	}
	begin := time.Now()
	if err := e.grown(ctx, before, j.N, nil); err != nil {
		return err
	}
	s["setup"] = value(time.Since(begin).Seconds())
	after, err := settled(ctx, e)
	if err != nil {
		return err
	}
	u, err := w.stats(ctx)
	s["memory"], s["anonymous"], s["goroutines"] = value(u.resident), value(u.anonymous), value(float64(u.goroutines))
	s["watches"], s["server"] = value(after.Watches-before.Watches), value((after.Resident-before.Resident)/float64(e.Members))
	return err
}

// grown waits until the servers have n more keys, unless those who enter them have failed.
func (e *Env) grown(ctx context.Context, before Counts, n int, failed <-chan error) error {
	for {
		now, err := count(e.Cluster)
		if err != nil {
			return err
		}
		if now.Keys >= before.Keys+float64(n*e.Members) {
			return nil
		}
		select {
		case err := <-failed:
			return fmt.Errorf("before all stood: %w", err)
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%v of %d claims stand: %w", now.Keys-before.Keys, n*e.Members, context.Cause(ctx))
		}
	}
}

// settled waits until no more watches are opened, which a client does one after the other once its
// claims are entered.
func settled(ctx context.Context, e *Env) (Counts, error) {
	for last := -1.0; ; {
		if err := sleep(ctx, time.Second); err != nil {
			return Counts{}, err
		}
		now, err := count(e.Cluster)
		if err != nil || now.Watches == last {
			return now, err
		}
		last = now.Watches
	}
}

// takeAll ends the leader's lease, and waits until the worker leads everywhere.
func (j job) takeAll(ctx context.Context, e *Env, leader Session, w *worker, s Sample) error {
	before, err := count(e.Cluster)
	if err != nil {
		return err
	}
	begin := boottime.Now()
	if err := leader.Revoke(ctx); err != nil {
		return err
	}
	won, err := w.await(ctx, "won")
	if err != nil {
		return err
	}
	after, err := count(e.Cluster)
	s["takeover"], s["requests"] = value((won.At - begin).Seconds()), value(after.since(before).requests())
	return err
}
