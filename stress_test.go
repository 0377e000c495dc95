package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

// TestStress lets four sessions fight for two names, in fake time, over networks that delay, drop, lose and repeat calls, while
// machines are suspended, store clients ignore their contexts, an operator removes claims by hand, and sessions close and open again.
// What must hold meanwhile and in the end is in stress_judge_test.go.
//
// The environment: STRESS_SEEDS is how many seeds to run (default 40), STRESS_SEED the first of them. STRESS_SEED alone runs that one,
// which is how a failure is replayed. A seed fixes who does what and when, but not the order of what happens in the same instant of
// fake time: add -count=100 where one run is not enough.
func TestStress(t *testing.T) {
	first, n := envInt(t, "STRESS_SEED", 1), envInt(t, "STRESS_SEEDS", 40)
	if os.Getenv("STRESS_SEED") != "" {
		n = envInt(t, "STRESS_SEEDS", 1)
	}
	for seed := first; seed < first+n; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stress(t, uint64(seed)) })
		})
	}
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

func stress(t *testing.T, seed uint64) {
	f := newFleet(t, seed)
	defer f.judge.report(seed)
	stop := f.judge.poll()
	for range 60 + f.rnd.IntN(60) {
		f.act()
		if f.rnd.IntN(3) > 0 {
			time.Sleep(upTo(f.rnd, 2*time.Second))
		}
		synctest.Wait() // the next act finds everybody at rest: removals by hand are then one step
		f.judge.look()
	}
	f.calmDown()
	stop()
	f.checkTheEnd()
}

// fleet is the sessions, the store they share, and all that befalls them. Only the test's own goroutine uses its fields, but for the
// wait groups and contexts.
type fleet struct {
	t       *testing.T
	judge   *judge
	rnd     *rand.Rand
	store   *memstore.Store
	members []*member
	names   []string
	byHand  bool // an operator removes claims
	pauses  bool // machines are suspended

	ctx      context.Context // of the actors; ends only where they do not end by themselves
	quit     context.CancelFunc
	actors   sync.WaitGroup
	watch    context.Context // of the readers
	unwatch  context.CancelFunc
	readers  sync.WaitGroup
	watchers []*watcher
	calm     chan struct{} // closed when the actors are gone: until then some readers do not read at all
}

// member is a machine: its network, its boot clock and the session that runs on it now.
type member struct {
	id      string
	net     drivertest.FaultyStore
	answers *lateAnswers
	clock   *bootClock
	sess    *Session
	paused  bool // once at least
}

func newFleet(t *testing.T, seed uint64) *fleet {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) + time.Hour }
	f := &fleet{t: t, judge: newJudge(t, now), rnd: rand.New(rand.NewPCG(seed, 99)), names: []string{"x", "y"}, calm: make(chan struct{})}
	// The store's clock may run up to 10 % fast (the drift bound) and as slow as it likes.
	rate := []float64{1, 1.09, 0.8, 1.09, 1.05}[f.rnd.IntN(5)]
	f.store = memstore.New(memstore.Options{Rate: rate})
	f.byHand, f.pauses = f.rnd.IntN(2) == 0, f.rnd.IntN(2) == 0
	f.ctx, f.quit = context.WithCancel(context.Background())
	f.watch, f.unwatch = context.WithCancel(context.Background())
	for i := range 4 {
		m := &member{id: fmt.Sprintf("s%d", i), answers: &lateAnswers{Store: f.store}, clock: &bootClock{real: now}}
		m.net = drivertest.Faulty(m.answers, f.faults())
		m.answers.most.Store(int64(upTo(f.rnd, 3*time.Second) - time.Second))
		f.members = append(f.members, m)
		f.open(m)
	}
	f.judge.logf("the store's clock runs at %v; by hand %v, pauses %v", rate, f.byHand, f.pauses)
	return f
}

// OverrunWait: no process may end here, and how often work outlived its right is counted either way.
func (f *fleet) open(m *member) {
	o := Options{ID: m.id, TTL: 10 * time.Second, Overrun: OverrunWait, Logger: f.judge.logger(m.id)}
	s, err := newSession(m.net, o, m.clock.now)
	if err != nil {
		f.t.Fatal(err)
	}
	m.sess = s
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// act does one thing to one member.
func (f *fleet) act() {
	m, name := f.members[f.rnd.IntN(len(f.members))], f.names[f.rnd.IntN(len(f.names))]
	switch k := f.rnd.IntN(29); {
	case k < 9:
		f.stand(m, name)
	case k < 12:
		m.net.Set(f.faults())
		m.answers.most.Store(int64(upTo(f.rnd, 3*time.Second) - time.Second))
	case k == 12:
		f.judge.logf("the networks are whole")
		f.heal()
	case k < 15:
		f.judge.logf("%s is cut off", m.id)
		f.store.Partition(m.id, true)
	case k == 15:
		f.judge.logf("%s hangs", m.id)
		m.net.Hang(true)
	case k < 18:
		f.deafen(m)
	case k == 18:
		f.observe(m, name)
	case k == 19:
		f.ask(m, name)
	case k == 20 && f.rnd.IntN(2) == 0:
		f.reopen(m)
	case k < 23 && f.pauses:
		f.suspend(m)
	case k == 23 && f.pauses:
		f.jump(m)
	case k < 28 && f.byHand:
		f.removeClaim(name)
	case k == 28 && f.byHand:
		f.endLease(name)
	}
}

// faults of a network, from none to bad.
func (f *fleet) faults() drivertest.Faults {
	seed := f.rnd.Uint64()
	return []drivertest.Faults{
		{Seed: seed},
		{Seed: seed, Delay: 500 * time.Millisecond, Drop: .1, Lose: .1},
		{Seed: seed, Delay: 100 * time.Millisecond, Drop: .05, Lose: .2, Late: .15, Twice: .15, Lag: 3 * time.Second},
		{Seed: seed, Delay: 2500 * time.Millisecond, Lose: .1, Late: .3, Twice: .2, Lag: 12 * time.Second},
	}[f.rnd.IntN(4)]
}

func (f *fleet) heal() {
	for _, m := range f.members {
		f.store.Partition(m.id, false)
		m.net.Hang(false)
		m.net.Deaf(false)
	}
}

// deafen makes the store client of m ignore its contexts, for a while that may be longer than a lease.
func (f *fleet) deafen(m *member) {
	d := upTo(f.rnd, 14*time.Second)
	f.judge.logf("%s is deaf for %v", m.id, d)
	m.net.Deaf(true)
	time.AfterFunc(d, func() { m.net.Deaf(false) })
}

// suspend stops the machine: its clock stands, nothing it sends arrives, and nobody asks it anything. Then its clock is right again at
// once. The first Check after that must know, before any timer of the process has run and before the store can tell it.
func (f *fleet) suspend(m *member) {
	d := upTo(f.rnd, 20*time.Second)
	f.judge.logf("%s is suspended for %v", m.id, d)
	m.paused = true
	m.net.Hang(true)
	m.clock.stop()
	time.Sleep(d)
	m.clock.resume()
	f.judge.woke(m)
	f.judge.look()
	m.net.Hang(false)
}

// jump is what the process sees of a suspend whose length its timers have missed: only the boot clock moves on.
func (f *fleet) jump(m *member) {
	d := upTo(f.rnd, 12*time.Second)
	f.judge.logf("the clock of %s jumps by %v", m.id, d)
	m.paused = true
	m.clock.skew.Add(int64(d))
	f.judge.woke(m)
	f.judge.look()
}

// removeClaim removes one claim, held or waiting, as an operator would.
func (f *fleet) removeClaim(name string) {
	line, _ := f.store.Line(context.Background(), name)
	if line.Holder == nil {
		return
	}
	all := append([]driver.Standing{*line.Holder}, line.Waiters...)
	token := all[f.rnd.IntN(len(all))].Token
	f.judge.logf("by hand: the claim on %s with token %d is removed", name, token)
	f.judge.excuse(name, token)
	f.store.Remove(name, token)
}

// endLease ends the lease that holds name long before its time, and with it all its claims.
func (f *fleet) endLease(name string) {
	line, _ := f.store.Line(context.Background(), name)
	if line.Holder == nil {
		return
	}
	lines, _ := f.store.Lines(context.Background(), "")
	for _, l := range lines {
		for _, s := range append([]driver.Standing{*l.Holder}, l.Waiters...) {
			if s.Lease == line.Holder.Lease {
				f.judge.excuse(l.Name, s.Token)
			}
		}
	}
	f.judge.logf("by hand: the lease of %s that holds %s is ended", line.Holder.Owner, name)
	f.store.Expire(name)
}

// ask asks whoever leads to resign.
func (f *fleet) ask(m *member, name string) {
	s := m.sess
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		_, _ = s.Election(name).Ask(ctx, "stress")
	})
}

// reopen closes the session of m, with more or less patience, and starts another one at once.
func (f *fleet) reopen(m *member) {
	s, d := m.sess, upTo(f.rnd, 15*time.Second)
	f.judge.logf("%s closes within %v", m.id, d)
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		err := s.Close(ctx)
		f.judge.logf("%s closed: %v", m.id, err)
	})
	f.open(m)
}

// actor stands for a name once: by a Campaign of its own, or by a Candidate.
type actor struct {
	f    *fleet
	m    *member
	s    *Session // m's may be another one by now
	name string
	rnd  *rand.Rand
}

func (f *fleet) stand(m *member, name string) {
	a := &actor{f: f, m: m, s: m.sess, name: name, rnd: rand.New(rand.NewPCG(f.rnd.Uint64(), 5))}
	f.actors.Go(func() {
		ctx, cancel := context.WithCancel(f.ctx)
		if a.rnd.IntN(4) > 0 { // the others stand until they have led
			ctx, cancel = context.WithTimeout(f.ctx, upTo(a.rnd, 60*time.Second))
		}
		defer cancel()
		if a.rnd.IntN(2) == 0 {
			a.runCandidate(ctx)
		} else {
			a.campaign(ctx)
		}
	})
}

func (a *actor) runCandidate(ctx context.Context) {
	c := a.s.Candidate(a.name, &CandidateOptions{Value: []byte("v")})
	if a.rnd.IntN(3) == 0 {
		a.f.judge.follow(a.f, c, a.rnd.Uint64())
	}
	a.judged("Run", c.Run(ctx, func(ctx context.Context, term *Term) error {
		r := a.f.judge.won(term, a.m)
		defer a.f.judge.stopped(r)
		a.work(ctx)
		return nil
	}))
}

func (a *actor) campaign(ctx context.Context) {
	term, err := a.s.Election(a.name).Campaign(ctx, []byte("v"))
	if err != nil {
		a.judged("Campaign", err)
		return
	}
	r := a.f.judge.won(term, a.m)
	if a.rnd.IntN(3) == 0 {
		a.f.actors.Go(func() { // beside the work: a deaf client would keep the work from stopping
			ctx, cancel := context.WithTimeout(term.Context(), 300*time.Millisecond)
			defer cancel()
			_ = term.Proclaim(ctx, []byte("w"))
		})
	}
	a.work(term.Context())
	a.f.judge.stopped(r)
	for errors.Is(context.Cause(term.Context()), ErrExpired) && term.Check() == nil {
		time.Sleep(10 * time.Millisecond) // the right lasts until the deadline: who resigns earlier hides one that comes too late
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTo(a.rnd, 3*time.Second))
	defer cancel()
	_ = term.Resign(ctx)
	if term.Check() == nil {
		a.f.judge.failf("%s: Check says yes after Resign of %s, token %d", a.m.id, a.name, term.Token())
	}
}

// work stops by itself, or within nearly all of the grace when it is told to.
func (a *actor) work(ctx context.Context) {
	select {
	case <-ctx.Done():
		time.Sleep(upTo(a.rnd, a.s.o.timing(a.s.o.TTL).Grace*19/20))
	case <-time.After(upTo(a.rnd, 25*time.Second)):
	}
}

// judged says that nothing but the end of a context or session ends a campaign.
func (a *actor) judged(what string, err error) {
	for _, may := range []error{nil, context.DeadlineExceeded, context.Canceled, ErrClosed} {
		if errors.Is(err, may) {
			return
		}
	}
	a.f.judge.failf("%s: %s for %s: %v", a.m.id, what, a.name, err)
}

// lateAnswers is a store that takes its time to answer after it has done what was asked: a deadline counted from there is too late.
type lateAnswers struct {
	*memstore.Store
	most atomic.Int64 // how long; not at all if not positive
}

type lateLease struct {
	driver.Lease
	s *lateAnswers
}

// answer lets every answer of one mood take the same time: it needs no dice, and the network before it has some.
func (s *lateAnswers) answer(ctx context.Context, err error) error {
	if most := s.most.Load(); most > 0 && err == nil {
		select {
		case <-time.After(time.Duration(most)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (s *lateAnswers) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &lateLease{l, s}, s.answer(ctx, err)
}

func (l *lateLease) Renew(ctx context.Context) error { return l.s.answer(ctx, l.Lease.Renew(ctx)) }

func (l *lateLease) Wait(ctx context.Context, p driver.Place) (driver.Place, error) {
	p, err := l.Lease.Wait(ctx, p)
	return p, l.s.answer(ctx, err)
}
