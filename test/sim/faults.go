package sim

import "github.com/primacy-go/primacy/internal/core"

// inject carries out one fault of the plan.
func (w *World) inject(f Fault) {
	if int(f.Node) >= len(w.nodes) {
		return
	}
	n := w.nodes[f.Node]
	w.count.Faults[f.Kind]++
	if w.tr != nil {
		w.sayFault(f, n)
	}
	switch f.Kind {
	case Pause, Suspend:
		w.freeze(&n.host, f.For, f.Kind == Suspend)
	case Crash:
		if n.up {
			w.crash(&n.host)
			w.after(f.For, nil, func() { w.revive(n) })
		}
	case CutBoth, CutOut, CutIn:
		for i := range w.store.servers() {
			w.sever(n, i, f)
		}
	case MemberCut:
		w.sever(n, int(f.Arg)%w.store.servers(), f)
	case NodeRate:
		n.setRate(f.Arg)
	case GiveUp:
		if w.plan.Group.On {
			w.act(n, f)
		} else if n.running() {
			if cd := n.sess.cands[int(f.Arg)%w.plan.Names]; cd.ctx != nil {
				cd.ctx.cancel()
			}
		}
	case Aimed:
		n.aim = f.For
	case Asked:
		w.ask(int(uint64(f.Arg) % uint64(w.plan.Names)))
	case Delete, Revoke:
		w.store.operator(f)
	default:
		w.store.fault(f)
	}
}

func (w *World) sever(n *node, server int, f Fault) {
	if f.Kind != CutIn {
		n.cut.out[server] = max(n.cut.out[server], w.now+f.For)
	}
	if f.Kind != CutOut {
		n.cut.in[server] = max(n.cut.in[server], w.now+f.For)
	}
}

// aimed pauses a process that has just sent a renewal. The answer comes as it wakes up; then it is
// cut off.
func (w *World) aimed(n *node) {
	d := n.aim
	if n.aim = 0; d == 0 || w.calm {
		return
	}
	inc := n.inc
	w.after(w.rng.span(0, w.plan.Net.Base), nil, func() {
		if n.inc != inc || !n.running() || w.calm {
			return
		}
		d = max(0, min(d, w.plan.Span-w.now))
		w.say(&n.host, news, "FAULT process paused for %v while a renewal is under way", span(d))
		w.freeze(&n.host, d, false)
		w.after(d+5*ms, nil, func() {
			if w.calm {
				return
			}
			w.say(&n.host, news, "FAULT cut off for %v", span(2*w.plan.TTL))
			for i := range w.store.servers() {
				w.sever(n, i, Fault{Kind: CutBoth, For: 2 * w.plan.TTL})
			}
		})
	})
}

// ask brings a wish to whoever holds the name. It may arrive before he knows that he does.
func (w *World) ask(name int) {
	ln := w.store.lines()[name]
	if len(ln.entries) == 0 || ln.entries[0].owner.inc != ln.entries[0].inc {
		return
	}
	e := ln.entries[0]
	w.after(w.delay(), &e.owner.host, func() {
		for _, l := range e.owner.sess.all {
			if c := l.claims[name]; c != nil && c.place.id == e.claim {
				c.wished = e.claim
				c.tell(e.claim, core.ClaimEvent{Kind: core.Ask, Cause: core.Resigned})
			}
		}
	})
}

// revive starts a process where there is none.
func (w *World) revive(n *node) {
	if !n.up && !w.quit {
		w.say(&n.host, news, "a new process starts")
		w.boot(n)
	}
}

// die ends a process by itself. It cannot unwind the very task that asks for it.
func (w *World) die(n *node) {
	inc := n.inc
	w.after(0, nil, func() {
		if n.inc == inc {
			w.crash(&n.host)
			w.after(w.rng.span(ms, w.plan.TTL), nil, func() { w.revive(n) })
		}
	})
}

// heal ends what still goes wrong.
func (w *World) heal() {
	w.calm = true
	w.say(nil, news, "from here on nothing goes wrong any more")
	w.store.heal()
	for _, n := range w.nodes {
		n.cut, n.aim = links{}, 0
		if n.up {
			n.sess.rest.cancel()
		}
		w.revive(n)
	}
}
