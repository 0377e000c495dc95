package sim

import (
	"errors"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// The shell of a process: session.go, lease.go of the root package, with goroutines as tasks. It
// decides nothing; what it does for an order, and in which order, is what the real one does.

// node is a machine with one process, which stands for every name.
type node struct {
	host
	id    int
	cut   links
	sess  *session
	start int64 // true time at which the present process began
	aim   int64 // how long it will be paused at its next renewal
	odd   bool  // its member was made for another number of shards
	sick  int64 // its member is not ready until then
	runs  int   // how often it has run a member
}

// session is session.go: one lease at a time, for all names.
type session struct {
	w      *World
	n      *node
	cl     client
	lease  *lease
	all    []*lease
	grants gate
	closed bool
	turns  []gate // one for each name: one claim of this process stands at a time
	cands  []*candidate
	group  *groupMember
	life   *life // ends when the process is told to stop standing
	rest   *life // ends when candidates that rest are to stand again
}

// lease is lease.go.
type lease struct {
	s        *session
	dl       storeLease
	core     *core.Lease
	deadline int64
	trusted  int64
	renewing bool
	events   []core.LeaseEvent
	k        waker // beat waits for events
	life     *life // ends when the lease is over
	ending   core.Cause
	claims   []*claim // by name, those that stand
	busy     []*claim
	made     []*claim // all there ever were, for the judge
	told     bool     // the store has said that it is gone
}

var errClosed = errors.New("closed")

// boot starts a process on the node.
func (w *World) boot(n *node) {
	n.up, n.start = true, w.now
	n.rough = w.now
	s := &session{w: w, n: n, turns: make([]gate, w.plan.Names), life: &life{}, rest: &life{}}
	s.cl = w.store.client(n)
	n.sess = s
	if w.plan.Group.On {
		s.cl.(*plainClient).says = func(name int) []byte {
			if name == 0 && s.group != nil {
				return s.group.m.Record(s.group.rec)
			}
			return nil
		}
		w.spawn(&n.host, s.runGroup)
		return
	}
	for name := range w.plan.Names {
		c := &candidate{s: s, name: name}
		s.cands = append(s.cands, c)
		w.spawn(&n.host, c.stand)
	}
}

// pause waits before try number n+1.
func (t *task) pause(c *life, n int) bool {
	if n == 0 {
		return !c.over()
	}
	d := int64(core.Pause(n))
	return t.sleep(c, d/2+t.w.rng.span(0, d/2+1))
}

// live returns the lease if it is alive, or grants one.
func (s *session) live(t *task, c *life) (*lease, error) {
	if !s.grants.lock(t, c) {
		return nil, errUnknown
	}
	defer s.grants.unlock()
	for try := 1; ; try++ {
		if s.closed {
			return nil, errClosed
		}
		if s.lease != nil && s.lease.alive() {
			return s.lease, nil
		}
		if l, err := s.grantOne(t, c); err == nil && l.alive() {
			return l, nil
		}
		if !t.pause(c, try) {
			return nil, errUnknown
		}
	}
}

func (s *session) grantOne(t *task, c *life) (*lease, error) {
	limit := max(int64(s.w.timing.Attempt), 2*sec)
	asked := s.n.clock() // before the call: the lease is counted from here
	dl, err := s.cl.grant(t, c.child(&s.n.host, limit))
	if err != nil {
		return nil, err
	}
	l := &lease{s: s, dl: dl, life: &life{}, claims: make([]*claim, s.w.plan.Names)}
	timing := s.w.timing.Fill(time.Duration(dl.ttl()))
	timing.HalfIdle = s.w.plan.Store != "zk" // see zkstore's sessionFor
	l.core = core.NewLease(timing, core.Time(asked))
	l.deadline = int64(l.core.Deadline())
	l.trusted = l.deadline
	if s.closed {
		s.w.spawn(&s.n.host, func(t *task) { _ = dl.close(t, l.life.child(&s.n.host, dl.ttl())) })
		return nil, errClosed
	}
	s.lease, s.all = l, append(s.all, l)
	s.w.count.Leases++
	s.w.say(&s.n.host, detail, "has lease %x of %v, trusted until %v", dl.id(), span(dl.ttl()), span(l.deadline))
	s.w.spawn(&s.n.host, l.beat)
	s.w.spawn(&s.n.host, l.watch)
	return l, nil
}

func (l *lease) grace() int64 { return l.dl.ttl() / 10 }

func (l *lease) attempt() int64 { return l.dl.ttl() / 10 }

func (l *lease) alive() bool {
	return l.ending == core.None && l.s.n.clock() < l.deadline-l.grace()
}

// beat owns the deadline and the only timer.
func (l *lease) beat(t *task) {
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := l.s.n.clock()
		e.Idle = l.idle()
		t.stumble() // between the reading and what follows from it
		o := l.core.Step(core.Time(now), e)
		l.carryOut(t, now, o)
		if l.core.Phase() == core.Over {
			break
		}
		if len(l.events) == 0 {
			l.k = t.arm()
			t.wait(nil, l.k, min(sec, max(0, int64(o.Wake)-l.s.n.clock())))
		}
		if e = (core.LeaseEvent{Kind: core.Tick}); len(l.events) > 0 {
			e = l.events[0]
			l.events = l.events[1:]
		}
	}
	l.life.cancel()
}

// idle says that no claim under the lease has a right.
func (l *lease) idle() bool {
	for _, c := range l.claims {
		if c != nil && c.term != nil && !c.term.ended {
			return false
		}
	}
	return true
}

// stumble lets others run here once in a while.
func (t *task) stumble() {
	if t.w.rng.chance(t.w.plan.Net.Stumble) {
		t.sleep(nil, t.w.rng.span(us, 100*us))
	}
}

func (l *lease) carryOut(t *task, now int64, o core.LeaseOrder) {
	if l.ending == core.None {
		l.ending = o.Stop
	}
	if d := int64(l.core.Deadline()); d != l.deadline || o.EndRight {
		l.s.w.judge.moves(l, d)
		l.deadline = d // first: Check must say no before anybody is told
		if d != 0 {
			l.trusted = d
		}
		t.stumble()
	}
	if o.Stop != core.None {
		l.s.w.say(&l.s.n.host, news, "lease %x is ending: %v", l.dl.id(), o.Stop)
		l.end(t, o.Stop)
	}
	if o.EndRight {
		l.tell(t, core.ClaimEvent{Kind: core.LeaseOver, Cause: l.ending})
	}
	if l.told {
		l.s.w.judge.goneTold(l)
	}
	if o.Renew {
		l.s.w.spawn(&l.s.n.host, func(t *task) { l.renew(t, now) })
	}
}

func (l *lease) renew(t *task, asked int64) {
	w := l.s.w
	e := core.LeaseEvent{Kind: core.Unknown, Asked: core.Time(asked)}
	if !l.renewing {
		l.renewing = true
		if !w.calm && w.rng.chance(w.plan.Net.Hang) {
			w.count.Hangs++
			w.say(&l.s.n.host, news, "its store client does not come back from a renewal, ever")
			t.wait(nil, t.arm(), forever)
		}
		w.aimed(l.s.n)
		err := l.dl.renew(t, l.life.child(&l.s.n.host, l.attempt()))
		l.renewing = false
		t.stumble()
		if !w.calm && int64(w.rng.next()>>44) < w.plan.Net.Stall {
			t.sleep(nil, w.rng.span(0, w.plan.TTL)) // its answer is taken in late
		}
		switch {
		case err == nil:
			e.Kind = core.Accepted
		case errors.Is(err, errGone):
			e.Kind = core.Gone
		}
	}
	if e.Kind == core.Accepted {
		w.count.Renewals++
		if w.tr != nil {
			w.say(&l.s.n.host, detail, "renewal asked at %v accepted for lease %x", span(asked), l.dl.id())
		}
	} else {
		w.count.Misses++
		if w.tr != nil {
			w.say(&l.s.n.host, detail, "renewal asked at %v of lease %x: %v", span(asked), l.dl.id(), kindWord(e.Kind))
		}
	}
	l.post(e)
}

func kindWord(k core.LeaseEventKind) string {
	if k == core.Gone {
		return "the store says it is gone"
	}
	return "no answer"
}

func (l *lease) post(e core.LeaseEvent) {
	if l.life.over() {
		return
	}
	l.told = l.told || e.Kind == core.Gone
	l.events = append(l.events, e)
	l.k.wake()
}

// watch hears what happened to claims that their owner did not do.
func (l *lease) watch(t *task) {
	for try := 1; ; {
		lost, err := l.dl.news(t, l.life)
		switch {
		case l.life.over():
			return
		case errors.Is(err, errGone):
			l.post(core.LeaseEvent{Kind: core.Gone})
			return
		case err != nil:
			if !t.pause(l.life, try) {
				return
			}
			try++
			continue
		}
		try = 1
		for _, p := range lost {
			if c := l.claims[p.name]; c != nil {
				c.tell(p.id, core.ClaimEvent{Kind: core.Lost})
			}
		}
	}
}

func (l *lease) join(c *claim) bool {
	if l.ending != core.None {
		return false
	}
	l.claims[c.name] = c
	l.busy = append(l.busy, c)
	l.made = append(l.made, c)
	return true
}

func (l *lease) forget(c *claim, quiet bool) {
	if l.claims[c.name] == c {
		l.claims[c.name] = nil
	}
	for i, b := range l.busy {
		if quiet && b == c {
			l.busy = append(l.busy[:i], l.busy[i+1:]...)
			break
		}
	}
}

func (l *lease) end(t *task, cause core.Cause) {
	if l.ending == core.None {
		l.ending = cause
	}
	l.tell(t, core.ClaimEvent{Kind: core.LeaseEnding, Cause: cause})
}

// tell tells all claims one after the other; others may run in between.
func (l *lease) tell(t *task, e core.ClaimEvent) {
	all := append(make([]*claim, 0, 2), l.claims...)
	for _, c := range all {
		if c != nil {
			c.tell(0, e)
			if t != nil {
				t.stumble()
			}
		}
	}
}

// close is Session.Close: every term ends, each work returns, and only then the lease is ended in
// the store.
func (s *session) close(t *task) {
	s.closed = true
	for _, l := range append([]*lease(nil), s.all...) {
		if l.life.over() {
			continue
		}
		l.end(t, core.Closed)
		for len(l.busy) > 0 {
			c := l.busy[0]
			k := t.arm()
			c.waiters = append(c.waiters, k)
			t.wait(nil, k, forever)
		}
		if l.life.over() || s.n.clock() >= l.deadline {
			continue
		}
		l.post(core.LeaseEvent{Kind: core.Close})
		for try := 1; ; try++ {
			if err := l.dl.close(t, (&life{}).child(&s.n.host, max(l.attempt(), sec))); err == nil ||
				errors.Is(err, errGone) {
				break
			}
			t.pause(nil, try)
		}
	}
}
