package cron

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/memstore"
)

// A pause or its end counts from the newest one on, whatever the clock of the operator's machine
// says: else the word of a machine whose clock is behind would lie before what it is to end.
func TestAPauseByAClockThatIsBehind(t *testing.T) {
	st := memstore.New(memstore.Options{})
	d, err := Record{Key: Key{at(0), 0, kindNote}, Verdict: Fresh, When: at(0)}.driver()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Append(t.Context(), Prefix+"j", d, 300); err != nil {
		t.Fatal(err)
	}
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
