package primacy

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
)

// act does one thing to one machine.
func (f *fleet) act() {
	m, name := f.machines[f.rnd.IntN(len(f.machines))], f.names[f.rnd.IntN(len(f.names))]
	k := f.rnd.IntN(46) - 4
	if k < 10 {
		f.stand(m.proc, name)
		for f.names[2] == name && f.rnd.IntN(4) > 0 { // several of a process want a lock
			f.stand(m.proc, name)
		}
		return
	}
	if all := f.front.standing(name); len(all) > 0 && f.coin() {
		m = f.byID(all[0].Owner) // aimed: what befalls those who do not lead hurts nobody
	}
	switch {
	case k < 13:
		m.net.Set(f.mood(m))
	case k == 13:
		f.judge.logf("", "the networks are whole")
		f.heal()
	case k < 20:
		f.cut(m, k)
	case k == 20:
		f.observe(m.proc, name)
	case k == 21:
		f.ask(m.proc, name)
	case k == 22 && f.coin():
		f.reopen(m)
	case k < 25 && f.pauses:
		f.pause(m)
	case k < 27 && f.pauses:
		f.suspend(m)
	case k < 29 && f.pauses:
		f.starve(m)
	case k == 29 && f.crashes:
		f.crash(m)
	case k < 32 && f.restarts && f.coin():
		f.restart(f.coin())
	case k < 39 && f.byHand:
		f.removeClaim(name)
	case k == 39 && f.byHand:
		f.endLease(name)
	case k > 39:
		f.askTransfer(m.proc, name)
	}
}

func (f *fleet) byID(id string) *machine {
	return f.machines[slices.IndexFunc(f.machines, func(m *machine) bool { return m.id == id })]
}

// mood sets how bad the network of m is, from not at all to bad.
func (f *fleet) mood(m *machine) drivertest.Faults {
	seed := f.rnd.Uint64()
	m.setLag(upTo(f.rnd, 1800*time.Millisecond) - 600*time.Millisecond)
	f.judge.count("network: another mood")
	k := f.rnd.IntN(5)
	m.moody.Store(k > 1)
	return []drivertest.Faults{
		{Seed: seed},
		{Seed: seed, Delay: 20 * time.Millisecond},
		{Seed: seed, Delay: 500 * time.Millisecond, Drop: .1, Lose: .1},
		{Seed: seed, Delay: 100 * time.Millisecond, Drop: .05, Lose: .2, Late: .15, Twice: .15, Lag: 3 * time.Second},
		{Seed: seed, Delay: 2500 * time.Millisecond, Lose: .1, Late: .3, Twice: .2, Lag: 12 * time.Second},
	}[k]
}

// heal makes the networks whole.
func (f *fleet) heal() {
	for _, m := range f.machines {
		m.hang(false)
		m.ignore(false)
		m.out.open()
		m.back.open()
	}
}

// during does something to m for a while that may be longer than a lease.
func (f *fleet) during(m *machine, what string, begin, end func()) {
	d := upTo(f.rnd, 25*time.Second)
	f.judge.logf(m.id, "%s for %v", what, d)
	f.judge.count(what)
	begin()
	time.AfterFunc(d, end)
}

func (f *fleet) cut(m *machine, k int) {
	switch k {
	case 14:
		f.during(m, "cut off", func() { m.hang(true) }, func() { m.hang(false) })
	case 15, 16:
		f.during(m, "cut off one way: no request arrives", m.out.shut, m.out.open)
	case 17:
		f.during(m, "cut off one way: no answer comes back", m.back.shut, m.back.open)
	case 18, 19:
		f.during(m, "store client ignores its contexts", func() { m.ignore(true) }, func() { m.ignore(false) })
	}
}

// pause stops the process on m, as SIGSTOP does. The first Check after it must know, before any timer of the process has run and before
// the store can tell it.
func (f *fleet) pause(m *machine) {
	p := m.proc
	if !p.runs() {
		return
	}
	f.during(m, "paused", func() {
		f.judge.mu.Lock() // nobody asks it at this moment: the answer would come after the pause
		defer f.judge.mu.Unlock()
		p.gate.shut()
	}, func() {
		if !p.dead.Load() {
			f.judge.woke(m)
			p.gate.open()
			f.judge.look()
		}
	})
}

// suspend stops the whole machine, timers included. It sees only that its clock has moved on; meanwhile its leases have aged. Its network
// needs a moment to come back, so that nothing but the clock can tell.
func (f *fleet) suspend(m *machine) {
	d := upTo(f.rnd, 20*time.Second)
	f.judge.logf(m.id, "suspended for %v", d)
	f.judge.count("suspended")
	f.judge.woke(m)
	f.judge.seal(m)
	m.clock.jump(d)
	f.judge.seal(m)
	f.judge.look()
	m.back.shut()
	time.AfterFunc(upTo(f.rnd, 8*time.Second), m.back.open)
	f.front.age(m.id, d)
}

// starve keeps the goroutine that owns the deadline from running. Contexts come late; Check must not.
func (f *fleet) starve(m *machine) {
	p, s := m.proc, &starvation{done: make(chan struct{}), stale: f.coin()}
	if !p.starve.CompareAndSwap(nil, s) {
		return
	}
	f.judge.woke(m)
	f.during(m, "heartbeat starved", func() {}, func() {
		f.judge.woke(m)
		p.starve.Store(nil)
		close(s.done)
	})
}

// crash ends the process on m at once; another starts there some time later, under the same ID. What was under way still arrives. The
// goroutines of the dead one are let go when its lease is long over.
func (f *fleet) crash(m *machine) {
	p := m.proc
	if p.dead.Load() {
		return
	}
	f.judge.logf(m.id, "crashes")
	f.judge.count("crashed")
	f.judge.mu.Lock()
	p.gate.shut()
	p.dead.Store(true)
	for _, rs := range f.judge.reigns {
		for _, r := range rs {
			r.working = r.working && r.p != p
		}
	}
	f.judge.mu.Unlock()
	p.kill()
	time.AfterFunc(time.Minute, p.gate.open)
	time.Sleep(upTo(f.rnd, 3*time.Second))
	f.judge.logf(m.id, "starts again")
	f.boot(m)
}

// restart lets the store have a new leader, with or without a time in which nobody is served.
func (f *fleet) restart(down bool) {
	d := time.Duration(0)
	if down {
		d = upTo(f.rnd, 8*time.Second)
		f.judge.count("store down")
	} else {
		f.judge.count("store: new leader")
	}
	f.judge.logf("store", "has a new leader after %v; leases are extended", d)
	f.judge.shake(d)
	f.front.restart(d)
}

// removeClaim removes one claim, held or waiting, as an operator would.
func (f *fleet) removeClaim(name string) {
	all := f.front.standing(name)
	if len(all) == 0 {
		return
	}
	token := all[f.rnd.IntN(len(all))].Token
	f.judge.logf("operator", "removes the claim on %s with token %d", name, token)
	f.judge.count("operator: claim removed")
	if f.front.remove(name, token) {
		f.judge.excuse(spot{name, token}, 0)
	}
}

// endLease ends the lease that holds name long before its time, and with it all its claims.
func (f *fleet) endLease(name string) {
	owner, told := f.front.endLease(name)
	if owner == "" {
		return
	}
	f.judge.logf("operator", "ends the lease of %s that holds %s", owner, name)
	f.judge.count("operator: lease ended")
	m := f.byID(owner)
	for _, s := range told {
		f.judge.excuse(s, m.clock.now()+m.proc.sess.o.timing(13*time.Second).Span())
	}
}

// ask asks whoever leads to resign.
func (f *fleet) ask(p *process, name string) {
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		_, _ = p.sess.Election(name).Ask(ctx, Request{Reason: "stress"})
	})
}

// anHeir returns one who waits, if somebody does, and most of the time one who still will.
func (f *fleet) anHeir(name string, rnd *rand.Rand) string {
	if all := f.front.standing(name); len(all) > 1 && rnd.IntN(8) > 0 {
		return all[1+rnd.IntN(len(all)-1)].Owner
	}
	return f.machines[rnd.IntN(len(f.machines))].id
}

// askTransfer asks whoever leads to hand over to the candidate of another machine.
func (f *fleet) askTransfer(p *process, name string) {
	to := f.anHeir(name, f.rnd)
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
		defer cancel()
		if _, err := p.sess.Election(name).Ask(ctx, Request{To: to, Reason: "stress"}); err == nil {
			f.judge.count("asked to hand over")
		}
	})
}

// reopen closes the session of m, with more or less patience, and starts another one at once.
func (f *fleet) reopen(m *machine) {
	p, s, d := m.proc, m.proc.sess, upTo(f.rnd, 15*time.Second)
	f.judge.logf(m.id, "closes within %v", d)
	f.judge.count("session closed")
	f.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		err := s.Close(ctx)
		if p.runs() {
			f.judge.logf(m.id, "closed: %v", err)
		}
	})
	f.boot(m)
}
