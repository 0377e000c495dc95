package sim

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// node is a machine.
type node struct {
	w      *World
	id     int
	name   string
	on     bool
	disk   disk
	srv    *server
	agent  *agent
	guard  guardian
	deaf   bool // cut from the store
	clock  bool // its clock fails: it does not notice that a term is over
	byHand bool // promoted by hand: its WAL counts for nothing

	restored bool // its data were put back from a backup, and its incarnation is still the former one
}

// guardian ends the server by the deadline of the term that it was bound to.
type guardian struct {
	process
	broken   bool
	server   *server
	deadline time.Duration
}

// agent is `primacy postgres` on a node.
type agent struct {
	process
	n       *node
	m       *core.Member
	lease   *lease
	claim   *claim // entered, as far as the agent knows
	asking  bool   // an enter is under way
	hearing bool   // news is under way
	sent    time.Duration
	term    *term
	line    *core.Line
	record  *core.Record
	gone    *core.Lost // in the record's place
	read    bool
	readFor uint64
	reading bool
	reads   int // so many have begun
	won     int // of these before the term was won
	again   bool
	dones   []core.Done
	poked   bool
	said    *core.Answer
	asked   *core.Instructions
	doing   uint64 // the order that counts
}

type term struct {
	claim    *claim
	token    uint64
	deadline time.Duration
}

var errFailed = errors.New("it failed")

func newNode(w *World, id int) *node {
	n := &node{w: w, id: id, name: fmt.Sprintf("pg%d", id+1)}
	n.disk.conninfo = -1
	n.guard.w = w
	return n
}

func (n *node) identity() core.Identity {
	return core.Identity{Name: n.name, Incarnation: n.disk.state.Incarnation}
}

func (n *node) poke() {
	if n.agent != nil {
		n.agent.poke()
	}
}

func (w *World) linked(a, b *node) bool {
	return a.on && b.on && !w.cuts[[2]int{min(a.id, b.id), max(a.id, b.id)}]
}

func (n *node) powerOn() {
	if n.on {
		return
	}
	n.on = true
	n.guard = guardian{process: process{w: n.w}}
	n.startAgent()
}

// powerOff loses what was not flushed.
func (n *node) powerOff() {
	if !n.on {
		return
	}
	n.w.logf("%s: power off", n.name)
	keep := n.disk.flushed + n.w.rng.IntN(len(n.disk.wal)-n.disk.flushed+1)
	n.on = false
	n.killAgent()
	n.guard.dead = true
	n.kill()
	n.disk.cut(keep)
}

func (n *node) startAgent() {
	if !n.on || n.agent != nil {
		return
	}
	a := &agent{process: process{w: n.w}, n: n}
	cfg := core.Config{Name: n.name, TTL: ttl, Priority: n.w.plan.priority[n.id],
		Incarnation: func() string { return fmt.Sprintf("i%d", n.w.number()) }}
	a.m = core.NewMember(cfg, n.disk.state)
	n.agent = a
	n.w.logf("%s: agent starts", n.name)
	a.session()
	a.news()
	a.readRecord()
	a.readAsked()
	a.readShared()
	a.tick()
	a.note()
}

// killAgent is SIGKILL. The guardian ends the server and gives the lease back.
func (n *node) killAgent() {
	a := n.agent
	if a == nil {
		return
	}
	n.w.logf("%s: agent killed", n.name)
	a.dead, n.agent = true, nil
	if n.guard.broken || n.guard.dead {
		return
	}
	s := n.srv
	n.guard.later(n.w.delay(ms, 20*ms), func() {
		if s != nil && n.srv == s {
			n.kill()
		}
		if a.lease != nil && !n.deaf && n.w.store.up {
			n.w.store.end(a.lease)
		}
	})
}

// exit ends an agent whose member has ended.
func (a *agent) exit() {
	n := a.n
	n.w.logf("%s: agent exits", n.name)
	if a.lease != nil && !n.deaf && n.w.store.up {
		n.w.store.end(a.lease)
	}
	a.dead, n.agent = true, nil
	n.w.after(n.w.between(30*ms, 2000*ms), n.startAgent)
}

// bind has the guardian watch a term's deadline.
func (g *guardian) bind(s *server, deadline time.Duration) {
	g.server, g.deadline = s, deadline
	g.later(deadline-g.w.now, func() {
		if g.server == s && g.deadline <= g.w.now && !g.broken && s.n.srv == s {
			g.w.logf("%s: guardian: the deadline has come", s.n.name)
			s.n.kill()
		}
	})
}

// call carries do out at the store and then reply at the agent. Where the answer was lost, known is
// false, and do may have happened, or may still.
func (a *agent) call(do func(), reply func(known bool)) {
	w, s := a.w, a.w.store
	lost := func() { a.later(w.between(100*ms, 1000*ms), func() { reply(false) }) }
	w.after(w.delay(ms/2, 3*ms), func() {
		switch {
		case a.n.deaf || !a.n.on || !s.up:
			lost()
		case w.fails(0.02):
			if w.chance(0.7) {
				w.Stats.Late++
				w.after(w.delay(0, 1500*ms), do)
			}
			lost()
		default:
			do()
			a.later(w.delay(ms/2, 3*ms), func() { reply(true) })
		}
	})
}

// session keeps a lease alive.
func (a *agent) session() {
	l := &lease{}
	a.lease, a.claim, a.asking = l, nil, false
	sent := a.w.now
	a.call(func() { a.w.store.renew(l) }, func(known bool) {
		if !known {
			a.lease = nil // if there is one nevertheless, it ends by itself
			a.later(300*ms, a.session)
			return
		}
		a.renewed(l, sent)
		a.poke()
	})
}

// renewed moves the deadline, which counts from before the call, and calls again.
func (a *agent) renewed(l *lease, sent time.Duration) {
	a.sent = max(a.sent, sent)
	if t := a.term; t != nil && t.claim.lease == l && !t.claim.over && a.w.now < t.deadline {
		t.deadline = max(t.deadline, a.sent+ttl)
		a.expect(t)
		if g := &a.n.guard; g.server != nil && g.server == a.n.srv {
			g.bind(g.server, t.deadline)
		}
	}
	if c := l.claim; c != nil && c.token > 0 && a.term == nil {
		a.leads(c)
	}
	a.later(ttl/3, func() { a.keep(l) })
}

func (a *agent) keep(l *lease) {
	if a.lease != l {
		return
	}
	sent, gone := a.w.now, false
	a.call(func() {
		if gone = l.gone; !gone {
			a.w.store.renew(l)
		}
	}, func(known bool) {
		switch {
		case a.lease != l:
		case !known:
			a.later(100*ms, func() { a.keep(l) })
		case gone:
			a.session()
			a.poke()
		default:
			a.renewed(l, sent)
		}
	})
}

// leads is the news that a claim holds.
func (a *agent) leads(c *claim) {
	if c.lease != a.lease || c.over || a.sent+ttl <= a.w.now {
		return
	}
	a.claim = c
	a.term = &term{c, c.token, a.sent + ttl}
	a.readFor, a.won = 0, a.reads
	a.expect(a.term)
	a.readRecord()
	a.poke()
}

// expect ends the term at its deadline, and then releases the claim.
func (a *agent) expect(t *term) {
	a.later(t.deadline-a.w.now, func() {
		if a.term != t || a.w.now < t.deadline {
			return
		}
		if a.n.clock {
			a.later(time.Second, func() { a.expect(t) })
			return
		}
		a.term, t.claim.over = nil, true
		a.release(t.claim)
		a.poke()
	})
}

// release gives a claim up, until the store has confirmed it.
func (a *agent) release(c *claim) {
	a.call(func() { a.w.store.remove(c) }, func(known bool) {
		if !known {
			a.release(c)
		}
	})
}

// lost is the news that a claim is gone.
func (a *agent) lost(c *claim) {
	c.over = true
	if a.claim == c {
		a.claim = nil
	}
	if t := a.term; t != nil && t.claim == c && !a.n.clock {
		a.term = nil
	}
	a.poke()
}

// own is the term, while its deadline has not come.
func (a *agent) own() *core.Term {
	t := a.term
	if t == nil || a.w.now >= t.deadline && !a.n.clock {
		return nil
	}
	return &core.Term{Token: t.token, Remaining: max(t.deadline-a.w.now, 0)}
}

// news is a new state of the line, which comes late, but never before an older one.
func (a *agent) news() {
	if a.hearing {
		return
	}
	a.hearing = true
	var read func()
	read = func() {
		if a.n.deaf || !a.w.store.up {
			a.later(200*ms, read)
			return
		}
		a.hearing = false
		a.line = a.w.store.line
		if a.newest() > a.readFor {
			a.readRecord()
		}
		a.poke()
	}
	a.later(a.w.delay(ms, 10*ms), read)
}

// newest is the largest token that the agent has seen.
func (a *agent) newest() uint64 {
	var own uint64
	if a.term != nil {
		own = a.term.token
	}
	return core.Newest(a.line, a.record, own)
}

// readRecord reads the record, one read at a time.
func (a *agent) readRecord() {
	if a.reading {
		a.again = true
		return
	}
	a.reading, a.again = true, false
	a.reads++
	seen, number := a.newest(), a.reads
	var got *core.Record
	var lost *core.Lost
	a.call(func() { got, lost = a.w.store.record, a.w.store.lost }, func(known bool) {
		a.reading = false
		if !known {
			a.later(100*ms, a.readRecord)
			return
		}
		if number <= a.won {
			seen = 0
		}
		a.record, a.gone, a.read, a.readFor = got, lost, true, max(a.readFor, seen)
		if a.again || a.newest() > a.readFor {
			a.readRecord()
		}
		a.poke()
	})
}

// readAsked reads what people ask, now and then, and the record: nobody tells that it is gone.
func (a *agent) readAsked() {
	var got core.Instructions
	a.call(func() { got = a.w.asked }, func(known bool) {
		if known && got.Seq > 0 {
			a.asked = &got
			a.poke()
		}
		if a.w.chance(0.2) {
			a.readRecord()
		}
		a.later(a.w.between(100*ms, 1000*ms), a.readAsked)
	})
}

// tick looks at the server now and then.
func (a *agent) tick() {
	a.poke()
	a.later(a.w.between(80*ms, 200*ms), a.tick)
}

// note writes down now and then how far the WAL has been.
func (a *agent) note() {
	if s := a.m.State(); s.Incarnation == a.n.disk.state.Incarnation {
		a.n.disk.state.Last = s.Last
	}
	a.later(a.w.between(100*ms, 2000*ms), a.note)
}

// persist writes the state, but for what note writes.
func (n *node) persist(s core.State) {
	if s.Last = n.disk.state.Last; s.Incarnation != n.disk.state.Incarnation {
		s.Last, n.restored = core.Position{}, false
	}
	n.disk.state = s
}

func (a *agent) wakeAt(at time.Duration) { a.later(at-a.w.now, a.poke) }

// poke has the member decide soon.
func (a *agent) poke() {
	if a.poked {
		return
	}
	a.poked = true
	a.later(a.w.between(0, ms), a.step)
}

func (a *agent) step() {
	a.poked = false
	o := a.observe()
	a.dones = nil
	if a.m.Ended(o) {
		a.exit()
		return
	}
	a.stand(a.m.Stands(o))
	a.w.Stats.Steps++
	was, _ := a.m.Phase()
	order := a.m.Step(o)
	if p, why := a.m.Phase(); p != was {
		a.w.logf("%s: %s -> %s %s", a.n.name, was, p, why)
	}
	if at := a.m.Wake(); at > a.w.now {
		a.wakeAt(at)
	}
	if order != nil {
		a.w.logf("%s: orders %T %+v", a.n.name, order.Do, order.Do)
		a.doing = order.ID
		a.carryOut(order)
	}
}

// stand enters the election or leaves it.
func (a *agent) stand(yes bool) {
	switch {
	case yes && a.claim == nil && !a.asking && a.lease != nil && !a.lease.gone && a.lease.renewed > 0:
		a.asking = true
		l := a.lease
		c := &claim{lease: l, a: a}
		a.call(func() { c.answer = a.said; a.w.store.enter(c) }, func(known bool) {
			if a.lease == l {
				a.asking = false
				if known {
					a.claim = l.claim
				}
				a.poke()
			}
		})
	case !yes && a.claim != nil && a.own() == nil:
		c := a.claim
		a.claim = nil
		a.release(c)
	}
}

func (a *agent) observe() core.Observation {
	n, s := a.n, a.n.srv
	o := core.Observation{Now: a.w.now, Own: a.own(), Line: a.line, Record: a.record, Lost: a.gone, Read: a.read,
		ReadFor:  a.readFor,
		Settings: a.settings(), Request: a.w.request, Instructions: a.asked, Done: a.dones}
	if o.Own == nil {
		o.Request = nil
	}
	o.Server.Data, o.Server.Directory = n.disk.data, strconv.Itoa(n.disk.dir)
	if s == nil || s.child != a {
		return o
	}
	v := &o.Server
	v.Running, v.Primary, v.Hung = true, s.primary, s.hung
	if a.w.now >= s.complete {
		v.Reached = n.disk.wal[:n.disk.flushed].position()
	}
	v.Short = s.short && !s.primary
	v.Follows = s.recv != nil && s.recv.sender != nil && !s.recv.sender.dead
	if !s.primary {
		return o
	}
	v.Proven, v.Checkpointed = s.proven(), s.checkpointed
	v.LSN = n.disk.wal.lsn()
	v.Timeline = n.disk.wal.position().Timeline
	if len(s.waiting) > 0 {
		v.Waiting = a.w.now - s.waiting[0].since
	}
	for _, x := range s.senders {
		if x.flushed >= 0 {
			v.Senders = append(v.Senders, core.Sender{Identity: x.to, Counts: true,
				Flushed: core.LSN(x.flushed)})
		}
	}
	return o
}
