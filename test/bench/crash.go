package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// What leads is killed: how long until the next one leads. Several elections at once, each with a
// lease of its own in the process that dies, so that the kill finds each at another point between
// two renewals.

const crashes = 8 // elections for each TTL

// expirySlack: etcd looks for leases that are over twice a second, so equal TTLs differ by chance
// in their slowest case.
const expirySlack = 0.05

func crashBenches() []*Bench {
	ttls := []time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second}
	equal := &Bench{Name: "crash, equal TTL", Together: func(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error) {
		return crash(ctx, e, cs, func(Process) []time.Duration { return ttls })
	}}
	for i, ttl := range ttls {
		equal.Lines = append(equal.Lines, Line{Row: 8, Key: fmt.Sprint(i), What: fmt.Sprintf("crash → next leads, TTL %v", ttl), Unit: Seconds,
			Chart: fmt.Sprintf("crash, TTL %v", ttl), Goal: Goal{Ratio: 0.9, Text: "parity (≥ 0.9x)"}, Slack: expirySlack})
	}
	smallest := &Bench{Name: "crash, smallest TTL", Together: func(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error) {
		return crash(ctx, e, cs, func(p Process) []time.Duration { return []time.Duration{p.MinTTL()} })
	}}
	smallest.Lines = []Line{{Row: 9, Key: "0", What: "crash → next leads, smallest TTL that works", Unit: Seconds, Chart: "crash, smallest TTL", Goal: Goal{Most: 0.3}},
		{Row: 9, Key: "ttl", What: "… that TTL", Unit: Seconds}}
	return []*Bench{equal, smallest}
}

// crash kills a process of each contender and has this process take over.
func crash(ctx context.Context, e *Env, cs []*Contender, ttls func(Process) []time.Duration) ([]Sample, error) {
	return eachApart(func(ctx context.Context, e *Env, c *Contender) (Sample, error) { return crashOne(ctx, e, c, ttls) })(ctx, e, cs)
}

func crashOne(ctx context.Context, e *Env, c *Contender, choose func(Process) []time.Duration) (Sample, error) {
	t, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer t.close()
	ttls := choose(t.procs[0])
	j := job{Do: "lead", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("crash"), N: crashes * len(ttls)}
	for i := range j.N {
		j.TTLs = append(j.TTLs, ttls[i%len(ttls)])
	}
	w, err := hire(j)
	if err != nil {
		return nil, err
	}
	defer w.kill()
	if _, err := w.await(ctx, "ready"); err != nil {
		return nil, err
	}
	won, err := j.takeOver(ctx, t.sessions[0], w)
	if err != nil {
		return nil, err
	}
	s := Sample{"ttl": value(ttls[0].Seconds())}
	for k := range ttls {
		var each []float64
		for i := k; i < j.N; i += len(ttls) {
			each = append(each, won[i])
		}
		s[fmt.Sprint(k)] = times(each)
	}
	return s, nil
}

// takeOver stands for all names, kills the worker that leads, and returns for each how many seconds
// later it was won.
func (j job) takeOver(ctx context.Context, s Session, w *worker) ([]float64, error) {
	at := make([]time.Time, j.N)
	done := make(chan error, 1)
	go func() {
		done <- parallel(ctx, j.N, j.N, func(ctx context.Context, i int) error {
			_, err := s.Campaign(ctx, j.name(i))
			at[i] = time.Now()
			return err
		})
	}()
	if err := sleep(ctx, 500*time.Millisecond+rand.N(time.Second)); err != nil {
		return nil, err
	}
	killed := w.kill()
	if err := <-done; err != nil {
		return nil, err
	}
	won := make([]float64, j.N)
	for i := range won {
		if won[i] = at[i].Sub(killed).Seconds(); won[i] < 0 {
			return nil, fmt.Errorf("two led: %s was won %v before its leader was killed", j.name(i), killed.Sub(at[i]))
		}
	}
	return won, nil
}
