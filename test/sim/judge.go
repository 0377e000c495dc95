package sim

import (
	"fmt"
)

// judge watches from outside, on the line of true time. It knows what nobody in the world knows.
type judge struct {
	w         *World
	terms     [][]*term // by name: those whose right is not over yet, as far as they know
	top       []uint64  // by name: the largest token of a term
	entered   []uint64  // by name: the largest token in the line
	headed    []map[uint64]bool
	past      []*term // all terms, for what comes late
	registers []*register
	byHand    []taken // claims that an operator removed
	anew      []int   // by name: how often its tokens have begun anew, by hand
	storeBad  int64   // until when the store has a fault of the plan
	nextFault int     // of the plan
	found     *Violation
}

type taken struct {
	name   int
	token  uint64
	claim  uint64
	at     int64
	undone bool // the store has forgotten it since
}

// Violation is a promise that was broken.
type Violation struct {
	Rule string
	At   int64 // true time
	Text string
}

func (v *Violation) Error() string { return fmt.Sprintf("at %v: %s: %s", span(v.At), v.Rule, v.Text) }

// The promises, as Violation.Rule names them.
const (
	RuleOneLeader = "two leaders at once"
	RuleToken     = "a token did not grow"
	RuleRelease   = "released before the end was told"
	RuleFirst     = "led without being first in the line"
	RuleOvertake  = "a newcomer overtook"
	RuleHerd      = "more than one waiter was woken"
	RuleGhost     = "a claim was left behind"
	RuleFence     = "a fenced write went back or was lost"
	RuleLiveness  = "nobody leads though no fault is left"
	RuleInTime    = "told too late to stop"
	RuleOutlived  = "work that stops in time outlived its right"
	RuleDeadline  = "a deadline moved back"
	RuleSpin      = "a process spins"
	RuleProof     = "a renewal counted that the store does not know of"
	RuleDeaf      = "went on though it was told that it is over"
)

func (j *judge) reset(w *World) {
	n := w.plan.Names
	*j = judge{w: w, past: j.past[:0], terms: make([][]*term, n), top: make([]uint64, n), entered: make([]uint64, n),
		anew: make([]int, n)}
	for range n {
		j.headed = append(j.headed, map[uint64]bool{})
		j.registers = append(j.registers, &register{})
	}
}

func (j *judge) fail(rule, format string, args ...any) {
	if j.found != nil {
		return
	}
	j.found = &Violation{Rule: rule, At: j.w.now, Text: fmt.Sprintf(format, args...)}
	j.w.stop = true
	j.w.say(nil, verdict, "%s: %s", rule, j.found.Text)
}

// yes says what Check would answer now. A process that does not run would say the same if it did.
func (tm *term) yes() bool {
	return !tm.ended && tm.inc == tm.n.inc && tm.n.clock() < tm.l.deadline
}

// look is asked after every event.
func (j *judge) look() {
	for name, all := range j.terms {
		var first *term
		for i := 0; i < len(all); i++ {
			tm := all[i]
			if tm.ended || tm.inc != tm.n.inc {
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
				j.terms[name] = all
				i--
				continue
			}
			now := tm.n.clock()
			if now >= tm.l.deadline {
				j.pastDeadline(tm)
				continue
			}
			if !tm.counted {
				j.counts(tm)
			}
			if tm.excused {
				j.overdue(tm)
				continue
			}
			if first != nil && j.w.plan.Overlaps {
				j.overlap(first, tm)
				continue
			}
			if first != nil {
				j.fail(RuleOneLeader, "%s: %s under token %d and %s under token %d would both be told yes",
					nameOf(name), first.n.name, first.token, tm.n.name, tm.token)
				return
			}
			first = tm
		}
	}
}

// overlap counts two leaders at once where they are to be expected, once for each term that begins
// beside another.
func (j *judge) overlap(a, b *term) {
	if b.token < a.token {
		a, b = b, a
	}
	if !b.beside {
		b.beside = true
		j.w.count.Overlaps++
		j.w.say(nil, news, "TWO LEADERS of %s: %s under token %d and %s under token %d", nameOf(a.c.name), a.n.name,
			a.token, b.n.name, b.token)
	}
}

// smooth says that the node has run without disturbance since its clock read from.
func (n *node) smooth(from int64) bool {
	return n.running() && n.clock()-from < (n.w.now-n.rough)*(1_000_000+n.ppm)/1_000_000
}

// pastDeadline is asked while a term's deadline has passed and it has not noticed itself.
func (j *judge) pastDeadline(tm *term) {
	l := tm.l
	if l.deadline == 0 || !tm.n.smooth(l.deadline-l.grace()-5*sec/4) {
		return
	}
	late := tm.n.clock() - l.deadline
	if !tm.ctx.done {
		j.fail(RuleInTime, "%s: the context of token %d has not ended at its deadline, though %s ran all the time",
			nameOf(tm.c.name), tm.token, tm.n.name)
	} else if tm.c.working && !tm.late && late > ms {
		j.fail(RuleOutlived, "%s: work under token %d still runs at the deadline on %s", nameOf(tm.c.name), tm.token,
			tm.n.name)
	}
}

// begins is asked when a term is won. It may be over by then: the process was stopped while the
// answer was under way.
func (j *judge) begins(tm *term) {
	name := tm.c.name
	if !j.headed[name][tm.token] && !j.w.plan.NoToken {
		j.fail(RuleFirst, "%s: %s leads under token %d, which was never first in the line", nameOf(name), tm.n.name,
			tm.token)
	}
	for _, x := range j.byHand {
		if x.name == name && x.token == tm.token && x.claim == tm.c.place.id {
			tm.excused, tm.removed, tm.undone = true, x.at, x.undone // removed by hand while the answer was under way
		}
	}
	if tm.yes() {
		j.counts(tm)
	}
	j.terms[name] = append(j.terms[name], tm)
	j.past = append(j.past, tm)
}

// counts is asked when Check says yes under a term for the first time.
func (j *judge) counts(tm *term) {
	name := tm.c.name
	tm.counted = true
	j.w.count.Terms++
	if tm.token <= j.top[name] && !tm.excused && !j.w.plan.NoToken && j.anew[name] == 0 {
		j.fail(RuleToken, "%s: %s begins a term under token %d after one under %d", nameOf(name), tm.n.name, tm.token,
			j.top[name])
	}
	if j.top[name] != 0 {
		j.w.count.HandOvers++
	}
	j.top[name] = max(j.top[name], tm.token)
}

func (j *judge) stops(tm *term) {
	l := tm.l
	if tm.ctx.done || l.deadline == 0 || !tm.n.smooth(l.deadline-l.grace()-5*sec/4) || tm.began+sec > j.w.now {
		return
	}
	if tm.n.clock() >= l.deadline {
		j.fail(RuleInTime, "%s: the context of token %d ended after its deadline, though %s ran all the time",
			nameOf(tm.c.name), tm.token, tm.n.name)
	}
}

// releases is asked when a process begins to release a claim, leaves and closes when the store
// carries it out.
func (j *judge) releases(c *claim) { j.orderly(c.term, "asks to release") }

func (j *judge) orderly(tm *term, what string) {
	if tm == nil || tm.inc != tm.n.inc {
		return
	}
	switch {
	case !tm.ended:
		j.fail(RuleRelease, "%s: %s %s token %d while its Check still says yes", nameOf(tm.c.name), tm.n.name, what,
			tm.token)
	case !tm.ctx.done:
		j.fail(RuleRelease, "%s: %s %s token %d and never told the work to stop", nameOf(tm.c.name), tm.n.name, what,
			tm.token)
	case tm.c.working:
		j.fail(RuleRelease, "%s: %s %s token %d while its work still runs", nameOf(tm.c.name), tm.n.name, what,
			tm.token)
	}
}

// enters and heads are told by the store.
func (j *judge) enters(ln *line, e *entry) {
	if e.token <= j.entered[ln.name] {
		j.fail(RuleOvertake, "%s: a claim of %s enters with token %d behind one with %d", nameOf(ln.name),
			e.owner.name, e.token, j.entered[ln.name])
	}
	j.entered[ln.name] = max(j.entered[ln.name], e.token)
	if j.w.tr != nil {
		j.w.say(nil, detail, "store: %s enters the line of %s with token %d, place %d", e.owner.name, nameOf(ln.name),
			e.token, len(ln.entries)+1)
	}
}

// forgets is told that a store has lost what it knew last: of the tokens that went with it those
// count under which somebody has led.
func (j *judge) forgets(ln *line) {
	j.entered[ln.name] = j.top[ln.name]
	for _, e := range ln.entries {
		j.entered[ln.name] = max(j.entered[ln.name], e.token)
		for i := range j.byHand {
			if x := &j.byHand[i]; x.name == ln.name && x.token == e.token {
				x.undone = true
			}
		}
		for _, tm := range j.past {
			if tm.c.name == ln.name && tm.token == e.token && tm.excused {
				tm.undone = true
			}
		}
	}
}

// tokensBeginAnew is told that somebody removed a line or put it back: then nothing is promised of
// its tokens any more.
func (j *judge) tokensBeginAnew(name int) {
	j.anew[name]++
	j.entered[name] = 0
}

// woke is told how many waiters the store woke for one claim that went.
func (j *judge) woke(name, n int) {
	if n > 1 {
		j.fail(RuleHerd, "%s: %d waiters", nameOf(name), n)
	}
}

func (j *judge) heads(e *entry) {
	for _, x := range e.line.entries {
		if x.token < e.token {
			j.fail(RuleOvertake, "%s: token %d holds while the older %d stands", nameOf(e.line.name), e.token, x.token)
		}
	}
	j.headed[e.line.name][e.token] = true
}

func (j *judge) leaves(e *entry, why cause) {
	if why != released && why != displaced {
		return
	}
	for _, tm := range j.past {
		if tm.c.name == e.line.name && tm.token == e.token && (e.claim == 0 || e.claim == tm.c.place.id) {
			j.orderly(tm, "releases")
		}
	}
}

// closes is told when a process ends its own lease.
func (j *judge) closes(n *node, inc uint32, sess uint64) {
	for _, tm := range j.past {
		if tm.l.dl.id() == sess && tm.n == n && tm.inc == inc {
			j.orderly(tm, "closes the lease of")
		}
	}
}

// excuse notes that an operator took a session's claim, or with name < 0 its lease: what is
// promised begins when its owner hears of it.
func (j *judge) excuse(sess uint64, name int) {
	j.w.count.Operator++
	for i, ln := range j.w.store.lines() {
		if e := ln.of(sess); e != nil && (name < 0 || name == i) {
			j.byHand = append(j.byHand, taken{name: i, token: e.token, claim: e.claim, at: j.w.now})
		}
	}
	for _, tm := range j.past {
		if tm.l.dl.id() == sess && !tm.excused && (name < 0 || tm.c.name == name) {
			tm.excused, tm.removed = true, j.w.now
		}
	}
}

// moves is told a lease's next deadline; 0 is the end.
func (j *judge) moves(l *lease, to int64) {
	if to != 0 && to < l.deadline {
		j.fail(RuleDeadline, "%s: lease %x was trusted until %v, and now until %v", l.s.n.name, l.dl.id(),
			span(l.deadline), span(to))
	}
}

// lostTold is asked after a claim that led was told that it stands no more.
func (j *judge) lostTold(tm *term) {
	if tm != nil && tm.yes() {
		j.fail(RuleDeaf, "%s: %s was told that its claim under token %d is no more, and Check still says yes",
			nameOf(tm.c.name), tm.n.name, tm.token)
	}
}

// asked is told of each term as its work is about to begin: a wish that overtook the news of
// winning must not be forgotten.
func (j *judge) asked(tm *term) {
	if tm.c.wished == tm.c.place.id && !tm.ctx.done {
		j.fail(RuleDeaf, "%s: %s was asked to resign its claim under token %d, and leads as if it had not been",
			nameOf(tm.c.name), tm.n.name, tm.token)
	}
}

// goneTold is asked after a lease that the store calls gone has taken that in.
func (j *judge) goneTold(l *lease) {
	for _, all := range j.terms {
		for _, tm := range all {
			if tm.l == l && tm.yes() && len(l.events) == 0 {
				j.fail(RuleDeaf, "%s: the store told %s that lease %x is gone, and Check under token %d still says yes", nameOf(tm.c.name), tm.n.name, l.dl.id(), tm.token)
			}
		}
	}
}
