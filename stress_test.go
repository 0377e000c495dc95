package primacy

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// TestStress lets processes on four machines fight for two names, in fake time. The clocks of the
// machines and of the store run at rates of their own, as far apart as the drift allows. Messages
// are late, lost, doubled, or pass one way only; processes are paused, starved of their timers,
// crash and start again; machines are suspended; store clients ignore their contexts; the store
// restarts and changes its leader; an operator removes claims and ends leases by hand; sessions
// close and open again. What must hold meanwhile and in the end is in stress_judge_test.go.
//
// The environment: STRESS_SEEDS is how many seeds to run (default 60), STRESS_SEED the first of
// them. STRESS_SEED alone runs that one, which is how a failure is looked at again. A seed fixes
// who does what and when, but not the order of what happens in the same instant of fake time: add
// -count=100 where one run is not enough. With -v it ends with what was done, in figures.
func TestStress(t *testing.T) {
	sum := stressSeeds(t, 60, false)
	if t.Failed() || os.Getenv("STRESS_SEED") != "" {
		return
	}
	for _, must := range []string{"writes refused by the fence", "unfenced writes that went back",
		"locks handed on in a process", "handed over", "asked to hand over",
		"many: terms", "many: terms told to have ended", "claims exchanged"} {
		if sum[must] == 0 {
			t.Errorf("%s: none in all seeds: the faults are too weak to prove anything", must)
		}
	}
}

// TestStressBeyondTheBound runs clocks that are further apart than the drift allows. Two leaders at
// once must then be seen: what finds none there would find none anywhere. All else still holds,
// fenced writes above all.
func TestStressBeyondTheBound(t *testing.T) {
	sum := stressSeeds(t, 40, true)
	if !t.Failed() && os.Getenv("STRESS_SEED") == "" &&
		(sum["histories with an overlap"] == 0 || sum["looks that saw two"] == 0) {
		t.Errorf("no overlap in any seed: the judge sees nothing, or the faults are too weak")
	}
}

func stressSeeds(t *testing.T, n int, beyond bool) map[string]int {
	first := envInt(t, "STRESS_SEED", 1)
	if os.Getenv("STRESS_SEED") != "" {
		n = 1
	}
	if os.Getenv("MUTATION") != "" {
		n = 600 // one is as rare as one seed in a hundred; the run ends with the first that catches it
	}
	n = envInt(t, "STRESS_SEEDS", n)
	sum, ran := map[string]int{}, 0
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ran++
				for what, n := range stress(t, uint64(seed), beyond) {
					sum[what] += n
				}
			})
		})
	}
	var figures strings.Builder
	for _, what := range slices.Sorted(maps.Keys(sum)) {
		fmt.Fprintf(&figures, "\n%9d %s", sum[what], what)
	}
	t.Logf("%d seeds:%s", ran, &figures)
	return sum
}

func envInt(t *testing.T, key string, or int) int {
	s := os.Getenv(key)
	if s == "" {
		return or
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// stress runs one seed and returns what was done, in figures.
func stress(t *testing.T, seed uint64, beyond bool) map[string]int {
	f := newFleet(t, seed, beyond)
	defer f.judge.report()
	stop := f.judge.poll()
	for range 60 + f.rnd.IntN(60) {
		f.act()
		if f.rnd.IntN(3) > 0 {
			time.Sleep(upTo(f.rnd, 2*time.Second))
		}
		synctest.Wait() // the next act finds everybody at rest: removals by hand are then one step
		f.judge.look()
		f.front.inOrder(f.names)
	}
	f.endFaults()
	stop()
	f.checkTheEnd()
	for _, m := range f.machines {
		f.judge.counts["calls on the store"] += int(m.calls.Load())
		f.judge.counts["requests that came after their caller had gone"] += int(m.late.Load())
	}
	f.judge.counts["simulated seconds"] += int(f.judge.now() / time.Second)
	return f.judge.counts
}

// fleet is the machines, the store they share, and all that befalls them. Only the test's own
// goroutine uses its fields, but for the wait groups and contexts.
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

	actors     sync.WaitGroup
	watch      context.Context // of the readers
	unwatch    context.CancelFunc
	readers    sync.WaitGroup
	watchers   []*watcher
	actorsGone chan struct{} // closed when the actors are gone: until then some readers do not read at all
}

func newFleet(t *testing.T, seed uint64, beyond bool) *fleet {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	f := &fleet{t: t, judge: newJudge(t, seed, now), rnd: rand.New(rand.NewPCG(seed, 99)),
		names: []string{"x", "y", lockNames[seed%3]}, actorsGone: make(chan struct{})}
	f.judge.beyond = beyond
	f.watch, f.unwatch = context.WithCancel(context.Background())
	f.judge.start = func(r *heldTerm) { f.readers.Go(func() { f.judge.follow(f.watch, r) }) }
	rate := []float64{1, 1.05, 0.85, 1.08}[f.rnd.IntN(4)]
	f.front = newFront(f.judge, rate, []time.Duration{0, 0, 0, 13 * time.Second}[f.rnd.IntN(4)])
	f.front.stingy = f.rnd.IntN(4) == 0
	f.byHand, f.pauses, f.crashes, f.restarts = f.coin(), f.coin(), f.coin(), f.coin()
	for i := range 4 {
		m := &machine{id: fmt.Sprintf("s%d", i), stragglers: &f.actors, rnd: rand.New(rand.NewPCG(seed, uint64(i))),
			clock: &bootClock{
				real: now, rate: f.rate(rate), off: time.Hour + upTo(f.rnd, 1000*time.Hour)}}
		m.net = drivertest.Faulty(f.front, f.networkFaults(m))
		f.machines = append(f.machines, m)
		f.boot(m)
		f.judge.logf(m.id, "its clock runs at %.4f, the store's at %v", m.clock.rate, rate)
	}
	return f
}

func (f *fleet) coin() bool { return f.rnd.IntN(2) == 0 }

// rate is how fast the clock of a machine runs beside a store's. A default drift of 10 % allows a
// machine to be as slow as nine tenths of the store, where the deadline comes just before the store
// ends the lease, and any haste.
func (f *fleet) rate(store float64) float64 {
	if f.judge.beyond {
		return store * .7
	}
	return store * []float64{1, .9005, .9005, 1.1, .95 + .1*f.rnd.Float64()}[f.rnd.IntN(5)]
}

// boot starts a process on m. OverrunWait: no process may end here, and how often work outlived its
// right is counted either way.
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

// endFaults ends all faults and waits for the actors: whoever stands still leads once, as nobody
// works for long.
func (f *fleet) endFaults() {
	f.heal()
	f.front.settle()
	for _, m := range f.machines {
		m.net.Set(drivertest.Faults{})
		m.faulty.Store(false)
		m.setLag(0)
	}
	f.judge.logf("", "the faults are over")
	f.wait("the actors", f.actors.Wait, f.killAll)
	// What is still under way: a renewal that comes 12 s late, after which the lease lives for 15 s
	// on a slow store.
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

// wait fails the test where what is waited for does not come by itself: fake time would pass for
// ever.
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

// checkTheEnd says what must hold when the faults are over: nobody stands for whom nobody asked,
// every session can lead every name, every reader has seen the last leader, and sessions close and
// leave nothing behind.
func (f *fleet) checkTheEnd() {
	f.checkLines("while the sessions are open")
	close(f.actorsGone)
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
	if n := len(s.seats.taken) + len(s.queues); n > 0 || len(s.leases) > 0 {
		f.judge.failf("%s keeps %d names and %d leases after Close", m.id, n, len(s.leases))
	}
	// Work that stops in its time never outlives its right, unless the process slept.
	if n := s.Stats().Overruns; n > 0 && !m.slow.Load() {
		f.judge.failf("%s: work outlived its right %d times", m.id, n)
	}
}

// act does one thing to one machine.
func (f *fleet) act() {
	m, name := f.machines[f.rnd.IntN(len(f.machines))], f.names[f.rnd.IntN(len(f.names))]
	k := f.rnd.IntN(46) - 4
	if k < 10 {
		f.stand(m.proc, name)
		for f.names[2] == name && f.rnd.IntN(4) > 0 { // several of a process want a lock
			f.stand(m.proc, name)
		}
		return
	}
	if all := f.front.standing(name); len(all) > 0 && f.coin() {
		m = f.byID(all[0].Owner) // aimed: what befalls those who do not lead hurts nobody
	}
	switch {
	case k < 13:
		m.net.Set(f.networkFaults(m))
	case k == 13:
		f.judge.logf("", "the networks are whole")
		f.heal()
	case k < 20:
		f.cut(m, k)
	case k == 20:
		f.observe(m.proc, name)
	case k == 21:
		f.ask(m.proc, name)
	case k == 22 && f.coin():
		f.reopen(m)
	case k < 25 && f.pauses:
		f.pause(m)
	case k < 27 && f.pauses:
		f.suspend(m)
	case k < 29 && f.pauses:
		f.starve(m)
	case k == 29 && f.crashes:
		f.crash(m)
	case k < 32 && f.restarts && f.coin():
		f.restart(f.coin())
	case k < 39 && f.byHand:
		f.removeClaim(name)
	case k == 39 && f.byHand:
		f.endLease(name)
	case k > 39:
		f.askTransfer(m.proc, name)
	}
}

func (f *fleet) byID(id string) *machine {
	return f.machines[slices.IndexFunc(f.machines, func(m *machine) bool { return m.id == id })]
}

// networkFaults says how bad the network of m is, from not at all to bad.
func (f *fleet) networkFaults(m *machine) drivertest.Faults {
	seed := f.rnd.Uint64()
	m.setLag(upTo(f.rnd, 1800*time.Millisecond) - 600*time.Millisecond)
	f.judge.count("network: other faults")
	k := f.rnd.IntN(5)
	m.faulty.Store(k > 1)
	return []drivertest.Faults{
		{Seed: seed},
		{Seed: seed, Delay: 20 * time.Millisecond},
		{Seed: seed, Delay: 500 * time.Millisecond, Drop: .1, Lose: .1},
		{Seed: seed, Delay: 100 * time.Millisecond, Drop: .05, Lose: .2, Late: .15, Twice: .15, Lag: 3 * time.Second},
		{Seed: seed, Delay: 2500 * time.Millisecond, Lose: .1, Late: .3, Twice: .2, Lag: 12 * time.Second},
	}[k]
}

// heal makes the networks whole.
func (f *fleet) heal() {
	for _, m := range f.machines {
		m.hang(false)
		m.ignore(false)
		m.out.open()
		m.back.open()
	}
}

// during does something to m for a while that may be longer than a lease.
func (f *fleet) during(m *machine, what string, begin, end func()) {
	d := upTo(f.rnd, 25*time.Second)
	f.judge.logf(m.id, "%s for %v", what, d)
	f.judge.count(what)
	begin()
	time.AfterFunc(d, end)
}

func (f *fleet) cut(m *machine, k int) {
	switch k {
	case 14:
		f.during(m, "cut off", func() { m.hang(true) }, func() { m.hang(false) })
	case 15, 16:
		f.during(m, "cut off one way: no request arrives", m.out.shut, m.out.open)
	case 17:
		f.during(m, "cut off one way: no answer comes back", m.back.shut, m.back.open)
	case 18, 19:
		f.during(m, "store client ignores its contexts", func() { m.ignore(true) }, func() { m.ignore(false) })
	}
}

// pause stops the process on m, as SIGSTOP does. The first Check after it must know, before any
// timer of the process has run and before the store can tell it.
func (f *fleet) pause(m *machine) {
	p := m.proc
	if !p.runs() {
		return
	}
	f.during(m, "paused", func() {
		f.judge.mu.Lock() // nobody asks it at this moment: the answer would come after the pause
		defer f.judge.mu.Unlock()
		p.gate.shut()
	}, func() {
		if !p.dead.Load() {
			f.judge.woke(m)
			p.gate.open()
			f.judge.look()
		}
	})
}

// suspend stops the whole machine, timers included. It sees only that its clock has moved on;
// meanwhile its leases have aged. Its network needs a moment to come back, so that nothing but the
// clock can tell.
func (f *fleet) suspend(m *machine) {
	d := upTo(f.rnd, 20*time.Second)
	f.judge.logf(m.id, "suspended for %v", d)
	f.judge.count("suspended")
	f.judge.woke(m)
	f.judge.seal(m)
	m.clock.jump(d)
	f.judge.seal(m)
	f.judge.look()
	m.back.shut()
	time.AfterFunc(upTo(f.rnd, 8*time.Second), m.back.open)
	f.front.age(m.id, d)
}

// starve keeps the goroutine that owns the deadline from running. Contexts come late; Check must
// not.
func (f *fleet) starve(m *machine) {
	p, s := m.proc, &starvation{done: make(chan struct{}), stale: f.coin()}
	if !p.starve.CompareAndSwap(nil, s) {
		return
	}
	f.judge.woke(m)
	f.during(m, "heartbeat starved", func() {}, func() {
		f.judge.woke(m)
		p.starve.Store(nil)
		close(s.done)
	})
}

// crash ends the process on m at once; another starts there some time later, under the same ID.
// What was under way still arrives. The goroutines of the dead one are let go when its lease is
// long over.
func (f *fleet) crash(m *machine) {
	p := m.proc
	if p.dead.Load() {
		return
	}
	f.judge.logf(m.id, "crashes")
	f.judge.count("crashed")
	f.judge.mu.Lock()
	p.gate.shut()
	p.dead.Store(true)
	for _, rs := range f.judge.terms {
		for _, r := range rs {
			r.working = r.working && r.p != p
		}
	}
	f.judge.mu.Unlock()
	p.kill()
	time.AfterFunc(time.Minute, p.gate.open)
	time.Sleep(upTo(f.rnd, 3*time.Second))
	f.judge.logf(m.id, "starts again")
	f.boot(m)
}

// restart lets the store have a new leader, with or without a time in which nobody is served.
func (f *fleet) restart(down bool) {
	d := time.Duration(0)
	if down {
		d = upTo(f.rnd, 8*time.Second)
		f.judge.count("store down")
	} else {
		f.judge.count("store: new leader")
	}
	f.judge.logf("store", "has a new leader after %v; leases are extended", d)
	f.judge.shake(d)
	f.front.restart(d)
}

// removeClaim removes one claim, held or waiting, as an operator would.
func (f *fleet) removeClaim(name string) {
	all := f.front.standing(name)
	if len(all) == 0 {
		return
	}
	token := all[f.rnd.IntN(len(all))].Token
	f.judge.logf("operator", "removes the claim on %s with token %d", name, token)
	f.judge.count("operator: claim removed")
	if f.front.remove(name, token) {
		f.judge.excuse(claimKey{name, token}, 0)
	}
}

// endLease ends the lease that holds name long before its time, and with it all its claims.
func (f *fleet) endLease(name string) {
	owner, notified := f.front.endLease(name)
	if owner == "" {
		return
	}
	f.judge.logf("operator", "ends the lease of %s that holds %s", owner, name)
	f.judge.count("operator: lease ended")
	m := f.byID(owner)
	for _, s := range notified {
		f.judge.excuse(s, m.clock.now()+m.proc.sess.o.timing(13*time.Second).Span())
	}
}

// ask asks whoever leads to resign.
func (f *fleet) ask(p *process, name string) {
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		_, _ = p.sess.Election(name).Ask(ctx, Request{Reason: "stress"})
	})
}

// aSuccessor returns one who waits, if somebody does, and most of the time one who still will.
func (f *fleet) aSuccessor(name string, rnd *rand.Rand) string {
	if all := f.front.standing(name); len(all) > 1 && rnd.IntN(8) > 0 {
		return all[1+rnd.IntN(len(all)-1)].Owner
	}
	return f.machines[rnd.IntN(len(f.machines))].id
}

// askTransfer asks whoever leads to hand over to the candidate of another machine.
func (f *fleet) askTransfer(p *process, name string) {
	to := f.aSuccessor(name, f.rnd)
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
		defer cancel()
		if _, err := p.sess.Election(name).Ask(ctx, Request{To: to, Reason: "stress"}); err == nil {
			f.judge.count("asked to hand over")
		}
	})
}

// reopen closes the session of m, with more or less patience, and starts another one at once.
func (f *fleet) reopen(m *machine) {
	p, s, d := m.proc, m.proc.sess, upTo(f.rnd, 15*time.Second)
	f.judge.logf(m.id, "closes within %v", d)
	f.judge.count("session closed")
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		err := s.Close(ctx)
		if p.runs() {
			f.judge.logf(m.id, "closed: %v", err)
		}
	})
	f.boot(m)
}
