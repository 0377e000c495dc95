package cron

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// The record of where one process begins to count is on its way while another's, of a later second,
// is there: what lies between is not forgotten.
func TestTrackersThatBeginTogetherCountFromTheEarliest(t *testing.T) {
	tr := trackerOf(t, nil).sees1(3)
	later := rec{at: 15, kind: kindNote, verdict: Fresh}
	tr.sees1(16, later)
	tr.forget(later.key(), time.Time{}) // the journal's oldest
	early := rec{at: 3, kind: kindNote, verdict: Fresh}
	expect(t, "its own has arrived", tr.sees1(18, early, later).orders(18), "run 10.1")
	other := trackerOf(t, nil).sees1(15)
	expect(t, "to the other", other.sees1(18, early, later).orders(18), "run 10.1")
	expect(t, "to who comes later", trackerOf(t, nil).sees1(18, early, later).orders(18), "run 10.1")
	// It goes back once, over what is decided.
	seen := append(append([]rec{early, later}, ran(10)...), ran(20)...)
	expect(t, "all is decided", other.sees1(29, seen...).orders(29))
	expect(t, "and stays so", other.sees1(39, append(seen, ran(30)...)...).orders(39))
	// Not behind where a pause ended.
	paused := []rec{early, later, {at: 16, kind: kindNote, verdict: Paused}, {at: 25, kind: kindNote, verdict: Resumed}}
	expect(t, "paused between", trackerOf(t, nil).sees1(15).sees1(30, paused...).orders(30), "run 30.1")
}

func (r rec) key() Key { return Key{at(r.at), r.attempt, r.kind} }

// The journal has forgotten an attempt again, and has only what its runner said late, or what came
// after it: the attempt is not made once more.
func TestTrackerForgetsWithinAnInstant(t *testing.T) {
	set := func(j *Job) { j.Retries = 2 }
	failed := []rec{fresh0, {at: 10, attempt: 1, kind: kindBegin, verdict: Began},
		{at: 10, attempt: 1, kind: kindEnd, verdict: Failed}}
	for _, oldest := range []rec{{at: 10, attempt: 2, kind: kindLate, verdict: OK},
		{at: 10, attempt: 3, kind: kindEnd, verdict: OK}, {at: 20, attempt: 1, kind: kindBegin, verdict: Missed}} {
		tr := trackerOf(t, set).sees1(12, failed...)
		expect(t, "to be made", tr.orders(29), "run 10.2", "run 20.1")
		tr.sees1(29, append([]rec{oldest}, ran(20)...)...)
		tr.forget(oldest.key(), time.Time{})
		expect(t, oldest.key().String(), tr.orders(29))
	}
}

// A schedule that was changed, or a new one, is no word about a pause.
func TestWhoBeginsToCountDoesNotEndAPause(t *testing.T) {
	recs := []rec{fresh0, {at: 15, kind: kindNote, verdict: Paused}, {at: 17, kind: kindNote, verdict: Fresh}}
	expect(t, "paused", trackerOf(t, nil).sees1(35, recs...).orders(35))
	tr := trackerOf(t, nil).sees1(16, recs[:2]...)
	expect(t, "the records that say so have left the window", tr.sees1(95, ran(90)...).orders(95))
}

// An answer that was read before a job was resumed, and comes after that, because the process was
// frozen, skips nothing.
func TestAnOldWordAboutAPauseSkipsNothing(t *testing.T) {
	paused := []rec{fresh0, {at: 5, kind: kindNote, verdict: Paused}}
	resumed := append(slices.Clip(paused), rec{at: 15, kind: kindNote, verdict: Resumed})
	tr := trackerOf(t, nil).sees1(16, resumed...)
	if over := tr.over(); !over.Equal(at(15)) {
		t.Errorf("over up to %v", over)
	}
	expect(t, "resumed", tr.orders(20), "run 20.1")
	expect(t, "an older answer", tr.sees1(21, paused...).orders(21), "run 20.1")
	ahead := trackerOf(t, nil).sees1(300, paused...).sees1(301, resumed...)
	if over := ahead.over(); !over.IsZero() {
		t.Errorf("a clock that is ahead says that all is over up to %v", over)
	}
}

// What was asked for by hand and has begun is no reason to read the journal back to there for ever.
func TestTrackerIsNotConcernedWithWhatHasBegun(t *testing.T) {
	want := rec{at: 12, kind: kindWant, verdict: Wanted}
	tr := trackerOf(t, nil).sees1(14, append([]rec{fresh0, want}, ran(10)...)...)
	tr.sees1(35, append(append(append(append([]rec{fresh0, want}, ran(10)...), ran(12)...), ran(20)...), ran(30)...)...)
	if c := tr.concern(); !c.Equal(at(30)) {
		t.Errorf("it is concerned with what is since %v", c)
	}
}

// Everybody has begun anew since an instant was left undecided and a run without an end, and so
// much has happened since that both have left the window.
func TestWhoBeginsFindsWhatIsBeyondTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, 1, true)
		j := DefaultJob()
		j.Name, j.Spec, j.Overlap, j.Command, j.Keep = "deep", "@every 10s", Allow, []string{"x"}, 10000
		job, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		w.jobs = []*Job{job}
		first := time.Now().UTC()
		hole, open := first.Add(20*time.Second), first.Add(40*time.Second)
		time.Sleep(205 * 10 * time.Second)
		for at := first.Add(10 * time.Second); at.Before(time.Now()); at = at.Add(10 * time.Second) {
			if at.Equal(hole) {
				continue
			}
			w.remember(job, Record{Key: Key{at, 1, kindBegin}, Verdict: Began, Done: first.Add(10 * time.Second)})
			if !at.Equal(open) {
				w.remember(job, Record{Key: Key{at, 1, kindEnd}, Verdict: OK})
			}
		}
		w.procs = append(w.procs, w.spawn(1, 0))
		time.Sleep(time.Minute)
		w.finish()
		records, _ := w.store.Records(context.Background(), Prefix+j.Name, "", 10000)
		v := see(records)
		if !v.decided(ID{hole, 1}) {
			t.Error("nobody has decided about the instant")
		}
		if a := v.attempts[ID{open, 1}]; a.end == nil || a.end.Verdict != Lost {
			t.Errorf("the run that has no end is told as %+v", a.end)
		}
		if last := see(records).done(job.instants()); last.Before(time.Now().Add(-3 * time.Minute)) {
			t.Errorf("all is over up to %v, says the journal", last)
		}
	})
}

// remember leaves a record of the job in the store.
func (w *simWorld) remember(j *Job, r Record) {
	w.Helper()
	r.By, r.Run, r.When = "before", runName(), r.Key.At
	if r.Key.Kind == kindBegin {
		r.Sched, r.Claim = j.instants(), j.claim(r.Key.At, false)
	}
	d, err := r.driver()
	if err != nil {
		w.Fatal(err)
	}
	if _, _, err := w.store.Append(context.Background(), Prefix+j.Name, d, j.Keep); err != nil {
		w.Fatal(err)
	}
}

// Whoever asks a paused job for run after run does not push the word that it is paused out of what
// is read.
func TestExtraRunsDoNotEndAPause(t *testing.T) {
	st := memstore.New(memstore.Options{})
	ctx := context.Background()
	j := trackerOf(t, nil).job
	put := func(r Record) {
		d, _ := r.driver()
		if _, _, err := st.Append(ctx, Prefix+"j", d, 128); err != nil {
			t.Fatal(err)
		}
	}
	put(Record{Key: Key{at(0), 0, kindNote}, Verdict: Fresh, Sched: j.instants()})
	if _, err := Mark(ctx, st, "j", Paused, "operator", at(5)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		when, err := Mark(ctx, st, "j", Wanted, "operator", at(10+10*i))
		if err != nil {
			t.Fatal(err)
		}
		put(Record{Key: Key{when, 1, kindBegin}, Verdict: Began, Sched: j.instants()})
		put(Record{Key: Key{when, 1, kindEnd}, Verdict: OK})
	}
	records, _ := st.Records(ctx, Prefix+"j", "", window)
	if v := see(records); !v.paused || slices.ContainsFunc(records,
		func(d driver.Record) bool { return d.Key == Key{at(5), 0, kindNote}.String() }) {
		t.Errorf("paused is %v", v.paused)
	}
	if _, err := Mark(ctx, st, "j", Resumed, "operator", at(2000)); err != nil {
		t.Error(err)
	}
}

// An attempt is made by another, ends, and is forgotten by the journal, all while we wait for the
// claim: it must not be made again.
func TestWhatTheJournalForgetsMeanwhileIsNotDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(t, 1, true)
		j := DefaultJob()
		j.Name, j.Spec, j.Command, j.Keep, j.Retries, j.RetryDelay = "edge", "@every 10s", []string{"x"}, minKeep, 1,
			time.Second
		job, err := j.Check()
		if err != nil {
			t.Fatal(err)
		}
		w.jobs = []*Job{job}
		first := time.Now().UTC().Add(10 * time.Second)
		time.Sleep(2000 * time.Second)
		run := func(at time.Time, attempt int, verdict string) {
			w.remember(job, Record{Key: Key{at, attempt, kindBegin}, Verdict: Began, Retries: 1,
				Done: first.Add(-10 * time.Second)})
			w.remember(job, Record{Key: Key{at, attempt, kindEnd}, Verdict: verdict})
		}
		at := time.Now().UTC().Add(-62 * 10 * time.Second).Truncate(10 * time.Second)
		first = at
		run(first, 1, Failed)
		for range 62 {
			at = at.Add(10 * time.Second)
			run(at, 1, OK)
		}
		var meanwhile atomic.Bool
		w.onTry = sync.OnceFunc(func() {
			meanwhile.Store(true)
			run(first, 2, OK)
			for range 2 {
				at = at.Add(10 * time.Second)
				run(at, 1, OK)
			}
		})
		w.procs = append(w.procs, w.spawn(1, 0))
		time.Sleep(8 * time.Second)
		w.finish()
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := w.ran["edge"][ID{first, 2}]; n != 0 || !meanwhile.Load() {
			t.Errorf("it is made %d times more; meanwhile: %v", n, meanwhile.Load())
		}
	})
}

// The beginning of a run is in the journal, the answer that says so is lost, and the process reads
// the journal before it asks again: the run is its own, so it runs, and has its end when the
// process has stopped.
func TestARunWhoseBeginningWasNotAnsweredRuns(t *testing.T) {
	for name, lose := range map[string]func(context.Context, *jobLoop){
		"the time limit of the call ran out": func(ctx context.Context, _ *jobLoop) { <-ctx.Done() },
		"the journal was read in between":    func(_ context.Context, l *jobLoop) { l.read() },
		"and the process was told to stop as well": func(_ context.Context, l *jobLoop) {
			go l.e.Stop(true, nil)
			l.read()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimWorld(t, 1, true)
				j := DefaultJob()
				j.Name, j.Spec, j.Command, j.Keep = "unanswered", "@every 10s", []string{"x"}, 10000
				job, err := j.Check()
				if err != nil {
					t.Fatal(err)
				}
				w.jobs = []*Job{job}
				w.script = func(Run) (time.Duration, string) { return time.Second, OK }
				var lost atomic.Pointer[Key]
				spawned := make(chan struct{})
				w.deaf = func(ctx context.Context, d driver.Record) error {
					r, _ := ParseRecord(d)
					if r.Verdict != Began || !lost.CompareAndSwap(nil, &r.Key) {
						return nil
					}
					<-spawned
					e := w.procs[0].engine
					e.mu.Lock()
					l := e.jobs[job.Name]
					e.mu.Unlock()
					lose(ctx, l)
					return errNet
				}
				w.procs = append(w.procs, w.spawn(1, 0))
				close(spawned)
				time.Sleep(18 * time.Second)
				w.finish()
				records, _ := w.store.Records(context.Background(), Prefix+job.Name, "", 10000)
				key := lost.Load()
				if key == nil {
					t.Fatal("no run has begun")
				}
				id := ID{key.At, key.Attempt}
				a := see(records).attempts[id]
				if n := w.ran[job.Name][id]; n != 1 || a == nil || a.end == nil || a.end.Verdict != OK {
					t.Errorf("it ran %d times, its record is %+v", n, a)
				}
			})
		})
	}
}
