package shards

import (
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy"
)

// Times of the assigner.
const (
	watchEvery = 100 * time.Millisecond // how often it reads the shards while something is under way
	idleEvery  = 3 * time.Second        // and while nothing is
	gatherMost = 2 * time.Second        // how long a fleet that starts waits for more members, at most

	// A member that got a shard by a move and did not stand for it in time, or gave it up, gets
	// nothing for such a time, and twice as long each time that happens again: one broken member
	// must not interrupt all shards of the group, one after the other. It has proved itself once a
	// shard has stayed for trial.
	brokenFirst = 10 * time.Second
	brokenMost  = 10 * time.Minute
	trial       = time.Minute

	// A shard stays in the plan for so long after its new owner has it. The owner may hear of its
	// own term after it hears of the next plan, and would give up what the plan does not name.
	lingers     = 5 * time.Second
	lingersMost = 1000 // shards: they must leave room in the plan for those that nobody owns
	lateMost    = 6    // how often the time to get ready for a shard is doubled

	// A member that is not ready gives its shards up once nobody else became unready for such a
	// time, or after five of them: where a check fails for all they do not become unready at once,
	// and shards would move between members that will all be unready.
	sickFor = 2 * healthEvery

	// Where as many moves are under way as there can be, one whose owner was to be asked so long
	// ago makes room, and for deafFor its shard is moved only if its owner leaves: handlers that do
	// not return must not end all moves of the group.
	stuckAfter = 2 * time.Minute
	deafFor    = 10 * time.Minute
)

// decider decides which shard goes where, for one term of the assigner. It is pure: views and the
// reading of a clock go in, and announcements come out. It forgets nothing that the next assigner
// would need: who owns what is in the lines, and what was under way is planned anew.
type decider struct {
	n     int
	o     Options
	epoch primacy.Token

	begun     bool // a shard was seen to have an owner, or the time to gather is over
	members   []memberSign
	changed   time.Duration // when the members have changed last
	unsettled time.Duration // since when they have changed again and again
	settled   bool

	takes   map[int]taking
	moves   map[int]*moving
	rest    map[int]time.Duration      // shards that have moved: until when they are not moved for balance
	shunned map[shunning]time.Duration // members that did not stand for a shard in time: until when
	late    map[int]int                // how often in a row members were not ready in time for a shard nobody owns
	broken  map[primacy.Token]broken   // members for which moves went wrong
	trials  map[int]arrival            // shards that have moved: whether they stay is still open
	arrived map[int]arrival            // shards that have a new owner: see lingers
	avoided map[shunning]bool          // what members avoided at the last look
	shape   []primacy.Token            // what the lines have shown, and when that has changed last
	stirred time.Duration
	seen    map[string]time.Duration        // absences, by their keys
	sick    map[primacy.Token]time.Duration // members that are not ready: since when
	deaf    map[int]deafness                // shards whose owners do not hand over
}

// memberSign is what of a member makes a new plan for balance due.
type memberSign struct {
	token         primacy.Token
	weight        int
	ready, drains bool
}

// taking is a shard that nobody owns and that a member was told to take.
type taking struct {
	to    primacy.Token
	since time.Duration
}

// moving is a move under way.
type moving struct {
	move
	since, askedAt time.Duration // asked is noted before the request, which a pause of the shard may stop
	sent           bool          // the request went out: this is what is announced
}

type shunning struct {
	shard  int
	member primacy.Token
}

// broken is a member that gets nothing for a while.
type broken struct {
	until time.Duration
	times int
}

// arrival is a shard that has come to a member.
type arrival struct {
	to    primacy.Token // of the member's claim in the group's line
	token primacy.Token // of its term of the shard
	at    time.Duration
}

// decision is what the assigner does next.
type decision struct {
	plan    announcement
	asks    []move        // owners that have to be asked to hand over: repeated until the shard has moved
	changes []change      // for the log
	blocked bool          // moves are due that need to know whether moves are paused
	wake    time.Duration // when to look again, if nothing is heard before
}

// change is something that the assigner tells in the log.
type change struct {
	move
	what     string // begun, done, withdrawn
	why      string // of a move that was withdrawn
	from, id string // the IDs of owner and new member, where they are known
}

func newDecider(n int, o Options, epoch primacy.Token) *decider {
	return &decider{n: n, o: o, epoch: epoch, takes: map[int]taking{}, moves: map[int]*moving{},
		rest: map[int]time.Duration{}, shunned: map[shunning]time.Duration{}, seen: map[string]time.Duration{},
		late: map[int]int{}, broken: map[primacy.Token]broken{}, trials: map[int]arrival{}, arrived: map[int]arrival{},
		avoided: map[shunning]bool{}, sick: map[primacy.Token]time.Duration{}, deaf: map[int]deafness{}}
}

// present returns those absences whose time has not passed by this process's clock either: the wall
// clock of the member that left may be wrong.
func (d *decider) present(now time.Duration, gone []absence) []absence {
	return slices.DeleteFunc(gone, func(a absence) bool {
		first, known := d.seen[a.key()]
		if !known {
			first = now
			d.seen[a.key()] = now
		}
		return now-first > a.Grace
	})
}

// step takes what the store shows now. Paused says whether moves for balance and health are paused;
// if that is not known they are not begun, and the decision is blocked.
func (d *decider) step(now time.Duration, v view, paused, known bool) decision {
	var out decision
	d.forget(now, v)
	d.settle(now, v)
	d.judge(now, v)
	d.endMoves(now, v, paused, known, &out)
	d.endTakes(now, v)
	in := d.intended(now, v)
	target := in.target()
	if d.mayTake(now, v) {
		for i, s := range v.shards {
			at := target[i]
			if _, told := d.takes[i]; s.token == 0 && !told && at >= 0 && !v.members[at].away {
				d.takes[i] = taking{v.members[at].token, now}
				d.stirred = now
			}
		}
	}
	d.beginMoves(now, v, target, paused, known, &out)
	d.announce(now, v, &out)
	out.wake = d.nextWake(now, v)
	return out
}

// forget drops what has run out.
func (d *decider) forget(now time.Duration, v view) {
	maps.DeleteFunc(d.rest, func(_ int, until time.Duration) bool { return now >= until })
	maps.DeleteFunc(d.shunned, func(_ shunning, until time.Duration) bool { return now >= until })
	maps.DeleteFunc(d.deaf, func(i int, is deafness) bool { return now >= is.until || v.shards[i].token != is.owner })
}

// sent notes that the owner of a shard was asked.
func (d *decider) sent(m move) {
	if k := d.moves[m.shard]; k != nil && k.owner == m.owner && k.to == m.to {
		k.sent = true
	}
}

// judge notes which members give up what they got.
func (d *decider) judge(now time.Duration, v view) {
	avoided := map[shunning]bool{}
	for _, m := range v.members {
		for _, i := range m.avoid {
			if i < 0 || i >= d.n {
				continue
			}
			k := shunning{i, m.token}
			avoided[k] = true
			if d.avoided[k] {
				continue
			}
			d.rest[i] = now + d.o.Cooldown // it has just been without an owner
			if t, on := d.trials[i]; on && t.to == m.token {
				d.breaks(now, m.token)
				delete(d.trials, i)
			}
		}
	}
	d.avoided = avoided
	maps.DeleteFunc(d.trials, func(i int, t arrival) bool {
		if now-t.at < trial {
			return false
		}
		if t.token != 0 && v.shards[i].token == t.token {
			delete(d.broken, t.to)
		}
		return true
	})
}

// breaks has a member get nothing for a while.
func (d *decider) breaks(now time.Duration, member primacy.Token) {
	b := d.broken[member]
	if now < b.until {
		return // of the same cause: several moves were under way
	}
	d.broken[member] = broken{until: now + min(brokenFirst<<min(b.times, 10), brokenMost), times: b.times + 1}
}

// settle notes when the members have changed.
func (d *decider) settle(now time.Duration, v view) {
	var signs []memberSign
	for _, m := range v.members {
		signs = append(signs, memberSign{m.token, m.weight, m.ready, m.draining})
	}
	if d.members == nil || !slices.Equal(signs, d.members) {
		if d.members == nil || d.settled {
			d.unsettled = now
		}
		d.members, d.changed, d.settled = signs, now, false
	}
	d.settled = d.settled || now-d.changed >= d.o.Settle || now-d.unsettled >= d.o.SettleMax
	sick := map[primacy.Token]time.Duration{}
	for _, m := range v.members {
		if since, known := d.sick[m.token]; !m.ready && known {
			sick[m.token] = since
		} else if !m.ready && !m.away {
			sick[m.token] = now
		}
	}
	d.sick = sick
}

// gives says whether a member that is not ready gives its shards up now.
func (d *decider) gives(now time.Duration, sick primacy.Token) bool {
	last := d.sick[sick]
	for _, since := range d.sick {
		last = max(last, since)
	}
	return now-last >= sickFor || now-d.sick[sick] >= 5*sickFor
}

// mayTake says whether shards without an owner may be given out. They always may, but for a fleet
// that starts: while no shard has an owner the first member would get all of them, and would have
// to give most of them away again. There it waits until nobody came for Settle, at most gatherMost.
func (d *decider) mayTake(now time.Duration, v view) bool {
	d.begun = d.begun || slices.ContainsFunc(v.shards, func(s shardView) bool { return s.token != 0 }) ||
		now-d.changed >= d.o.Settle || now-d.unsettled >= gatherMost
	return d.begun
}

// endMoves follows the moves under way: done, or withdrawn, or the owner is asked. One that could
// wait is withdrawn if a pause has come before the owner was asked.
func (d *decider) endMoves(now time.Duration, v view, paused, known bool, out *decision) {
	for _, i := range slices.Sorted(maps.Keys(d.moves)) {
		m, s := d.moves[i], v.shards[i]
		at := v.at(m.to)
		tell := func(what, why string) {
			c := change{move: m.move, what: what, why: why, from: s.id}
			if at >= 0 {
				c.id = v.members[at].id
			}
			out.changes = append(out.changes, c)
			delete(d.moves, i)
		}
		m.drain(now, v, s)
		switch {
		case s.token != m.owner && at >= 0 && s.token != 0 && s.lease == v.members[at].lease:
			d.rest[i] = now + d.o.Cooldown
			d.arrived[i] = arrival{m.to, s.token, now}
			d.trials[i] = arrival{m.to, s.token, now}
			tell("done", "")
		case s.token != m.owner:
			if at >= 0 && slices.Contains(v.members[at].avoid, i) { // it had the shard for less than a look
				d.breaks(now, m.to)
			} else if m.asked {
				d.trials[i] = arrival{to: m.to, at: now}
			}
			tell("withdrawn", "its owner gave it up")
		case at < 0 || v.members[at].draining || v.members[at].away:
			tell("withdrawn", "the new member leaves")
		case slices.Contains(v.members[at].avoid, i):
			d.breaks(now, m.to)
			tell("withdrawn", "the new member avoids it")
		case s.stands(v.members[at].lease):
			if m.mayAsk(now, paused, known, out) {
				out.asks = append(out.asks, m.move)
			} else if known {
				tell("withdrawn", "moves are paused")
			}
		case !m.asked && now-m.since >= d.readyTime(v, m.move):
			d.rest[i] = now + d.o.Cooldown
			d.shunned[shunning{i, m.to}] = now + d.o.Cooldown
			d.breaks(now, m.to)
			tell("withdrawn", "the new member was not ready in time")
		}
	}
}

// drain makes a move of another reason a drain once its owner leaves: that one waits for
// LeaveTimeout only, and not for the end of a pause.
func (m *moving) drain(now time.Duration, v view, s shardView) {
	if m.reason != Drain && s.token == m.owner && v.drains(s.lease) {
		m.reason, m.since = Drain, now
	}
}

// mayAsk says whether the owner may be asked. Once it was it may be asked again, for it may be
// stopping its work already.
func (m *moving) mayAsk(now time.Duration, paused, known bool, out *decision) bool {
	if !m.asked && m.reason != Drain && (paused || !known) {
		out.blocked = out.blocked || !known
		return false
	}
	if !m.asked {
		m.asked, m.askedAt = true, now
	}
	return true
}

// readyTime is how long the new member of a move may take. Whoever leaves waits for LeaveTimeout:
// within that a second member must have its chance, if there is one.
func (d *decider) readyTime(v view, m move) time.Duration {
	if m.reason != Drain || !d.another(v, m.shard, m.to) {
		return d.o.ReadyTimeout
	}
	leave := d.o.LeaveTimeout
	if leave < 0 {
		leave = DefaultLeaveTimeout
	}
	return min(leave/3, d.o.ReadyTimeout)
}

// another says whether a member is there that can take the shard, besides that one.
func (d *decider) another(v view, shard int, besides primacy.Token) bool {
	return slices.ContainsFunc(v.members, func(m memberView) bool {
		_, shunned := d.shunned[shunning{shard, m.token}]
		return m.token != besides && m.ready && !m.draining && !m.away && !shunned &&
			!slices.Contains(m.avoid, shard)
	})
}

// endTakes ends takes that were carried out, or that will not be. A member that is not ready in
// time for a shard that nobody owns is replaced only by another: to end its Warm for nobody would
// lose what it has done. The time doubles with each, for a Warm longer than ReadyTimeout.
func (d *decider) endTakes(now time.Duration, v view) {
	for i, k := range d.takes {
		at := v.at(k.to)
		late := now-k.since >= d.o.ReadyTimeout<<min(d.late[i], lateMost) && d.another(v, i, k.to)
		if late && at >= 0 && v.shards[i].token == 0 {
			d.shunned[shunning{i, k.to}] = now + d.o.Cooldown
			d.late[i]++
		}
		if s := v.shards[i]; s.token != 0 {
			delete(d.late, i)
			if at >= 0 && s.lease == v.members[at].lease {
				d.arrived[i] = arrival{k.to, s.token, now}
			}
		}
		if late || v.shards[i].token != 0 || at < 0 || v.members[at].draining || v.members[at].away ||
			slices.Contains(v.members[at].avoid, i) {
			delete(d.takes, i)
		}
	}
}

// intended is the planner's input: who will hold what once all that is under way is done. So a
// later plan does not choose anew what an earlier one has begun.
func (d *decider) intended(now time.Duration, v view) plan {
	p := v.plan()
	p.rest = make([]bool, d.n)
	for i := range p.held {
		if m := d.moves[i]; m != nil {
			p.held[i] = v.at(m.to)
		} else if k, told := d.takes[i]; told {
			p.held[i] = v.at(k.to)
		} else if _, late := d.shunned[shunning{i, v.shards[i].keptFor}]; late && v.shards[i].token == 0 {
			p.held[i] = nobody // it is kept for a member that is back and does not take it
		}
		_, rests := d.rest[i]
		_, deaf := d.deaf[i]
		p.rest[i] = rests || deaf
	}
	for s := range d.shunned {
		if at := v.at(s.member); at >= 0 {
			p.members[at].avoid = append(slices.Clone(p.members[at].avoid), s.shard)
		}
	}
	takes := func(m planMember) bool { return m.ready && !m.drains && !m.away }
	isBroken := func(i int) bool { return takes(p.members[i]) && now < d.broken[v.members[i].token].until }
	var some []int
	well := 0
	for i, m := range p.members {
		if isBroken(i) {
			some = append(some, i)
		} else if takes(m) {
			well++
		}
	}
	for _, i := range some {
		p.members[i].away = well > 0 // it keeps what it has, and gets nothing while others can
	}
	return p
}

// beginMoves begins moves, as many as may be under way.
func (d *decider) beginMoves(now time.Duration, v view, target []int, paused, known bool, out *decision) {
	due := d.due(now, v, target)
	if len(due[Health])+len(due[Balance]) > 0 && (paused || !known) {
		out.blocked = !known
		delete(due, Health)
		delete(due, Balance)
	}
	room := d.room(now)
	for _, why := range []Reason{Drain, Health, Balance} {
		for _, i := range due[why] {
			// Whoever leaves does not wait for long: its shards wait for no other move.
			if why != Drain {
				if room--; room < 0 {
					return
				}
			}
			if len(d.moves) >= movesMost && !d.withdrawStuck(now, v, out) {
				return
			}
			to := v.members[target[i]]
			m := move{shard: i, owner: v.shards[i].token, to: to.token, reason: why}
			d.moves[i] = &moving{move: m, since: now}
			d.stirred = now
			out.changes = append(out.changes, change{move: m, what: "begun", from: v.shards[i].id, id: to.id})
		}
	}
}

// deafness is of a shard's owner that does not hand over.
type deafness struct {
	owner primacy.Token
	until time.Duration
}

// withdrawStuck withdraws the move whose owner has not handed over for longest, if that is long.
func (d *decider) withdrawStuck(now time.Duration, v view, out *decision) bool {
	var stuck *moving
	for _, i := range slices.Sorted(maps.Keys(d.moves)) {
		m := d.moves[i]
		if m.asked && m.reason != Drain && now-m.askedAt >= stuckAfter && (stuck == nil || m.askedAt < stuck.askedAt) {
			stuck = m
		}
	}
	if stuck == nil {
		return false
	}
	out.changes = append(out.changes, change{move: stuck.move, what: "withdrawn", why: "its owner does not hand over",
		from: v.shards[stuck.shard].id})
	d.deaf[stuck.shard] = deafness{stuck.owner, now + deafFor}
	delete(d.moves, stuck.shard)
	return true
}

// due returns the shards that should go to others, by reason.
func (d *decider) due(now time.Duration, v view, target []int) map[Reason][]int {
	held := v.plan().held
	due := map[Reason][]int{}
	for i, at := range held {
		_, moves := d.moves[i]
		_, deaf := d.deaf[i]
		if moves || v.shards[i].token == 0 || at < 0 || target[i] < 0 || target[i] == at ||
			v.members[target[i]].away || v.shards[i].lease != v.members[at].lease { // a dead process hands nothing over
			continue
		}
		switch owner := v.members[at]; {
		case owner.draining:
			due[Drain] = append(due[Drain], i)
		case deaf:
		case !owner.ready:
			if d.gives(now, owner.token) {
				due[Health] = append(due[Health], i)
			}
		default:
			if _, rests := d.rest[i]; d.settled && !rests {
				due[Balance] = append(due[Balance], i)
			}
		}
	}
	anyReady := slices.ContainsFunc(v.members, func(m memberView) bool { return m.ready && !m.draining })
	if !anyReady { // the check is broken, rather than all members: nothing moves
		delete(due, Health)
		delete(due, Balance)
	}
	return due
}

// room returns how many moves may begin, besides those of members that leave.
func (d *decider) room(now time.Duration) int {
	room := d.o.Moves
	for _, m := range d.moves {
		if m.reason == Drain {
			continue
		}
		// A handler that does not return must not hold up all others.
		if !m.asked || now-m.askedAt < d.o.ReadyTimeout {
			room--
		}
	}
	return room
}

// announce fills in the plan. Its number is set by the caller, who knows whether it has changed.
func (d *decider) announce(now time.Duration, v view, out *decision) {
	out.plan.epoch = d.epoch
	named := map[int]primacy.Token{}
	for i, k := range d.takes {
		named[i] = k.to
	}
	maps.DeleteFunc(d.arrived, func(i int, a arrival) bool { // until its owner knows
		_, moves := d.moves[i]
		_, takes := d.takes[i]
		return moves || takes || v.shards[i].token != a.token || now-a.at >= lingers
	})
	for i, a := range d.arrived {
		if len(named) < lingersMost {
			named[i] = a.to
		}
	}
	for _, i := range slices.Sorted(maps.Keys(named)) {
		out.plan.takes = append(out.plan.takes, take{i, named[i]})
	}
	for _, i := range slices.Sorted(maps.Keys(d.moves)) {
		m := d.moves[i].move
		m.asked = d.moves[i].sent
		out.plan.moves = append(out.plan.moves, m)
	}
}

// untold takes back takes for which the announcement had no room: the next one has them.
func (d *decider) untold(takes []take) {
	for _, k := range takes {
		delete(d.takes, k.shard)
	}
}

// nextWake returns when to look again: soon while something is under way, and less and less often
// while that shows no change. A handler may take an hour to return, and a shard nobody can run may
// stay without an owner for a day.
func (d *decider) nextWake(now time.Duration, v view) time.Duration {
	var shape []primacy.Token
	for _, s := range v.shards {
		shape = append(shape, s.token, primacy.Token(len(s.waiting)))
	}
	for _, m := range v.members {
		shape = append(shape, m.token, primacy.Token(len(m.avoid)))
	}
	if !slices.Equal(shape, d.shape) {
		d.shape, d.stirred = shape, now
	}
	unowned := slices.ContainsFunc(v.shards, func(s shardView) bool {
		kept := s.keptFor != 0 && slices.ContainsFunc(v.members, func(m memberView) bool {
			return m.token == s.keptFor && m.away
		})
		return s.token == 0 && !kept
	})
	sick := slices.ContainsFunc(v.members, func(m memberView) bool {
		return !m.ready && !m.away && now-d.sick[m.token] < 5*sickFor+idleEvery
	})
	if len(d.takes)+len(d.moves) > 0 || unowned || !d.settled || sick {
		return now + min(max(watchEvery, (now-d.stirred)/50), idleEvery)
	}
	return now + idleEvery
}
