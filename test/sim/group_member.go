package sim

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/shardsim"
)

// The shell of a member: group.go, run.go, member.go and assigner.go of package shards, with
// goroutines as tasks. What it decides is that package's own: see internal/shardsim.

// groupMember is one Run of a Group.
type groupMember struct {
	s      *session
	shards int // what it was made for
	m      shardsim.Member
	rec    shardsim.Record

	ctx  *life // ends when the member is told to leave
	life *life // ends once all is given up
	give *life // ends when all shards must be given up

	seats    []*groupSeat
	setBacks []setBack
	working  int // seats whose task has not ended
	tasks    int
	idle     []waker // wait until one of them ends

	leaving, assigning, failed bool
	tell, news                 bell // for announce; for the assigner
	restated                   uint64
	waiting                    []byte // who stands behind the assigner, as last seen
	epoch                      primacy.Token
	number                     uint64
	movedAt                    map[int]int64 // when shards have moved, as plans have told

	rest, grace int64
}

// groupSeat is a shard that a member stands for or owns.
type groupSeat struct {
	life *life
	term *term
}

// setBack says that a member does not stand for a shard for a while.
type setBack struct {
	until int64
	times int
	avoid bool
}

// runGroup runs members, one after the other, until everybody goes home.
func (s *session) runGroup(t *task) {
	for !s.life.over() {
		s.n.runs++
		g := newGroupMember(s)
		s.group = g
		g.run(t)
		if g.grace > 0 && !s.life.over() {
			s.restart(t, g.rest)
			return
		}
		if g.rest > 0 && !t.w.calm {
			t.sleep(&life{parent: s.rest}, g.rest)
		}
		t.sleep(s.life, t.w.rng.span(ms, sec))
	}
}

// restart ends the process in order, and starts it again.
func (s *session) restart(t *task, down int64) {
	w, n := t.w, s.n
	s.close(t)
	inc := n.inc
	w.after(0, nil, func() {
		if n.inc == inc {
			w.crash(&n.host)
			if w.calm {
				down = sec
			}
			w.after(down, nil, func() { w.revive(n) })
		}
	})
}

func newGroupMember(s *session) *groupMember {
	shards := s.w.plan.shards()
	if s.n.odd {
		shards--
	}
	g := &groupMember{s: s, shards: shards, ctx: &life{parent: s.life}, life: &life{}, give: &life{},
		seats: make([]*groupSeat, shards), setBacks: make([]setBack, shards), movedAt: map[int]int64{}}
	g.m = g.newMember()
	g.rec = shardsim.Record{Ready: s.w.now >= s.n.sick || s.w.calm}
	return g
}

func (g *groupMember) newMember() shardsim.Member {
	return shardsim.NewMember(groupName, g.shards, g.s.n.name, g.instance())
}

func (g *groupMember) instance() string { return fmt.Sprintf("%s.%d", g.s.n.name, g.s.n.runs) }

func (g *groupMember) client() *plainClient { return g.s.cl.(*plainClient) }

// run is Group.run.
func (g *groupMember) run(t *task) {
	if !g.admitted(t) {
		return
	}
	g.tell.ring()
	for _, f := range []func(t *task){g.stand, g.observe, g.announce} {
		g.tasks++
		t.w.spawn(&g.s.n.host, func(t *task) {
			f(t)
			g.tasks--
			g.ended()
		})
	}
	t.sleep(g.ctx, forever)
	if !g.failed {
		g.leave(t)
	}
	g.leaving = true
	g.standFor()
	g.give.cancel()
	var limit *life
	if g.s.n.hung() {
		limit = limit.child(&g.s.n.host, 2*t.w.plan.TTL)
	}
	for g.working > 0 {
		if limit != nil && limit.over() { // whoever waits for the process to end kills it
			t.w.die(g.s.n)
			limit = nil
		}
		g.wait(t, limit)
	}
	g.life.cancel()
	for g.tasks > 0 {
		g.wait(t, nil)
	}
}

// hung says that handlers on this machine never return.
func (n *node) hung() bool { return n.w.plan.Group.Hung == n.id+1 }

// wait waits until a task of this member has ended.
func (g *groupMember) wait(t *task, limit *life) {
	k := t.arm()
	g.idle = append(g.idle, k)
	t.wait(limit, k, forever)
}

func (g *groupMember) ended() {
	for _, k := range g.idle {
		k.wake()
	}
	g.idle = nil
}

// admitted is Group.admitted.
func (g *groupMember) admitted(t *task) bool {
	for try := 0; t.pause(g.ctx, try); try++ {
		st, err := g.client().readLine(t, g.ctx, 0)
		if err != nil {
			continue
		}
		if st.Leader != nil && g.m.Refuses(st.Leader.Value) {
			t.w.count.Strangers++
			return false
		}
		return true
	}
	return false
}

// stand stands in the group's line, and assigns shards while it leads.
func (g *groupMember) stand(t *task) {
	cd := &candidate{s: g.s, name: 0, ctx: g.life}
	for t.pause(g.life, 1) {
		if tm := cd.campaign(t); tm != nil {
			cd.leadBy(t, tm, func(t *task) { g.assign(t, tm) })
		}
		if t.w.plan.Broken.OneAssigner {
			t.sleep(g.life, forever)
		}
	}
}

// observe follows the group's line.
func (g *groupMember) observe(t *task) {
	b := &bell{}
	last := uint64(0)
	for !g.life.over() {
		st, err := g.client().follow(t, g.life, b)
		// An old answer counts only if it is the first.
		if err == nil && (st.Revision >= last || t.w.plan.Broken.OldPlan) {
			last = max(last, st.Revision)
			g.follow(t, st)
		}
		if g.failed {
			return
		}
		b.listen(t, g.life, pollAfter(t.w, err))
	}
}

// follow is Group.follow.
func (g *groupMember) follow(t *task, st primacy.State) {
	w := t.w
	if w.plan.Broken.OldPlan {
		g.m = g.newMember() // it does not know what it has followed
	}
	if err := g.m.Follow(st); err != nil {
		w.say(&g.s.n.host, news, "leaves: %v", err)
		w.count.Strangers++
		g.failed = true
		g.ctx.cancel()
		return
	}
	epoch, number, _ := g.m.Plan()
	if epoch < g.epoch || epoch == g.epoch && number < g.number {
		w.judge.fail(RuleEpoch, "%s follows plan %d of epoch %d after plan %d of epoch %d", g.s.n.name, number, epoch,
			g.number, g.epoch)
	}
	g.epoch, g.number = epoch, number
	for _, i := range g.m.Moved() {
		g.movedAt[i] = g.s.n.mono()
	}
	g.standFor()
	var waiting []byte
	for _, e := range st.Waiting {
		waiting = fmt.Appendf(waiting, "%d %s\n", e.Token, e.Value)
	}
	if !bytes.Equal(waiting, g.waiting) {
		g.waiting = waiting
		g.news.ring()
	}
}

// standFor is Group.standLocked.
func (g *groupMember) standFor() {
	wants := make([]bool, g.shards)
	if !g.leaving {
		_, _, wants = g.m.Plan()
	}
	now := g.s.n.mono()
	for i := range g.shards {
		at := g.seats[i]
		if at != nil && at.term == nil && !wants[i] {
			at.life.cancel()
		}
		if at == nil && wants[i] && g.setBacks[i].until <= now {
			g.sit(i)
		}
	}
}

// sit is Group.sitLocked.
func (g *groupMember) sit(shard int) {
	n := g.s.n
	at := &groupSeat{life: &life{parent: g.give}}
	g.seats[shard] = at
	g.working++
	g.s.w.spawn(&n.host, func(t *task) {
		began := n.mono()
		left := g.own(t, at, shard)
		over := at.life.over()
		at.life.cancel()
		g.seats[shard] = nil
		g.working--
		g.ended()
		if !over {
			g.setBack(t, shard, left, n.mono()-began)
		}
		g.standFor()
	})
}

// own is Group.own.
func (g *groupMember) own(t *task, at *groupSeat, shard int) (left bool) {
	w := t.w
	if warm := w.plan.Group.Warm; warm > 0 {
		if !t.sleep(at.life, w.rng.span(0, warm)) {
			return false
		}
		if !w.calm && w.rng.chance(20_000) {
			return true // it cannot get ready
		}
	}
	cd := &candidate{s: g.s, name: 1 + shard, ctx: at.life}
	tm := cd.campaign(t)
	if tm == nil {
		return !at.life.over()
	}
	wk := worker{cd: cd, tm: tm}
	cd.leadBy(t, tm, func(t *task) {
		if g.leaving {
			return
		}
		at.term = tm
		w.group.judge.takes(tm)
		wk.work(t)
		left = !tm.ctx.done
	})
	return left
}

// setBack is Group.setBackLocked.
func (g *groupMember) setBack(t *task, shard int, left bool, held int64) {
	n := g.s.n
	b := g.setBacks[shard]
	if !left || held >= 60*sec {
		b.times = 0
	}
	wait := min(sec<<min(b.times, 10), 60*sec)
	g.setBacks[shard] = setBack{n.mono() + wait, b.times + 1, left}
	g.setAvoid()
	t.w.spawn(&n.host, func(t *task) {
		if t.sleep(g.give, wait+ms) {
			g.setAvoid()
			g.standFor()
		}
	})
}

func (g *groupMember) setAvoid() {
	var avoid []int
	for i, b := range g.setBacks {
		if b.avoid && b.until > g.s.n.mono() {
			avoid = append(avoid, i)
		}
	}
	if !slices.Equal(avoid, g.rec.Avoid) {
		g.rec.Avoid = avoid
		g.announceSoon()
	}
}

// announceSoon has the record announced.
func (g *groupMember) announceSoon() {
	g.tell.ring()
	g.news.ring()
}

// announce is Group.announce.
func (g *groupMember) announce(t *task) {
	for !g.life.over() {
		g.tell.listen(t, g.life, forever)
		if g.assigning || g.life.over() {
			continue
		}
		err := errUnknown
		if l := g.s.lease; l != nil && l.alive() {
			err = l.dl.(*plainHandle).restate(t, g.life.child(&g.s.n.host, 5*sec), g.m.Record(g.rec), false)
		}
		g.restated++
		g.news.ring()
		if err != nil {
			g.tell.ring()
			t.sleep(g.life, 50*ms)
		}
	}
}

// leave is Group.leave.
func (g *groupMember) leave(t *task) {
	g.leaving = true
	if g.grace > 0 {
		g.leaveForRestart(t)
		return
	}
	g.rec.Draining = true
	g.announceSoon()
	g.standFor()
	limit := g.life.child(&g.s.n.host, groupLeave)
	for g.working > 0 && !limit.over() {
		if st, err := g.client().readLine(t, limit, 0); err == nil && !g.m.Others(st) {
			return
		}
		g.wait(t, limit.child(&g.s.n.host, 500*ms))
	}
}

// leaveForRestart is Group.leaveForRestart.
func (g *groupMember) leaveForRestart(t *task) {
	w, n := t.w, g.s.n
	g.standFor()
	var owned []int
	for i, at := range g.seats {
		if at != nil && at.term != nil {
			owned = append(owned, i)
		}
	}
	rec, ok := g.m.Absence(wall(w), time.Duration(g.grace), owned)
	if !ok {
		return
	}
	inc := n.inc
	told := func() { w.group.judge.keeps(n, inc, owned) }
	write := func(t *task) { _ = g.client().append(t, g.life.child(&n.host, 5*sec), rec, told) }
	if w.plan.Broken.RecordLast {
		w.after(sec, &n.host, func() { w.spawn(&n.host, write) })
		told()
		return
	}
	write(t)
}

// wall is what everybody's wall clock shows.
func wall(w *World) time.Time { return time.Unix(1_000_000_000, w.now) }

// asked is told that the owner of a shard is asked to hand over. The owner reads the line too.
func (g *groupMember) asked(t *task, a shardsim.Ask) {
	w := t.w
	st, err := g.client().readLine(t, g.life.child(&g.s.n.host, w.plan.TTL), 1+a.Shard)
	if err != nil || st.Leader == nil || st.Leader.Token != a.Owner && !w.plan.Broken.AnyTerm {
		return
	}
	successor := uint64(0)
	for _, x := range st.Waiting {
		if x.ID == a.To {
			successor = uint64(x.Token)
			break
		}
	}
	e := core.ClaimEvent{Kind: core.Ask, Cause: core.Transferred, Successor: successor}
	if successor == 0 && w.plan.Broken.AnyTerm {
		e.Cause = core.Resigned
	} else if successor == 0 {
		return
	}
	for _, l := range g.s.all {
		c := l.claims[1+a.Shard]
		if c == nil || c.place.token != uint64(st.Leader.Token) {
			continue
		}
		if c.place.token != uint64(a.Owner) && c.core.EndsByAsk() {
			w.judge.fail(RuleAsked, "%s: %s ends token %d: token %d was asked", nameOf(c.name), g.s.n.name,
				c.place.token, a.Owner)
		}
		if w.plan.Broken.EarlyHand {
			w.spawn(&g.s.n.host, func(t *task) { _ = l.dl.(*plainHandle).transfer(t, g.life, c.place, successor) })
			continue
		}
		w.say(&g.s.n.host, detail, "is asked to hand %s over to %s", nameOf(c.name), a.To)
		c.tell(c.place.id, e)
	}
}

// groupAssigner is assigner.go: one term of the assigner.
type groupAssigner struct {
	g     *groupMember
	tm    *term
	a     shardsim.Assigner
	asked map[int]askedOwner
}

type askedOwner struct {
	owner primacy.Token
	at    int64
}

// assign is Group.assign.
func (g *groupMember) assign(t *task, tm *term) {
	a := &groupAssigner{g: g, tm: tm, asked: map[int]askedOwner{}}
	k := t.w.plan.Group.knobs()
	k.Rest = map[int]time.Duration{}
	for i, at := range g.movedAt {
		k.Rest[i] = time.Duration(at + groupCooldown)
	}
	a.a = shardsim.NewAssigner(groupName, g.shards, g.instance(), k, primacy.Token(tm.token))
	g.assigning = true
	for !tm.ctx.over() {
		gap, next := a.look(t)
		t.sleep(tm.ctx, gap)
		g.news.listen(t, tm.ctx, max(0, next-gap))
	}
	g.assigning = false
	g.announceSoon()
}

// look is assigner.look.
func (a *groupAssigner) look(t *task) (gap, next int64) {
	w, g, c := t.w, a.g, a.g.client()
	limit := a.tm.ctx.child(&g.s.n.host, w.plan.TTL)
	began := g.s.n.mono()
	seen := shardsim.Seen{Record: g.rec}
	var err error
	if seen.Lines, err = c.readShards(t, limit); err == nil {
		seen.Line, err = c.readLine(t, limit, 0)
	}
	if err != nil {
		return 25 * ms, sec
	}
	if seen.Journal, err = c.records(t, limit); err != nil {
		seen.Unread = true
		w.group.judge.unread = true
	}
	seen.Now, seen.Wall, seen.Record, seen.Restated = time.Duration(g.s.n.mono()), wall(w), g.rec, g.restated
	seen.Cost = seen.Now - time.Duration(began)
	seen.Paused = w.now < w.group.paused
	w.count.Looks++
	out := a.a.Look(seen)
	for _, r := range out.Append {
		_ = c.append(t, limit, r, nil)
	}
	again := out.Value != nil && a.tm.l.dl.(*plainHandle).restate(t, limit, out.Value, true) == nil && a.a.Said()
	for _, ask := range out.Asks {
		a.ask(t, ask)
	}
	if gap, next = int64(out.Gap), int64(out.Next); again {
		next = gap
	}
	return gap, next
}

// ask is assigner.ask.
func (a *groupAssigner) ask(t *task, ask shardsim.Ask) {
	now := a.g.s.n.mono()
	if last := a.asked[ask.Shard]; last.owner == ask.Owner && now-last.at < 2*sec {
		return
	}
	a.asked[ask.Shard] = askedOwner{ask.Owner, now}
	t.w.spawn(&a.g.s.n.host, func(t *task) {
		_ = a.g.client().request(t, a.tm.ctx.child(&a.g.s.n.host, 2*sec), ask)
	})
}
