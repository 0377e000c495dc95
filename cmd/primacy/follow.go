package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
)

// followAll begins what goes on beside the terms: who leads, signs of life, the status over HTTP. It returns what ends it.
func (r *runner) followAll(ctx context.Context) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	pulse := health.NewPulse(ctx, max(r.ttl, time.Second), func() { r.session.Stats() })
	closeStatus, err := r.serveStatus(pulse)
	if err != nil {
		cancel()
		return nil, err
	}
	wg.Go(func() { r.manager.watch(ctx, func() error { return errors.Join(pulse.Alive(), r.overdue()) }) })
	if r.onLeaderChange != "" || r.log != nil || r.manager != nil {
		wg.Go(func() { r.followLeader(ctx) })
	}
	return func() {
		cancel()
		r.idle(wg.Wait) // a hook has a second to end
		closeStatus()
	}, nil
}

// followLeader tells of each change of the leader. While a hook runs, what is over meanwhile is missed, never the latest.
func (r *runner) followLeader(ctx context.Context) {
	var last primacy.Token
	first := true
	for st, err := range r.session.Election(r.name).Observe(ctx) {
		var leader string
		var token primacy.Token
		if st.Leader != nil {
			leader, token = who(st.Leader), st.Leader.Token
		}
		if err != nil || !first && token == last {
			continue
		}
		if r.leaving.Load() { // what comes now is our own release
			return
		}
		first, last = false, token
		r.tell(moment{Event: "leader", Leader: leader, Token: token})
		r.leaderChanged(ctx, leader, token)
	}
}

// patience is how long after a term's deadline what ran in it may still be there before this process counts as stuck.
const patience = 2 * time.Second

// overdue says that a term's time is long over and it has not ended: what runs in it cannot be stopped, or we are stuck.
func (r *runner) overdue() error {
	t := r.current.Load()
	if t == nil || t.Check() == nil {
		r.overSince.Store(0)
		return nil
	}
	now := time.Now().UnixNano()
	if since := r.overSince.Load(); since == 0 {
		r.overSince.Store(now)
	} else if d := time.Duration(now - since); d > patience {
		return fmt.Errorf("the term of %s ended %v ago, and what ran in it has not", r.name, d.Round(time.Second))
	}
	return nil
}

// followRenewals tells of renewals that fail, and closes the returned channel at the first one if the command is to stop for it. It ends
// with ctx.
func (r *runner) followRenewals(ctx context.Context, term *primacy.Term) <-chan struct{} {
	failed := make(chan struct{})
	known := r.session.Stats().Misses
	go func() {
		tick := time.NewTicker(min(max(term.TTL()/50, 20*time.Millisecond), 200*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			misses := r.session.Stats().Misses
			if misses == known {
				continue
			}
			known = misses
			r.tell(moment{Event: "renew_late", Token: term.Token(), Remaining: term.Remaining().Milliseconds()})
			if r.onUnreachable == stopNow {
				close(failed)
				return
			}
		}
	}()
	return failed
}
