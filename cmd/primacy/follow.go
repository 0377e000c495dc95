package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/health"
	"github.com/primacy-go/primacy/internal/boottime"
)

// followAll begins what goes on beside the terms: who leads, signs of life, the status over HTTP. It returns what ends it.
func (r *runner) followAll(ctx context.Context) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	r.beat = newHeartbeat()
	pulse := health.NewPulse(ctx, max(r.ttl, time.Second), func() { r.session.Terms() })
	alive := func() error { return errors.Join(pulse.Alive(), r.beat.wedged(r.ttl), r.overdue()) }
	closeStatus, err := r.serveStatus(alive)
	if err != nil {
		cancel()
		return nil, err
	}
	wg.Go(func() { r.followSession(ctx) })
	wg.Go(func() { r.manager.watch(ctx, alive) })
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

// heartbeat is what is known of the session's renewals. Whether somebody leads is never asked of it.
type heartbeat struct {
	last   atomic.Int64  // when the last renewal was answered, or given up, on the boot clock
	leased atomic.Bool   // there is a lease to renew
	missed chan struct{} // holds one token once a renewal failed
}

func newHeartbeat() *heartbeat {
	h := &heartbeat{missed: make(chan struct{}, 1)}
	h.leased.Store(true)
	h.last.Store(int64(boottime.Now()))
	return h
}

// heard takes in an event of the session.
func (h *heartbeat) heard(ev primacy.Event) {
	switch ev.Kind {
	case primacy.LeaseGranted:
		h.leased.Store(true)
	case primacy.LeaseLost:
		h.leased.Store(false)
	case primacy.Renewed:
	case primacy.RenewalMissed:
		select {
		case h.missed <- struct{}{}:
		default:
		}
	default:
		return
	}
	h.last.Store(int64(boottime.Now()))
}

// forget makes misses of before no concern of what begins now.
func (h *heartbeat) forget() {
	select {
	case <-h.missed:
	default:
	}
}

// wedged says that nobody renews a lease that is there; a store may grant a longer ttl than was asked for. A store that does not answer is no fault of ours: then there is a miss, and later no lease.
func (h *heartbeat) wedged(ttl time.Duration) error {
	if silent := boottime.Now() - time.Duration(h.last.Load()); h.leased.Load() && silent > 2*ttl+2*time.Second {
		return fmt.Errorf("no renewal was tried for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// followSession follows the renewals, and tells of those that failed.
func (r *runner) followSession(ctx context.Context) {
	for ev := range r.session.Events(ctx) {
		r.beat.heard(ev)
		if t := r.current.Load(); t != nil && ev.Kind == primacy.RenewalMissed {
			m := moment{Event: "renew_late", Token: t.Token(), TookMS: ev.Took.Milliseconds(), Remaining: t.Remaining().Milliseconds()}
			if ev.Cause != nil {
				m.Err = oneLine(ev.Cause)
			}
			r.tell(m)
		}
	}
}

// unreachable returns a channel that a failed renewal is received from, if the command is to stop for it; else nothing ever is.
func (r *runner) unreachable() <-chan struct{} {
	if r.onUnreachable != stopNow {
		return nil
	}
	r.beat.forget()
	return r.beat.missed
}
