package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// judge says whether what must hold does.
type judge struct {
	w          *World
	violated   string
	done       bool
	acks       []ack
	promotions []promotion
	grants     map[uint64]core.Record // the record that each term's survey has written
	first      []promotion            // of clusters that have no record yet
	lastAck    time.Duration
	lastBy     *server
	harmed     bool // data were wiped, or a server promoted by hand
	// By the token: what the record says, and the terms whose primary was chosen by a record of
	// durability async.
	durability map[uint64]core.Durability
	async      map[uint64]bool
}

type ack struct {
	commit
	token uint64
}

type promotion struct {
	token uint64
	n     *node
	tli   core.Timeline
	wal   wal // as it was
}

func (j *judge) violate(format string, args ...any) {
	if j.violated == "" {
		j.violated = fmt.Sprintf(format, args...)
		j.w.logf("VIOLATION: %s", j.violated)
	}
}

func (w wal) has(c commit) bool { return c.pos <= len(w) && w[c.pos-1].id == c.id }

// acked takes a commit that a client was told of. Whoever is promoted under a later term must have
// it, and whoever has been already must have had it.
func (j *judge) acked(s *server, c commit) {
	j.w.Stats.Acked++
	j.lastAck, j.lastBy = j.w.now, s
	if s.token == 0 {
		j.violate("%s was promoted by hand and has acknowledged commit %d", s.n.name, c.id)
	}
	if s.token != 0 && s.token>>32 < uint64(j.w.store.losses) {
		// It lives on from before the store was lost, and nobody has taken over.
	} else if r := j.w.store.record; r == nil || r.SystemID != s.n.disk.state.SystemID {
		j.violate("%s has acknowledged commit %d, and there is no record of its database", s.n.name, c.id)
	}
	if j.durability[s.token] == core.Async { // that is no promise
		return
	}
	j.acks = append(j.acks, ack{c, s.token})
	for _, p := range j.promotions {
		if p.token > s.token && !p.wal.has(c) && !j.given(ack{c, s.token}, p.token) {
			j.violate("commit %d is lost: %s (token %d) acknowledged it at %d, %s (token %d) was promoted without",
				c.id, s.n.name, s.token, c.pos, p.n.name, p.token)
		}
	}
}

// promoted takes a promotion, by an order or, without a token, by hand.
func (j *judge) promoted(s *server, tli core.Timeline, token uint64) {
	w := s.n.disk.wal
	j.w.logf("%s: promoted under token %d to timeline %d at %v", s.n.name, token, tli, w.position())
	if token == 0 {
		return
	}
	j.w.Stats.Promoted++
	if token>>32 < uint64(j.w.store.losses) { // it was under way when the store was lost, and counts all the same
		j.promotions = append(j.promotions, promotion{token, s.n, tli, w[:len(w):len(w)]})
		return
	}
	if j.w.store.lost != nil || j.lost() {
		j.violate("%s is promoted under term %d of a store that was lost", s.n.name, uint32(token))
		return
	}
	if j.w.store.record == nil { // it counts if the record comes
		j.first = append(j.first, promotion{token, s.n, tli, nil})
		return
	}
	if s.n.disk.state.SystemID != j.w.store.record.SystemID { // another was born meanwhile
		return
	}
	for _, p := range j.promotions {
		switch {
		case p.token == token:
			j.violate("term %d promotes %s and %s", token, p.n.name, s.n.name)
		case p.tli == tli:
			j.violate("timeline %d is given to %s and %s", tli, p.n.name, s.n.name)
		case (p.token < token) != (p.tli < tli):
			j.violate("timeline %d of term %d and %d of term %d are out of order", p.tli, p.token, tli, token)
		}
	}
	if g, ok := j.grants[token]; ok && (g.Primary != s.n.identity() || g.Timeline != tli) {
		j.violate("%v is promoted to %d, the record says %v to %d", s.n.identity(), tli, g.Primary, g.Timeline)
	} else if !ok {
		j.violate("%s is promoted under term %d, of which there is no record", s.n.name, token)
	}
	for _, a := range j.acks {
		switch lost := a.token < token && !w.has(a.commit); {
		case lost && j.given(a, token):
			j.w.Stats.Forgiven++
		case lost:
			j.violate("commit %d is lost: acknowledged at %d under token %d, %s is promoted under token %d without it",
				a.id,
				a.pos, a.token, s.n.name, token)
		}
	}
	j.promotions = append(j.promotions, promotion{token, s.n, tli, w[:len(w):len(w)]})
}

// given says whether a commit that the primary of term b lacks was given up: one of the terms since
// somebody had it last, as a primary, was given to whoever was best by a record of durability
// async. It may have been acknowledged before a person chose async.
func (j *judge) given(c ack, b uint64) bool {
	last := c.token
	for _, p := range j.promotions {
		if p.token < b && p.wal.has(c.commit) {
			last = max(last, p.token)
		}
	}
	for token := range j.async {
		if last < token && token <= b {
			return true
		}
	}
	return false
}

// recorded takes a write of the record.
func (j *judge) recorded(c *claim, old, r *core.Record) {
	if j.lost() && !j.anew(c) {
		j.violate("term %d writes a record into a store that was lost", c.token)
	}
	if r.Token != c.token {
		j.violate("term %d writes a record of term %d", c.token, r.Token)
	}
	if slices.ContainsFunc(r.Voters, func(v core.Identity) bool { return v.Name == r.Primary.Name }) {
		j.violate("the primary %v is among the voters %v", r.Primary, r.Voters)
	}
	if old == nil {
		j.begun(c)
	} else {
		if r.Granted < old.Granted || r.Token < old.Token {
			j.violate("record %d takes back: granted %d after %d, token %d after %d", r.Seq, r.Granted, old.Granted,
				r.Token,
				old.Token)
		}
		if r.Token == old.Token && r.Needed < old.Needed {
			j.w.Stats.Settled++
		}
	}
	if len(r.Voters) == 0 && r.Durability == core.Available {
		j.w.Stats.Alone++
	}
	if j.grants == nil {
		j.grants, j.durability = map[uint64]core.Record{}, map[uint64]core.Durability{}
		j.async = map[uint64]bool{}
	}
	if old != nil && old.Durability != r.Durability {
		j.w.Stats.Durability++
	}
	j.durability[c.key] = r.Durability
	if old != nil && old.Token != r.Token && old.Durability == core.Async {
		j.async[c.key] = true
	}
	if _, ok := j.grants[c.key]; !ok {
		j.grants[c.key] = *r
	}
	for _, n := range j.w.nodes {
		if n.srv != nil {
			j.check(n.srv, r)
		}
	}
}

// anew says whether c is of the member that a person has chosen to begin the cluster anew.
func (j *judge) anew(c *claim) bool {
	return j.w.store.lost != nil && j.w.store.lost.Anew == c.a.n.identity()
}

// begun takes the first record of a cluster. Of one that is born the promotion comes before it.
func (j *judge) begun(c *claim) {
	i := slices.IndexFunc(j.first, func(p promotion) bool { return p.token == c.key })
	switch {
	case j.anew(c):
	case i < 0:
		j.violate("the first record comes before the promotion")
	default:
		j.promotions = append(j.promotions, j.first[i])
	}
}

// overlap looks again when somebody has loaded an SSN.
func (j *judge) overlap(s *server) { j.check(s, j.w.store.record) }

// check demands k + q > |V ∪ S| of every SSN that a process of the primary has loaded.
func (j *judge) check(s *server, r *core.Record) {
	if r == nil || !s.primary || s.token != j.w.store.key || r.Durability == core.Async ||
		len(r.Voters) == 0 ||
		r.Needed > len(r.Voters) {
		return
	}
	one := func(x core.Sync) {
		if x.Kind == core.SyncNobody {
			return
		}
		union := len(r.Voters)
		for _, name := range x.Names {
			if !slices.ContainsFunc(r.Voters, func(v core.Identity) bool { return v.String() == name }) {
				union++
			}
		}
		if x.Acks+r.Needed <= union {
			j.violate("k + q > |V ∪ S| does not hold: SSN %v is loaded on %s, record %d has q = %d of %v", x, s.n.name,
				r.Seq,
				r.Needed, r.Voters)
		}
	}
	if s.loaded.Kind == core.SyncAlone {
		one(s.loaded)
	}
	for _, x := range s.senders {
		one(x.loaded)
	}
}

// lost says whether the store knows less than members have seen. Nobody may act by it.
func (j *judge) lost() bool {
	s := j.w.store
	return s.losses > 0 && len(s.was) == 0
}

// told says what is not as it should be once the store was lost: who has seen more has said so, and
// nobody acts.
func (j *judge) told() string {
	if j.w.store.lost == nil {
		return "the store was lost, and nobody says so"
	}
	for _, n := range j.w.nodes {
		if n.agent == nil {
			return "an agent does not run"
		}
		phase, _ := n.agent.m.Phase()
		if phase != core.PhaseBroken || n.srv != nil && n.srv.child == n.agent {
			return fmt.Sprintf("the store was lost, and %s is %s", n.name, phase)
		}
	}
	return ""
}

// behind says whether those who have seen no more than this record could promote one of them by it.
// They cannot know that there was a later one.
func (j *judge) behind(r *core.Record) bool {
	none, votes := true, 0
	for _, n := range j.w.nodes {
		if n.disk.state.Seq > r.Seq {
			continue
		}
		none = false
		if n.identity() == r.Primary {
			return true
		}
		if slices.Contains(r.Voters, n.identity()) {
			votes++
		}
	}
	return votes >= max(1, r.Needed) || !none && (r.Durability == core.Async || r.Stopped > 0)
}

// well says what is not as it should be once there are no faults any more.
func (j *judge) well() string {
	w, r := j.w, j.w.store.record
	if j.lost() {
		return j.told()
	}
	if r == nil {
		return "there is no record"
	}
	p := w.find(r.Primary.Name)
	for _, n := range w.nodes {
		if n.agent == nil {
			return "an agent does not run"
		}
		if phase, why := n.agent.m.Phase(); phase == core.PhaseBroken {
			return n.name + " is broken: " + why
		}
	}
	switch {
	case r.Paused != nil:
		return "it is paused"
	case p.srv == nil || !p.srv.primary || p.srv.token != w.store.key:
		return "no primary"
	case j.lastBy != p.srv || j.lastAck < w.now-time.Second || j.lastAck < w.plan.quiet:
		return "no commit is acknowledged"
	case r.Durability != w.shared.settings.Durability:
		return fmt.Sprintf("durability is %s, not %s", r.Durability, w.shared.settings.Durability)
	}
	return j.voters(r, p)
}

// voters says who does not follow, or does not vote.
func (j *judge) voters(r *core.Record, p *node) string {
	w := j.w
	for _, n := range w.nodes {
		switch {
		case n == p:
		case n.srv == nil || n.srv.primary || n.srv.recv == nil || n.srv.recv.sender == nil ||
			n.srv.recv.sender.s != p.srv:
			return n.name + " does not follow"
		case n.srv.short:
			return n.name + " replays nothing more"
		case r.Durability != core.Async && !slices.Contains(r.Voters, n.identity()):
			return n.name + " is no voter"
		}
	}
	k := min(w.shared.settings.Acks, len(w.nodes)-1)
	if q := len(w.nodes) - k; r.Durability != core.Async && (len(r.Voters) != q+k-1 || r.Acks != k || r.Needed != q) {
		return fmt.Sprintf("k = %d and q = %d of %d voters, not %d and %d", r.Acks, r.Needed, len(r.Voters), k, q)
	}
	return ""
}

// look ends the run once all is well.
func (j *judge) look() {
	switch why := j.well(); {
	case why == "" && j.lost():
		j.w.beginAnew()
	case why == "":
		j.done = true
		j.w.Stats.Recovered = j.w.now - j.w.plan.quiet
		return
	}
	j.w.after(100*ms, j.look)
}

// electable says whether the record can still be satisfied, where some nodes' data are not counted.
func (j *judge) electable(without *node) bool {
	r := j.w.store.record
	if r == nil {
		return true
	}
	intact := func(i core.Identity) bool {
		n := j.w.find(i.Name)
		return n != without && n.identity() == i && n.disk.data == core.DataReady && !n.byHand && !n.restored
	}
	votes := 0
	for _, v := range r.Voters {
		if intact(v) {
			votes++
		}
	}
	return intact(r.Primary) || votes >= max(1, r.Needed)
}

// stuck is called when it took too long.
func (j *judge) stuck() {
	if j.harmed && !j.electable(nil) {
		j.done = true // more was destroyed than the cluster is to survive
		j.w.Stats.Hopeless++
		return
	}
	j.violate("no faults for %v, and %s", limit, j.well())
}
