package shards

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// view is a group as the store showed it.
type view struct {
	members []memberView // by ID, each once: the order must not depend on who came when
	shards  []shardView  // by number
}

// memberView is one claim in the group's line, or a member that is away.
type memberView struct {
	id       string
	lease    string        // of its session; a shard with the same lease is its own. Empty if it is away and gone
	token    primacy.Token // of its claim in the group's line
	weight   int
	ready    bool
	draining bool
	away     bool // it is being restarted, and its shards wait for it
	avoid    []int
	value    []byte
	ghosts   []string // leases of earlier processes with its ID: their shards count as its own
}

// shardView is the line of a shard.
type shardView struct {
	id, lease string        // who owns it
	token     primacy.Token // of the owner's term; 0: nobody owns it
	value     []byte
	waiting   []waiter
	keptFor   primacy.Token // the member for whom it is kept (memberView.token); 0: for nobody
}

// waiter stands in the line of a shard behind its owner.
type waiter struct{ id, lease string }

// observe makes a view of a group with n shards. Claims in the group's line that are no records, or
// of another number of shards, are left out.
//
// The lines of the shards must be read before the group's: then a member that is gone from the
// group cannot be taken for one that is there and has lost its shards, which would be given to it
// again.
func observe(name string, n int, line primacy.State, lines []primacy.State, gone []absence) view {
	v := view{shards: make([]shardView, n)}
	entries := line.Waiting
	if line.Leader != nil {
		entries = append([]primacy.Entry{*line.Leader}, entries...)
	}
	for _, e := range entries {
		if r, err := decodeRecord(e.Value); err == nil && r.Shards == n {
			v.add(memberView{id: e.ID, lease: e.Lease, token: e.Token, weight: r.Weight, ready: r.Ready,
				draining: r.Draining, avoid: r.Avoid, value: r.Value})
		}
	}
	for _, st := range lines {
		i, ok := shardNumber(name, st.Name)
		if !ok || i >= n {
			continue
		}
		s := &v.shards[i]
		if l := st.Leader; l != nil {
			s.id, s.lease, s.token, s.value = l.ID, l.Lease, l.Token, l.Value
		}
		for _, w := range st.Waiting {
			s.waiting = append(s.waiting, waiter{w.ID, w.Lease})
		}
	}
	v.keep(gone)
	slices.SortFunc(v.members, func(a, b memberView) int { return cmp.Compare(a.id, b.id) })
	return v
}

// add adds a member. A process that crashed and was started again under its ID stands in the line
// twice until its old lease has run out. The two are one member: its shards wait for that, and go
// to the new process. As two members they would have others give shards up for one that is dead.
func (v *view) add(m memberView) {
	for i, old := range v.members {
		if old.id != m.id {
			continue
		}
		if m.token < old.token {
			old, m = m, old
		}
		m.ghosts = append(append(m.ghosts, old.ghosts...), old.lease)
		v.members[i] = m
		return
	}
	v.members = append(v.members, m)
}

// returned returns the records that have to be written for members that are back since the
// absences were. Without them a member that crashes later would be waited for as if it restarted.
func (v view) returned(gone []absence) (back []absence) {
	for _, a := range gone {
		at := slices.IndexFunc(v.members, func(m memberView) bool { return m.id == a.ID })
		if at >= 0 && v.members[at].token > a.token && !v.members[at].draining {
			a.Back, a.token = true, v.members[at].token
			back = append(back, a)
		}
	}
	return back
}

// keep keeps shards for members that are being restarted, or are back.
func (v *view) keep(gone []absence) {
	for _, a := range gone {
		at := slices.IndexFunc(v.members, func(m memberView) bool { return m.id == a.ID })
		switch {
		case a.Back && (at < 0 || v.members[at].token != a.token):
			continue // it was back, and is gone again without a word
		case a.Back:
		case at < 0:
			v.members = append(v.members, memberView{id: a.ID, token: a.token, weight: a.Weight, away: true})
			at = len(v.members) - 1
		case v.members[at].token <= a.token:
			v.members[at].away = true // it has not quite left yet
		}
		for _, i := range unpackShards(a.Shards, len(v.shards)) {
			v.shards[i].keptFor = v.members[at].token
			if m := v.members[at]; !m.away && slices.Contains(m.avoid, i) {
				v.shards[i].keptFor = 0 // it is back and cannot run it: others can
			}
		}
	}
}

// plan returns the planner's input. A shard that nobody owns counts as held by the member for whom
// it is kept.
func (v view) plan() plan {
	p := plan{held: make([]int, len(v.shards))}
	byLease, byToken := map[string]int{}, map[primacy.Token]int{}
	for i, m := range v.members {
		p.members = append(p.members, planMember{id: m.id, weight: m.weight, ready: m.ready, drains: m.draining,
			away: m.away, avoid: m.avoid})
		for _, lease := range slices.Concat(m.ghosts, []string{m.lease}) {
			if lease != "" { // one that is away has none
				byLease[lease] = i
			}
		}
		byToken[m.token] = i
	}
	for i, s := range v.shards {
		p.held[i] = nobody
		if at, known := byLease[s.lease]; s.token != 0 && known {
			p.held[i] = at
		} else if s.token != 0 {
			p.held[i] = stranger
		} else if at, known := byToken[s.keptFor]; s.keptFor != 0 && known {
			p.held[i] = at
		}
	}
	return p
}

// drains says whether the member with that lease leaves.
func (v view) drains(lease string) bool {
	return slices.ContainsFunc(v.members, func(m memberView) bool { return m.lease == lease && m.draining })
}

// at returns the place of the member with that claim, nobody if it is not there.
func (v view) at(token primacy.Token) int {
	return slices.IndexFunc(v.members, func(m memberView) bool { return m.token == token })
}

// stands says whether a session waits in the line of a shard.
func (s shardView) stands(lease string) bool {
	return slices.ContainsFunc(s.waiting, func(w waiter) bool { return w.lease == lease })
}

// decodeAbsence reads a record of a group's journal.
func decodeAbsence(r driver.Record) (a absence, err error) {
	if err := json.Unmarshal(r.Value, &a); err != nil {
		return a, err
	}
	digits, own, left := strings.Cut(r.Key, "-left-")
	if left {
		digits = own
	}
	digits = strings.TrimSuffix(digits, "-left") // the key that versions before wrote
	n, err := strconv.ParseUint(digits, 10, 64)
	a.token = primacy.Token(n)
	return a, err
}
