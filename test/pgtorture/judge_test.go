//go:build linux

package pgtorture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// grant is one promotion that the cluster's record has seen: under the token, node was to have the
// timeline.
type grant struct {
	Token    uint64
	Timeline uint32
	Node     string
}

// reign is what one node acknowledged on one timeline.
type reign struct {
	node      string
	timeline  uint32
	rows      int
	firstRet  time.Duration // of the row that came back first
	firstCall time.Duration
	lastCall  time.Duration // of the row that was sent last
	lastID    uint64
}

// reigns is who acknowledged what, added up.
type reigns struct {
	by   map[reignKey]*reign
	told map[[2]reignKey]bool // pairs that are known to be wrong
}

type reignKey struct {
	timeline uint32
	node     string
}

func (r reign) key() reignKey { return reignKey{r.timeline, r.node} }

func (x *reigns) add(all []ack) {
	if x.by == nil {
		x.by, x.told = map[reignKey]*reign{}, map[[2]reignKey]bool{}
	}
	for _, a := range all {
		r := x.by[reignKey{a.timeline, a.node}]
		if r == nil {
			r = &reign{node: a.node, timeline: a.timeline, firstRet: a.ret, firstCall: a.call}
			x.by[r.key()] = r
		}
		r.rows++
		r.firstRet, r.firstCall = min(r.firstRet, a.ret), min(r.firstCall, a.call)
		if a.call > r.lastCall {
			r.lastCall, r.lastID = a.call, a.id
		}
	}
}

// all returns them in the order of the timelines.
func (x *reigns) all() (all []reign) {
	for _, r := range x.by {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b reign) int {
		return cmp.Or(cmp.Compare(a.timeline, b.timeline), cmp.Compare(a.node, b.node))
	})
	return all
}

// news returns what is wrong with them and was not said before.
func (x *reigns) news() (wrong []string) {
	judgeReigns(x.all(), func(old, new reign, text string) {
		if pair := [2]reignKey{old.key(), new.key()}; !x.told[pair] {
			x.told[pair] = true
			wrong = append(wrong, text)
		}
	})
	return wrong
}

// judgeReigns tells what is wrong with who acknowledged when. A node acknowledges a row between
// its call and its return. So two acknowledged at once, or in the wrong order, where one of an
// older timeline was sent after one of a newer timeline had come back.
func judgeReigns(reigns []reign, bad func(old, new reign, text string)) {
	for i, old := range reigns {
		for _, new := range reigns[i+1:] {
			switch {
			case old.timeline == new.timeline:
				bad(old, new, fmt.Sprintf("timeline %d: %s and %s both acknowledged on it",
					old.timeline, old.node, new.node))
			case old.lastCall > new.firstRet:
				bad(old, new, fmt.Sprintf("two acknowledge: %s (timeline %d) acknowledged row %d, sent at %v, "+
					"and %s (timeline %d) had acknowledged one by %v", old.node, old.timeline, old.lastID, old.lastCall,
					new.node, new.timeline, new.firstRet))
			}
		}
	}
}

// judgeGrants returns what is wrong with the timelines: each was given out once, in the order of
// the tokens, and nobody acknowledged on another.
func judgeGrants(all []reign, grants []grant) (wrong []string) {
	by := map[uint32]grant{}
	byToken := func(a, b grant) int { return cmp.Compare(a.Token, b.Token) }
	for _, g := range slices.SortedFunc(slices.Values(grants), byToken) {
		if was, ok := by[g.Timeline]; ok && was != g {
			wrong = append(wrong, fmt.Sprintf("timeline %d was given out twice: %+v, %+v", g.Timeline, was, g))
			continue
		}
		for _, before := range slices.Sorted(maps.Keys(by)) {
			if before > g.Timeline {
				wrong = append(wrong, fmt.Sprintf("timelines go back: %+v after %+v", g, by[before]))
			}
		}
		by[g.Timeline] = g
	}
	for _, r := range all {
		if g := by[r.timeline]; g.Node != r.node {
			wrong = append(wrong, fmt.Sprintf("%s acknowledged %d rows on timeline %d, which was given to %q",
				r.node, r.rows, r.timeline, g.Node))
		}
	}
	return wrong
}

// judgeRows returns the acknowledged rows that a node does not have.
func judgeRows(all []ack, has map[uint64]bool) (lost []ack) {
	for _, a := range all {
		if !has[a.id] {
			lost = append(lost, a)
		}
	}
	return lost
}
