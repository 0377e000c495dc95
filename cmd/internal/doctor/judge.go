package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/safety"
)

// judge hears what candidates did and what the store shows. It keeps a register that anybody may
// write, and one behind a fence.
type judge struct {
	name  string
	heard time.Duration // after the removal of its claim a holder has heard of it, or is past its deadline

	mu       sync.Mutex
	terms    map[uint64]*safety.Interval // by token, from the first act to the last
	written  int                         // writes that arrived
	largest  uint64                      // the largest token that has written
	stale    int                         // writes under a smaller one: without a fence they would have been made
	removals []removal
	twins    string // two that led under one token

	acked  int // writes that the store acknowledged
	newest ack // the newest of them
	shown  ack // the newest that the store has shown
	lost   []string
}

// ack is a write through the store's own fence: the n-th in the term of token.
type ack struct {
	token uint64
	n     int
}

func (a ack) before(b ack) bool { return a.token < b.token || a.token == b.token && a.n < b.n }

// removal says that an operator took a claim, or all of a candidate's, out of the store: some time
// between from and to. Promise 1 speaks of claims that nobody removes, so an act after from is not
// held against the holder, until it must have heard of it.
type removal struct {
	token    uint64 // 0: all of who's
	who      string
	from, to time.Duration
}

// rounded is by how much more than what was asked for a store may grant: some count whole seconds.
const rounded = time.Second

func newJudge(name string, ttl time.Duration) *judge {
	return &judge{name: name, heard: ttl + rounded, terms: map[uint64]*safety.Interval{}}
}

// wrote hears of an act: the clock was read at, then Check said yes, and now the write arrives.
func (j *judge) wrote(who string, at time.Duration, token uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.terms[token]
	if t == nil {
		t = &safety.Interval{Name: j.name, Token: token, Who: who, From: at, To: at}
		j.terms[token] = t
	}
	if t.Who != who && j.twins == "" {
		j.twins = fmt.Sprintf("one token, two owners: %s and %s both led under token %d", t.Who, who, token)
	}
	t.From, t.To = min(t.From, at), max(t.To, at)
	j.written++
	if token < j.largest {
		j.stale++
	}
	j.largest = max(j.largest, token)
}

// proclaimed hears of a write that the store acknowledged.
func (j *judge) proclaimed(token uint64, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acked++
	if a := (ack{token, n}); j.newest.before(a) {
		j.newest = a
	}
}

// newestAck is what any reading that begins now must show, or something newer.
func (j *judge) newestAck() ack {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest
}

// shows hears what a linearizable reading showed that began when want was acknowledged.
func (j *judge) shows(want ack, ln driver.Line) {
	if ln.Holder == nil {
		return
	}
	n, _ := strconv.Atoi(string(ln.Holder.Value)) // "" before the first write of the term
	got := ack{ln.Holder.Token, n}
	j.mu.Lock()
	defer j.mu.Unlock()
	if got.before(want) && len(j.lost) < 100 {
		j.lost = append(j.lost, fmt.Sprintf("write %d under token %d was acknowledged, but then the store showed "+
			"write %d under token %d",
			want.n, want.token, got.n, got.token))
	}
	if got.before(j.shown) && len(j.lost) < 100 {
		j.lost = append(j.lost, fmt.Sprintf("the store showed write %d under token %d after write %d under token %d",
			got.n, got.token, j.shown.n, j.shown.token))
	}
	if j.shown.before(got) {
		j.shown = got
	}
}

func (j *judge) removed(r removal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.removals = append(j.removals, r)
}

// leader is who acted last under the largest token, and when.
func (j *judge) leader() (who string, at time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t := j.terms[j.largest]; t != nil {
		return t.Who, t.To
	}
	return "", 0
}

// tally is the judge's count so far.
type tally struct {
	Terms    int
	Written  int
	Stale    int
	Acked    int
	Lost     []string
	Overlaps int
	Longest  time.Duration // of the overlaps
	Broken   string        // the first contradiction, in words
	Gaps     []time.Duration
}

func (j *judge) tally() tally {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := tally{Terms: len(j.terms), Written: j.written, Stale: j.stale, Acked: j.acked, Lost: slices.Clone(j.lost)}
	var all, judged []safety.Interval
	for _, in := range j.terms {
		all = append(all, *in)
		judged = append(judged, j.excuse(*in)...)
	}
	slices.SortFunc(all, func(a, b safety.Interval) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Token, b.Token))
	})
	t.Broken = j.twins
	if err := safety.Check(judged); err != nil {
		t.Broken = err.Error()
	}
	if overlaps := safety.Overlaps(judged); len(overlaps) > 0 {
		t.Overlaps, t.Longest = len(overlaps), overlaps[0].For
	}
	for i := 1; i < len(all); i++ {
		t.Gaps = append(t.Gaps, max(0, all[i].From-all[i-1].To))
	}
	slices.Sort(t.Gaps)
	return t
}

// excuse leaves out of an interval what is after the removal of its claim by an operator. What is
// so long after it that the holder must have heard of it counts again.
func (j *judge) excuse(in safety.Interval) []safety.Interval {
	kept := in
	deaf := in.From // the last excused instant
	for _, r := range j.removals {
		if (r.token == in.Token || r.token == 0 && r.who == in.Who) && in.From < r.to && in.To > r.from {
			kept.To = min(kept.To, max(in.From, r.from))
			deaf = max(deaf, min(r.to, in.To)+j.heard)
		}
	}
	if kept.To == in.To || deaf >= in.To {
		return []safety.Interval{kept}
	}
	in.From = deaf
	return []safety.Interval{kept, in}
}
