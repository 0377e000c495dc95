package primacy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/internal/safety"
)

// judge follows every term and says at every look what the promises (doc.go) demand:
//
//   - of one name at most one term's Check says yes, of a shared lock as many as may hold it;
//   - a Check that said no once never says yes again;
//   - work never runs beside other work on the same name, so whoever leads finds that the work
//     before him has stopped;
//   - tokens grow from one term to the next;
//
// and in the end that the times from winning to the deadline of no two terms overlap, on true time,
// also between the looks and while a process is paused (package safety).
//
// Excused from the first and third rule are terms whose claim an operator removed from the store
// (by hand, or with the lease): the store breaks its promise there, and the news that it did needs
// its time over the network: eight seconds of a network that is whole (hearsWithin), or with the
// lease gone until the deadline that was the latest possible then. The second rule holds for them
// too.
//
// Excused from the third rule alone is work on a machine that was suspended under it, or that was
// held up itself: nothing can stop work that does not run, and when it wakes it needs a moment to
// hear. Its Check must know at once, so the first rule spares nobody.
//
// Beyond the bound (the clocks' rates differ by more than the drift) the first and third rule are
// only counted.
type judge struct {
	t      *testing.T
	seed   uint64
	now    func() time.Duration // true time
	rnd    *rand.Rand           // guarded by mu, as all that follows
	beyond bool
	start  func(r *heldTerm) // follows a new term

	mu      sync.Mutex
	terms   map[string][]*heldTerm
	excused map[claimKey]excuse
	wakes   map[*machine]time.Duration // when it woke last
	rough   map[*machine]time.Duration // when its network was last seen not whole, or its process held up
	shaken  time.Duration              // until when the store has a fault
	fenced  map[string]*register       // by name
	plain   map[string]*register
	counts  map[string]int
	lines   []line // the timeline
	bad     int
}

// heldTerm is one term as the judge knows it.
type heldTerm struct {
	term    *Term
	p       *process
	over    bool // Check said no once
	working bool
	slow    bool // the process was paused while it lasted
	// Nobody asks Check, which would end the context by itself: the timer has to. Whether it led
	// beside another is seen in the history.
	trusting bool
	from     time.Duration
	to       time.Duration // true time at which the right ended; 0 while it has not
	last     time.Duration // the last deadline, on its machine's clock
}

// excuse is what an operator did to a claim.
type excuse struct {
	at    time.Duration // true time
	until time.Duration // on the machine's clock: the latest deadline if the lease went, 0 if only the claim did
}

func (r *heldTerm) String() string { return fmt.Sprintf("%s under token %d", r.p.m.id, r.term.Token()) }

func newJudge(t *testing.T, seed uint64, now func() time.Duration) *judge {
	return &judge{t: t, seed: seed, now: now, rnd: rand.New(rand.NewPCG(seed, 3)), terms: map[string][]*heldTerm{},
		excused: map[claimKey]excuse{},
		wakes:   map[*machine]time.Duration{}, rough: map[*machine]time.Duration{}, fenced: map[string]*register{},
		plain: map[string]*register{}, counts: map[string]int{}}
}

// won takes a new term in. A term may be told late, when it is over and others led since; that is
// no matter unless its Check says yes.
func (j *judge) won(t *Term, p *process, trusting bool) *heldTerm {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lineLocked(p.m.id, "leads %s under token %d", t.Name(), t.Token())
	j.counts["terms"]++
	woke, slept := j.wakes[p.m]
	// A wait that was answered just after the machine woke begins a term whose soft end may have
	// passed in its sleep.
	r := &heldTerm{term: t, p: p, working: true, trusting: trusting, slow: slept && j.now()-woke < 2*time.Second ||
		p.starve.Load() != nil, from: j.now(), last: t.Deadline()}
	for _, old := range j.terms[t.Name()] {
		if old.term.Token() >= t.Token() && !(old.term.c.slots != 0 && t.c.slots != 0) && p.runs() &&
			!j.excusedLocked(r) && !j.beyond && t.Check() == nil {
			j.failLocked("%s: token %d leads after token %d", t.Name(), t.Token(), old.term.Token())
		}
	}
	j.terms[t.Name()] = append(j.terms[t.Name()], r)
	j.start(r)
	return r
}

// follow keeps the latest deadline of a term, until its right ends.
func (j *judge) follow(ctx context.Context, r *heldTerm) {
	for d := r.last; ; {
		next, err := r.term.NextDeadline(ctx, d)
		d = next
		j.mu.Lock()
		if d == 0 || err != nil {
			if r.to = j.now(); err != nil {
				j.failLocked("%v of %s: NextDeadline has not told its end", r, r.term.Name())
			}
			j.mu.Unlock()
			return
		}
		r.last = d
		j.mu.Unlock()
	}
}

func (j *judge) stopped(r *heldTerm) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.working && r.p.runs() {
		j.lineLocked(r.p.m.id, "work on %s under token %d has stopped", r.term.Name(), r.term.Token())
	}
	r.working = false
}

func (j *judge) excuse(s claimKey, until time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.excused[s]; !known {
		j.excused[s] = excuse{j.now(), until}
	}
}

func (j *judge) excusedLocked(r *heldTerm) bool {
	_, yes := j.excused[claimKey{r.term.Name(), uint64(r.term.ClaimToken())}]
	return yes
}

// shake marks that the store has a fault for d.
func (j *judge) shake(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.shaken = max(j.shaken, j.now()+d)
}

// slowed marks that the work of a term is held up.
func (j *judge) slowed(r *heldTerm) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.slow = true
	r.p.m.slow.Store(true)
}

// woke is called when a process on m is late with everything: it was paused or starved.
func (j *judge) woke(m *machine) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wakes[m] = j.now()
	m.slow.Store(true)
	for _, rs := range j.terms {
		for _, r := range rs {
			r.slow = r.slow || r.p.m == m
		}
	}
}

// hearsWithin is how long the news of a removed claim may need over a network that is whole. The
// call that hears it may have begun before: delayed by 2.5 s and with its answer lost, after which
// it pauses for a second; answers come up to 1.2 s late.
const hearsWithin = 8 * time.Second

func (j *judge) look() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, rs := range j.terms {
		var live, work []*heldTerm
		for _, r := range rs {
			if !r.p.whole() {
				j.rough[r.p.m] = j.now()
			}
			if !r.p.runs() {
				continue // a process that sleeps asks nothing and does nothing
			}
			yes := !(r.trusting && r.working) && j.ask(r)
			if e, excused := j.excused[claimKey{name, uint64(r.term.ClaimToken())}]; excused {
				if yes && e.until > 0 && r.p.m.clock.now() > e.until {
					j.failLocked("%s: %v lives on, though its lease was ended at %.3fs", name, r, e.at.Seconds())
				}
				if yes && e.until == 0 && j.now()-max(e.at, j.rough[r.p.m], j.shaken) > hearsWithin {
					j.failLocked("%s: %v lives on, though its claim was removed at %.3fs", name, r, e.at.Seconds())
				}
				continue
			}
			if yes {
				live = append(live, r)
			}
			if r.working && !r.slow {
				work = append(work, r)
			}
		}
		if tooMany(live) {
			j.twoLocked("%s is led by too many: %v and %v", name, live[0], live[1:])
		}
		if tooMany(work) {
			j.twoLocked("%s: work of too many runs: %v and %v", name, work[0], work[1:])
		}
	}
}

// twoLocked is a failure within the bound, and a matter of course beyond it.
func (j *judge) twoLocked(format string, args ...any) {
	if j.beyond {
		j.counts["looks that saw two"]++
		return
	}
	j.failLocked(format, args...)
}

// ask asks Check, twice where it says no.
func (j *judge) ask(r *heldTerm) (yes bool) {
	yes = r.term.Check() == nil
	if yes && r.over || !yes && r.term.Check() == nil {
		j.failLocked("%s: %v: Check says yes after it has said no", r.term.Name(), r)
	}
	r.over = r.over || !yes
	return yes
}

// seal ends the terms of a machine whose deadline has passed, before its clock jumps.
func (j *judge) seal(m *machine) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, rs := range j.terms {
		for _, r := range rs {
			if r.p.m == m {
				r.end(j.now())
			}
		}
	}
}

// end closes a term whose deadline has passed by its machine's clock.
func (r *heldTerm) end(now time.Duration) {
	if at := min(now, r.p.m.clock.when(r.last)); at < now && (r.to == 0 || at < r.to) {
		r.to = at
	}
}

// checkHistory wants the times from winning to the deadline to be apart, and all terms to be over.
func (j *judge) checkHistory() {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []safety.Interval
	for name, rs := range j.terms {
		var shared []span
		for _, r := range rs {
			r.end(j.now())
			if r.p.runs() && (r.to == 0 || r.term.Context().Err() == nil) {
				j.failLocked("%s: %v never ended", name, r)
			}
			to := r.to
			if e, excused := j.excused[claimKey{name, uint64(r.term.ClaimToken())}]; excused {
				to = min(to, e.at)
			}
			switch {
			case to <= r.from:
			case r.term.c.slots != 0 || name == "rw":
				shared = append(shared, span{r, r.from, to})
			default:
				all = append(all, safety.Interval{Name: name, Token: uint64(r.term.Token()), Who: r.p.m.id,
					From: r.from, To: to})
			}
		}
		if err := checkShared(shared); err != nil {
			j.twoLocked("%s: %v", name, err)
		}
	}
	if err := safety.Check(all); err != nil && j.beyond {
		j.counts["histories with an overlap"]++
	} else if err != nil {
		j.failLocked("%v", err)
	}
	j.checkRegisters()
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

// line is one line of the timeline, put into words only if somebody reads it.
type line struct {
	at   time.Duration
	who  string
	what func() string
	bad  bool
}

func (l line) String() string {
	mark := "  "
	if l.bad {
		mark = "!!"
	}
	return fmt.Sprintf("%s %10.3fs  %-8s %s", mark, l.at.Seconds(), l.who, l.what())
}

func (j *judge) logf(who, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lineLocked(who, format, args...)
}

func (j *judge) lineLocked(who, format string, args ...any) {
	j.lines = append(j.lines, line{j.now(), who, func() string { return fmt.Sprintf(format, args...) }, false})
}

func (j *judge) failf(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failLocked(format, args...)
}

// failLocked tells the first failures only: what follows is mostly the same one, seen at the next
// look.
func (j *judge) failLocked(format string, args ...any) {
	if j.bad++; j.bad <= 3 {
		what := fmt.Sprintf(format, args...)
		j.t.Errorf("seed %d, at %.3fs: %s", j.seed, j.now().Seconds(), what)
		j.lines = append(j.lines, line{j.now(), "", func() string { return what }, true})
	}
}

// count counts something that was done.
func (j *judge) count(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[what]++
}

// report prints the timeline up to the first failures, if there is one.
func (j *judge) report() {
	if !j.t.Failed() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	end := len(j.lines)
	for i, l := range j.lines {
		if l.bad {
			end = i + 1
		}
	}
	from := max(0, end-100)
	var text strings.Builder
	for _, l := range j.lines[from:end] {
		fmt.Fprintln(&text, l)
	}
	j.t.Logf("again: STRESS_SEED=%d go test -race -count=20 -run '^%s$' .\nthe last %d of %d lines:\n%s", j.seed,
		topName(j.t), end-from, end, &text)
}

func topName(t *testing.T) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// logger puts what the sessions of a machine log into the timeline.
func (j *judge) logger(who string) *slog.Logger { return slog.New(timeline{j, who}) }

type timeline struct {
	j   *judge
	who string
}

func (h timeline) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h timeline) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h timeline) WithGroup(string) slog.Handler { return h }

func (h timeline) Handle(_ context.Context, r slog.Record) error {
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	h.j.lines = append(h.j.lines, line{h.j.now(), h.who, func() string {
		text := "· " + r.Message
		r.Attrs(func(a slog.Attr) bool {
			if a.Key != "id" {
				text += " " + a.String()
			}
			return true
		})
		return text
	}, false})
	return nil
}
