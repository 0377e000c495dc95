package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Faults says how often a call meets which fault. Shares are from 0 to 1, drawn for each call; the
// first that strikes in the order below is the only one. The zero value has no faults.
//
// A call that was answered with nil is over: the port lets only a call whose outcome is unknown
// happen later. So Late and Twice answer with an error, but for Renew, Release and Close, which may
// come twice by their own clauses.
//
// Wait, Next and News are not done late or twice, and News loses nothing: what blocks is asked
// again and again anyway.
type Faults struct {
	Seed  uint64        // the same seed and the same order of calls give the same faults
	Delay time.Duration // each call is delayed by a random time below this, before it reaches the store
	Drop  float64       // share of calls that never reach the store
	Lose  float64       // share that is done, but whose answer is lost
	Late  float64       // share that is answered with an error at once, and done later
	Twice float64       // share that is done, and done again later
	Lag   time.Duration // what is done later is done after a random time below this
}

// FaultyStore is a store behind a bad network. It implements driver.Asker and
// driver.Journal if the store does, and its leases driver.Transferer and
// driver.Exchanger.
type FaultyStore interface {
	driver.Store
	Set(f Faults) // other faults from now on; a new Seed begins its sequence
	Hang(on bool) // cuts the client off: calls hang until their context ends or this is switched off, and no answer comes
	Deaf(on bool) // the same, but calls ignore their context, as a client library at fault does. What hung is done afterwards
	Settle()      // waits until everything late was done
}

// ErrUnknown is what a faulty store answers where the outcome is unknown.
var ErrUnknown = errors.New("drivertest: the answer was lost, the call may have happened")

// Faulty returns store behind a network with faults.
func Faulty(store driver.Store, f Faults) FaultyStore {
	s := &faulty{Store: store, net: &network{changed: make(chan struct{})}}
	s.Set(f)
	ports := storePortsOf(store)
	return storeWith(s, ports, faultyPorts{ports, s.net}).(FaultyStore)
}

// network decides what becomes of each call.
type network struct {
	mu      sync.Mutex
	faults  Faults
	rnd     *rand.Rand
	hang    bool
	deaf    bool
	changed chan struct{} // closed when hang or deaf is switched
	late    sync.WaitGroup
}

// fate is what becomes of one call.
type fate struct {
	delay, lag              time.Duration
	drop, lose, late, twice bool
}

// draw decides for the next call. Every call takes the same number of draws, so that the sequence
// of a seed does not depend on which faults are switched on.
func (n *network) draw() fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faults
	out := fate{
		delay: time.Duration(n.rnd.Float64() * float64(f.Delay)),
		lag:   time.Duration(n.rnd.Float64() * float64(f.Lag)),
	}
	x := n.rnd.Float64()
	for _, fault := range []struct {
		share float64
		hit   *bool
	}{{f.Drop, &out.drop}, {f.Lose, &out.lose}, {f.Late, &out.late}, {f.Twice, &out.twice}} {
		if x < fault.share {
			*fault.hit = true
			break
		}
		x -= fault.share
	}
	return out
}

// pass waits while the network hangs. It returns the context for what follows: a call that ignored
// its context while it hung goes on without it.
func (n *network) pass(ctx context.Context) (context.Context, error) {
	for {
		n.mu.Lock()
		hang, deaf, changed := n.hang, n.deaf, n.changed
		n.mu.Unlock()
		switch {
		case deaf:
			ctx = context.WithoutCancel(ctx)
			<-changed
		case hang:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx, ctx.Err()
			}
		default:
			return ctx, ctx.Err()
		}
	}
}

// later does a call when its caller has gone on.
func (n *network) later(ctx context.Context, lag time.Duration, do func(ctx context.Context)) {
	ctx = context.WithoutCancel(ctx)
	n.late.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		time.Sleep(lag)
		do(ctx)
	})
}

// kind is how a call behaves when it is repeated.
type kind int

const (
	changes    kind = iota // answered once, and may happen later only if the answer was an error
	idempotent             // may come twice also after nil
	blocks                 // waits in the store: never late or twice
)

// through brings one call through the network.
func through[T any](ctx context.Context, n *network, k kind, do func(ctx context.Context) (T, error)) (T, error) {
	var none T
	f := n.draw()
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-ctx.Done():
		}
	}
	sent, err := n.pass(ctx)
	if err != nil {
		return none, err
	}
	if k == blocks {
		sent = ctx // without its end it would block for ever
	}
	if f.drop {
		return none, ErrUnknown
	}
	again := func(ctx context.Context) { _, _ = do(ctx) }
	if f.late && k != blocks {
		n.later(ctx, f.lag, again)
		return none, ErrUnknown
	}
	got, err := do(sent)
	if f.twice && k != blocks {
		n.later(ctx, f.lag, again)
	}
	if f.lose || f.twice && k == changes {
		return none, ErrUnknown
	}
	// The answer comes back through the same network.
	if _, hung := n.pass(sent); hung != nil && err == nil {
		return got, hung
	}
	return got, err
}

// Set, Hang, Deaf and Settle implement FaultyStore.

func (s *faulty) Set(f Faults) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.rnd == nil || f.Seed != s.net.faults.Seed {
		s.net.rnd = rand.New(rand.NewPCG(f.Seed, 0))
	}
	s.net.faults = f
}

func (s *faulty) Hang(on bool) { s.net.turn(&s.net.hang, on) }

func (s *faulty) Deaf(on bool) { s.net.turn(&s.net.deaf, on) }

func (s *faulty) Settle() { s.net.late.Wait() }

// turn switches and lets all who hang look again.
func (n *network) turn(what *bool, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*what = on
	close(n.changed)
	n.changed = make(chan struct{})
}
