package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// whole says whether a person may choose the data of a machine: its server comes up with them, and
// they are of a member.
func (n *node) whole() bool {
	d, at := n.disk, n.disk.wal.position()
	return d.data == core.DataReady && d.consistent <= len(d.wal) && d.state.Incarnation != "" &&
		d.state.Noted != (core.Noted{}) && !d.state.ByHand && (at.Timeline-d.state.Noted.Timeline)%2 == 0
}

// beginAnew is what a person does whose store was lost, once all members have stopped: he looks at
// all of them, and chooses the one with most to begin the cluster anew. The others join later. Some
// are started before that with what they knew.
func (w *World) beginAnew() {
	var best *node
	for _, n := range w.nodes {
		n.killAgent()
		n.kill()
		if n.whole() && (best == nil || best.disk.wal.position().Before(n.disk.wal.position())) {
			best = n
		}
	}
	if best == nil {
		w.judge.done = true // more was destroyed than a cluster is to survive
		w.Stats.Hopeless++
		return
	}
	w.Stats.Anew++
	w.judge.chosen(best)
	w.plan.quiet, w.asked = w.now, core.Instructions{}
	best.readopt(core.AdoptedAnew)
	w.store.lost.Anew = best.identity()
	w.logf("a person has chosen %v to begin anew", best.identity())
	w.after(w.between(0, 5*time.Second), best.startAgent)
	for _, n := range w.nodes {
		if n == best {
			continue
		}
		if w.chance(0.5) {
			w.after(w.between(0, 10*time.Second), n.startAgent)
		}
		w.after(w.between(0, 20*time.Second), n.join)
	}
}

// readopt has the machine know what is left of its former life.
func (n *node) readopt(as core.Adoption) {
	d := &n.disk
	d.state = d.state.Readopt(fmt.Sprintf("i%d", n.w.number()), d.state.SystemID, strconv.Itoa(d.dir), as)
}

// join has a member of the former life join the cluster that was begun anew.
func (n *node) join() {
	w, d, r := n.w, &n.disk, n.w.store.record
	if r == nil {
		w.after(time.Second, n.join)
		return
	}
	n.killAgent()
	n.kill()
	switch noted := d.state.Noted; {
	case noted == (core.Noted{}) && d.data == core.DataEmpty:
		d.state = core.State{} // it has no data, and waits for a token of the former life: state.json is removed
	case !r.Succeeds(noted): // it knows nothing of a former life, or has joined already: adopt refuses
	case d.data == core.DataReady && !r.Keeps(noted, d.wal.position().Timeline):
		d.cut(0)
		d.data, d.consistent, d.state, d.dir = core.DataEmpty, 0, core.State{}, w.number()
	default:
		n.readopt(core.AdoptedStandby)
		d.state.Joins = r.Lives
	}
	w.logf("%s joins", n.name)
	n.startAgent()
}

// chosen takes the choice of a person: nothing that was ever acknowledged is given up with it,
// unless data were destroyed before.
func (j *judge) chosen(best *node) {
	var kept []ack
	next := uint64(j.w.store.losses)<<32 | (j.w.store.tokens + 1)
	for _, a := range j.acks {
		switch {
		case best.disk.wal.has(a.commit):
			kept = append(kept, a)
		case j.harmed || j.given(a, next):
			j.w.Stats.Forgiven++
		default:
			j.violate("commit %d is lost: acknowledged at %d under token %d, %s is chosen without it", a.id, a.pos,
				a.token, best.name)
		}
	}
	j.acks = kept
}
