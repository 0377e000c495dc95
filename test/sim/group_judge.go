package sim

import (
	"slices"

	"github.com/primacy-go/primacy/internal/shardsim"
)

// What the judge asks of a group besides. That no shard has two owners is asked of every name.
const (
	RuleMoves  = "more shards moved than events demand"
	RuleBudget = "more shards move at a time than may"
	RuleAsked  = "a term ended for a request that named another one"
	RuleEpoch  = "a member followed a plan after a later one"
	RuleKept   = "a shard did not wait for its member"
)

// groupJudge counts moves against what events demand. The distance of a state is how many shards
// must move until loads are even. What is not a move adds to the demand by how much farther it
// takes the group; a move must take it nearer by one. One that does not is wasted, as a move can be
// that was under way when something else changed, and no other.
type groupJudge struct {
	s        *groupStore
	distance int
	demand   int
	moves    int
	wasted   int
	changes  int // of the members
	members  []groupMark
	inMove   bool
	kept     [maxNames]groupKept // by name
	since    [maxNames]int64     // by name: since when a shard moves for balance or health; 0: it does not
	owned    [maxNames]uint64    // by name: the leases that own shards
	planned  [maxNames]int64     // by name: since when the plan says that a shard moves; 0: it does not
	other    int64               // when something changed that was no move
	broken   bool                // a member has avoided a shard: who may get which is another question
	away     int64               // until then a member may be away for a restart, whose part is left free
	unread   bool                // an assigner has looked and could not read the journal
}

// groupMark is what of a member, when it changes, may make a move under way needless.
type groupMark struct {
	token           uint64
	ready, draining bool
	avoids          int
}

// groupKept is for whom a shard waits.
type groupKept struct {
	n     *node
	token uint64 // of its claim in the group's line
	until int64
}

// changed is told of each change of a line.
func (j *groupJudge) changed() {
	var marks []groupMark
	for _, e := range j.s.ln[0].entries {
		r := e.record()
		j.broken = j.broken || len(r.Avoid) > 0
		marks = append(marks, groupMark{e.token, r.Ready, r.Draining, len(r.Avoid)})
		for i, k := range j.kept {
			if k.n == e.owner && e.token > k.token {
				j.kept[i] = groupKept{} // it is back, or has lost its lease as it left
			}
		}
	}
	if !slices.Equal(marks, j.members) {
		j.changes++
		j.members, j.other = marks, j.s.w.now
	}
	if !j.inMove {
		if now := j.owners(); now != j.owned {
			j.owned, j.other = now, j.s.w.now
		}
		d := j.far()
		j.demand += max(0, d-j.distance)
		j.distance = d
	}
}

// owners returns the leases that own shards, by name.
func (j *groupJudge) owners() (all [maxNames]uint64) {
	for i, ln := range j.s.ln {
		if i > 0 && len(ln.entries) > 0 {
			all[i] = ln.entries[0].sess
		}
	}
	return all
}

// far is how many shards must move until loads are even.
func (j *groupJudge) far() int {
	type member struct {
		n     *node
		takes bool
		load  int
	}
	var all []member
	of := map[uint64]int{} // by lease
	for _, e := range j.s.ln[0].entries {
		r := e.record()
		if r.Shards != j.s.w.plan.shards() {
			continue
		}
		at := slices.IndexFunc(all, func(m member) bool { return m.n == e.owner })
		if at < 0 {
			at = len(all)
			all = append(all, member{n: e.owner})
		}
		all[at].takes = r.Ready && !r.Draining // of two claims of one machine the later counts
		of[e.sess] = at
	}
	free, shards := 0, 0
	for _, ln := range j.s.ln[1:] {
		if len(ln.entries) == 0 {
			free++
			shards++
		} else if at, known := of[ln.entries[0].sess]; known {
			all[at].load++
			shards++
		}
	}
	takers, over, under := 0, 0, 0
	for _, m := range all {
		if m.takes {
			takers++
		}
	}
	if takers == 0 {
		return 0
	}
	low := shards / takers
	high := low
	if shards%takers > 0 {
		high++
	}
	for _, m := range all {
		switch {
		case !m.takes:
			over += m.load
		default:
			over += max(0, m.load-high)
			under += max(0, low-m.load)
		}
	}
	return max(over, under-free)
}

// begin is told that a hand-over begins, and moved that it is done.
func (j *groupJudge) begin() { j.inMove = true }

func (j *groupJudge) moved(ln *line) {
	j.inMove, j.owned = false, j.owners()
	d := j.far()
	j.moves++
	j.s.w.count.Moves++
	if d >= j.distance {
		j.wasted++
		j.s.w.count.Wasted++
		j.forNothing(ln, d)
	}
	if j.s.w.tr != nil {
		j.s.w.say(nil, detail, "store: %s was handed over: %d moves of %d demanded, %d more due", nameOf(ln.name),
			j.moves, j.demand, d)
	}
	j.distance = d
}

// forNothing is told of a move that took the group no nearer. With d so many are due now.
func (j *groupJudge) forNothing(ln *line, d int) {
	w, at := j.s.w, j.planned[ln.name]
	if j.broken || w.plan.Group.Hung != 0 || at == 0 {
		return
	}
	if j.other < at-w.plan.TTL && w.now > j.away+w.plan.TTL {
		w.judge.fail(RuleMoves, "%s moved for nothing: %d moves were due before and %d are now", nameOf(ln.name),
			j.distance, d)
	}
}

// announced is told what stands in the group's line as the plan.
func (j *groupJudge) announced(e *entry, r shardsim.Record) {
	now, due := j.s.w.now, 0
	for i := range j.s.ln[1:] {
		if !slices.Contains(r.Moving, i) {
			j.planned[1+i] = 0
		} else if j.planned[1+i] == 0 {
			j.planned[1+i] = now
		}
		if !slices.Contains(r.Due, i) {
			j.since[1+i] = 0
		} else if j.since[1+i] == 0 {
			j.since[1+i] = now
		}
		// An owner that was asked and does not hand over for long does not hold up the others. When
		// it was asked the store may hear much later.
		if at := j.since[1+i]; at != 0 && now-at < groupReady*3/4 {
			due++
		}
	}
	if most := j.s.w.plan.Group.Moves; due > most {
		j.s.w.judge.fail(RuleBudget, "%s has %d shards move for balance and health: %d may", e.owner.name, due, most)
	}
}

// keeps is told that the shards of a member wait for it.
func (j *groupJudge) keeps(n *node, inc uint32, owned []int) {
	j.away = j.s.w.now + j.s.w.plan.Group.Grace
	token := uint64(0)
	for _, e := range j.s.ln[0].entries {
		if e.owner == n && e.inc == inc {
			token = max(token, e.token)
		}
	}
	for _, i := range owned {
		// It may be handed over already, or go to who stands behind its owner by an earlier plan.
		line := j.s.ln[1+i].entries
		alone := len(line) == 1 && line[0].owner == n && line[0].inc == inc
		if token != 0 && alone && !slices.Contains(j.s.plan.Moving, i) {
			j.kept[1+i] = groupKept{n, token, j.s.w.now + j.s.w.plan.Group.Grace*9/10}
		}
	}
}

// takes is asked when somebody comes to own a shard.
func (j *groupJudge) takes(tm *term) {
	k := j.kept[tm.c.name]
	if k.n != nil && k.n != tm.n && j.s.w.now < k.until && !j.unread {
		j.s.w.judge.fail(RuleKept, "%s: %s takes it, and it waits for %s", nameOf(tm.c.name), tm.n.name, k.n.name)
	}
}

// ends is asked once all shards have owners and nothing goes wrong any more.
func (j *groupJudge) ends() {
	// Moves that were under way when the members changed may have been for nothing.
	if most := j.demand + j.changes*j.s.w.plan.Group.Moves; j.moves > most {
		j.s.w.judge.fail(RuleMoves, "%d moves: events demanded %d, and %d changes of the members may have cost %d more",
			j.moves, j.demand, j.changes, j.changes*j.s.w.plan.Group.Moves)
	}
	j.s.w.count.Demand += uint64(j.demand)
	if j.distance == 0 {
		j.s.w.count.Even++
	}
}
