package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/internal/shardsim"
	_ "github.com/primacy-go/primacy/shards" // whose decisions these are
)

// Group says how the members of a group of shards fare. Name 0 of the plan is then the group's
// election, and the others are those of its shards.
type Group struct {
	On    bool
	Odd   int   // 1 + the machine whose member was made for another number of shards; 0: none
	Hung  int   // 1 + the machine whose handlers never return; 0: none
	Warm  int64 // how long members get ready for a shard, at most
	Grace int64 // for so long the shards of a member that is restarted wait for it
	Down  int64 // for how long such a member is away
	Stale int64 // reads of the group's line in a million that show what it was before
	Moves int   // shards.Options.Moves
}

// The shards' options.
const (
	groupName     = "g"
	groupCooldown = 3 * sec
	groupReady    = 12 * sec // longer than any work takes to stop that does
	groupLeave    = 3 * sec
)

func (g Group) knobs() shardsim.Knobs {
	return shardsim.Knobs{Settle: 500 * time.Millisecond, SettleMax: 5 * time.Second,
		Cooldown: time.Duration(groupCooldown), ReadyTimeout: time.Duration(groupReady),
		LeaveTimeout: time.Duration(groupLeave), Moves: g.Moves}
}

// shards is how many there are.
func (p *Plan) shards() int { return p.Names - 1 }

// shardNames are the elections of the shards, by name of the plan; the first is the group's.
var shardNames = func() (all [maxNames]string) {
	all[0] = groupName
	for i := 1; i < maxNames; i++ {
		all[i] = fmt.Sprintf("%s/%04d", groupName, i-1)
	}
	return all
}()

// planGroup makes a plan one of a group of shards.
func planGroup(p *Plan, r *rng) {
	p.Names = 1 + 3 + r.intn(maxNames-3)
	p.TTL, p.Span = 5*sec, r.span(20*sec, 40*sec)
	p.Think = r.span(p.TTL/40, p.TTL/8)
	p.Quits = [...]int64{0, 0, 30_000}[r.intn(3)]
	p.Rest = 0
	p.Net.Hang = [...]int64{0, 0, 0, 1000}[r.intn(4)]
	p.Group = Group{On: true, Grace: 10 * sec, Moves: 1 + r.intn(2)}
	p.Group.Warm = [...]int64{0, 0, 500 * ms, 3 * sec}[r.intn(4)]
	p.Group.Down = r.span(sec, 14*sec)
	p.Group.Stale = [...]int64{0, 100_000, 300_000}[r.intn(3)]
	switch r.intn(6) {
	case 0:
		p.Group.Hung, p.Exit = 1+r.intn(p.Nodes), true
	case 1:
		p.Group.Odd = 1 + r.intn(p.Nodes)
	}
	p.Faults = nil
	kinds := [...]FaultKind{GiveUp, GiveUp, GiveUp, GiveUp, Crash, Crash, Pause, Suspend, CutBoth, CutOut, CutIn,
		StoreDown, NodeRate, Aimed, Asked, Delete, Revoke}
	for range 1 + r.intn(9) {
		f := Fault{At: r.span(0, p.Span), Kind: kinds[r.intn(len(kinds))], Node: uint8(r.intn(p.Nodes)),
			Arg: int64(r.next() >> 8)}
		f.For = min(r.span(p.TTL/20, 2*p.TTL), p.Span-f.At)
		switch f.Kind {
		case NodeRate:
			f.Arg = r.span(slices.Min(p.Rates), slices.Max(p.Rates)+1)
		case Aimed:
			f.For = r.span(p.TTL/20, p.TTL*7/10)
		}
		p.Faults = append(p.Faults, f)
	}
	p.sort()
	if r.intn(4) == 0 { // a store that is slow
		p.Net.Base = r.span(20*ms, 100*ms)
	}
}

// deed is what GiveUp does to a member of a group.
type deed int

const (
	leaves       deed = iota // in order, and comes back
	restarts                 // its shards wait for it
	sickens                  // it is not ready for a while
	losesItsHead             // the assigner is killed while a shard moves
	headSleeps               // it is paused for longer than its lease, and wakes up
	pauses                   // moves are paused
	deeds
)

var deedNames = [deeds]string{"member leaves, and comes back", "member is restarted", "member is not ready",
	"assigner is killed in the middle of a move", "assigner is paused in the middle of a move", "moves are paused"}

// DeedName returns a kind of deed of Counts.Deeds in words.
func DeedName(d int) string { return deedNames[d] }

// act does to a member what a GiveUp says.
func (w *World) act(n *node, f Fault) {
	d := deed(uint64(f.Arg) % uint64(deeds))
	w.count.Deeds[d]++
	w.say(&n.host, news, "FAULT %s, %v", deedNames[d], span(f.For))
	switch d {
	case leaves, restarts:
		if g := n.member(); g != nil && n.running() {
			g.rest = f.For
			if d == restarts {
				g.grace, g.rest = w.plan.Group.Grace, w.plan.Group.Down
			}
			g.ctx.cancel()
		}
	case sickens:
		n.sick = w.now + f.For
		n.tellReady()
		w.after(f.For, nil, n.tellReady)
	case losesItsHead:
		w.amidst(6*sec, func(n *node) {
			w.crash(&n.host)
			w.after(f.For, nil, func() { w.revive(n) })
		})
	case headSleeps:
		w.amidst(6*sec, func(n *node) { w.freeze(&n.host, max(0, min(w.plan.TTL*13/10, w.plan.Span-w.now)), false) })
	case pauses:
		w.group.paused = w.now + f.For
	}
}

// member returns the member that runs on a machine, nil if none does.
func (n *node) member() *groupMember {
	if !n.up || n.sess == nil {
		return nil
	}
	return n.sess.group
}

// tellReady has the member on a machine announce whether it is ready.
func (n *node) tellReady() {
	if g := n.member(); g != nil {
		if ready := n.w.now >= n.sick || n.w.calm; g.rec.Ready != ready {
			g.rec.Ready = ready
			g.announceSoon()
		}
	}
}

// amidst does something to the assigner as soon as a shard moves, within most.
func (w *World) amidst(most int64, do func(n *node)) {
	if w.calm {
		return
	}
	if ln := w.group.ln[0]; w.group.moving > 0 && len(ln.entries) > 0 && ln.entries[0].owner.running() {
		n := ln.entries[0].owner
		w.say(&n.host, news, "FAULT while %d shards move", w.group.moving)
		do(n)
		return
	}
	if most > 0 {
		w.after(50*ms, nil, func() { w.amidst(most-50*ms, do) })
	}
}

// recover ends what is wrong with members: the odd one is made for the right number, all are ready.
func (s *groupStore) recover() {
	w := s.w
	s.paused = 0
	for _, n := range w.nodes {
		n.sick = 0
		if n.odd {
			n.odd = false
			w.crash(&n.host)
		}
		n.tellReady()
	}
}
