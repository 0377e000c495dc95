package cron

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/pause"
)

// pausedFleet has two processes run a job of every ten seconds. Its pauses are in its store.
func pausedFleet(t *testing.T, missed string) (w *simWorld, job *Job, unreadable *atomic.Bool) {
	t.Helper()
	return pausedFleetOf(t, missed, OK, func(*Job) {})
}

func pausedFleetOf(t *testing.T, missed, verdict string, set func(*Job)) (w *simWorld, job *Job,
	unreadable *atomic.Bool,
) {
	t.Helper()
	w = newSimWorld(t, 9, true)
	j := DefaultJob()
	j.Name, j.Spec, j.Command, j.Keep, j.Missed = "tick", "@every 10s", []string{"x"}, 10000, missed
	set(&j)
	job, err := j.Check()
	if err != nil {
		t.Fatal(err)
	}
	w.jobs = []*Job{job}
	w.script = func(Run) (time.Duration, string) { return time.Second, verdict }
	unreadable = &atomic.Bool{}
	w.pauses = func(ctx context.Context, _ time.Duration) ([]pause.Pause, error) {
		if unreadable.Load() {
			return nil, errors.New("not allowed")
		}
		return pause.List(ctx, w.store)
	}
	for i := range 2 {
		w.procs = append(w.procs, w.spawn(i, 0))
	}
	time.Sleep(35 * time.Second)
	return w, job, unreadable
}

// became returns how many of the scheduled times from one instant to another ran, were missed, and
// were recorded as paused and not decided.
func (w *simWorld) became(from, to time.Time) (ran, missed, held int) {
	w.Helper()
	_, runs, err := ReadJob(context.Background(), w.store, "tick", 10000, time.Now())
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range runs {
		if !r.Instant.After(from) || r.Instant.After(to) {
			continue
		}
		switch r.Result {
		case OK, "running":
			ran++
		case Missed, Overlap:
			missed += max(1, r.Count)
		case Paused:
			held++
		}
	}
	return ran, missed, held
}

// TestNothingBeginsWhilePaused: scheduled times that come meanwhile are recorded as paused, and the
// job's rule for missed times decides about them when the pause is over.
func TestNothingBeginsWhilePaused(t *testing.T) {
	for missed, want := range map[string]int{Once: 1, Skip: 0, All: 8} {
		synctest.Test(t, func(t *testing.T) {
			w, job, _ := pausedFleet(t, missed)
			from := time.Now()
			if ran, _, _ := w.became(time.Time{}, from); ran < 3 {
				t.Fatalf("before the pause %d ran", ran)
			}
			_, err := pause.Set(t.Context(), w.store, pause.Pause{Scope: "cron/", By: "ann", Reason: "drill",
				Until: from.Add(90 * time.Second)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(89 * time.Second)
			if ran, missed, held := w.became(from, time.Now()); ran != 0 || missed != 0 || held != 9 {
				t.Errorf("%s: in the pause %d ran, %d were missed, %d are paused", job.Missed, ran, missed, held)
			}
			to := time.Now()
			time.Sleep(2 * time.Minute)
			ran, gone, held := w.became(from, to)
			if held != 0 || ran+gone != 9 || ran < want || ran > want+1 { // the last may be fresh still
				t.Errorf("%s: after the pause %d ran, %d were missed, %d are open", job.Missed, ran, gone, held)
			}
			if ran, _, _ := w.became(to.Add(10*time.Second), time.Now().Add(-10*time.Second)); ran < 9 {
				t.Errorf("%s: after the pause %d ran in a hundred seconds", job.Missed, ran)
			}
			w.finish()
			w.judge()
		})
	}
}

// blocked has another program hold the job's claim, and returns what gives it up.
func (w *simWorld) blocked(job *Job) (free func()) {
	w.Helper()
	l, err := w.store.Grant(w.Context(), "other", time.Hour)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := l.Claim(w.Context(), driver.Claim{Name: job.claim(time.Time{}, false), ID: "blocks"}); err != nil {
		w.Fatal(err)
	}
	return func() {
		if err := l.Close(context.Background()); err != nil {
			w.Error(err)
		}
	}
}

// TestWhatWaitsForItsTurnDoesNotBeginInAPause: it was let go before the pause, and waits for the
// job's claim. A retry waits for half a minute.
func TestWhatWaitsForItsTurnDoesNotBeginInAPause(t *testing.T) {
	for _, retries := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			verdict := map[bool]string{false: OK, true: Failed}[retries > 0]
			w, job, _ := pausedFleetOf(t, Once, verdict, func(j *Job) {
				j.Retries, j.RetryDelay = retries, time.Second
			})
			for time.Now().Unix()%10 != 0 { // a scheduled time is due
				time.Sleep(time.Second)
			}
			time.Sleep(1200 * time.Millisecond) // its run is about to end
			free := w.blocked(job)
			time.Sleep(12 * time.Second) // the next one, or the retry, waits for the claim
			if _, err := pause.Set(t.Context(), w.store, pause.Pause{Scope: "cron/", By: "ann", Reason: "drill",
				Until: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			before := w.begun()
			free()
			time.Sleep(2 * time.Minute)
			if n := w.begun() - before; n != 0 {
				t.Errorf("with %d retries %d runs begin in the pause", retries, n)
			}
			if _, err := pause.Resume(t.Context(), w.store, "cron/", "ann"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if w.begun() == before {
				t.Error("after the pause nothing begins")
			}
			w.finish()
			w.judge()
		})
	}
}

// begun returns how many runs have begun.
func (w *simWorld) begun() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, job := range w.ran {
		for _, times := range job {
			n += times
		}
	}
	return n
}

// TestARunIsNotReplacedInAPause: the one that is due may not begin, so the one that runs is left
// alone.
func TestARunIsNotReplacedInAPause(t *testing.T) {
	a := attempt{replace: true, state: stAsk}
	if a.take(evHeld); a.next() != doNothing {
		t.Errorf("held by a pause, the attempt goes on with step %v", a.next())
	}
	synctest.Test(t, func(t *testing.T) {
		w, job, _ := pausedFleet(t, Once)
		if _, err := pause.Set(t.Context(), w.store, pause.Pause{Scope: "cron/", By: "ann", Reason: "drill",
			Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		l := w.procs[0].engine.jobs[job.Name]
		run := &attemptRun{jobLoop: l, a: &attempt{id: ID{time.Now(), 1}}, blocker: &begun{}}
		if e := run.do(doAsk); e != evHeld {
			t.Errorf("the run that has begun is asked to end: %v", e)
		}
		w.finish()
	})
}

func TestAPauseOfAnotherJobHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := pausedFleet(t, Once)
		other := pause.Pause{Scope: "cron/tock", By: "ann", Reason: "drill"}
		if _, err := pause.Set(t.Context(), w.store, other); err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		time.Sleep(time.Minute)
		if ran, _, _ := w.became(from, time.Now().Add(-5*time.Second)); ran < 5 {
			t.Errorf("%d ran", ran)
		}
		w.finish()
	})
}

// TestWhereThePausesCannotBeReadNothingBegins, but for what an operator asks for.
func TestWhereThePausesCannotBeReadNothingBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job, unreadable := pausedFleet(t, Once)
		unreadable.Store(true)
		time.Sleep(2 * time.Second)
		from := time.Now()
		time.Sleep(time.Minute)
		if ran, _, _ := w.became(from, time.Now()); ran != 0 {
			t.Errorf("%d ran though nobody knew what was paused", ran)
		}
		if _, err := Mark(t.Context(), w.store, job.Name, Wanted, "ann", time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if ran, _, _ := w.became(from, time.Now()); ran != 1 {
			t.Errorf("of one extra run that was asked for %d ran", ran)
		}
		unreadable.Store(false)
		time.Sleep(time.Minute)
		if ran, _, _ := w.became(from, time.Now()); ran < 5 {
			t.Errorf("afterwards %d ran", ran)
		}
		w.finish()
	})
}

// TestALongPauseLeavesFewRecords: those of what comes later, and the word of the pause itself, must
// not push each other out of a job's journal.
func TestALongPauseLeavesFewRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job, _ := pausedFleet(t, Once)
		if _, err := pause.Set(t.Context(), w.store, pause.Pause{Scope: "", By: "ann", Reason: "drill",
			Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		records, err := w.store.Records(t.Context(), Prefix+job.Name, "", 10000)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, d := range records {
			if strings.HasSuffix(d.Key, "."+kindHeld) {
				n++
			}
		}
		if n == 0 || n > heldRecords {
			t.Errorf("an hour left %d records of times that were paused", n)
		}
		w.finish()
	})
}
