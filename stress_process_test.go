package primacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// machine is a computer: its clock and its network, which outlive the processes that run on it one
// after the other.
type machine struct {
	id     string
	clock  *bootClock
	net    drivertest.FaultyStore // delays, drops, loses and repeats calls, both ways
	out    valve                  // shut: no request arrives, answers to earlier ones do
	back   valve                  // shut: requests arrive and are done, no answer comes
	proc   *process               // that runs on it now; only the test's own goroutine reads it
	cut    atomic.Bool            // its network hangs
	deaf   atomic.Bool            // its store client ignores its contexts
	faulty atomic.Bool            // its network delays or loses calls
	slow   atomic.Bool            // paused, starved or held up once: nothing can stop work that does not run

	calls, late atomic.Int64    // calls on the store, and requests that came after their caller had gone
	stragglers  *sync.WaitGroup // requests that arrive when their caller has gone

	mu  sync.Mutex
	rnd *rand.Rand
	lag time.Duration // answers come up to this late; not at all if not positive
}

// delay draws how long the next answer takes. Answers of calls made side by side change places.
func (m *machine) delay() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lag <= 0 {
		return 0
	}
	return m.lag/2 + upTo(m.rnd, m.lag/2+1)
}

func (m *machine) coin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.IntN(2) == 0
}

func (m *machine) setLag(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lag = d
}

// bootClock is the clock of one machine. It never goes back, and counts suspended time.
type bootClock struct {
	real func() time.Duration // true time
	rate float64
	off  time.Duration // any
	skew atomic.Int64  // by suspends, during which nothing else of the machine moved
}

func (c *bootClock) now() time.Duration {
	return c.off + time.Duration(c.rate*float64(c.real())) + time.Duration(c.skew.Load())
}

// when returns the true time at which the clock shows at, unless it is suspended before.
func (c *bootClock) when(at time.Duration) time.Duration {
	return time.Duration(float64(at-c.off-time.Duration(c.skew.Load())) / c.rate)
}

// jump is a suspend of d of true time as its machine sees it: afterwards the clock is ahead, and no
// timer has moved.
func (c *bootClock) jump(d time.Duration) { c.skew.Add(int64(c.rate * float64(d))) }

// valve lets pass while it is open. The zero value is open.
type valve struct {
	mu sync.Mutex
	ch atomic.Pointer[chan struct{}] // closed when it opens again; nil while it is open
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ch.Load() == nil {
		ch := make(chan struct{})
		v.ch.Store(&ch)
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ch := v.ch.Swap(nil); ch != nil {
		close(*ch)
	}
}

func (v *valve) isOpen() bool { return v.ch.Load() == nil }

func (v *valve) pass(ctx context.Context) error {
	for {
		ch := v.ch.Load()
		if ch == nil {
			return nil
		}
		select {
		case <-*ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// process is one run of a program on a machine. Each reading of its clock, each message and each
// act of its work passes its gate, so that a shut gate is a process that does not run: SIGSTOP, a
// pause of its garbage collector, of its machine's host, or its end.
type process struct {
	m      *machine
	judge  *judge
	sess   *Session
	gate   valve
	starve atomic.Pointer[starvation]
	dead   atomic.Bool // it crashed: nothing of it leaves any more, not even when the test lets its goroutines go
	ctx    context.Context
	kill   context.CancelFunc
}

// runs says whether the process does anything at all.
func (p *process) runs() bool { return p.gate.isOpen() && !p.dead.Load() }

// whole says whether nothing keeps the process from hearing what the store tells.
func (p *process) whole() bool {
	m := p.m
	return p.runs() && p.starve.Load() == nil && m.out.isOpen() && m.back.isOpen() && !m.cut.Load() && !m.deaf.Load() &&
		!m.faulty.Load()
}

func (m *machine) hang(on bool) {
	m.cut.Store(on)
	m.net.Hang(on)
}

func (m *machine) ignore(on bool) {
	m.deaf.Store(on)
	m.net.Deaf(on)
}

// starvation keeps the goroutine that owns the deadline from running: its timer comes late, or it
// was stopped between reading the clock and acting on it.
type starvation struct {
	done  chan struct{}
	stale bool // stopped after it has read the clock
}

// now is the boot clock as the process reads it.
func (p *process) now() time.Duration {
	// Who waits here while it holds a mutex would stop the others where fake time cannot pass.
	holdsMutex := func() bool {
		return calledBy("(*Candidate).step", "(*Term).watchOverrunLocked", "(*queue).stepLocked",
			"primacy.rightEndedLocked", "(*historyWriter).explainLocked", "(*stalls).inWords")
	}
	if !p.gate.isOpen() && !holdsMutex() {
		_ = p.gate.pass(context.Background())
	}
	if s := p.starve.Load(); s != nil && calledBy("(*lease).beat") && !holdsMutex() {
		at := p.m.clock.now()
		<-s.done
		if s.stale {
			return at
		}
	}
	return p.m.clock.now()
}

// calledBy says whether one of these functions is among the callers.
func calledBy(functions ...string) bool {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		for _, name := range functions {
			if strings.HasSuffix(f.Function, name) {
				return true
			}
		}
		if !more {
			return false
		}
	}
}

// wire is a process's client of the store: the gate of the process, the valves of its machine,
// answers that take their time, and behind them the faults of package drivertest.
type wire struct {
	driver.Store
	p *process
}

type wireLease struct {
	driver.Lease
	p        *process
	renewing atomic.Int32
}

// errDead ends the loops of a process that crashed once the test lets them go.
var errDead = fmt.Errorf("%w: the process is dead", driver.ErrRefused)

// over brings one call to the store and its answer back. A request that was on its way when its
// caller gave it up may still arrive.
func over[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	if err := p.leave(ctx); err != nil {
		if !errors.Is(err, errDead) && p.m.coin() {
			p.m.stragglers.Go(func() {
				_ = p.m.out.pass(context.Background())
				p.m.late.Add(1)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_, _ = call(ctx)
			})
		}
		var none T
		return none, err
	}
	return answered(ctx, p, call)
}

// waitFor is over for a call that waits at the store: given up, it is over.
func waitFor[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	if err := p.leave(ctx); err != nil {
		var none T
		return none, err
	}
	return answered(ctx, p, call)
}

// leave waits until a request can leave the process and its machine.
func (p *process) leave(ctx context.Context) error {
	_ = p.gate.pass(context.Background()) // a process that is stopped does not hear its contexts either
	if p.dead.Load() {
		return errDead
	}
	p.m.calls.Add(1)
	return p.m.out.pass(ctx)
}

func answered[T any](ctx context.Context, p *process, call func(context.Context) (T, error)) (T, error) {
	var none T
	got, err := call(ctx)
	if lost := p.comeBack(ctx); lost != nil {
		got, err = none, lost
	}
	_ = p.gate.pass(context.Background())
	if p.dead.Load() {
		return none, errDead
	}
	return got, err
}

func (p *process) comeBack(ctx context.Context) error {
	if err := p.m.back.pass(ctx); err != nil {
		return err
	}
	if d := p.m.delay(); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

type none struct{}

func overDo(ctx context.Context, p *process, call func(context.Context) error) error {
	_, err := over(ctx, p, func(ctx context.Context) (none, error) { return none{}, call(ctx) })
	return err
}

func (w *wire) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := over(ctx, w.p, func(ctx context.Context) (driver.Lease, error) { return w.Store.Grant(ctx, owner, ttl) })
	if err != nil {
		return nil, err
	}
	return &wireLease{Lease: l, p: w.p}, nil
}

func (w *wire) Line(ctx context.Context, name string) (driver.Line, error) {
	return over(ctx, w.p, func(ctx context.Context) (driver.Line, error) { return w.Store.Line(ctx, name) })
}

func (w *wire) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	return waitFor(ctx, w.p, func(ctx context.Context) (driver.Line, error) { return w.Store.Next(ctx, name, after) })
}

func (w *wire) Ask(ctx context.Context, name string, r driver.Request) error {
	return overDo(ctx, w.p, func(ctx context.Context) error { return w.Store.(driver.Asker).Ask(ctx, name, r) })
}

func (l *wireLease) Renew(ctx context.Context) error {
	if l.renewing.Add(1) > 1 {
		l.p.judge.failf("%s sends a renewal while the client has not come back from the one before", l.p.m.id)
	}
	defer l.renewing.Add(-1)
	return overDo(ctx, l.p, l.Lease.Renew)
}

func (l *wireLease) Claim(ctx context.Context, c ...driver.Claim) ([]driver.Place, error) {
	return over(ctx, l.p, func(ctx context.Context) ([]driver.Place, error) { return l.Lease.Claim(ctx, c...) })
}

func (l *wireLease) Update(ctx context.Context, p driver.Place, value []byte) error {
	return overDo(ctx, l.p, func(ctx context.Context) error { return l.Lease.Update(ctx, p, value) })
}

func (l *wireLease) Release(ctx context.Context, p ...driver.Place) error {
	return overDo(ctx, l.p, func(ctx context.Context) error { return l.Lease.Release(ctx, p...) })
}

func (l *wireLease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	return over(ctx, l.p, func(ctx context.Context) (driver.Place, error) {
		return l.Lease.(driver.Exchanger).Exchange(ctx, p, c)
	})
}

// News is not lost on its way back: its context ends with the lease only.
func (l *wireLease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	return overDo(ctx, l.p, func(ctx context.Context) error {
		return l.Lease.(driver.Transferer).Transfer(ctx, p, successor)
	})
}

func (l *wireLease) News(ctx context.Context) ([]driver.News, error) {
	return waitFor(ctx, l.p, func(ctx context.Context) ([]driver.News, error) { return l.Lease.News(ctx) })
}

func (l *wireLease) Close(ctx context.Context) error { return overDo(ctx, l.p, l.Lease.Close) }

// Follow needs no network: what it leads to comes as News.
func (l *wireLease) Follow(places ...driver.Place) {
	if !l.p.dead.Load() {
		l.Lease.Follow(places...)
	}
}
