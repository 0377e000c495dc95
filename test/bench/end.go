package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How long nobody leads, on every store: after a clean release, after a crash, and while the
// process that leads is stopped. Rows 38 to 40.

const endTTL = 2 * time.Second

// frozenLimit is how many TTLs a frozen leader is waited for.
const frozenLimit = 3

func endBenches() []*Bench {
	goal := Goal{P99: (endTTL + 100*time.Millisecond).Seconds(), Text: "p99 ≤ TTL + 100 ms"}
	clean := handover(25*time.Millisecond, 40)
	near := map[string]Goal{"postgres": {Floor: 1 / 1.2, Most: 0.001}, "zookeeper": {Floor: 1 / 1.2}}
	soon := map[string]Goal{"redis": goal, "postgres": goal, "zookeeper": {}} // ZooKeeper's servers look once a tick
	return []*Bench{
		{Name: "hand-over", Run: clean, Floor: clean, Reps: 5, Lines: []Line{{Row: 38, Key: "handover",
			What: "release → next leads, the only waiter has stood 25 ms", Unit: Seconds, Chart: "clean hand-over",
			Slack: tails, On: near}}},
		{Name: "crash", Together: endTogether(syscall.SIGKILL), Reps: 4, Lines: []Line{{Row: 39, Key: "end", What: "leader killed → next leads, TTL 2 s",
			Unit: Seconds, Chart: "crash", Slack: tails, On: soon}}},
		{Name: "frozen leader", Together: endTogether(syscall.SIGSTOP), Reps: 2, Lines: []Line{
			{Row: 40, Key: "end", What: "leader stopped (SIGSTOP) → next leads, the same TTL", Unit: Seconds, Slack: tails, On: soon},
			{Row: 40, Key: "never", What: fmt.Sprintf("… not taken over within %d TTLs, of %d", frozenLimit, crashes), Unit: Count}}},
	}
}

func endTogether(sig syscall.Signal) func(context.Context, *Env, []*Contender) ([]Sample, error) {
	return eachApart(func(ctx context.Context, e *Env, c *Contender) (Sample, error) { return endOne(ctx, e, c, sig) })
}

// endOne has a worker lead several names under leases of their own, ends or stops it, and has this
// process take over.
func endOne(ctx context.Context, e *Env, c *Contender, sig syscall.Signal) (Sample, error) {
	ttl := endTTL
	same := *c
	same.Lease = ttl // also of who waits: some go by their own
	t, err := e.team(ctx, &same, 1, 1, ttl)
	if err != nil {
		return nil, err
	}
	defer t.close()
	j := job{Do: "lead", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("end"), N: crashes, TTLs: []time.Duration{ttl}}
	w, err := hire(j)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	if _, err := w.await(ctx, "ready"); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, time.Duration(frozenLimit)*ttl+1500*time.Millisecond)
	defer cancel()
	struck := make(chan time.Time, 1)
	go func() {
		_ = sleep(ctx, 500*time.Millisecond+rand.N(time.Second))
		struck <- time.Now()
		_ = w.signal(sig)
	}()
	at, never, err := j.wins(limit, t.sessions[0])
	if err != nil {
		return nil, err
	}
	begin := <-struck
	each := make([]float64, len(at))
	for i := range at {
		if each[i] = at[i].Sub(begin).Seconds(); each[i] < 0 {
			return nil, fmt.Errorf("two led: %s was won %v before its leader was ended", j.name(i), begin.Sub(at[i]))
		}
	}
	return Sample{"end": times(each), "never": value(float64(never))}, nil
}

// wins campaigns for all names and returns when each was won, at the latest at ctx's end, and how
// many were not.
func (j job) wins(ctx context.Context, s Session) (at []time.Time, never int, err error) {
	at = make([]time.Time, j.N)
	var late atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for i := range at {
		all.Go(func() {
			_, err := s.Campaign(ctx, j.name(i))
			at[i] = time.Now()
			if err != nil && ctx.Err() != nil {
				late.Add(1)
			} else if err != nil {
				failed.Store(&err)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return nil, 0, *err
	}
	return at, int(late.Load()), nil
}
