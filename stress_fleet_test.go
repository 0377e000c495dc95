package primacy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// fleet is the machines, the store they share, and all that befalls them. Only the test's own goroutine uses its fields, but for the
// wait groups and contexts.
type fleet struct {
	t        *testing.T
	judge    *judge
	rnd      *rand.Rand
	front    *front
	machines []*machine
	names    []string
	byHand   bool // an operator removes claims
	pauses   bool // processes are paused, machines suspended
	crashes  bool
	restarts bool // of the store

	actors   sync.WaitGroup
	watch    context.Context // of the readers
	unwatch  context.CancelFunc
	readers  sync.WaitGroup
	watchers []*watcher
	calm     chan struct{} // closed when the actors are gone: until then some readers do not read at all
}

func newFleet(t *testing.T, seed uint64, beyond bool) *fleet {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	f := &fleet{t: t, judge: newJudge(t, seed, now), rnd: rand.New(rand.NewPCG(seed, 99)), names: []string{"x", "y", lockNames[seed%3]}, calm: make(chan struct{})}
	f.judge.beyond = beyond
	f.watch, f.unwatch = context.WithCancel(context.Background())
	f.judge.start = func(r *reign) { f.readers.Go(func() { f.judge.follow(f.watch, r) }) }
	rate := []float64{1, 1.05, 0.85, 1.08}[f.rnd.IntN(4)]
	f.front = newFront(f.judge, rate, []time.Duration{0, 0, 0, 13 * time.Second}[f.rnd.IntN(4)])
	f.front.stingy = f.rnd.IntN(4) == 0
	f.byHand, f.pauses, f.crashes, f.restarts = f.coin(), f.coin(), f.coin(), f.coin()
	for i := range 4 {
		m := &machine{id: fmt.Sprintf("s%d", i), stragglers: &f.actors, rnd: rand.New(rand.NewPCG(seed, uint64(i))), clock: &bootClock{
			real: now, rate: f.rate(rate), off: time.Hour + upTo(f.rnd, 1000*time.Hour)}}
		m.net = drivertest.Faulty(f.front, f.mood(m))
		f.machines = append(f.machines, m)
		f.boot(m)
		f.judge.logf(m.id, "its clock runs at %.4f, the store's at %v", m.clock.rate, rate)
	}
	return f
}

func (f *fleet) coin() bool { return f.rnd.IntN(2) == 0 }

// rate is how fast the clock of a machine runs beside a store's. A default drift of 10 % allows a machine to be as slow as nine tenths of
// the store, where the deadline comes just before the store ends the lease, and any haste.
func (f *fleet) rate(store float64) float64 {
	if f.judge.beyond {
		return store * .7
	}
	return store * []float64{1, .9005, .9005, 1.1, .95 + .1*f.rnd.Float64()}[f.rnd.IntN(5)]
}

// boot starts a process on m. OverrunWait: no process may end here, and how often work outlived its right is counted either way.
func (f *fleet) boot(m *machine) {
	p := &process{m: m, judge: f.judge}
	p.ctx, p.kill = context.WithCancel(context.Background())
	o := Options{ID: m.id, TTL: 10 * time.Second, Overrun: OverrunWait, Logger: f.judge.logger(m.id)}
	s, err := newSession(&wire{m.net, p}, o, p.now)
	if err != nil {
		f.t.Fatal(err)
	}
	p.sess, m.proc = s, p
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// calmDown ends all faults and waits for the actors: whoever stands still leads once, as nobody works for long.
func (f *fleet) calmDown() {
	f.heal()
	f.front.calm()
	for _, m := range f.machines {
		m.net.Set(drivertest.Faults{})
		m.moody.Store(false)
		m.setLag(0)
	}
	f.judge.logf("", "the faults are over")
	f.wait("the actors", f.actors.Wait, f.killAll)
	// What is still under way: a renewal that comes 12 s late, after which the lease lives for 15 s on a slow store.
	time.Sleep(45 * time.Second)
	synctest.Wait()
	f.judge.look()
	f.judge.checkHistory()
}

func (f *fleet) killAll() {
	for _, m := range f.machines {
		m.proc.kill()
	}
}

// wait fails the test where what is waited for does not come by itself: fake time would pass for ever.
func (f *fleet) wait(what string, wait, quit func()) {
	done := make(chan struct{})
	go func() { defer close(done); wait() }()
	for _, give := range []func(){quit, func() { panic(what + " do not even end when they are told to") }} {
		select {
		case <-done:
			return
		case <-time.After(10 * time.Minute):
			f.judge.failf("%s have not ended ten minutes after the last fault", what)
			give()
		}
	}
	<-done
}

// checkTheEnd says what must hold when the faults are over: nobody stands for whom nobody asked, every session can lead every name,
// every reader has seen the last leader, and sessions close and leave nothing behind.
func (f *fleet) checkTheEnd() {
	f.checkLines("while the sessions are open")
	close(f.calm)
	for _, name := range f.names {
		for i, m := range f.machines {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			term, err := m.proc.sess.Election(name).Campaign(ctx, &CampaignOptions{Value: []byte("last")})
			cancel()
			if err != nil {
				f.judge.failf("in the end %s cannot lead %s: %v", m.id, name, err)
				continue
			}
			if i == len(f.machines)-1 {
				f.checkReaders(term)
			}
			if err := term.Resign(context.Background()); err != nil {
				f.judge.failf("in the end %s cannot resign %s: %v", m.id, name, err)
			}
		}
	}
	f.unwatch()
	f.wait("the readers", f.readers.Wait, func() {})
	for _, m := range f.machines {
		f.checkClose(m)
	}
	f.checkLines("after the sessions have closed")
	time.Sleep(time.Minute) // leases that were left to run out end their goroutines
}

// checkLines wants all lines empty.
func (f *fleet) checkLines(when string) {
	for _, name := range f.names {
		if all := f.front.standing(name); len(all) > 0 {
			f.judge.failf("%s a claim stands on %s: %+v, behind it %d", when, name, all[0], len(all)-1)
		}
	}
}

func (f *fleet) checkClose(m *machine) {
	s := m.proc.sess
	if err := s.Close(context.Background()); err != nil {
		f.judge.failf("%s: Close: %v", m.id, err)
	}
	m.net.Settle()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.locals) + len(s.queues) + len(s.seats); n > 0 || len(s.leases) > 0 {
		f.judge.failf("%s keeps %d names and %d leases after Close", m.id, n, len(s.leases))
	}
	// Work that stops in its time never outlives its right, unless the process slept.
	if n := s.Stats().Overruns; n > 0 && !m.slow.Load() {
		f.judge.failf("%s: work outlived its right %d times", m.id, n)
	}
}
