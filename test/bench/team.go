package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// team is several processes of one contender, each a connection of its own within this process,
// with several goroutines each.
type team struct {
	procs    []Process
	sessions []Session
	members  []*member
}

// member is one goroutine of a team.
type member struct {
	proc    int
	session Session
}

// team opens procs processes with goroutines members each, who share a session where the contender
// can.
func (e *Env) team(ctx context.Context, c *Contender, procs, goroutines int, ttl time.Duration) (*team, error) {
	t := &team{}
	for p := range procs {
		proc, err := e.dial(ctx, c)
		if err != nil {
			t.close()
			return nil, err
		}
		t.procs = append(t.procs, proc)
		for g := range goroutines {
			var s Session
			if g > 0 && c.Local {
				s = t.sessions[len(t.sessions)-1]
			} else if s, err = proc.Session(ctx, c.lease(ttl)); err != nil {
				t.close()
				return nil, err
			} else {
				t.sessions = append(t.sessions, s)
			}
			t.members = append(t.members, &member{p, s})
		}
	}
	return t, nil
}

// close ends all leases, then the connections.
func (t *team) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, s := range t.sessions {
		all.Go(func() { _ = s.Close(ctx) })
	}
	all.Wait()
	for _, p := range t.procs {
		p.Close()
	}
}

// each runs f for all members at once and joins what they return.
func (t *team) each(f func(i int, m *member) error) error {
	errs := make([]error, len(t.members))
	var all sync.WaitGroup
	for i, m := range t.members {
		all.Go(func() { errs[i] = f(i, m) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// parallel runs f for 0 to n-1 on k goroutines, until one fails.
func parallel(ctx context.Context, n, k int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var all sync.WaitGroup
	for range min(n, k) {
		all.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}
