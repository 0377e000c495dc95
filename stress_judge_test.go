package primacy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/drivertest"
)

// judge follows every term and says at every look what the promises (DESIGN, section 3) demand:
//
//   - of one name at most one term's Check says yes;
//   - a Check that said no once never says yes again;
//   - work never runs beside other work on the same name, so whoever leads finds that the work before him has stopped;
//   - tokens grow from one term to the next.
//
// Excused from the first and third rule are terms whose claim an operator removed from the store (by hand, or with the lease): the
// store breaks its promise there, and the news that it did needs its time over the network. The second rule holds for them too.
//
// Excused from the third rule alone is work on a machine that was suspended under it: nothing can stop work that does not run, and
// when it wakes it needs a moment to hear. Its Check must know at once, so the first rule spares nobody who was suspended.
type judge struct {
	t   *testing.T
	now func() time.Duration

	mu      sync.Mutex
	reigns  map[string][]*reign
	excused map[string]map[uint64]bool // tokens, by name
	wakes   map[*member]time.Duration  // when the machine woke last
	lines   []string                   // the timeline
	bad     int
}

// reign is one term as the judge knows it.
type reign struct {
	term    *Term
	m       *member
	over    bool // Check said no once
	working bool
	paused  bool // the machine was suspended while it lasted
}

func (r *reign) String() string { return fmt.Sprintf("%s under token %d", r.m.id, r.term.Token()) }

func newJudge(t *testing.T, now func() time.Duration) *judge {
	return &judge{t: t, now: now, reigns: map[string][]*reign{}, excused: map[string]map[uint64]bool{}, wakes: map[*member]time.Duration{}}
}

func (j *judge) logf(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%12.3fs  ", (j.now()-time.Hour).Seconds())+fmt.Sprintf(format, args...))
}

func (j *judge) failf(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failLocked(format, args...)
}

// failLocked tells the first failures only: what follows is mostly the same one, seen at the next look.
func (j *judge) failLocked(format string, args ...any) {
	if j.bad++; j.bad <= 3 {
		j.t.Errorf("at %.3fs: %s", (j.now() - time.Hour).Seconds(), fmt.Sprintf(format, args...))
		j.lines = append(j.lines, "  ------->  "+fmt.Sprintf(format, args...))
	}
}

// logger puts what the session of that ID logs into the timeline.
func (j *judge) logger(id string) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(line string) { j.logf("  %s: %s", id, line) }), &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == "id" {
				return slog.Attr{}
			}
			return a
		},
	}))
}

type writerFunc func(line string)

func (f writerFunc) Write(b []byte) (int, error) {
	f(strings.TrimSpace(string(b)))
	return len(b), nil
}

// report prints the timeline up to the first failures, if there is one.
func (j *judge) report(seed uint64) {
	if !j.t.Failed() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	end := len(j.lines)
	for i, l := range j.lines {
		if strings.HasPrefix(l, "  ------->") {
			end = i + 1
		}
	}
	from := max(0, end-100)
	j.t.Logf("replay: STRESS_SEED=%d go test -race -run '^TestStress$' .\nthe last %d of %d lines:\n%s",
		seed, end-from, end, strings.Join(j.lines[from:end], "\n"))
}

// poll looks every few milliseconds, until it is stopped.
func (j *judge) poll() (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(23 * time.Millisecond):
				j.look()
			}
		}
	}()
	return func() { close(done); synctest.Wait() }
}

// won takes a new term in. A term may be told late, when it is over and others led since; that is no matter unless its Check says yes.
func (j *judge) won(t *Term, m *member) *reign {
	j.logf("%s leads %s under token %d", m.id, t.Name(), t.Token())
	j.mu.Lock()
	defer j.mu.Unlock()
	woke, slept := j.wakes[m]
	// A wait that was answered just after the machine woke begins a term whose soft end may have passed in its sleep.
	r := &reign{term: t, m: m, working: true, paused: slept && j.now()-woke < 2*time.Second}
	for _, old := range j.reigns[t.Name()] {
		if old.term.Token() >= t.Token() && !m.clock.stands() && !j.excused[t.Name()][uint64(t.Token())] && t.Check() == nil {
			j.failLocked("%s: token %d leads after token %d", t.Name(), t.Token(), old.term.Token())
		}
	}
	j.reigns[t.Name()] = append(j.reigns[t.Name()], r)
	return r
}

func (j *judge) stopped(r *reign) {
	j.logf("work on %s has stopped: %v", r.term.Name(), r)
	j.mu.Lock()
	defer j.mu.Unlock()
	r.working = false
}

func (j *judge) excuse(name string, token uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.excused[name] == nil {
		j.excused[name] = map[uint64]bool{}
	}
	j.excused[name][token] = true
}

// woke is called when the clock of m is right again after a pause.
func (j *judge) woke(m *member) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wakes[m] = j.now()
	for _, rs := range j.reigns {
		for _, r := range rs {
			r.paused = r.paused || r.m == m
		}
	}
}

func (j *judge) look() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, rs := range j.reigns {
		var live, work []*reign
		for _, r := range rs {
			if r.m.clock.stands() {
				continue // a machine that sleeps asks nothing and does nothing
			}
			yes := j.ask(r)
			if j.excused[name][uint64(r.term.Token())] {
				continue
			}
			if yes {
				live = append(live, r)
			}
			if r.working && !r.paused {
				work = append(work, r)
			}
		}
		if len(live) > 1 {
			j.failLocked("%s has two leaders: %v and %v", name, live[0], live[1])
		}
		if len(work) > 1 {
			j.failLocked("%s: work runs twice: %v and %v", name, work[0], work[1])
		}
	}
}

// ask asks Check, twice where it says no.
func (j *judge) ask(r *reign) (yes bool) {
	yes = r.term.Check() == nil
	if yes && r.over || !yes && r.term.Check() == nil {
		j.failLocked("%s: %v: Check says yes after it has said no", r.term.Name(), r)
	}
	r.over = r.over || !yes
	return yes
}

// bootClock is the clock of one machine. It never goes back.
type bootClock struct {
	real func() time.Duration
	skew atomic.Int64 // what it is ahead of the others, which is allowed: only rates have to agree
	at   atomic.Int64 // while not 0 it stands there
}

func (c *bootClock) now() time.Duration {
	if at := c.at.Load(); at != 0 {
		return time.Duration(at)
	}
	return c.real() + time.Duration(c.skew.Load())
}

func (c *bootClock) stop()        { c.at.Store(int64(c.now())) }
func (c *bootClock) resume()      { c.at.Store(0) }
func (c *bootClock) stands() bool { return c.at.Load() != 0 }

// watcher is a reader of Observe or of Candidate.Events. It is slow, and some read nothing at all until the fight is over: neither
// may hold anybody up, and all see the latest state in the end.
type watcher struct {
	what, name string
	mu         sync.Mutex
	leader     *Standing
	err        error
	state      CandidateState
}

func (f *fleet) observe(m *member, name string) {
	w, seed, s := &watcher{what: m.id + " Observe", name: name}, f.rnd.Uint64(), m.sess
	f.judge.read(f, w, seed, func(saw func(Event, error)) {
		for st, err := range s.Election(name).Observe(f.watch) {
			saw(Event{Leader: st.Leader}, err)
		}
	})
}

// follow reads the events of a candidate.
func (j *judge) follow(f *fleet, c *Candidate, seed uint64) {
	w := &watcher{what: c.e.s.ID() + " Events", name: c.e.Name()}
	j.read(f, w, seed, func(saw func(Event, error)) {
		for ev := range c.Events(f.watch) {
			saw(ev, nil)
			if (ev.Term != nil) != (ev.State == StateLeader) {
				j.failf("%s: state %v, but the term is %v", w.what, ev.State, ev.Term)
			}
		}
	})
}

func (j *judge) read(f *fleet, w *watcher, seed uint64, loop func(saw func(Event, error))) {
	j.mu.Lock()
	f.watchers = append(f.watchers, w)
	j.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, 7))
	f.readers.Go(func() {
		loop(func(ev Event, err error) {
			w.mu.Lock()
			w.leader, w.err, w.state = ev.Leader, err, ev.State
			w.mu.Unlock()
			switch rnd.IntN(3) {
			case 0:
				time.Sleep(upTo(rnd, 5*time.Second))
			case 1:
				<-f.calm
			}
		})
	})
}

// calmDown ends all faults and waits for the actors: whoever stands still leads once, as nobody works for long.
func (f *fleet) calmDown() {
	f.heal()
	for _, m := range f.members {
		m.net.Set(drivertest.Faults{})
		m.answers.most.Store(0)
	}
	f.judge.logf("the faults are over")
	f.wait("the actors", f.actors.Wait, f.quit)
	// What is still under way: a renewal that comes 12 s late, after which the lease lives for 12.5 s on a slow store.
	time.Sleep(40 * time.Second)
	synctest.Wait()
	f.judge.look()
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
		for i, m := range f.members {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			term, err := m.sess.Election(name).Campaign(ctx, []byte("last"))
			cancel()
			if err != nil {
				f.judge.failf("in the end %s cannot lead %s: %v", m.id, name, err)
				continue
			}
			if i == len(f.members)-1 {
				f.checkReaders(term)
			}
			if err := term.Resign(context.Background()); err != nil {
				f.judge.failf("in the end %s cannot resign %s: %v", m.id, name, err)
			}
		}
	}
	f.unwatch()
	f.wait("the readers", f.readers.Wait, func() {})
	for _, m := range f.members {
		f.checkClose(m)
	}
	f.checkLines("after the sessions have closed")
	time.Sleep(time.Minute) // leases that were left to run out end their goroutines
}

// checkLines wants all lines empty.
func (f *fleet) checkLines(when string) {
	for _, name := range f.names {
		if l, _ := f.store.Line(context.Background(), name); l.Holder != nil {
			f.judge.failf("%s a claim stands on %s: %+v, behind it %d", when, name, *l.Holder, len(l.Waiters))
		}
	}
}

// checkReaders wants every reader of the term's name to hear that it leads, the slow ones some time later.
func (f *fleet) checkReaders(term *Term) {
	for _, w := range f.watchers {
		for tries := 0; w.name == term.Name() && !w.knows(term); tries++ {
			if tries == 300 { // a reader who sleeps up to 5 s each time, and has up to feedSize events before this one
				f.judge.failf("%s of %s never saw token %d; last %+v, %v, error %v", w.what, w.name, term.Token(), w.leader, w.state, w.err)
				break
			}
			time.Sleep(time.Second)
		}
	}
}

func (w *watcher) knows(t *Term) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.leader != nil && w.leader.Token == t.Token() && string(w.leader.Value) == "last" && w.state == StateFollower
}

func (f *fleet) checkClose(m *member) {
	if err := m.sess.Close(context.Background()); err != nil {
		f.judge.failf("%s: Close: %v", m.id, err)
	}
	m.net.Settle()
	synctest.Wait()
	s := m.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.locals) > 0 || len(s.leases) > 0 {
		f.judge.failf("%s keeps %d names and %d leases after Close", m.id, len(s.locals), len(s.leases))
	}
	// Work that stops within the grace never outlives its right, unless the machine slept.
	if n := s.Stats().Overruns; n > 0 && !m.paused {
		f.judge.failf("%s: work outlived its right %d times", m.id, n)
	}
}
