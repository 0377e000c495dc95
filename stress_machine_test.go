package primacy

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// machine is a computer: its clock and its network, which outlive the processes that run on it one after the other.
type machine struct {
	id    string
	clock *bootClock
	net   drivertest.FaultyStore // delays, drops, loses and repeats calls, both ways
	out   valve                  // shut: no request arrives, answers to earlier ones do
	back  valve                  // shut: requests arrive and are done, no answer comes
	proc  *process               // that runs on it now; only the test's own goroutine reads it
	cut   atomic.Bool            // its network hangs
	deaf  atomic.Bool            // its store client ignores its contexts
	moody atomic.Bool            // its network delays or loses calls
	slow  atomic.Bool            // paused, starved or held up once: nothing can stop work that does not run

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

// jump is a suspend of d of true time as its machine sees it: afterwards the clock is ahead, and no timer has moved.
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

// process is one run of a program on a machine. Each reading of its clock, each message and each act of its work passes its gate, so
// that a shut gate is a process that does not run: SIGSTOP, a pause of its garbage collector, of its machine's host, or its end.
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
	return p.runs() && p.starve.Load() == nil && m.out.isOpen() && m.back.isOpen() && !m.cut.Load() && !m.deaf.Load() && !m.moody.Load()
}

func (m *machine) hang(on bool) {
	m.cut.Store(on)
	m.net.Hang(on)
}

func (m *machine) ignore(on bool) {
	m.deaf.Store(on)
	m.net.Deaf(on)
}

// starvation keeps the goroutine that owns the deadline from running: its timer comes late, or it was stopped between reading the
// clock and acting on it.
type starvation struct {
	done  chan struct{}
	stale bool // stopped after it has read the clock
}

// now is the boot clock as the process reads it.
func (p *process) now() time.Duration {
	// Who waits here while it holds a mutex would stop the others where fake time cannot pass.
	if !p.gate.isOpen() && !calledBy("(*Candidate).step", "(*Term).watchOverrun", "(*queue).step", "(*claim).rightEnded") {
		_ = p.gate.pass(context.Background())
	}
	if s := p.starve.Load(); s != nil && calledBy("(*lease).beat") {
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
