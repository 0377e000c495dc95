package sim

import (
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// doing is one order that is carried out. It may fail before or after it had its effect.
type doing struct {
	a  *agent
	id uint64
}

func (x doing) done(d core.Done) {
	d.ID = x.id
	x.a.dones = append(x.a.dones, d)
	x.a.poke()
}

func (x doing) fail() { x.done(core.Done{Err: errFailed}) }

// counts says that no stop has superseded the order.
func (x doing) counts() bool { return x.a.doing == x.id }

// soon has the effect after a while.
func (x doing) soon(lo, hi time.Duration, effect func() core.Done) {
	w := x.a.w
	x.a.later(w.delay(lo, hi), func() {
		if !x.counts() {
			return
		}
		if w.fails(0.01) {
			x.fail()
			return
		}
		d := effect()
		if w.fails(0.01) {
			d = core.Done{Err: errFailed}
		}
		x.done(d)
	})
}

// change has an effect on the settings of the server that runs now. It fails if that is gone by
// then.
func (x doing) change(hi time.Duration, effect func(s *server)) {
	s := x.a.n.srv
	if s == nil || s.child != x.a {
		x.a.later(ms, x.fail)
		return
	}
	x.soon(ms, hi, func() core.Done {
		if s.dead {
			return core.Done{Err: errFailed}
		}
		effect(s)
		return core.Done{}
	})
}

// ask waits for what the server answers, and not for ever.
func (x doing) ask(hi time.Duration, answer func(s *server) core.Done) {
	s, told := x.a.n.srv, false
	tell := func(d core.Done) {
		if !told && x.counts() {
			told = true
			x.done(d)
		}
	}
	if s == nil || s.child != x.a || x.a.w.fails(0.01) {
		x.a.later(ms, x.fail)
		return
	}
	x.a.later(x.a.w.delay(ms, hi), func() { s.do(func() { tell(answer(s)) }) })
	x.a.later(hi+time.Second, func() { tell(core.Done{Err: errFailed}) })
}

// carryOut does what the member orders.
func (a *agent) carryOut(o *core.Order) {
	n, x := a.n, doing{a, o.ID}
	switch do := o.Do.(type) {
	case core.Persist:
		x.soon(ms, 5*ms, func() core.Done { n.persist(do.State); return core.Done{} })
	case core.Start:
		x.soon(30*ms, 200*ms, func() core.Done { n.start(a); return core.Done{} })
	case core.Stop:
		x.stop(do)
	case core.Seal:
		x.seal()
	case core.Read:
		x.ask(5*ms, func(s *server) core.Done { return s.read() })
	case core.Follow:
		x.change(5*ms, func(s *server) {
			n.disk.conninfo = a.w.find(do.Primary.Name).id
			s.disconnect()
		})
	case core.Rewind:
		a.later(a.w.delay(20*ms, 100*ms), func() { x.copy(do.State, true) })
	case core.Clone:
		a.later(a.w.delay(20*ms, 100*ms), func() { x.copy(do.State, false) })
	case core.Initdb:
		x.soon(100*ms, 500*ms, func() core.Done { return n.initdb(do.State) })
	case core.SetSync:
		x.change(10*ms, func(s *server) {
			if !s.primary || s.token != 0 { // one promoted by hand is left as it is: it acknowledges nothing
				s.configure(do.Sync, x.id)
			}
		})
	case core.Bind, core.Unbind:
		x.bind(o.Do)
	case core.Reinit:
		a.w.Stats.Tasks++
		x.soon(ms, 5*ms, func() core.Done { n.disk.data = core.DataPartial; return core.Done{} })
	case core.Promote:
		x.promote(do)
	case core.Checkpoint:
		x.ask(5*ms, func(s *server) core.Done {
			took := a.w.between(ms, 100*ms)
			if a.w.fails(0.2) {
				took = a.w.between(time.Second, time.Minute)
			}
			s.later(took, func() { s.checkpointed = max(s.checkpointed, x.id) })
			return core.Done{}
		})
	case core.Say:
		x.say(do.Answer)
	case core.Write, core.Mark:
		x.write(do)
	case core.Transfer:
		x.transfer(do.To)
	}
}

// bind has the guardian watch the deadline of the term, or none.
func (x doing) bind(do core.Action) {
	a := x.a
	x.change(5*ms, func(s *server) {
		if _, free := do.(core.Unbind); free {
			a.n.guard.server = nil
		} else if a.own() != nil {
			a.n.guard.bind(s, a.term.deadline)
		}
	})
}

// say puts the answer into the value of the waiting claim.
func (x doing) say(answer core.Answer) {
	a := x.a
	a.said = &answer
	c, said := a.claim, false
	a.call(func() {
		if c != nil && c.lease.claim == c {
			c.answer, said = &answer, true
			a.w.store.changed()
		}
	}, func(known bool) {
		if known && said {
			x.done(core.Done{})
		} else {
			x.fail()
		}
	})
}

// initdb makes a new database system, under a marker.
func (n *node) initdb(state core.State) core.Done {
	n.kill()
	d := &n.disk
	n.persist(state)
	d.data, d.consistent = core.DataPartial, 0
	d.wal, d.flushed = wal{{n.w.number(), 1}}, 1
	d.state.SystemID = state.Incarnation
	return core.Done{SystemID: d.state.SystemID}
}

func (w *World) find(name string) *node {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// stop ends the server. A fast stop of a primary writes one last record and waits until the
// standbys have it.
func (x doing) stop(do core.Stop) {
	a := x.a
	n, s := a.n, a.n.srv
	if s == nil {
		a.later(ms, func() { x.done(core.Done{}) })
		return
	}
	gone := func(lsn core.LSN) func() {
		return func() {
			if s.dead {
				lsn = 0
			} else {
				n.kill()
			}
			x.done(core.Done{LSN: lsn})
		}
	}
	if s.hung && a.w.chance(0.5) {
		s.dying = true
	}
	if s.dying {
		a.later(2*time.Second, func() {
			if s.dead {
				x.done(core.Done{})
			} else {
				x.fail()
			}
		})
		return
	}
	if !do.Fast || !s.primary || s.frozen || s.hung {
		a.later(a.w.delay(5*ms, 50*ms), gone(0))
		return
	}
	if a.w.fails(0.02) {
		a.later(50*ms, x.fail)
		return
	}
	s.stopping, s.waiting = true, nil // who waits is told by a warning that nothing is known
	a.later(a.w.delay(10*ms, 60*ms), func() {
		if s.dead || s.frozen {
			gone(0)()
			return
		}
		s.insert(n.disk.wal.position().Timeline)
		end := n.disk.wal.lsn()
		until := a.w.now + a.w.between(100*ms, 1500*ms)
		var wait func()
		wait = func() {
			behind := false
			for _, y := range s.senders {
				behind = behind || core.LSN(y.flushed) < end
			}
			switch {
			case s.dead || s.frozen || a.w.fails(0.01):
				gone(0)()
			case !behind || a.w.now > until:
				a.w.Stats.Clean++
				gone(end)()
			default:
				a.later(5*ms, wait)
			}
		}
		wait()
	})
}

// seal returns when no walreceiver is left and none will come.
func (x doing) seal() {
	a := x.a
	s := a.n.srv
	if s == nil || s.child != a {
		a.later(ms, x.fail)
		return
	}
	until := a.w.now + 2*time.Second
	a.later(a.w.delay(ms, 5*ms), func() {
		s.do(func() { a.n.disk.conninfo = -1; s.disconnect() })
		var wait func()
		wait = func() {
			switch {
			case !x.counts():
			case s.dead || a.w.now > until:
				x.fail()
			case !s.frozen && a.n.disk.conninfo < 0 && s.recv == nil:
				x.done(core.Done{})
			default:
				a.later(3*ms, wait)
			}
		}
		wait()
	})
}

// read tells where the WAL ends, or, before all of it was read, some place before.
func (s *server) read() core.Done {
	d := s.n.disk
	if len(d.wal) < d.consistent {
		return core.Done{Err: errFailed}
	}
	if s.w.now < s.complete || s.short {
		part := d.wal[:s.w.rng.IntN(len(d.wal)+1)]
		return core.Done{Position: part.position()}
	}
	return core.Done{Position: d.wal[:d.flushed].position(), Complete: true}
}

// copy is pg_rewind or pg_basebackup from the record's primary.
func (x doing) copy(state core.State, rewind bool) {
	a, n, w := x.a, x.a.n, x.a.w
	if w.fails(0.01) {
		x.fail()
		return
	}
	n.kill()
	n.persist(state)
	n.byHand = false
	source := func() *server {
		if a.record == nil {
			return nil
		}
		f := w.find(a.record.Primary.Name)
		if f.srv == nil || !f.srv.primary || f.srv.frozen || !w.linked(f, n) {
			return nil
		}
		return f.srv
	}
	from := source()
	if from == nil {
		x.fail()
		return
	}
	n.disk.data = core.DataPartial
	if !rewind {
		n.disk.cut(0)
	}
	a.later(w.delay(200*ms, 3000*ms), func() {
		if from.dead || source() != from || w.fails(0.1) {
			x.fail()
			return
		}
		d, src := &n.disk, from.n.disk.wal
		least := 1
		if rewind {
			least = max(1, common(d.wal, src))
			w.Stats.Rewinds++
		} else {
			w.Stats.Clones++
		}
		d.wal = append(wal(nil), src[:least+w.rng.IntN(len(src)-least+1)]...)
		d.flushed, d.consistent, d.data = len(d.wal), len(src), core.DataReady
		x.done(core.Done{})
	})
}

// write is the record's compare-and-swap. A try without an answer may land late.
func (x doing) write(do core.Action) {
	if m, ok := do.(core.Mark); ok {
		x.mark(m.Lost)
		return
	}
	a, r := x.a, do.(core.Write).Record
	t := a.term
	if t == nil {
		a.later(ms, x.fail)
		return
	}
	res := refused
	a.call(func() { res = a.w.store.write(t.claim, r) }, func(known bool) {
		a.readRecord()
		switch {
		case !known:
			x.done(core.Done{Err: errFailed, Unknown: true})
		case res == refused:
			x.fail()
		default:
			x.done(core.Done{})
			if r.Seq == 1 { // the marker of initdb goes
				a.later(a.w.delay(ms, 5*ms), func() { a.n.disk.data = core.DataReady; a.poke() })
			}
		}
	})
}

// mark puts what was lost in the place of the record.
func (x doing) mark(l core.Lost) {
	a, ok := x.a, false
	found := a.record
	a.call(func() { ok = a.w.store.mark(found, l) }, func(known bool) {
		if a.readRecord(); known && ok {
			x.done(core.Done{})
		} else {
			x.fail()
		}
	})
}

// promote asks PostgreSQL, and gives up waiting after a while: it may still happen.
func (x doing) promote(do core.Promote) {
	a := x.a
	s, t := a.n.srv, a.own()
	if s == nil || s.child != a || t == nil || t.Remaining < ttl/3 {
		a.later(ms, x.fail)
		return
	}
	key := a.term.claim.key
	took := a.w.delay(20*ms, 150*ms)
	s.later(took, func() {
		if !s.short {
			s.promote(do.Timeline, key)
		}
	})
	until := a.w.now + time.Second
	var wait func()
	wait = func() {
		switch {
		case !x.counts():
		case s.dead || a.w.now > until || !s.primary && a.w.fails(0.005):
			x.fail()
		case s.primary:
			x.done(core.Done{})
		default:
			a.later(10*ms, wait)
		}
	}
	wait()
}

// transfer hands the term on, or gives it up.
func (x doing) transfer(to string) {
	a := x.a
	t := a.term
	if t == nil {
		a.later(ms, x.fail)
		return
	}
	ok := false
	a.call(func() { ok = a.w.store.transfer(t.claim, to) }, func(known bool) {
		if known && ok {
			t.claim.over = true
			if a.term == t {
				a.term = nil
			}
			x.done(core.Done{})
		} else {
			x.fail()
		}
	})
}
