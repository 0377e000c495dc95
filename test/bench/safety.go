package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/proxy"
)

// Two who lead at once, in short: rows 1 and 4. The long form, with every kind of fault, is `make
// versus` and `make torture`.

const (
	cutTerms    = 20
	cutTTL      = 5 * time.Second
	frozenProcs = 10
	shortTTL    = 2 * time.Second
)

func safetyBenches() []*Bench {
	return []*Bench{
		{Name: "the leader's link falls silent", Together: eachApart(cut), Reps: 1, Lines: []Line{
			{Row: 1, Key: "both", What: fmt.Sprintf("two led at once, of %d whose leader's link fell silent, TTL %v", cutTerms, cutTTL), Unit: Count, Goal: Goal{Text: "0", Most: 0.5}},
			{Row: 1, Key: "longest", What: "… the longest", Unit: Seconds}}},
		{Name: "the leader is frozen past its deadline", Together: eachApart(thaw), Reps: 1, Lines: []Line{
			{Row: 4, Key: "yes", What: fmt.Sprintf("first check after SIGSTOP past the deadline said yes, of %d", frozenProcs), Unit: Count, Goal: Goal{Text: "0", Most: 0.5}}}},
	}
}

// eachApart measures all contenders at the same time.
func eachApart(f run) func(context.Context, *Env, []*Contender) ([]Sample, error) {
	return func(ctx context.Context, e *Env, cs []*Contender) ([]Sample, error) {
		samples, errs := make([]Sample, len(cs)), make([]error, len(cs))
		var all sync.WaitGroup
		for i, c := range cs {
			all.Go(func() { samples[i], errs[i] = f(ctx, e, c) })
		}
		all.Wait()
		for i, err := range errs {
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cs[i].Name, err)
			}
		}
		return samples, nil
	}
}

// cut has leaders behind a proxy that falls silent, and others who win after them, and asks the
// leaders all the time.
func cut(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	var proxies []*proxy.Proxy
	var behind []string
	for _, m := range e.Cluster.Members {
		p, err := proxy.Listen(m.Addr())
		if err != nil {
			return nil, err
		}
		defer p.Close()
		proxies, behind = append(proxies, p), append(behind, "http://"+p.Addr())
	}
	leaders, err := c.Dial(ctx, behind)
	if err != nil {
		return nil, err
	}
	defer leaders.Close()
	names := e.Names("cut", cutTerms)
	held := make([]Held, cutTerms)
	err = parallel(ctx, cutTerms, cutTerms, func(_ context.Context, i int) error {
		if err := sleep(ctx, rand.N(cutTTL/3)); err != nil {
			return err
		}
		s, err := leaders.Session(ctx, cutTTL)
		if err == nil {
			held[i], err = s.Campaign(ctx, names[i])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	next, err := e.team(ctx, c, 1, 1, lease)
	if err != nil {
		return nil, err
	}
	defer next.close()
	return overlaps(ctx, next.sessions[0], names, held, func() {
		for _, p := range proxies {
			p.Hold()
		}
	})
}

// overlaps counts the names of which the old holder still says that it leads when the next one has
// won.
func overlaps(ctx context.Context, next Session, names []string, held []Held, strike func()) (Sample, error) {
	won, last := make([]time.Time, len(names)), make([]time.Time, len(names))
	time.AfterFunc(cutTTL/2, strike)
	err := parallel(ctx, len(names), len(names), func(ctx context.Context, i int) error {
		done := make(chan error, 1)
		go func() {
			_, err := next.Campaign(ctx, names[i])
			won[i] = time.Now()
			done <- err
		}()
		for {
			asked := time.Now() // before the question: an answer that comes late is not held against it
			if held[i].Check() != nil {
				return <-done
			}
			last[i] = asked
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	})
	both, longest := 0, 0.0
	for i := range names {
		if d := last[i].Sub(won[i]).Seconds(); d > 0 {
			both, longest = both+1, max(longest, d)
		}
	}
	return Sample{"both": value(float64(both)), "longest": value(longest)}, err
}

// thaw freezes processes that lead until their right is long over, and looks at what each one's
// next check says.
func thaw(ctx context.Context, e *Env, c *Contender) (Sample, error) {
	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.kill()
		}
	}()
	for range frozenProcs {
		w, err := hire(job{Do: "ask", Contender: c.Name, Endpoints: e.servers.endpoints(), Prefix: e.Name("thaw"), N: 1, TTLs: []time.Duration{shortTTL}})
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		if _, err := w.await(ctx, "ready"); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, shortTTL); err != nil {
		return nil, err
	}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, w := range workers {
			if err := w.cmd.Process.Signal(sig); err != nil {
				return nil, err
			}
			if err := sleep(ctx, 20*time.Millisecond); err != nil { // at different points between two renewals
				return nil, err
			}
		}
		if sig == syscall.SIGSTOP {
			if err := sleep(ctx, 2*shortTTL+time.Second); err != nil {
				return nil, err
			}
		}
	}
	yes := 0
	for _, w := range workers {
		woke, err := w.await(ctx, "woke")
		if err != nil {
			return nil, err
		}
		if strings.Contains(woke.Text, "yes") {
			yes++
		}
	}
	return Sample{"yes": value(float64(yes))}, nil
}
