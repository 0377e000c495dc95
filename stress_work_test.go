package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// actor stands for a name once: by a Campaign of its own, or by a Candidate.
type actor struct {
	f    *fleet
	p    *process
	name string
	rnd  *rand.Rand
}

func (f *fleet) stand(p *process, name string) {
	a := &actor{f: f, p: p, name: name, rnd: rand.New(rand.NewPCG(f.rnd.Uint64(), 5))}
	f.actors.Go(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		if a.rnd.IntN(4) > 0 { // the others stand until they have led
			patience := []time.Duration{time.Second, 60 * time.Second, 60 * time.Second}[a.rnd.IntN(3)]
			ctx, cancel = context.WithTimeout(p.ctx, upTo(a.rnd, patience))
		}
		defer cancel()
		if _, lock := a.kinds(); lock {
			a.lock(ctx)
		} else if k := a.rnd.IntN(5); k == 0 {
			a.many(ctx)
		} else if k < 3 {
			a.runCandidate(ctx)
		} else {
			a.campaign(ctx)
		}
	})
}

func (a *actor) runCandidate(ctx context.Context) {
	o := &CampaignOptions{Value: []byte("v")}
	if a.rnd.IntN(3) == 0 {
		o.Priority, o.Steady = a.rnd.IntN(3), time.Second+upTo(a.rnd, 20*time.Second)
	}
	c := a.p.sess.Candidate(a.name, o)
	if a.rnd.IntN(3) == 0 {
		a.f.follow(a.p, c, a.rnd.Uint64())
	}
	a.judged("Run", c.Run(ctx, func(ctx context.Context, term *Term) error {
		r := a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
		defer a.f.judge.stopped(r)
		a.work(ctx, r)
		return nil
	}))
}

func (a *actor) campaign(ctx context.Context) {
	term, err := a.p.sess.Election(a.name).Campaign(ctx, &CampaignOptions{Value: []byte("v")})
	if err != nil {
		a.judged("Campaign", err)
		return
	}
	r := a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
	if a.rnd.IntN(3) == 0 {
		a.f.actors.Go(func() { // beside the work: a deaf client would keep the work from stopping
			ctx, cancel := context.WithTimeout(term.Context(), 300*time.Millisecond)
			defer cancel()
			_ = term.Proclaim(ctx, []byte("w"))
		})
	}
	a.serve(term, r)
}

// serve works in a term, and resigns it.
func (a *actor) serve(term *Term, r *heldTerm) {
	a.work(term.Context(), r)
	a.f.judge.stopped(r)
	for errors.Is(context.Cause(term.Context()), ErrExpired) && term.Check() == nil {
		// the right lasts until the deadline: who resigns earlier hides one that comes too late
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), upTo(a.rnd, 3*time.Second))
	defer cancel()
	if a.rnd.IntN(3) == 0 {
		switch err := term.Transfer(ctx, a.f.aSuccessor(a.name, a.rnd)); {
		case err == nil:
			a.f.judge.count("handed over")
		case errors.Is(err, ErrNotInLine):
			a.f.judge.count("the successor did not stand")
		}
	}
	_ = term.Resign(ctx)
	if !a.p.dead.Load() && term.Check() == nil {
		a.f.judge.failf("%s: Check says yes after Resign of %s, token %d", a.p.m.id, a.name, term.Token())
	}
}

// judged says that nothing but the end of a context, a session or a process ends a campaign.
func (a *actor) judged(what string, err error) {
	if a.p.dead.Load() || a.f.front.stingy && errors.Is(err, ErrRefused) {
		return
	}
	for _, may := range []error{nil, context.DeadlineExceeded, context.Canceled, ErrClosed, ErrHeld} {
		if errors.Is(err, may) {
			return
		}
	}
	a.f.judge.failf("%s: %s for %s: %v", a.p.m.id, what, a.name, err)
}

// work writes, asking Check before each write, if it asks at all. It ends by itself, or in the time
// it is given when it is told to stop.
func (a *actor) work(ctx context.Context, r *heldTerm) {
	long := 40 * time.Second
	if _, lock := a.kinds(); lock && a.rnd.IntN(4) > 0 {
		long = 100 * time.Millisecond // so that it is handed on inside the process
	}
	end := time.After(upTo(a.rnd, long))
	for {
		select {
		case <-ctx.Done():
			a.stop(r)
			return
		case <-end:
			return
		case <-time.After(100*time.Millisecond + upTo(a.rnd, 3*time.Second)):
			if !r.trusting && r.term.c.slots == 0 {
				a.write(r)
			}
		}
	}
}

// stop takes its time, up to when nobody may work under the lease any more.
func (a *actor) stop(r *heldTerm) {
	l := r.term.l
	left := min(l.timing.Grace, core.Time(l.lastDeadline.Load())-a.p.now())
	if left > 0 {
		time.Sleep(time.Duration(float64(upTo(a.rnd, left)) * .95 / a.p.m.clock.rate))
	}
}

// write makes one write, in most cases at once. Some are on their way for long: the goroutine was
// stopped between Check and the write, or the network kept it.
func (a *actor) write(r *heldTerm) {
	if r.term.Check() != nil {
		return
	}
	d := time.Duration(0)
	switch a.rnd.IntN(12) {
	case 0, 1:
		d = upTo(a.rnd, 30*time.Second)
	case 2:
		if a.f.pauses { // the work itself is held up: it may outlive its right, and no check can help
			a.f.judge.slowed(r)
			a.f.judge.count("goroutine paused between check and write")
			time.Sleep(upTo(a.rnd, 15*time.Second))
		}
	}
	if d == 0 {
		a.f.send(r)
		return
	}
	a.f.judge.count("write held up")
	a.f.actors.Go(func() {
		time.Sleep(d)
		a.f.send(r)
	})
}

// register is what the leaders of one name write to. A fenced one refuses a smaller token than it
// has seen; the other takes all.
type register struct {
	last  *heldTerm
	log   []*heldTerm         // of each write applied
	acked map[*heldTerm][]int // their indexes, as far as the writers know
	back  int                 // writes after one of a later term
}

func (g *register) apply(r *heldTerm) {
	if g.last != nil && r.term.token < g.last.term.token {
		g.back++
	}
	g.last = r
	g.log = append(g.log, r)
}

// send brings a write to both registers of the term's name.
func (f *fleet) send(r *heldTerm) {
	j := f.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	name := r.term.Name()
	if j.fenced[name] == nil {
		j.fenced[name], j.plain[name] = &register{acked: map[*heldTerm][]int{}}, &register{}
	}
	j.counts["writes"]++
	j.plain[name].apply(r)
	g := j.fenced[name]
	if g.last != nil && r.term.token < g.last.term.token {
		j.counts["writes refused by the fence"]++
		if !j.excusedLocked(r) && !j.beyond && r.p.gate.isOpen() && r.term.Check() == nil {
			j.failLocked("%s: a write of %v was refused while its Check said yes: %v has written", name, r, g.last)
		}
		return
	}
	if g.last != nil && g.last != r && r.term.token == g.last.term.token {
		j.failLocked("%s: two terms have one token: %v and %v", name, r, g.last)
	}
	g.apply(r)
	if j.rnd.IntN(8) > 0 { // else the answer is lost
		g.acked[r] = append(g.acked[r], len(g.log)-1)
	}
}

// checkRegisters says what became of the writes: no fenced one went back, and each that was
// acknowledged is there.
func (j *judge) checkRegisters() {
	for name, g := range j.fenced {
		if g.back > 0 {
			j.failLocked("%s: %d fenced writes went back", name, g.back)
		}
		for r, at := range g.acked {
			for _, i := range at {
				if i >= len(g.log) || g.log[i] != r {
					j.failLocked("%s: an acknowledged write of %v is lost", name, r)
				}
			}
		}
		j.counts["unfenced writes that went back"] += j.plain[name].back
	}
}

// lockNames are the names that TestStress locks, one in each seed, besides those that it elects
// leaders for.
var lockNames = []string{"m", "rw", "s"}

// stressSlots is how many may hold the semaphore.
const stressSlots = 2

// kinds returns how the actor may lock its name, and whether the name is a lock's.
func (a *actor) kinds() (ways []func(context.Context) (*Term, error), lock bool) {
	s := a.p.sess
	switch a.name {
	case "m":
		m, few := s.Mutex("m", nil), s.Mutex("m", &MutexOptions{Turns: 2})
		return []func(context.Context) (*Term, error){m.Lock, few.Lock, m.Lock, m.TryLock}, true
	case "rw":
		rw := s.RWMutex("rw")
		return []func(context.Context) (*Term, error){rw.Lock, rw.RLock, rw.RLock, rw.TryLock, rw.TryRLock}, true
	case "s":
		sem := s.Semaphore("s", stressSlots)
		return []func(context.Context) (*Term, error){sem.Acquire, sem.Acquire, sem.TryAcquire}, true
	}
	return nil, false
}

// lock locks the actor's name once, works, and gives it back.
func (a *actor) lock(ctx context.Context) {
	ways, _ := a.kinds()
	if a.rnd.IntN(3) == 0 {
		a.do(ctx)
		return
	}
	term, err := ways[a.rnd.IntN(len(ways))](ctx)
	if err != nil {
		a.judged("Lock", err)
		return
	}
	a.serve(term, a.locked(term))
}

// locked tells the judge of a lock that was had.
func (a *actor) locked(term *Term) *heldTerm {
	a.f.judge.count("locks")
	if term.Token() != lockToken(uint64(term.ClaimToken()), 0) {
		a.f.judge.count("locks handed on in a process")
	}
	return a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
}

// do is lock in the form that runs a function. That the lock was lost meanwhile is no failure.
func (a *actor) do(ctx context.Context) {
	work := func(ctx context.Context, term *Term) error {
		r := a.locked(term)
		defer a.f.judge.stopped(r)
		a.work(ctx, r)
		return nil
	}
	s, do := a.p.sess, func(context.Context, func(context.Context, *Term) error) error { return nil }
	switch a.name {
	case "m":
		do = s.Mutex("m", nil).Do
	case "rw":
		do = s.RWMutex("rw").RDo
	case "s":
		do = s.Semaphore("s", stressSlots).Do
	}
	err := do(ctx, work)
	if ended := (*EndedError)(nil); !errors.As(err, &ended) {
		a.judged("Do", err)
	}
}

// tooMany says whether so many may not hold one name together: one alone, or readers, or as many as
// there are slots.
func tooMany(rs []*heldTerm) bool {
	most := 1
	if len(rs) > 0 && !slices.ContainsFunc(rs, func(r *heldTerm) bool { return r.term.c.slots == 0 }) {
		if most = rs[0].term.c.slots; most < 0 {
			most = len(rs)
		}
	}
	return len(rs) > most
}

// span is the time from winning a shared lock to the deadline.
type span struct {
	r        *heldTerm
	from, to time.Duration
}

// checkShared wants never too many at once, on true time.
func checkShared(all []span) error {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i, s := range all {
		together := []*heldTerm{s.r}
		for _, o := range all[:i] {
			if o.to > s.from {
				together = append(together, o.r)
			}
		}
		if tooMany(together) {
			return fmt.Errorf("too many at %.3fs: %v", s.from.Seconds(), together)
		}
	}
	return nil
}

// many stands for the names of all elections at once, and again after some of the terms.
func (a *actor) many(ctx context.Context) {
	names := a.f.names[:2]
	es := a.p.sess.Elections(&ElectionsOptions{Value: []byte("v")})
	if err := es.Stand(names...); err != nil {
		a.judged("Stand", err)
		return
	}
	_, impatient := ctx.Deadline()
	for term, err := range es.Terms(ctx) {
		switch {
		case term == nil:
			a.judged("Stand", err)
		case err != nil:
			a.f.judge.count("many: terms told to have ended")
		default:
			a.f.judge.count("many: terms")
			r := a.f.judge.won(term, a.p, a.rnd.IntN(3) == 0)
			b := &actor{f: a.f, p: a.p, name: term.Name(), rnd: rand.New(rand.NewPCG(a.rnd.Uint64(), 6))}
			a.f.actors.Go(func() {
				b.serve(term, r)
				if b.rnd.IntN(2) == 0 {
					b.judged("Stand", es.Stand(b.name))
				}
			})
		}
		if !impatient {
			break
		}
		switch name := names[a.rnd.IntN(2)]; a.rnd.IntN(6) {
		case 0:
			es.Withdraw(name)
		case 1:
			es.Withdraw(name)
			a.judged("Stand", es.Stand(name))
		}
	}
	closing, cancel := context.WithTimeout(context.Background(), upTo(a.rnd, 10*time.Second))
	defer cancel()
	a.judged("Close", es.Close(closing))
	if err := closing.Err(); err == nil {
		a.f.judge.count("many: closed in time")
	}
}

// watcher is a reader of Observe or of Candidate.Events. It is slow, and some read nothing at all
// until the fight is over: neither may hold anybody up, and all see the latest state in the end.
type watcher struct {
	what, name string
	p          *process
	mu         sync.Mutex
	leader     *Entry
	err        error
	state      CandidateState
}

func (f *fleet) observe(p *process, name string) {
	w, seed := &watcher{what: p.m.id + " Observe", name: name, p: p}, f.rnd.Uint64()
	f.read(w, seed, func(saw func(CandidateEvent, error)) {
		for st, err := range p.sess.Election(name).Observe(f.watch) {
			saw(CandidateEvent{Leader: st.Leader}, err)
		}
	})
}

// follow reads the events of a candidate.
func (f *fleet) follow(p *process, c *Candidate, seed uint64) {
	w := &watcher{what: p.m.id + " Events", name: c.e.Name(), p: p}
	f.read(w, seed, func(saw func(CandidateEvent, error)) {
		for ev := range c.Events(f.watch) {
			saw(ev, nil)
			if (ev.Term != nil) != (ev.State == StateLeader) {
				f.judge.failf("%s: state %v, but the term is %v", w.what, ev.State, ev.Term)
			}
		}
	})
}

func (f *fleet) read(w *watcher, seed uint64, loop func(saw func(CandidateEvent, error))) {
	f.judge.mu.Lock()
	f.watchers = append(f.watchers, w)
	f.judge.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, 7))
	f.readers.Go(func() {
		loop(func(ev CandidateEvent, err error) {
			w.mu.Lock()
			w.leader, w.err, w.state = ev.Leader, err, ev.State
			w.mu.Unlock()
			switch rnd.IntN(3) {
			case 0:
				time.Sleep(upTo(rnd, 5*time.Second))
			case 1:
				<-f.actorsGone
			}
		})
	})
}

// checkReaders wants every reader of the term's name to hear that it leads, the slow ones some time
// later.
func (f *fleet) checkReaders(term *Term) {
	for _, w := range f.watchers {
		if w.p.dead.Load() || w.name != term.Name() {
			continue
		}
		for tries := 0; !w.knows(term); tries++ {
			if tries == 300 { // a reader who sleeps up to 5 s each time, and has up to feedSize events before this one
				f.judge.failf("%s of %s never saw token %d; last %+v, %v, error %v", w.what, w.name, term.Token(),
					w.leader, w.state, w.err)
				break
			}
			time.Sleep(time.Second)
		}
	}
}

func (w *watcher) knows(t *Term) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err == nil && w.leader != nil && w.leader.Token == t.Token() && string(w.leader.Value) == "last" &&
		w.state == StateFollower
}
