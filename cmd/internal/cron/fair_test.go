package cron

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A job whose runs take all the time between two instants, and fail: what is to be tried again must
// get its turn, though the next instant is always first.
func TestAnAttemptAgainDoesNotStarveBehindNewInstants(t *testing.T) {
	const bound = 45 * time.Second // the retry delay, as long as an instant may be late, a run, and a moment
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, 3, true)
		j := DefaultJob()
		j.Name, j.Spec, j.Command, j.Keep, j.Retries, j.RetryDelay = "full", "@every 20s", []string{"x"}, 10000, 1,
			5*time.Second
		job, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		w.jobs = []*Job{job}
		w.script = func(r Run) (time.Duration, string) {
			left := time.Until(job.schedule.Next(time.Now())) - 150*time.Millisecond
			if r.Attempt == 1 {
				return left, Failed
			}
			return time.Second, OK
		}
		for i := range 2 {
			w.procs = append(w.procs, w.spawn(i, 0))
		}
		time.Sleep(5 * time.Minute)
		records, _ := w.store.Records(context.Background(), Prefix+j.Name, "", 10000)
		v, failed := see(records), 0
		for id, a := range v.attempts {
			if id.Attempt > 1 || a.end == nil || a.end.Verdict != Failed {
				continue
			}
			failed++
			next := v.attempts[ID{id.At, 2}]
			switch {
			case next == nil && time.Since(a.end.When) > bound:
				t.Errorf("%v failed at %v and was not tried again", id.At, a.end.When)
			case next != nil && next.begin.When.Sub(a.end.When) > bound:
				t.Errorf("%v failed and was tried again %v later", id.At, next.begin.When.Sub(a.end.When))
			}
		}
		if failed < 3 {
			t.Errorf("only %d runs failed", failed)
		}
		w.finish()
	})
}

// Two processes have different files: what may not overlap begins beside no run of the other's
// either. So it is while a file is read again.
func TestForbidHoldsBesideAnotherDefinition(t *testing.T) {
	for _, overlap := range []string{Forbid, Replace} {
		synctest.Test(t, func(t *testing.T) {
			w := newSimWorld(t, 5, true)
			def := func(overlap string) []*Job {
				j := DefaultJob()
				j.Name, j.Spec, j.Command, j.Keep, j.Overlap = "mixed", "@every 5s", []string{"x"}, 10000, overlap
				job, err := j.Check()
				if err != nil {
					t.Fatal(err)
				}
				return []*Job{job}
			}
			w.script = func(Run) (time.Duration, string) { return 7 * time.Second, OK }
			w.jobs = def(Allow)
			w.procs = append(w.procs, w.spawn(1, 0))
			w.jobs = def(overlap)
			w.procs = append(w.procs, w.spawn(2, 0))
			for i := range 40 {
				time.Sleep(10 * time.Second)
				w.procs[0].engine.Set(def([]string{Allow, overlap}[i%2]))
			}
			w.finish()
			for _, text := range w.wrong {
				t.Errorf("%s: %s", overlap, text)
			}
			if len(w.ran["mixed"]) < 30 {
				t.Errorf("%s: only %d ran", overlap, len(w.ran["mixed"]))
			}
		})
	}
}
