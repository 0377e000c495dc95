package primacy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/memstore"
)

// entrants returns n claims of an Elections under a lease, none of which the store has heard of.
func entrants(es *Elections, l *lease, n int) (all []*entrant) {
	for range n {
		all = append(all, es.newEntrant(l, &attempt{es: es, name: "n"}))
	}
	return all
}

// One call of the workers is for claims of one lease. Under another lease a claim would hold while
// its term looks at the wrong deadline, and a release would be of a place that is not there.
func TestOneCallIsForOneLease(t *testing.T) {
	s := outside(t)
	es := s.Elections(nil)
	one, two := &lease{s: s}, &lease{s: s}
	for kind := range taskKinds {
		var all tasks
		for i, c := range slices.Concat(entrants(es, one, 3), entrants(es, two, 2), entrants(es, one, 1)) {
			all = append(all, task{c: c, seq: uint32(i), do: kind})
		}
		w := workers{limit: 2}
		w.waiting[kind] = slices.Clone(all)
		var got tasks
		for some := w.next(); some != nil; some = w.next() {
			if slices.ContainsFunc(some, func(j task) bool { return j.c.l != some[0].c.l }) || len(some) > 2 {
				t.Errorf("kind %d: a call for %d claims, of more than one lease or too many", kind, len(some))
			}
			got = append(got, some...)
		}
		if !slices.Equal(got, all) {
			t.Errorf("kind %d: %d of %d tasks came, or in another order", kind, len(got), len(all))
		}
	}
}

// A task that another one has replaced makes no call: two calls for one claim would be under way at
// once, such as a release beside the claim that it is to undo.
func TestATaskThatWasReplacedMakesNoCall(t *testing.T) {
	s := outside(t)
	es := s.Elections(nil)
	c := entrants(es, &lease{s: s}, 1)[0]
	c.seq = 2
	all := tasks{{c, 1, taskEnter}, {c, 2, taskEnter}}
	if calls := all[:1].begin(core.Entering); len(calls) != 0 || c.calling {
		t.Errorf("a task that was replaced makes %d calls", len(calls))
	}
	if calls := all.begin(core.Entering); len(calls) != 1 || !c.calling {
		t.Errorf("the last task makes %d calls, want 1", len(calls))
	}
}

// The answer to a call for an earlier ID of a claim says nothing of the present one: its token
// would release, or follow, the place that is gone.
func TestAnAnswerForAnEarlierIDChangesNoPlace(t *testing.T) {
	s := outside(t)
	c := entrants(s.Elections(nil), &lease{s: s}, 1)[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	earlier := c.place
	c.newIDLocked()
	present := c.place
	answer := earlier
	answer.Token = 7
	if err := c.keepPlaceLocked(earlier, answer, nil); err != nil || c.place != present {
		t.Errorf("the place is %+v, want %+v; %v", c.place, present, err)
	}
	answer = present
	answer.Token = 8
	if err := c.keepPlaceLocked(present, answer, nil); err != nil || c.place != answer {
		t.Errorf("the place is %+v, want %+v; %v", c.place, answer, err)
	}
}

// A claim gives its seat back before the lease has forgotten it, so the seat's next claim may join
// first. Work that still runs under the old one is waited for all the same.
func TestALeaseKeepsAClaimWhoseSeatHasTheNextOne(t *testing.T) {
	s := outside(t)
	es := s.Elections(nil)
	l := &lease{s: s, ctx: t.Context(), claims: map[seat]*claim{}, stillWorking: map[*claim]struct{}{}}
	both := entrants(es, l, 2)
	old, next := &both[0].claim, &both[1].claim
	kept := func() (standing, working bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, working = l.stillWorking[old]
		return l.claims[next.seat] == next, working
	}
	if !l.join(old) || !l.join(next) {
		t.Fatal("the lease takes no claim")
	}
	if standing, working := kept(); !standing || !working {
		t.Errorf("the next claim stands: %v, the old one is waited for: %v", standing, working)
	}
	l.forget(old, false) // its work runs on
	if standing, working := kept(); !standing || !working {
		t.Errorf("while work runs the next claim stands: %v, the old one is waited for: %v", standing, working)
	}
	l.forget(old, true)
	if standing, working := kept(); !standing || working {
		t.Errorf("in the end the next claim stands: %v, the old one is waited for: %v", standing, working)
	}
}

// onFire is a store that answers once, with an error, and then no more.
type onFire struct {
	driver.Store
	asked int
}

func (s *onFire) Line(ctx context.Context, _ string) (driver.Line, error) {
	if s.asked++; s.asked == 1 {
		return driver.Line{}, errors.New("the disk is on fire")
	}
	<-ctx.Done()
	return driver.Line{}, ctx.Err()
}

// When ctx ends, the error says what the store said last, not only that ctx has ended.
func TestAnUnreachableStoreIsToldWithWhatItSaidLast(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", &onFire{Store: b.store}, Options{})
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_, err := s.Election("n").State(ctx)
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "the disk is on fire") {
			t.Errorf("got %v", err)
		}
	})
}

// Session.Close ends terms, and then waits for what that has the history written.
func TestTheHistoryHasTheTermsThatCloseEnded(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		s := b.session("a", b.store, Options{})
		t1 := b.lead(s, "n")
		for ; !sumsUp(t1.Token()); t1 = b.lead(s, "n") { // else the release would carry the record
			if err := t1.Resign(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		go func() {
			<-t1.Context().Done()
			_ = t1.Resign(context.Background())
		}()
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if all := b.past("n", 1); len(all) != 1 || all[0].Token != t1.Token() || all[0].Reason != Closed {
			t.Errorf("got %+v, want the end of the term %d", all, t1.Token())
		}
	})
}

// fullJournal is a store that takes no record by itself.
type fullJournal struct {
	*memstore.Store
	asked atomic.Int32
}

func (s *fullJournal) Append(context.Context, string, driver.Record, int) (driver.Record, bool, error) {
	s.asked.Add(1)
	return driver.Record{}, false, driver.ErrRefused
}

// A store that refuses a record of history is asked for no other within a minute: each term would
// cost a request in vain, and a warning.
func TestAStoreThatTakesNoHistoryIsAskedOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &fullJournal{Store: b.store}
		s := b.session("a", st, Options{})
		for i, want := range []int32{1, 1, 2} {
			if i == 2 {
				time.Sleep(refusedPause)
			}
			term := b.lead(s, "n")
			time.Sleep(aSecond) // its beginning is recorded, or would be
			if got := st.asked.Load(); got != want {
				t.Errorf("term %d: the store was asked %d times, want %d", i, got, want)
			}
			if err := term.Resign(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// told is a store that shows one line after the other, also older ones after newer ones. It answers
// each request that whoever it was for has gone.
type told struct {
	driver.Store
	lines []driver.Line
}

func (s *told) Line(context.Context, string) (driver.Line, error) {
	ln := s.lines[0]
	s.lines = s.lines[min(1, len(s.lines)-1):]
	return ln, nil
}

func (s *told) Next(ctx context.Context, name string, _ uint64) (driver.Line, error) {
	if len(s.lines) == 1 {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return s.Line(ctx, name)
}

func (s *told) Ask(context.Context, string, driver.Request) error { return driver.ErrGone }

func ledBy(revision, token uint64, id string, waiting ...driver.Entry) driver.Line {
	return driver.Line{Name: "n", Revision: revision, Holder: &driver.Entry{Owner: id, Token: token, Held: true},
		Waiters: waiting}
}

// An observer is shown no older state after a newer one, which a store that is not linearizable may
// answer: the former leader would seem to lead again.
func TestAnObserverIsShownNoOlderState(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &told{Store: b.store, lines: []driver.Line{ledBy(5, 2, "b"), ledBy(3, 1, "a"), ledBy(6, 2, "b"),
			ledBy(7, 3, "c"), {}}}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var seen []string
		for st, err := range b.session("x", st, Options{}).Election("n").Observe(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, st.Leader.ID)
		}
		if !slices.Equal(seen, []string{"b", "c"}) {
			t.Errorf("shown %q, want b and then c", seen)
		}
	})
}

// Where the candidate that was named leads when the request is repeated, it was done as asked.
func TestAskWhoseSuccessorLeadsByNowIsDone(t *testing.T) {
	bubble(t, func(t *testing.T, b *world) {
		st := &told{Store: b.store, lines: []driver.Line{ledBy(1, 1, "a", driver.Entry{Owner: "b", Token: 2}),
			ledBy(2, 2, "b")}}
		got, err := b.session("x", st, Options{}).Election("n").Ask(t.Context(), Request{To: "b"})
		if err != nil || got != 1 {
			t.Errorf("got the token %d and %v, want 1 and no error", got, err)
		}
	})
}
