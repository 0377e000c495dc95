package sim

import (
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// Counts is what happened in one run, or in many.
type Counts struct {
	Seeds, Events         uint64
	Virtual               int64 // nanoseconds
	Terms, HandOvers      uint64
	Leases                uint64
	Renewals, Misses      uint64
	Faults                [kinds]uint64
	Lost, Doubled, Late   uint64
	Cut                   uint64 // messages that a partition swallowed
	Stalls, Hangs, Flying uint64
	Acts, SaidNo          uint64 // checks that said yes and were acted upon; that said no
	Fenced, Refused       uint64
	Unfenced, Stale       uint64
	Overruns, Operator    uint64
	Refusals              uint64
	Wakes                 uint64
	Elections             uint64
	Strikes               uint64 // sessions that a waiter ended
	Moves, Wasted, Demand uint64 // of shards: see groupJudge
	Even, Looks           uint64 // groups whose loads were even in the end; looks of assigners
	Staled, Strangers     uint64 // lines of groups that were old when they were read; members of another number
	Deeds                 [deeds]uint64
	Overlaps              uint64 // counted where the clocks are beyond the bound
	Violations            uint64
}

// Result is how a run ended.
type Result struct {
	Counts    Counts
	Hash      uint64 // of all that happened, and when: equal for equal plans
	Violation *Violation
}

// Run plays a plan to its end, or to the first violation. With tr every step is written down.
func (w *World) Run(p *Plan, tr *Timeline) Result {
	w.reset()
	w.plan, w.tr, w.rng = p, tr, rng{p.Seed}
	w.timing = core.Timing{}.Fill(time.Duration(p.TTL))
	w.timing = core.Timing{Drift: w.timing.Drift}
	w.judge.reset(w)
	w.store = modelOf(p.Store).open(w)
	w.bootAll()
	for _, f := range p.Faults {
		w.after(f.At, nil, func() { w.inject(f) })
	}
	w.phases()
	w.count.Seeds, w.count.Virtual = 1, w.now
	if w.judge.found != nil {
		w.count.Violations = 1
	}
	return Result{w.count, w.hash, w.judge.found}
}

func (w *World) bootAll() {
	for i := range w.plan.Nodes {
		n := &node{id: i, odd: w.plan.Group.Odd == i+1}
		n.host = host{w: w, name: hostNames[i], ppm: w.plan.Rates[i], base: w.plan.Offsets[i]}
		w.nodes = append(w.nodes, n)
		w.after(w.rng.span(0, sec), nil, func() { w.revive(n) })
	}
}

var hostNames = [...]string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"}

const maxNodes = len(hostNames)

// until lets events happen up to an instant, and reports false once the run is over.
func (w *World) until(end int64) bool {
	for !w.stop && w.step(end) {
	}
	if !w.stop {
		w.now = max(w.now, end)
	}
	return !w.stop
}

// phases: trouble; then calm, in which somebody must lead; then everybody goes home, and nothing
// may stay.
func (w *World) phases() {
	for at := sec; at < w.plan.Span && w.until(at); at += sec {
		w.judge.ghosts()
	}
	if !w.until(w.plan.Span) {
		return
	}
	w.heal()
	ttl := w.plan.TTL
	if !w.every(w.lively(), 3*ttl/2, w.judge.led) && !w.stop {
		w.judge.leaderless()
	}
	if !w.stop {
		w.judge.noticed()
		if w.plan.Group.On {
			w.group.judge.ends()
		}
		w.goHome()
	}
}

// goHome has everybody resign, then close. In the end the store must be empty.
func (w *World) goHome() {
	ttl := w.plan.TTL
	w.quit = true
	w.say(nil, news, "everybody is told to go home")
	for _, n := range w.nodes {
		if n.up {
			n.sess.life.cancel()
		}
	}
	if !w.every(6*ttl, 0, w.judge.nobody) && !w.stop {
		w.judge.leftBehind("claims stand though everybody has resigned")
	}
	if w.stop {
		return
	}
	for _, n := range w.nodes {
		if n.up {
			w.spawn(&n.host, n.sess.close)
		}
	}
	if !w.every(4*ttl, 0, func() bool { return w.store.leases() == 0 }) && !w.stop {
		w.judge.leftBehind("leases live though everybody has gone")
	}
}

// lively is after how long without faults somebody leads every name: six TTLs, and what the store
// needs to recover. A message that was sent before may arrive for two TTLs. Where it costs a client
// of an ensemble its connection, that client keeps its session for two TTLs more, and only then
// does the leader begin to wait for the session's timeout.
func (w *World) lively() int64 { return 6*w.plan.TTL + w.store.recovery() }

// every lets time pass until ok holds, at least least and at most most.
func (w *World) every(most, least int64, ok func() bool) bool {
	from := w.now
	for w.now < from+most {
		if !w.until(min(w.now+sec, from+most)) {
			return false
		}
		w.judge.ghosts()
		if w.now >= from+least && ok() {
			return true
		}
	}
	return false
}

// Add adds what happened in another run.
func (c *Counts) Add(o *Counts) {
	to, from := c.fields(), o.fields()
	for i := range to {
		*to[i] += *from[i]
	}
	for i := range c.Faults {
		c.Faults[i] += o.Faults[i]
	}
	for i := range c.Deeds {
		c.Deeds[i] += o.Deeds[i]
	}
	c.Virtual += o.Virtual
}

func (c *Counts) fields() []*uint64 {
	return []*uint64{&c.Seeds, &c.Events, &c.Terms, &c.HandOvers, &c.Leases, &c.Renewals, &c.Misses, &c.Lost,
		&c.Doubled, &c.Late, &c.Cut,
		&c.Stalls, &c.Hangs, &c.Flying, &c.Acts, &c.SaidNo, &c.Fenced, &c.Refused, &c.Unfenced, &c.Stale, &c.Overruns,
		&c.Operator, &c.Refusals, &c.Wakes,
		&c.Elections, &c.Strikes, &c.Moves, &c.Wasted, &c.Demand, &c.Even, &c.Looks, &c.Staled, &c.Strangers,
		&c.Overlaps, &c.Violations}
}
