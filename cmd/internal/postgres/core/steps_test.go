package core

import (
	"fmt"
	"math"
	"slices"
)

// act says what happens in one step: what, by whom, and with whom.
type act struct {
	what string
	by   uint8
	with uint8
	note Sync
}

func (a act) String() string {
	text := names[a.by] + " " + a.what
	if a.with > 0 {
		text += " " + names[a.with-1]
	}
	if a.note.Kind != SyncNobody {
		text += " (" + a.note.String() + ")"
	}
	return text
}

// stepper takes every step that can happen in one world.
type stepper struct {
	bounds
	emit func(act, world, string) // the last one: what is violated
	memo map[choice]Change
}

// choice is what [Voters.Next] is asked.
type choice struct {
	record        ledger
	loaded        [4]ssn
	loads         uint8
	want          ids
	acks, barrier uint8
	alone         bool
	reached       ids
}

func (s *stepper) all(w *world) {
	for i := range s.members {
		s.server(w, i)
		s.standby(w, i)
		s.primary(w, i)
		s.survey(w, i)
	}
	if w.token < s.terms+1 {
		n := *w
		n.token++
		s.emit(act{what: "wins the next term", by: most}, n, "")
	}
}

// acknowledge notes that p has acknowledged these commits, and judges it.
func acknowledge(w *world, p uint8, commits uint8) string {
	commits &^= w.acked
	w.acked |= commits
	if w.record.token > w.nodes[p].term && commits&^w.record.had != 0 {
		return fmt.Sprintf("%s acknowledges a commit that %s, chosen later, has not", names[p], names[w.record.primary])
	}
	return ""
}

// release is what a walsender does with the reply of its standby: by the SSN that it has loaded,
// and by the priorities that the others have, each from the SSN that it has loaded itself.
func release(w *world, p, by uint8) string {
	n := &w.nodes[p]
	own := n.senders[by].loaded
	if n.primary == 0 || SyncKind(own.kind) != SyncAny || !n.counts(by) {
		return ""
	}
	var commits uint8
	for at, x := range n.wal[:n.length] {
		if x>>4 != n.timeline() || x&15 == 0 {
			continue
		}
		have := uint8(0)
		for j := range n.senders {
			if !n.counts(uint8(j)) {
				continue
			}
			if n.senders[j].heard > uint8(at) {
				have++
			}
			if n.senders[j].double > uint8(at) {
				have++
			}
		}
		if have >= own.acks {
			commits |= 1 << (x & 7)
		}
	}
	return acknowledge(w, p, commits)
}

// counts says whether that standby has a priority above 0.
func (n *node) counts(j uint8) bool {
	s := &n.senders[j]
	return s.on == 1 && SyncKind(s.loaded.kind) == SyncAny && s.loaded.names&idOf(j, s.incarnation) != 0
}

// server is what PostgreSQL does on member i, whatever its agent knows.
func (s *stepper) server(w *world, i uint8) {
	n := &w.nodes[i]
	if n.primary == 1 && w.commits < s.commits {
		x := *w
		x.commits++
		x.nodes[i].append(n.timeline(), x.commits)
		bad := ""
		if n.waits == 0 {
			bad = acknowledge(&x, i, 1<<x.commits)
		}
		s.emit(act{what: "commits", by: i}, x, bad)
	}
	if waits := b2u(SyncKind(n.set.kind) != SyncAlone); n.primary == 1 && waits != n.waits {
		x := *w
		x.nodes[i].waits = waits
		bad := ""
		if waits == 0 {
			own := uint8(0)
			for _, r := range n.wal[:n.length] {
				if r>>4 == n.timeline() && r&15 != 0 {
					own |= 1 << (r & 7)
				}
			}
			bad = acknowledge(&x, i, own)
		}
		s.emit(act{what: "has its checkpointer load SSN", by: i}, x, bad)
	}
	for j := range s.members {
		s.sender(w, i, j)
	}
	if n.stage == 2 && n.primary == 0 {
		x := *w
		x.nodes[i].primary = 1
		x.nodes[i].append(n.view.timeline, 0)
		s.emit(act{what: "is promoted", by: i}, x, "")
	}
}

func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// sender is what the walsender of i for j does.
func (s *stepper) sender(w *world, i, j uint8) {
	n, e := &w.nodes[i], w.nodes[i].senders[j]
	if e.on == 0 {
		return
	}
	if e.heard < e.sent {
		x := *w
		x.nodes[i].senders[j].heard = e.sent
		s.emit(act{what: "hears the reply of", by: i, with: j + 1}, x, release(&x, i, j))
	}
	if e.loaded != n.set {
		x := *w
		x.nodes[i].senders[j].loaded = n.set
		s.emit(act{what: "has a walsender load SSN: that of", by: i, with: j + 1}, x, release(&x, i, j))
	}
	if w.nodes[j].follows != i+1 {
		x := *w
		x.nodes[i].senders[j] = sender{}
		s.emit(act{what: "ends the walsender of", by: i, with: j + 1}, x, "")
	} else if w.breaks < s.breaks {
		x := *w
		x.breaks++
		x.nodes[i].senders[j] = sender{}
		if s.broken == "slot" { // the old walsender has not noticed, and a second one serves
			e.double, e.sent = e.heard, w.nodes[j].length
			e.loaded, e.heard = n.set, 0
			x.nodes[i].senders[j] = e
		}
		s.emit(act{what: "loses the connection of", by: i, with: j + 1}, x, "")
	}
}

// standby is what the server and the agent of a member do that is no primary.
func (s *stepper) standby(w *world, i uint8) {
	n := &w.nodes[i]
	if n.sealed < w.token {
		s.seal(w, i)
	}
	if n.late == 1 {
		x := *w
		x.nodes[i].late, x.nodes[i].follows = 0, 0
		s.emit(act{what: "ends its walreceiver", by: i}, x, "")
	}
	if n.primary == 1 || n.stage > 0 {
		return
	}
	if f := n.follows; f > 0 {
		s.stream(w, i, f-1)
	}
	if n.sealed <= w.record.token && w.record.primary != i {
		s.follow(w, i)
	}
	if w.wipes < s.wipes && n.inc < 3 {
		x := *w
		y := &x.nodes[i]
		x.wipes++
		y.down()
		y.cut(0)
		y.said, y.sealed, y.strayed = answer{}, 0, 0
		if s.broken != "incarnation" {
			y.inc++
		}
		s.emit(act{what: "loses its data and its state", by: i}, x, "")
	}
	if w.byHand < s.byHand && n.length > 0 && n.inc < 3 {
		x := *w
		x.byHand++
		y := &x.nodes[i]
		y.follows = 0
		for range 2 {
			y.append(n.timeline()+1, 0)
		}
		y.strayed = 1
		s.emit(act{what: "is promoted by hand, writes, and is stopped", by: i}, x, "")
	}
}

// stream is the walreceiver of i.
func (s *stepper) stream(w *world, i, f uint8) {
	n, p := &w.nodes[i], &w.nodes[f]
	if common(n, p) < n.length || p.primary == 0 && p.stage == 0 {
		return
	}
	x := *w
	e := &x.nodes[f].senders[i]
	switch {
	case e.on == 1 && e.incarnation != n.inc: // of a former life: it must have ended
	case e.on == 0:
		*e = sender{loaded: p.set, on: 1, incarnation: n.inc, sent: n.length}
		s.emit(act{what: "connects to", by: i, with: f + 1}, x, "")
	case n.length < p.length:
		x.nodes[i].append(p.wal[n.length]>>4, p.wal[n.length]&15)
		e.sent = n.length + 1
		s.emit(act{what: "flushes a record of", by: i, with: f + 1}, x, "")
	}
}

// seal is rule 2, with all its steps: nothing can be told of those between.
func (s *stepper) seal(w *world, i uint8) {
	x := *w
	n := &x.nodes[i]
	if n.primary == 1 || n.stage > 0 {
		pending := *n
		n.down()
		if s.broken == "pending" && pending.primary == 0 { // its promotion goes on behind the answer
			n.stage, n.term, n.view, n.set = pending.stage, pending.term, pending.view, pending.set
			n.loaded, n.loads = pending.loaded, pending.loads
		}
	}
	n.sealed = w.token
	if n.follows > 0 {
		if s.broken == "receiver" {
			n.late = 1
		} else {
			n.follows = 0
		}
	}
	n.said = answer{}
	if n.length > 0 {
		n.said = answer{w.token, n.inc, n.timeline(), n.length}
	}
	s.emit(act{what: "is sealed and answers", by: i}, x, "")
}

// follow is rule 2's other half, and the way back.
func (s *stepper) follow(w *world, i uint8) {
	n, r := &w.nodes[i], &w.record
	p := &w.nodes[r.primary]
	how := RejoinFollow
	if n.length > 0 {
		how = RejoinFor(Position{Timeline(n.timeline()), LSN(n.length)}, r.real())
	}
	if n.strayed == 1 {
		how = RejoinRewind
	}
	x := *w
	y := &x.nodes[i]
	y.sealed = max(n.sealed, r.token)
	switch {
	case how == RejoinFollow && n.follows != r.primary+1:
		y.follows = r.primary + 1
		bad := ""
		if n.length > 0 && p.inc == r.incarnation && common(n, p) < n.length && s.broken == "" {
			bad = "follows " + names[r.primary] + ", which has not its WAL"
		}
		s.emit(act{what: "follows", by: i, with: r.primary + 1}, x, bad)
	case common(n, p) < n.length && p.primary == 1 && p.term == r.token && n.inc < 3:
		y.cut(common(n, p))
		y.follows, y.strayed = r.primary+1, 0
		if s.broken != "incarnation" {
			y.inc++
		}
		s.emit(act{what: "is rewound and follows", by: i, with: r.primary + 1}, x, "")
	}
}

// survey is the work of who leads the term. Nothing before it depends on who that is.
func (s *stepper) survey(w *world, holder uint8) {
	h := &w.nodes[holder]
	if w.record.token >= w.token || h.said.token != w.token || h.stage > 0 || h.primary == 1 {
		return
	}
	v := Survey{Record: w.record.real(), Token: uint64(w.token), Holder: names[holder]}
	for i := range s.members {
		n := &w.nodes[i]
		a := n.said
		if s.broken == "seal" && n.length > 0 && n.primary == 0 {
			a = answer{w.token, n.inc, n.timeline(), n.length}
		}
		if a.token == 0 {
			continue
		}
		if s.broken == "timeline" {
			a.timeline = w.record.granted
		}
		if s.broken == "void" && w.record.real().byHand(Timeline(a.timeline)) {
			a.timeline = w.record.granted
		}
		v.Answers = append(v.Answers, Answer{Token: uint64(a.token), Identity: identity(i, a.inc),
			Position: Position{Timeline(a.timeline), LSN(a.lsn)}, Priority: int(b2u(i == holder))})
	}
	if s.broken == "fewer" {
		v.Record.Needed--
	}
	best := v.Judge().Best
	if best == nil || best.Identity != identity(holder, h.inc) {
		return
	}
	v.Record = w.record.real()
	r := v.Record.Promotion(v.Token, *best)
	if s.broken == "falls" {
		r.Needed = max(1, len(r.Voters)-r.Acks+1)
	}
	x := *w
	x.record = packRecord(r, h.has())
	n := &x.nodes[holder]
	n.stage, n.term, n.view = 1, w.token, x.record
	bad := ""
	if w.acked&^h.has() != 0 {
		bad = "is to be promoted without a commit that was acknowledged"
	}
	s.emit(act{what: "writes the record: it is to be promoted", by: holder}, x, bad)
}

// primary is what the agent does beside a server that it promotes, or has promoted. It may not know
// that its term is over: then it writes no record any more.
func (s *stepper) primary(w *world, i uint8) {
	n := &w.nodes[i]
	if n.stage == 1 {
		x := *w
		y := &x.nodes[i]
		y.set, y.stage = packSync(AnyOf(n.view.voters.list(), int(n.view.acks))), 2
		if y.keep(NewVoters(y.set.real())) {
			s.emit(act{what: "sets its first SSN:", by: i, note: y.set.real()}, x, "")
		}
	}
	if n.primary == 0 {
		return
	}
	reigns := w.token == n.term && w.record.token == n.term
	s.prove(w, i)
	if reigns && s.stops && n.view.stopped == 0 {
		x := *w
		x.nodes[i].down()
		x.record.stopped = n.length
		if s.broken == "stopped" {
			x.record.stopped--
		}
		s.emit(act{what: "is shut down; the record says where its WAL ends", by: i}, x, "")
	}
	candidates := n.view.voters
	if s.adds {
		for j := range s.members {
			e := &n.senders[j]
			if e.on == 1 && LSN(e.heard) >= LSN(n.view.from) {
				candidates |= idOf(j, e.incarnation)
			}
		}
	}
	for want := candidates; want > 0; want = (want - 1) & candidates {
		for k := uint8(1); k <= min(s.acks, uint8(want.size())); k++ {
			s.change(w, i, reigns, want, k)
		}
	}
	if s.alone {
		s.change(w, i, reigns, 0, 1)
	}
}

// prove is the evidence: all walsenders, and the checkpointer, have loaded the SSN.
func (s *stepper) prove(w *world, i uint8) {
	n := &w.nodes[i]
	at := n.length
	if s.broken != "evidence" {
		for j := range n.senders {
			if n.senders[j].on == 1 && n.senders[j].loaded != n.set {
				return
			}
		}
		if s.broken != "checkpointer" && n.waits != b2u(SyncKind(n.set.kind) != SyncAlone) {
			return
		}
	}
	v := n.voters()
	v.Proven(LSN(at))
	x := *w
	if x.nodes[i].keep(v) && x != *w {
		s.emit(act{what: "sees that all have loaded its SSN", by: i}, x, "")
	}
}

// change asks for these voters and this k, and takes the next step to them.
func (s *stepper) change(w *world, i uint8, reigns bool, want ids, k uint8) {
	n := &w.nodes[i]
	c := choice{record: n.view, loaded: n.loaded, loads: n.loads, want: want, acks: k, barrier: n.barrier,
		alone: want == 0}
	c.record.had = 0
	for j := range n.senders {
		if e := &n.senders[j]; e.on == 1 && (e.heard >= n.barrier || s.broken == "barrier") {
			c.reached |= idOf(uint8(j), e.incarnation)
		}
	}
	if s.broken == "barrier" {
		c.reached |= want
	}
	d, known := s.memo[c]
	if !known {
		d = s.next(n, c)
		s.memo[c] = d
	}
	x := *w
	y := &x.nodes[i]
	switch {
	case d.Record != nil && d.Sync != nil: // only where a rule is broken
		if !reigns || w.changes >= s.changes {
			return
		}
		x.changes++
		y.set = packSync(*d.Sync)
		fallthrough
	case d.Record != nil:
		if !reigns {
			return
		}
		y.view = packRecord(*d.Record, n.view.had)
		if y.view == n.view && d.Sync == nil {
			return
		}
		x.record = y.view
		if d.Sync == nil {
			s.emit(act{what: "writes a record of other voters", by: i}, x, "")
			return
		}
	case d.Sync != nil && w.changes < s.changes:
		x.changes++
		y.set = packSync(*d.Sync)
	default:
		return
	}
	v := n.voters()
	v.Loading(*d.Sync)
	if y.keep(v) {
		s.emit(act{what: "sets SSN:", by: i, note: *d.Sync}, x, "")
	}
}

// next asks the real code.
func (s *stepper) next(n *node, c choice) Change {
	r := n.view.real()
	want := Wanted{Members: c.want.list(), Acks: int(c.acks), Alone: c.alone, Durability: r.Durability}
	if c.alone {
		want.Members = r.Voters
	}
	flushed := map[Identity]LSN{}
	for _, m := range c.reached.list() {
		flushed[m] = math.MaxInt64
	}
	v := n.voters()
	target := AnyOf(want.Members, want.Acks)
	switch {
	case s.broken == "drop" && len(want.Members) < len(r.Voters): // record and SSN at once
		fewer := r.next()
		fewer.Voters, fewer.Acks = slices.Clone(want.Members), want.Acks
		fewer.Needed = len(fewer.Voters) - fewer.Acks + 1
		return Change{Record: &fewer, Sync: &target}
	case s.broken == "add" && !v.Current().equal(target), // SSN before the record
		s.broken == "alone" && c.alone:
		if c.alone {
			target = Sync{Kind: SyncAlone}
		}
		return v.changeTo(target)
	}
	return v.Next(r, want, flushed)
}

// holds judges the rule of seals by the SSN that each walsender really has.
func holds(w *world) string {
	r := &w.record
	n := &w.nodes[r.primary]
	if n.term != r.token || n.loads == 0 || n.view != *r || int(r.seals) > r.voters.size() {
		return ""
	}
	if !n.voters().Holds(r.real()) {
		return "Voters.Holds says no"
	}
	for j := range n.senders {
		e := &n.senders[j]
		if e.on == 0 || SyncKind(e.loaded.kind) != SyncAny {
			continue
		}
		if int(r.seals+e.loaded.acks) <= (r.voters | e.loaded.names).size() {
			return fmt.Sprintf("k + q is not above the voters, for the walsender of %s: %v", names[j], e.loaded.real())
		}
	}
	if n.waits == 0 {
		return "a server that waits for nobody has others that may be promoted"
	}
	return ""
}
