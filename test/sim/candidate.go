package sim

import "github.com/primacy-go/primacy/internal/core"

// candidate is candidate.go of the root package, with a person around it who starts it again.
type candidate struct {
	s     *session
	name  int
	core  core.Candidate
	ctx   *life // the owner's; it ends when he gives up
	term  *term
	rests bool
}

// stand runs candidates for ever, until everybody goes home.
func (cd *candidate) stand(t *task) {
	w := t.w
	for !cd.s.life.over() {
		cd.ctx = &life{parent: cd.s.life}
		cd.core = core.Candidate{}
		cd.run(t)
		if !w.calm && w.rng.chance(w.plan.Rest) {
			cd.rests = true
			t.sleep(&life{parent: cd.s.rest}, w.rng.span(0, 6*w.plan.TTL))
			cd.rests = false
		}
		t.sleep(cd.s.life, w.rng.span(ms, sec))
	}
}

func (cd *candidate) step(e core.CandidateEvent) core.CandidateOrder {
	return cd.core.Step(core.Time(cd.s.n.clock()), e)
}

func (cd *candidate) run(t *task) {
	o := cd.step(core.Begin)
	for {
		if !t.pause(cd.ctx, o.Tries) {
			cd.step(core.NotWon)
			return
		}
		tm := cd.campaign(t)
		if tm == nil {
			cd.step(core.NotWon)
			return
		}
		cd.step(core.Won)
		if !cd.lead(t, tm) {
			cd.step(core.Finished)
			return
		}
		cd.step(core.TermLost)
		o = cd.step(core.Begin)
	}
}

// campaign is Election.Campaign.
func (cd *candidate) campaign(t *task) *term {
	turn := &cd.s.turns[cd.name]
	if !turn.lock(t, cd.ctx) {
		return nil
	}
	left := false
	leave := func() {
		if !left {
			left = true
			turn.unlock()
		}
	}
	for {
		l, err := cd.s.live(t, cd.ctx)
		if err != nil {
			leave()
			return nil
		}
		c := newClaim(l, cd.name, leave)
		if !l.join(c) {
			t.pause(cd.ctx, 1)
			continue
		}
		tm, again := c.campaign(t, cd.ctx)
		if !again {
			return tm
		}
		t.pause(cd.ctx, 1)
	}
}

// lead runs the work and gives the claim up. It reports whether the term was lost.
func (cd *candidate) lead(t *task, tm *term) (lost bool) {
	w := worker{cd: cd, tm: tm}
	return cd.leadBy(t, tm, w.work)
}

func (cd *candidate) leadBy(t *task, tm *term, work func(t *task)) (lost bool) {
	cd.term = tm
	t.w.judge.asked(tm)
	gaveUp := func() {
		tm.c.tell(0, core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned})
	}
	if cd.ctx.over() {
		gaveUp()
	} else {
		for p := cd.ctx; p != nil; p = p.parent {
			p.hooks = append(p.hooks, gaveUp)
		}
	}
	if tm.check() && !tm.ended {
		tm.c.working = true
		work(t)
		tm.c.working = false
		if tm.c.freed {
			tm.c.settle()
		}
	} else {
		lost = true
	}
	lost = lost || tm.ctx.done
	if cd.ctx.over() {
		lost = false
	}
	cd.term = nil
	tm.resign(t)
	return lost
}

// worker is what a user does while leading: it asks before each act, and its writes go to two
// registers, one with a fence.
type worker struct {
	cd   *candidate
	tm   *term
	base int64 // what the fenced register held as last known
	n    int64 // writes so far
	sure bool  // base is known
}

// work returns some time after the term's context has ended, or by itself.
func (wk *worker) work(t *task) {
	w, tm := t.w, wk.tm
	leaves := forever
	if w.rng.chance(w.plan.Quits) && !w.calm {
		leaves = tm.n.mono() + w.rng.span(0, 2*w.plan.TTL)
	}
	stop := w.rng.span(0, tm.l.grace()*7/10)
	if w.rng.chance(w.plan.Lazy) && !w.calm {
		tm.late = true
		stop = w.rng.span(0, 2*w.plan.TTL)
	}
	if tm.n.hung() {
		tm.late, stop = true, forever
	}
	until := int64(0)
	for {
		if w.quit && tm.n.hung() {
			stop = min(stop, sec)
			until = min(until, tm.n.mono()+stop)
		}
		if tm.ctx.done && until == 0 {
			until = tm.n.mono() + stop
		}
		now := tm.n.mono()
		if until != 0 && now >= until || now >= leaves {
			return
		}
		nap := w.rng.span(w.plan.Think/2, w.plan.Think*3/2)
		if until != 0 {
			nap = min(nap, until-now)
		}
		if until == 0 {
			t.sleep(tm.ctx, nap) // it wakes up when it is told to stop
		} else {
			t.sleep(nil, nap)
		}
		if tm.check() {
			wk.act(t)
		} else {
			w.count.SaidNo++
		}
	}
}

// act writes once. Between the check and the write the goroutine may be stopped, and the write may
// be long under way.
func (wk *worker) act(t *task) {
	w, tm := t.w, wk.tm
	w.count.Acts++
	if w.acted != nil {
		w.acted(tm)
	}
	r := w.judge.registers[tm.c.name]
	wr := write{token: tm.token, tm: tm}
	if wk.sure {
		wk.n++
		wr.n, wr.base = wk.n, wk.base
	} else {
		wr.raise, wr.n = true, wk.n
	}
	var got answer
	f := &flight{}
	w.after(w.flying(), nil, func() {
		a := r.apply(w, wr)
		inc := tm.n.inc
		w.after(w.delay(), &tm.n.host, func() {
			if !f.done && inc == tm.n.inc {
				f.done, got = true, a
				f.k.wake()
			}
		})
	})
	f.k = t.arm()
	if tm.ctx.done {
		t.wait(nil, f.k, w.plan.TTL/100)
	} else {
		t.wait(tm.ctx, f.k, w.plan.TTL/10)
	}
	if !f.done {
		f.done, wk.sure = true, false // it may have been written or not, or will be
		return
	}
	wk.sure = !got.refused
	wk.base = got.value
}

// flying is how long a write is under way.
func (w *World) flying() int64 {
	if !w.calm && w.rng.chance(w.plan.Net.Flying) {
		w.count.Flying++
		return w.rng.span(ms, 2*w.plan.TTL)
	}
	return w.delay()
}
