package core

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// judged is a queue with the world around it: the store grants each campaign when it is told to, and every rule is checked at each step.
type judged struct {
	t       *testing.T
	q       Queue
	now     Time
	log     []string
	next    int
	arrived map[int]bool // waiters without an answer, in order of their numbers; the value is read
	order   []int
	holds   map[int]int  // waiter → claim
	reading map[int]bool // claim → read
	turns   map[int]int
	closed  map[int]bool
	faded   map[int]bool
	bound   map[int]int // of waiters
	wants   *QueueOrder // the campaign under way
	cancel  bool
}

func newJudged(t *testing.T) *judged {
	return &judged{t: t, arrived: map[int]bool{}, holds: map[int]int{}, reading: map[int]bool{}, turns: map[int]int{}, closed: map[int]bool{},
		faded: map[int]bool{}, bound: map[int]int{}}
}

func (j *judged) id() int { j.next++; return j.next }

func (j *judged) step(e QueueEvent) {
	j.t.Helper()
	j.log = append(j.log, fmt.Sprintf("%v %+v", j.now, e))
	now := j.now
	if !j.q.NeedsClock(e) { // then it must not matter
		now = Time(j.next%3-1) * 1000 * Window
	}
	orders := j.q.Step(now, e)
	for i, o := range orders {
		j.log = append(j.log, fmt.Sprintf("   → %+v", o))
		if o.Again && (o.Do != GiveUpClaim || j.reading[o.Claim] || j.faded[o.Claim] || !slices.ContainsFunc(orders[i:], func(o QueueOrder) bool { return o.Do == Campaign && !o.Read && !o.Try })) {
			j.fail("no campaign follows for which it could be exchanged")
		}
		j.obey(o)
	}
	j.idle()
}

// idle wants no claim that nobody holds.
func (j *judged) idle() {
	for tn := range j.reading {
		if j.closed[tn] || slices.Contains(slices.Collect(maps.Values(j.holds)), tn) {
			continue
		}
		j.fail("claim %d is held by nobody and was not closed; here wait %v", tn, j.order)
	}
}

func (j *judged) fail(format string, args ...any) {
	j.t.Helper()
	j.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(j.log, "\n"))
}

func (j *judged) obey(o QueueOrder) {
	switch o.Do {
	case Campaign:
		if j.wants != nil {
			j.fail("a second campaign")
		}
		j.wants, j.cancel = &o, false
	case Cancel:
		if j.wants == nil || j.cancel {
			j.fail("cancelled what is not under way")
		}
		j.cancel = true
	case Grant:
		read, waits := j.arrived[o.Waiter]
		switch {
		case !waits:
			j.fail("granted to %d, who does not wait", o.Waiter)
		case j.closed[o.Claim]:
			j.fail("granted under a claim that is closed")
		case j.reading[o.Claim] != read:
			j.fail("granted the wrong kind")
		case o.Turn != j.turns[o.Claim] || o.Turn >= MaxTurns:
			j.fail("turn %d after %d of them", o.Turn, j.turns[o.Claim])
		case o.Turn >= j.bound[o.Waiter]:
			j.fail("handed on beyond the bound of %d: turn %d", j.bound[o.Waiter], o.Turn)
		case j.order[0] != o.Waiter:
			j.fail("%d overtook %d", o.Waiter, j.order[0])
		}
		for w, tn := range j.holds {
			if tn == o.Claim && !read {
				j.fail("%d and %d hold for writing at once", w, o.Waiter)
			}
		}
		j.turns[o.Claim]++
		j.holds[o.Waiter] = o.Claim
		j.drop(o.Waiter)
	case Deny:
		if _, waits := j.arrived[o.Waiter]; !waits {
			j.fail("denied to %d, who does not wait", o.Waiter)
		}
		j.drop(o.Waiter)
	case GiveUpClaim:
		for w, tn := range j.holds {
			if tn == o.Claim {
				j.fail("closed while %d holds", w)
			}
		}
		j.closed[o.Claim] = true
	}
}

func (j *judged) drop(w int) {
	delete(j.arrived, w)
	for i, o := range j.order {
		if o == w {
			j.order = append(j.order[:i:i], j.order[i+1:]...)
			return
		}
	}
}

func (j *judged) arrive(read, try bool) int {
	return j.come(QueueEvent{Read: read, Try: try})
}

func (j *judged) come(e QueueEvent) int {
	e.Kind, e.Waiter = Arrive, j.id()
	j.arrived[e.Waiter], j.bound[e.Waiter] = e.Read, cmp.Or(e.Turns, Turns)
	j.order = append(j.order, e.Waiter)
	j.step(e)
	return e.Waiter
}

// win ends the campaign under way with a claim, as the store may also when it was cancelled.
func (j *judged) win() int {
	tn := j.id()
	j.reading[tn] = j.wants.Read
	j.wants = nil
	j.step(QueueEvent{Kind: Win, Claim: tn})
	return tn
}

func (j *judged) unlock(w int) {
	tn := j.holds[w]
	delete(j.holds, w)
	j.step(QueueEvent{Kind: Unlock, Claim: tn})
}

func TestAQueueKeepsItsRulesInAnyOrderOfEvents(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 4))
		j := newJudged(t)
		for range 120 {
			j.now += Time(r.IntN(int(Window / 8)))
			switch k := r.IntN(12); {
			case k < 4:
				e := QueueEvent{Read: r.IntN(2) == 0, Try: r.IntN(5) == 0}
				if r.IntN(3) == 0 {
					e.Turns = 1 + r.IntN(3)
				}
				j.come(e)
			case k < 6 && j.wants != nil:
				if j.wants.Try && r.IntN(2) == 0 || j.cancel {
					j.wants = nil
					j.step(QueueEvent{Kind: Lose})
				} else {
					j.win()
				}
			case k < 9 && len(j.holds) > 0:
				for w := range j.holds {
					j.unlock(w)
					break
				}
			case k == 9 && len(j.order) > 0:
				w := j.order[r.IntN(len(j.order))]
				j.drop(w)
				j.step(QueueEvent{Kind: Quit, Waiter: w})
			case k == 10 && len(j.holds) > 0:
				for w, tn := range j.holds {
					kind := ClaimEnding
					if r.IntN(3) == 0 {
						kind = ClaimOver
						for other, o := range j.holds {
							if o == tn {
								delete(j.holds, other)
							}
						}
					}
					_ = w
					j.faded[tn] = true
					j.step(QueueEvent{Kind: kind, Claim: tn})
					break
				}
			}
		}
		// From here on everybody behaves: everyone who waits gets an answer, and nothing is left.
		for range 10000 {
			switch {
			case j.wants != nil && j.cancel:
				j.wants = nil
				j.step(QueueEvent{Kind: Lose})
			case j.wants != nil:
				j.win()
			case len(j.holds) > 0:
				for w := range j.holds {
					j.unlock(w)
					break
				}
			}
		}
		if len(j.q.waiting)+len(j.q.claims) > 0 || j.q.campaign != nil || len(j.arrived) > 0 {
			j.fail("seed %d: %d wait for ever; the queue is %+v", seed, len(j.arrived), j.q)
		}
	}
}

func TestHandingOnIsBounded(t *testing.T) {
	j := newJudged(t)
	first := j.arrive(false, false)
	for range 3 * Turns {
		j.arrive(false, false)
	}
	tn := j.win()
	for w := first; !j.closed[tn]; w = holder(j) {
		j.unlock(w)
	}
	if j.turns[tn] != Turns {
		t.Errorf("one claim had %d turns, want %d", j.turns[tn], Turns)
	}
	tn = j.win()
	j.now += Window
	j.unlock(holder(j))
	if !j.closed[tn] || j.turns[tn] != 1 {
		t.Errorf("after the window it was handed on: %d turns", j.turns[tn])
	}
}

func holder(j *judged) int {
	for w := range j.holds {
		return w
	}
	return 0
}

func TestReadersBehindAWriterOfTheirOwnProcessWait(t *testing.T) {
	j := newJudged(t)
	r1 := j.arrive(true, false)
	j.win()
	r2 := j.arrive(true, false)
	if len(j.holds) != 2 {
		t.Fatalf("%d hold, want both readers %d and %d", len(j.holds), r1, r2)
	}
	w := j.arrive(false, false)
	r3 := j.arrive(true, false)
	if len(j.holds) != 2 || j.wants == nil || j.wants.Read {
		t.Fatalf("the writer does not stand in the line while its process reads: %+v", j.wants)
	}
	j.unlock(r1)
	j.unlock(r2)
	j.win()
	if _, ok := j.holds[w]; !ok || len(j.holds) != 1 {
		t.Fatalf("held by %v, want the writer alone", j.holds)
	}
	j.unlock(w)
	j.win()
	if _, ok := j.holds[r3]; !ok {
		t.Fatal("the reader behind the writer was forgotten")
	}
}

// A reader that comes late does not wait for those who read: it gets a claim of its own.
func TestALateReaderWaitsForNoReader(t *testing.T) {
	j := newJudged(t)
	j.arrive(true, false)
	j.win()
	j.now += 2 * Window
	late := j.arrive(true, false)
	if j.wants == nil || !j.wants.Read {
		t.Fatal("no claim of its own")
	}
	j.win()
	if _, ok := j.holds[late]; !ok {
		t.Fatal("not granted")
	}
}

func TestATryIsAnsweredAtOnce(t *testing.T) {
	j := newJudged(t)
	j.arrive(false, false)
	j.win()
	if w := j.arrive(false, true); j.arrived[w] || len(j.order) > 0 {
		t.Fatal("a try behind a holder of the same process waits")
	}
	j = newJudged(t)
	w := j.arrive(false, true)
	if j.wants == nil || !j.wants.Try {
		t.Fatal("a try on a free queue asks nobody")
	}
	behind := j.arrive(false, false)
	j.wants = nil
	j.step(QueueEvent{Kind: Lose})
	if _, waits := j.arrived[w]; waits || j.wants == nil || j.wants.Try {
		t.Fatalf("the try waits on, or the waiter %d behind it does not stand", behind)
	}
}
