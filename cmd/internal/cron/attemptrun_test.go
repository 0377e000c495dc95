package cron

import (
	"testing"
	"testing/synctest"
	"time"
)

// narrowFleet has three processes, each with room for one command, run these jobs.
func narrowFleet(t *testing.T, jobs ...Job) *simWorld {
	t.Helper()
	w := newSimWorld(t, 9, true)
	w.jobs, w.room = nil, 1
	for _, j := range jobs {
		j.Command, j.Keep = []string{"x"}, 10000
		checked, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		w.jobs = append(w.jobs, checked)
	}
	return w
}

// ranOf returns how many runs of a job have begun.
func (w *simWorld) ranOf(job string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, times := range w.ran[job] {
		n += times
	}
	return n
}

// A retry that waits for hours behind another run of its job must not take the room that other jobs
// need, in every process at once.
func TestARetryThatWaitsForItsClaimTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, brief := DefaultJob(), DefaultJob()
		long.Name, long.Spec, long.Retries, long.RetryDelay = "long", "@every 60s", 1, 65*time.Second
		brief.Name, brief.Spec, brief.Missed = "brief", "@every 30s", Skip
		w := narrowFleet(t, long, brief)
		n := 0
		w.script = func(r Run) (time.Duration, string) {
			if r.Job.Name == "brief" {
				return time.Second, OK
			}
			if n++; n == 1 {
				return time.Second, Failed
			}
			return 3 * time.Hour, OK
		}
		for i := range 3 {
			w.procs = append(w.procs, w.spawn(i, 0))
		}
		time.Sleep(5 * time.Minute)
		before := w.ranOf("brief")
		time.Sleep(10 * time.Minute)
		if n := w.ranOf("brief") - before; n < 19 {
			t.Errorf("of 20 scheduled times of the other job %d ran", n)
		}
		if n := w.ranOf("long"); n != 2 {
			t.Errorf("the long job ran %d times: the retry does not wait", n)
		}
		for i := range w.procs {
			w.crash(i)
		}
		time.Sleep(5 * time.Minute)
	})
}

// A process without room still says that a run of the job has not ended, and has it replaced: for
// both it needs none.
func TestWhatNeedsNoRoomIsDoneWithoutIt(t *testing.T) {
	for _, overlap := range []string{Forbid, Replace} {
		synctest.Test(t, func(t *testing.T) {
			j := DefaultJob()
			j.Name, j.Spec, j.Overlap = "tick", "@every 60s", overlap
			w := narrowFleet(t, j)
			w.script = func(Run) (time.Duration, string) { return 10 * time.Minute, OK }
			w.procs = append(w.procs, w.spawn(0, 0))
			from := time.Now()
			time.Sleep(9*time.Minute + 30*time.Second)
			ran, skipped, _ := w.became(from, time.Now())
			n := w.ranOf("tick")
			if overlap == Replace && n < 8 || overlap == Forbid && (n != 1 || ran != 1 || skipped < 7) {
				t.Errorf("%s: %d runs, %d not run as they overlap", overlap, n, skipped)
			}
			w.finish()
		})
	}
}
