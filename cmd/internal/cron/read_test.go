package cron

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// noted returns a store whose journal of the job j has its first note.
func noted(t *testing.T) *memstore.Store {
	t.Helper()
	st := memstore.New(memstore.Options{})
	d, err := Record{Key: Key{at(0), 0, kindNote}, Verdict: Fresh, When: at(0)}.driver()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Append(t.Context(), Prefix+"j", d, 300); err != nil {
		t.Fatal(err)
	}
	return st
}

// A pause or its end counts from the newest one on, whatever the clock of the operator's machine
// says: else the word of a machine whose clock is behind would lie before what it is to end.
func TestAPauseByAClockThatIsBehind(t *testing.T) {
	st := noted(t)
	for i, c := range []struct {
		verdict string
		now     int
	}{{Paused, 100}, {Resumed, 50}, {Paused, 10}, {Resumed, 10}} {
		if _, err := Mark(t.Context(), st, "j", c.verdict, "op", at(c.now)); err != nil {
			t.Fatal(err)
		}
		info, _, err := ReadJob(t.Context(), st, "j", window, at(c.now))
		if err != nil {
			t.Fatal(err)
		}
		if info.Paused != (c.verdict == Paused) {
			t.Errorf("%d: %s at %d: paused %v", i, c.verdict, c.now, info.Paused)
		}
	}
}

// A process that is to end goes on for a while to tell how a run ended, and no longer: untold, a
// run that has done its work would be lost, and be tried again.
func TestAnEndIsToldThoughTheProcessIsToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Options{Rand: func() float64 { return 0.5 }})
		close(e.quit)
		close(e.stop)
		s := &attemptRun{jobLoop: &jobLoop{e: e}, a: &attempt{}, h: TermHold{}, end: Record{When: time.Now()}}
		began := time.Now()
		for s.wait() == evDone && time.Since(began) < time.Minute {
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("the end is told again for %v, want 3 s", took)
		}
		s.h, began = nil, time.Now() // it has not begun
		if got := s.wait(); got != evShut || time.Since(began) > 0 {
			t.Errorf("what has not begun waits for %v: %v", time.Since(began), got)
		}
	})
}

// What a record says in words is cut: a store refuses a record that is too large, again and again,
// and the end of its run would never be told.
func TestALongTextFitsIntoARecord(t *testing.T) {
	st := memstore.New(memstore.Options{})
	text := strings.Repeat("a word and ü ", 100_000)
	d, err := Record{Key: Key{at(0), 1, kindEnd}, Verdict: Failed, Text: text, When: at(0)}.driver()
	if err != nil {
		t.Fatal(err)
	}
	if _, added, err := st.Append(t.Context(), Prefix+"j", d, 300); !added || err != nil {
		t.Fatalf("a record with %d bytes was not kept: %v, %v", len(d.Value), added, err)
	}
	if r, ok := ParseRecord(d); !ok || !strings.HasPrefix(text, r.Text) || len(r.Text) < 512 {
		t.Errorf("%d bytes of the text are left: %v", len(r.Text), ok)
	}
}

// Two operators who ask for the same in one second are two.
func TestMarksOfOneSecond(t *testing.T) {
	st := noted(t)
	var all []time.Time
	for range 3 {
		when, err := Mark(t.Context(), st, "j", Wanted, "op", at(10))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, when)
	}
	if !slices.Equal(all, []time.Time{at(10), at(11), at(12)}) {
		t.Errorf("runs are wanted at %v", all)
	}
}

// An extra run that is asked for in the second of a scheduled time is none of its own there: it is
// put behind. Where each second is a scheduled time it is refused.
func TestAnExtraRunIsNotTheScheduledOne(t *testing.T) {
	for spec, want := range map[string][]int{
		"*/10 * * * * *":          {21, 22},
		"0-58 * * * * *":          {59, 119},
		"20,22,23 * * * * *":      {21, 24},
		"0 0 1 1 *":               {21, 22}, // it ran at 20, when it had another schedule
		"* * * * * *":             nil,
		"@every 1s":               nil,
		"something newer than us": {21, 22},
	} {
		st := noted(t)
		r := Record{Key: Key{at(20), 1, kindBegin}, Verdict: Began, When: at(20), Def: "d", Sched: "s", Spec: spec}
		d, err := r.driver()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := st.Append(t.Context(), Prefix+"j", d, 300); err != nil {
			t.Fatal(err)
		}
		var got []time.Time
		for range max(1, len(want)) {
			when, err := Mark(t.Context(), st, "j", Wanted, "op", at(20).Add(700*time.Millisecond))
			if (err != nil) != (want == nil) || err != nil && !errors.Is(err, ErrAlready) {
				t.Errorf("%s: %v", spec, err)
			}
			if err == nil {
				got = append(got, when)
			}
		}
		if !slices.EqualFunc(got, want, func(a time.Time, b int) bool { return a.Equal(at(b)) }) {
			t.Errorf("%s: runs are wanted at %v, want %v", spec, got, want)
		}
	}
}

// A paused job of every second runs none of these: an extra run has its place among them.
func TestAnExtraRunOfAPausedJobOfEverySecond(t *testing.T) {
	for _, whole := range []bool{false, true} {
		st := noted(t)
		for s, r := range map[int]Record{19: {Verdict: Began, Def: "d", Sched: "s", Spec: "* * * * * *"},
			20: {Verdict: Missed}} {
			r.Key, r.When = Key{at(s), 1, kindBegin}, at(s)
			d, err := r.driver()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := st.Append(t.Context(), Prefix+"j", d, 300); err != nil {
				t.Fatal(err)
			}
		}
		if whole {
			p := pause.Pause{Scope: "cron/", By: "ann", Reason: "drill"}
			if _, err := pause.Set(t.Context(), st, p); err != nil {
				t.Fatal(err)
			}
		} else if _, err := Mark(t.Context(), st, "j", Paused, "ann", at(19)); err != nil {
			t.Fatal(err)
		}
		if when, err := Mark(t.Context(), st, "j", Wanted, "ann", at(20)); err != nil || !when.Equal(at(21)) {
			t.Errorf("every job is paused: %v; the extra run is wanted at %v, %v", whole, when, err)
		}
	}
}

// triedClaims counts the claims that are asked for. All are free.
type triedClaims struct {
	Claims
	tried int
}

func (c *triedClaims) Try(context.Context, string) (Hold, error) {
	c.tried++
	return TermHold{}, nil
}

// A process that is to end, and waits for what runs, begins nothing any more.
func TestNothingBeginsInAProcessThatIsToEnd(t *testing.T) {
	claims := &triedClaims{}
	e := New(Options{Claims: claims, Attempt: time.Minute})
	s := &attemptRun{jobLoop: &jobLoop{e: e}, a: &attempt{}}
	if got := s.claim(); got != evOurs || claims.tried != 1 {
		t.Fatalf("before: %v, %d claims", got, claims.tried)
	}
	close(e.stop)
	if got := s.claim(); got != evUnknown || claims.tried != 1 {
		t.Errorf("once it is to end: %v, %d claims", got, claims.tried-1)
	}
}
