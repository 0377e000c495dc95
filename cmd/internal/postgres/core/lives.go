package core

import (
	"slices"
	"strings"
)

// Lives tell the cluster from another of its name and database, such as the one that it was before
// its store was lost. One life begins with each first record, and is called by the incarnation of
// the member that wrote it: that text is random. The oldest comes first, with commas between. A
// cluster that a former version has begun has none, which is a life called "".
type Lives string

// Life returns the life of the cluster that the record is of; empty: a former version has begun it.
func (n Noted) Life() string { return n.Lives.last() }

// mostLives is how many are kept.
const mostLives = 16

func (l Lives) all() []string        { return strings.Split(string(l), ",") }
func (l Lives) last() string         { return string(l)[strings.LastIndex(string(l), ",")+1:] }
func (l Lives) has(life string) bool { return slices.Contains(l.all(), life) }

// next returns the lives of a cluster that a member begins which has noted n of the life before, if
// there was one.
func (n Noted) next(life string) Lives {
	if n == (Noted{}) {
		return Lives(life)
	}
	all := append(n.Lives.all(), life)
	return Lives(strings.Join(all[max(0, len(all)-mostLives):], ","))
}

// Succeeds says whether r is of a later life of the cluster than the record of which n was noted.
func (r Record) Succeeds(n Noted) bool {
	return n != (Noted{}) && r.Lives.last() != n.Lives.last() && r.Lives.has(n.Lives.last())
}

// Keeps says whether data that a member has from the life of which n was noted can become a part of
// the cluster's again, where last is the last timeline that they have come to. One that was given
// out again since must not be among theirs: what is on two timelines of one number looks the same.
// Nor may one that the store gave out twice after it was set back, as far as the noted ones tell.
func (r Record) Keeps(n Noted, last Timeline) bool {
	all := r.Lives.all()
	if f := r.Former; f.Timeline != 0 && f.Timeline == n.Timeline && (f.Primary != n.Primary || f.From != n.From) {
		return false
	}
	return len(all) > 1 && all[len(all)-2] == n.Lives.last() && last < r.Born
}
