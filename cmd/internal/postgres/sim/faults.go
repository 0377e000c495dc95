package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// plan is what a seed's run is about.
type plan struct {
	nodes    int
	settings core.Settings
	priority []int
	quiet    time.Duration // when faults end
	every    time.Duration // between two faults, at most
	writes   time.Duration // between two commits of a client, at most
	slow     float64       // how often a delay is long
	trouble  float64       // how often an order or a call fails, as a factor
	kinds    []fault
	weird    bool // guardians and clocks fail
}

func (p plan) String() string {
	return fmt.Sprintf("%d nodes, %s, k = %d, faults until %v, guardians and clocks fail: %v", p.nodes,
		p.settings.Durability,
		p.settings.Acks, p.quiet, p.weird)
}

type fault struct {
	name string
	do   func(w *World, n *node)
}

func newPlan(w *World) plan {
	r := w.rng
	p := plan{
		nodes:   []int{2, 2, 3, 3, 3, 3, 5}[r.IntN(7)],
		quiet:   w.between(10*time.Second, 35*time.Second),
		every:   w.between(200*ms, 4000*ms),
		writes:  w.between(30*ms, 400*ms),
		slow:    []float64{0, 0.002, 0.02}[r.IntN(3)],
		trouble: []float64{0, 1, 3}[r.IntN(3)],
		weird:   r.IntN(2) == 0,
	}
	p.settings = core.Settings{
		Durability: []core.Durability{core.Quorum, core.Quorum, core.Quorum, core.Quorum, core.Available,
			core.Available,
			core.Async}[r.IntN(7)],
		Acks:      1 + r.IntN(max(1, p.nodes-1)),
		DropAfter: w.between(500*ms, 3000*ms), AloneAfter: w.between(2000*ms, 10000*ms),
		Linger: 50 * ms, StallAfter: 3 * time.Second, MaxLag: 5, ReplayAtMost: time.Minute,
	}
	for range p.nodes {
		p.priority = append(p.priority, r.IntN(2))
	}
	for _, f := range faults {
		if r.IntN(2) == 0 {
			p.kinds = append(p.kinds, f)
		}
	}
	if p.weird {
		p.kinds = append(p.kinds, weird...)
	}
	return p
}

// faults of one kind each; n is the node that it hits.
var faults = []fault{
	{"power", func(w *World, n *node) {
		n.powerOff()
		w.after(w.between(100*ms, 8000*ms), n.powerOn)
	}},
	{"power of all", func(w *World, _ *node) {
		if w.chance(0.7) {
			return
		}
		for _, n := range w.nodes {
			n.powerOff()
			w.after(w.between(100*ms, 5000*ms), n.powerOn)
		}
	}},
	{"agent", func(w *World, n *node) {
		n.killAgent()
		w.after(w.between(30*ms, 2000*ms), n.startAgent)
	}},
	{"agent ends", func(_ *World, n *node) {
		if n.agent != nil {
			n.agent.m.End()
			n.poke()
		}
	}},
	{"server", func(_ *World, n *node) { n.kill() }},
	{"agent frozen", func(w *World, n *node) {
		if a := n.agent; a != nil {
			a.freeze()
			w.after(w.between(100*ms, 8000*ms), a.thaw)
		}
	}},
	{"server frozen", func(w *World, n *node) {
		if s := n.srv; s != nil {
			s.freeze()
			w.after(w.between(100*ms, 8000*ms), s.thaw)
		}
	}},
	{"all frozen", func(w *World, n *node) { n.freeze(w.between(100*ms, 8000*ms)) }},
	{"walsender frozen", func(w *World, n *node) {
		if s := n.srv; s != nil && len(s.senders) > 0 {
			x := s.senders[w.rng.IntN(len(s.senders))]
			x.freeze()
			w.after(w.between(50*ms, 6000*ms), x.thaw)
		}
	}},
	{"walreceiver frozen", func(w *World, n *node) {
		if s := n.srv; s != nil && s.recv != nil {
			r := s.recv
			r.freeze()
			w.after(w.between(50*ms, 4000*ms), r.thaw)
		}
	}},
	{"walreceiver killed", func(_ *World, n *node) {
		if s := n.srv; s != nil && s.recv != nil {
			s.recv.exit()
		}
	}},
	{"cut", func(w *World, n *node) {
		o := w.nodes[w.rng.IntN(len(w.nodes))]
		pair := [2]int{min(o.id, n.id), max(o.id, n.id)}
		w.cuts[pair] = true
		w.after(w.between(50*ms, 8000*ms), func() { delete(w.cuts, pair) })
	}},
	{"cut from all", func(w *World, n *node) {
		for _, o := range w.nodes {
			pair := [2]int{min(o.id, n.id), max(o.id, n.id)}
			w.cuts[pair] = true
			w.after(w.between(50*ms, 8000*ms), func() { delete(w.cuts, pair) })
		}
	}},
	{"cut from the store", func(w *World, n *node) {
		n.deaf = true
		w.after(w.between(50*ms, 8000*ms), func() { n.deaf = false })
	}},
	{"store down", func(w *World, _ *node) {
		w.store.up = false
		w.after(w.between(50*ms, 4000*ms), func() { w.store.up = true })
	}},
	{"term ended", func(w *World, _ *node) {
		if c := w.store.leader(); c != nil {
			w.store.remove(c)
		}
	}},
	{"lease revoked", func(w *World, n *node) {
		if n.agent != nil && n.agent.lease != nil {
			w.store.end(n.agent.lease)
		}
	}},
	{"transfer", func(w *World, n *node) {
		if c := w.store.leader(); c != nil && c.a.n != n {
			w.store.transfer(c, n.name)
		}
	}},
	{"switchover", func(w *World, n *node) {
		q := &core.Request{ID: uint64(w.number()), Switchover: true}
		if w.chance(0.5) {
			q.To = n.name
		}
		w.request = q
		w.after(5*time.Second, func() {
			if w.request == q {
				w.request = nil
			}
		})
	}},
	{"promoted by hand", func(w *World, n *node) {
		c := w.store.leader()
		if c != nil && c.a.n == n || n.agent != nil && n.agent.own() != nil {
			return // its agent may be about to promote it
		}
		if s := n.srv; s != nil && !s.primary && !s.frozen && s.ssn.Kind == core.SyncNobody && w.judge.electable(n) {
			w.judge.harmed, n.byHand = true, true
			s.do(func() { s.promote(n.disk.wal.position().Timeline+1, 0) })
		}
	}},
	{"wipe", func(w *World, n *node) {
		if !w.judge.electable(n) || w.store.record == nil {
			return
		}
		w.judge.harmed = true
		n.powerOff()
		keep := n.disk.state
		n.disk.cut(0)
		n.disk.data, n.disk.consistent, n.disk.state = core.DataEmpty, 0, core.State{}
		n.disk.dir, n.byHand, n.restored = w.number(), false, false
		if w.chance(0.5) { // the state file is on another disk
			n.disk.state = keep
		}
		w.after(w.between(500*ms, 8000*ms), n.powerOn)
	}},
	{"data directory put back from a backup", func(w *World, n *node) {
		backup := n.disk
		if backup.data != core.DataReady || w.store.record == nil {
			return
		}
		backup.cut(backup.flushed)
		w.after(w.between(2*time.Second, 10*time.Second), func() { n.restore(backup) })
	}},
	{"state lost", func(w *World, n *node) {
		if !w.judge.electable(n) || w.store.record == nil {
			return
		}
		w.judge.harmed = true
		n.powerOff()
		n.disk.state = core.State{SystemID: n.disk.state.SystemID} // pg_control has it
		w.after(w.between(500*ms, 8000*ms), n.powerOn)
	}},
	{"configuration", func(w *World, _ *node) { w.configure() }},
	{"max_connections of a standby too small", func(w *World, n *node) {
		if s := n.srv; s != nil && !s.primary {
			s.short = true
			w.Stats.Short++
		}
	}},
	{"pause", func(w *World, _ *node) {
		if w.asked.Paused != nil {
			return
		}
		w.ask(func(i *core.Instructions) {
			i.Paused = &core.Pause{By: "somebody", At: time.Unix(int64(i.Seq), 0)}
		})
		force := w.chance(0.3)
		w.after(w.between(500*ms, 15000*ms), func() {
			if !w.calm {
				w.resume(force)
			}
		})
	}},
	{"restart", func(w *World, n *node) {
		w.ask(func(i *core.Instructions) {
			i.Members[n.name] = core.Task{Seq: i.Seq, What: core.TaskRestart, Life: n.identity().Incarnation}
		})
	}},
	{"reinit", func(w *World, n *node) {
		if w.judge.electable(n) && w.store.record != nil {
			w.judge.harmed = true
			w.ask(func(i *core.Instructions) {
				i.Members[n.name] = core.Task{Seq: i.Seq, What: core.TaskReinit, Life: n.identity().Incarnation}
			})
		}
	}},
	{"store lost", func(w *World, _ *node) {
		known := !slices.ContainsFunc(w.nodes, func(n *node) bool { return n.disk.state.Seq == 0 })
		if w.store.record != nil && known && !w.judge.lost() && w.chance(0.2) {
			w.store.lose(kept{})
		}
	}},
	{"store set back", func(w *World, _ *node) {
		was := w.store.was
		if len(was) < 2 || w.judge.lost() || w.chance(0.8) {
			return
		}
		if k := was[w.rng.IntN(len(was)-1)]; !w.judge.behind(k.record) {
			w.store.lose(k)
		}
	}},
	{"server hung", func(w *World, n *node) {
		if s := n.srv; s != nil {
			s.hung = true
			w.after(w.between(500*ms, 9000*ms), s.answer)
		}
	}},
	{"promotion that was given up", func(w *World, n *node) {
		if s := n.srv; s != nil && !s.frozen {
			s.freeze()
			w.after(w.between(1000*ms, 3000*ms), s.thaw)
		}
	}},
}

// weird is what the guardian and clocks are there to prevent: a former primary lives on.
var weird = []fault{
	{"guardian broken", func(w *World, n *node) {
		n.guard.broken = true
		w.after(w.between(2000*ms, 20000*ms), func() { n.guard.broken = false })
	}},
	{"guardian broken, agent frozen", func(w *World, n *node) {
		n.guard.broken = true
		w.after(w.between(4000*ms, 20000*ms), func() { n.guard.broken = false })
		if a := n.agent; a != nil {
			a.freeze()
			w.after(w.between(3500*ms, 12000*ms), a.thaw)
		}
	}},
	{"deposed, and lives on", func(w *World, _ *node) {
		c := w.store.leader()
		if c == nil {
			return
		}
		n := c.a.n
		n.clock, n.deaf, n.guard.broken = true, true, true
		w.store.remove(c)
		w.after(w.between(1000*ms, 12000*ms), func() { n.clock, n.deaf, n.guard.broken = false, false, false })
	}},
	{"clock broken", func(w *World, n *node) {
		n.clock, n.guard.broken = true, true
		w.after(w.between(4000*ms, 20000*ms), func() { n.clock, n.guard.broken = false, false })
		if w.chance(0.7) {
			n.deaf = true
			w.after(w.between(4000*ms, 15000*ms), func() { n.deaf = false })
		}
	}},
}

// restore puts a backup in the place of the data directory, while the machine is off. What lies
// beside the directory stays. It is another directory, or the same one with the content of before;
// of the latter, what it lacks was noted: that is all that is promised.
func (n *node) restore(backup disk) {
	w, d := n.w, &n.disk
	same := w.chance(0.5)
	if w.calm || !w.judge.electable(n) || d.data != core.DataReady ||
		same && !backup.wal.position().Before(d.state.Last) {
		return
	}
	w.logf("%s: data put back from a backup that ends at %v", n.name, backup.wal.position())
	w.Stats.Restored++
	w.judge.harmed, n.restored = true, true
	n.powerOff()
	d.wal, d.flushed, d.consistent = backup.wal, backup.flushed, backup.consistent
	if !same {
		d.dir = w.number()
	}
	w.after(w.between(500*ms, 8000*ms), n.powerOn)
}

// resume ends a pause, for the primary or for all.
func (w *World) resume(force bool) {
	w.ask(func(i *core.Instructions) {
		if i.Paused = nil; force && w.store.record != nil {
			i.Forced = w.store.record.Paused
		}
	})
}

// answer ends what keeps a server's disk from answering.
func (s *server) answer() {
	s.hung = false
	if s.dying && s.n.srv == s {
		s.n.kill()
	}
}

// ask writes new instructions.
func (w *World) ask(change func(*core.Instructions)) {
	next := w.asked
	next.Seq++
	next.Members = maps.Clone(next.Members)
	if next.Members == nil {
		next.Members = map[string]core.Task{}
	}
	change(&next)
	w.asked = next
}

// freeze stops all of a machine's processes for a while.
func (n *node) freeze(d time.Duration) {
	n.w.logf("%s: frozen for %v", n.name, d)
	ps := []*process{&n.guard.process}
	if n.agent != nil {
		ps = append(ps, &n.agent.process)
	}
	if n.srv != nil {
		ps = append(ps, &n.srv.process)
	}
	for _, p := range ps {
		p.freeze()
		n.w.after(d, p.thaw)
	}
}

// schedule has faults happen until it is quiet.
func (w *World) schedule() {
	p := w.plan
	var next func()
	next = func() {
		if w.now >= p.quiet {
			w.heal()
			return
		}
		if len(p.kinds) > 0 {
			f, n := p.kinds[w.rng.IntN(len(p.kinds))], w.nodes[w.rng.IntN(len(w.nodes))]
			if c := w.store.leader(); c != nil && w.chance(0.3) {
				n = c.a.n
			}
			w.logf("FAULT: %s, %s", f.name, n.name)
			w.Stats.Faults++
			f.do(w, n)
		}
		w.after(w.between(20*ms, p.every), next)
	}
	w.after(w.between(0, 3*time.Second), next)
}

// heal ends all faults. From now on all must become well by itself; but a person restarts an agent
// that is broken.
func (w *World) heal() {
	w.logf("all faults end")
	w.calm = true
	w.plan.quiet = w.now
	w.request = nil
	w.resume(true) // the primary may be gone for good
	w.shared.version++
	w.shared.settings, w.shared.bad = w.plan.settings, false
	w.store.up = true
	clear(w.cuts)
	for _, n := range w.nodes {
		n.deaf, n.clock, n.guard.broken = false, false, false
		n.guard.thaw()
		n.powerOn()
		n.startAgent()
		n.agent.thaw()
		if s := n.srv; s != nil {
			s.answer()
			s.thaw()
			for _, x := range s.senders {
				x.thaw()
			}
			if s.recv != nil {
				s.recv.thaw()
			}
		}
	}
	w.judge.look()
	var person func()
	person = func() {
		w.resume(true) // a pause may have come into the record late
		for _, n := range w.nodes {
			if n.agent == nil || w.judge.lost() {
				continue
			}
			if phase, _ := n.agent.m.Phase(); phase == core.PhaseBroken {
				n.killAgent()
				n.startAgent()
			}
		}
		w.after(5*time.Second, person)
	}
	w.after(5*time.Second, person)
}
