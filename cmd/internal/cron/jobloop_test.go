package cron

import (
	"testing"
	"testing/synctest"
	"time"
)

// firstRun makes the first run of the job take so long and fail, and every other one end well after
// a second. It returns what says which instant that was.
func (w *simWorld) firstRun(length time.Duration) (first func() time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var at time.Time
	w.script = func(r Run) (time.Duration, string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if at.IsZero() {
			at = r.At
			return length, Failed
		}
		return time.Second, OK
	}
	return func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return at
	}
}

// attempts returns how often an attempt at an instant of the job has begun.
func (w *simWorld) attempts(id ID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ran["tick"][id]
}

// What is tried again long after must be tried again, though the job has had more runs meanwhile
// than its journal keeps records.
func TestARetryIsNotForgottenBehindNewerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := pausedFleetOf(t, Once, OK, func(j *Job) {
			j.Retries, j.RetryDelay, j.Keep = 1, 20*time.Minute, minKeep
		})
		first := w.firstRun(time.Second)
		time.Sleep(19 * time.Minute)
		if n := w.attempts(ID{first(), 2}); n != 0 {
			t.Fatalf("it is tried again too early: %d", n)
		}
		time.Sleep(2 * time.Minute)
		if n := w.attempts(ID{first(), 2}); n != 1 {
			t.Errorf("it is tried again %d times", n)
		}
		time.Sleep(30 * time.Minute)
		if n := w.kept(); n > minKeep+20 {
			t.Errorf("once that is over %d records are kept, of a journal of %d", n, minKeep)
		}
		w.finish()
	})
}

// kept returns how many records the journal of the job has.
func (w *simWorld) kept() int {
	records, err := w.store.Records(w.Context(), Prefix+"tick", "", 100000)
	if err != nil {
		w.Error(err)
	}
	return len(records)
}

// A run that goes on for long is not forgotten behind the records that say that others may not
// begin beside it: it has an end, and is tried again.
func TestALongRunIsNotForgottenBehindOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := pausedFleetOf(t, Once, OK, func(j *Job) {
			j.Retries, j.RetryDelay, j.Keep = 1, time.Second, minKeep
		})
		first := w.firstRun(30 * time.Minute)
		from := time.Now()
		time.Sleep(25 * time.Minute)
		_, missed, _ := w.became(from, time.Now())
		all, err := ReadAll(t.Context(), w.store, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if s := all[0]; len(s.Running) != 1 || s.Last == nil || s.Results[Overlap] < 140 || s.Results[Missed] > 0 {
			t.Errorf("it runs: %d runs, the last is %v, %v; %d overlap", len(s.Running), s.Last, s.Results, missed)
		}
		time.Sleep(6 * time.Minute)
		if n := w.attempts(ID{first(), 2}); n != 1 {
			t.Errorf("it is tried again %d times", n)
		}
		w.finish()
	})
}

// Of what was missed as much runs as was promised, though its runs take longer than the journal
// keeps what was decided meanwhile.
func TestWhatIsCaughtUpIsNotForgottenBehindNewerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job, _ := pausedFleetOf(t, All, OK, func(j *Job) { j.Overlap, j.CatchUp, j.Keep = Allow, 40, minKeep })
		for i := range w.procs {
			w.crash(i)
		}
		gone := time.Now()
		time.Sleep(400 * time.Second)
		back := time.Now()
		w.script = func(r Run) (time.Duration, string) {
			if r.At.Before(back.Add(-time.Second)) {
				return time.Minute, OK
			}
			return time.Second, OK
		}
		w.procs = append(w.procs, w.spawn(7, 0))
		time.Sleep(50 * time.Minute)
		for at := job.schedule.Next(gone); at.Before(back.Add(-job.Late)); at = job.schedule.Next(at) {
			if w.attempts(ID{at, 1}) != 1 {
				t.Errorf("%v ran %d times", at, w.attempts(ID{at, 1}))
			}
		}
		w.finish()
	})
}

// A process that was frozen for so long that the journal has forgotten its run says nothing more of
// it there: the record would stand alone before much that has been removed.
func TestTheEndOfAForgottenRunIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job, _ := pausedFleetOf(t, Once, OK, func(j *Job) { j.Keep = minKeep })
		first := w.firstRun(30 * time.Second)
		time.Sleep(12 * time.Second)
		at := time.Now().Add(time.Hour)
		for range 2 * minKeep {
			at = job.schedule.Next(at)
			w.remember(job, Record{Key: Key{at, 1, kindBegin}, Verdict: Missed})
		}
		time.Sleep(40 * time.Second)
		if n := w.attempts(ID{first(), 1}); n != 1 {
			t.Fatalf("the run began %d times", n)
		}
		records, err := w.store.Records(t.Context(), Prefix+job.Name, "", 100000)
		if err != nil {
			t.Fatal(err)
		}
		if oldest, _ := ParseKey(records[len(records)-1].Key); oldest.At.Before(time.Now()) {
			t.Errorf("the oldest record is %v", oldest)
		}
		w.finish()
	})
}

// Where very much is not over, not each look reads all of it; but what is recorded as missed, and
// what begins and may be forgotten, does.
func TestNotEachLookReadsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		now := time.Now()
		l := &jobLoop{e: New(Options{}), job: trackerOf(t, nil).job, deepAt: now, readAt: now, edge: now,
			back: 10 * 4 * window}
		skip := []order{{act: actSkip}}
		if !l.mayGlance(nil) || l.mayGlance(skip) {
			t.Errorf("just read: %v, with something to record as missed: %v", l.mayGlance(nil), l.mayGlance(skip))
		}
		time.Sleep(9 * time.Second)
		l.readAt = time.Now()
		if !l.mayGlance(nil) {
			t.Error("after 9 s it reads everything again")
		}
		claimed := now.Add(time.Second)
		if !l.uncertain(now.Add(-time.Minute), claimed) || l.uncertain(now.Add(time.Minute), claimed) {
			t.Error("a glance is taken for a full look, or a full look is asked for what is new")
		}
		time.Sleep(time.Second)
		if l.mayGlance(nil) {
			t.Error("after 10 s it does not read everything")
		}
		l.deepAt, l.back = time.Now(), 4*4*window
		if l.mayGlance(nil) {
			t.Error("it reads not all of what takes a few calls")
		}
	})
}

// A record makes room only where it says up to where all is over, by who has just looked; and never
// at the cost of what is not over.
func TestHowManyRecordsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &jobLoop{e: New(Options{}), job: trackerOf(t, nil).job, readAt: time.Now()}
		says := Record{Done: at(0)}
		for back, want := range map[int]int{0: 300, 180: 300, 1000: 1000 + 250 + window, maxKeep: maxKeep} {
			if l.back = back; l.keeps(says) != want {
				t.Errorf("%d are needed: %d are kept, want %d", back, l.keeps(says), want)
			}
		}
		l.back = 0
		if n := l.keeps(Record{}); n != maxKeep {
			t.Errorf("a record that does not say what is over keeps %d", n)
		}
		time.Sleep(5 * time.Second)
		if n := l.keeps(says); n != maxKeep {
			t.Errorf("who has not looked for 5 s keeps %d", n)
		}
	})
}

// A machine whose clock was ahead has decided about scheduled times that are to come: they do not
// run. An extra run does, and so does the job under another name.
func TestTheWayOutAfterAClockThatWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, job, _ := pausedFleetOf(t, Once, OK, func(*Job) {})
		w.procs = append(w.procs, w.spawn(2, time.Hour))
		time.Sleep(time.Minute)
		w.procs[2].heal()
		before := w.ranOf(job.Name)
		time.Sleep(10 * time.Minute)
		if n := w.ranOf(job.Name); n > before+1 {
			t.Errorf("%d ran: the docs say that none does", n-before)
		}
		before = w.ranOf(job.Name)
		if _, err := Mark(t.Context(), w.store, job.Name, Wanted, "op", time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if n := w.ranOf(job.Name) - before; n != 1 {
			t.Errorf("of one extra run that was asked for %d ran", n)
		}
		other := *job
		other.Name = "tock"
		for _, p := range w.procs {
			p.engine.Set([]*Job{&other})
		}
		time.Sleep(5 * time.Minute)
		if n := w.ranOf("tock"); n < 29 {
			t.Errorf("of 30 scheduled times under another name %d ran", n)
		}
		w.finish()
	})
}
