package sim

import "github.com/primacy-go/primacy/internal/core"

// led says whether somebody leads every name, and every candidate stands in the line.
func (j *judge) led() bool {
	for name := range j.terms {
		if !j.ledName(name) || j.missing(name) != nil {
			return false
		}
	}
	return true
}

// missing returns a machine that has no place in the line, and should have one.
func (j *judge) missing(name int) *node {
	if j.w.plan.NoToken || j.w.plan.Group.On && name > 0 {
		return nil
	}
	for _, n := range j.w.nodes {
		stands := false
		for _, e := range j.w.store.lines()[name].entries {
			stands = stands || e.owner == n && e.inc == n.inc
		}
		if !stands {
			return n
		}
	}
	return nil
}

func (j *judge) ledName(name int) bool {
	for _, tm := range j.terms[name] {
		if tm.yes() {
			return true
		}
	}
	return false
}

func (j *judge) leaderless() {
	for name := range j.terms {
		if !j.ledName(name) {
			j.fail(RuleLiveness, "%s: for %v", nameOf(name), span(j.w.lively()))
		}
		if n := j.missing(name); n != nil {
			j.fail(RuleLiveness, "%s: %s found no place in the line for %v", nameOf(name), n.name,
				span(j.w.lively()))
		}
	}
}

// noticed is asked after a while of calm: whoever lost his claim to an operator must know.
func (j *judge) noticed() {
	for name, all := range j.terms {
		for _, tm := range all {
			if tm.excused && !tm.undone && tm.yes() && max(tm.n.rough, tm.removed)+j.hearsWithin() < j.w.now {
				j.fail(RuleDeaf, "%s: %s has not heard that its claim under token %d was removed", nameOf(name),
					tm.n.name, tm.token)
			}
		}
	}
}

// hearsWithin is how long the news of a removed claim may need once nothing is in its way: a wait
// relies on a push for six seconds at most, or for as long as the store says.
func (j *judge) hearsWithin() int64 {
	if s, ok := j.w.store.(interface{ hears() int64 }); ok {
		return s.hears()
	}
	return 8 * sec
}

// overdue ends the excuse of a term whose claim or lease an operator removed. Where messages are
// lost or late at random nobody can say when its owner must have heard, until the calm.
func (j *judge) overdue(tm *term) {
	w, n := j.w, tm.n
	if tm.undone || !w.calm && w.plan.Net.Loss+w.plan.Net.Late != 0 || !n.running() {
		return
	}
	for ; j.nextFault < len(w.plan.Faults) && w.plan.Faults[j.nextFault].At <= w.now; j.nextFault++ {
		f := w.plan.Faults[j.nextFault]
		if f.Kind >= StoreDown && f.Kind <= MemberPause {
			j.storeBad = max(j.storeBad, f.At+f.For+w.store.recovery())
		}
	}
	from := max(tm.removed, n.rough, min(j.storeBad, w.now))
	for i := range n.cut.in {
		from = max(from, min(w.now, max(n.cut.in[i], n.cut.out[i])))
	}
	if w.calm {
		from = max(from, w.plan.Span) // the cuts are forgotten
	}
	if w.now-from > j.hearsWithin() {
		j.fail(RuleDeaf, "%s: %s has not heard for %v that its claim under token %d was removed", nameOf(tm.c.name),
			n.name, span(w.now-from), tm.token)
	}
}

func (j *judge) nobody() bool {
	lazy, _ := j.w.store.(interface{ idle(e *entry) bool })
	for _, ln := range j.w.store.lines() {
		for _, e := range ln.entries {
			if lazy == nil || !lazy.idle(e) {
				return false
			}
		}
	}
	return true
}

func (j *judge) leftBehind(what string) {
	for _, ln := range j.w.store.lines() {
		for _, e := range ln.entries {
			j.fail(RuleGhost, "%s: token %d of %s: %s", nameOf(ln.name), e.token, e.owner.name, what)
		}
	}
	j.fail(RuleGhost, "%s", what)
}

// ghosts looks once a second for claims with nobody behind them under leases that are kept alive:
// they would block the line for ever. What belongs to a killed process runs out by itself.
func (j *judge) ghosts() {
	for _, ln := range j.w.store.lines() {
		for _, e := range ln.entries {
			switch {
			case e.owner.inc != e.inc || !e.owner.running() || j.owned(e):
				e.orphan = 0 // a process that does not run keeps no lease alive
			case e.orphan == 0:
				e.orphan = j.w.now
			case j.w.now-e.orphan > 3*j.w.plan.TTL:
				j.fail(RuleGhost, "%s: nobody on %s stands behind token %d any more, since %v", nameOf(ln.name),
					e.owner.name, e.token, span(e.orphan))
			}
		}
	}
}

// owned says that somebody stands behind e, or that its lease is not kept alive any more.
func (j *judge) owned(e *entry) bool {
	for _, l := range e.owner.sess.all {
		if l.dl.id() != e.sess {
			continue
		}
		if !l.alive() {
			return true
		}
		for _, c := range l.made {
			if c.place.id == e.claim && c.core.Phase() != core.Done {
				return true
			}
		}
		return false
	}
	return true // a lease whose grant was never answered has no claims
}
