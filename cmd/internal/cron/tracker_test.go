package cron

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var zero = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return zero.Add(time.Duration(seconds) * time.Second) }

// trackerOf returns a tracker of a job that is due every ten seconds, with records
// "SECONDS.ATTEMPT.KIND VERDICT".
func trackerOf(t *testing.T, set func(*Job)) *tracker {
	t.Helper()
	j := DefaultJob()
	j.Name, j.Spec, j.Command = "j", "*/10 * * * * *", []string{"true"}
	if set != nil {
		set(&j)
	}
	checked, err := j.Check()
	if err != nil {
		t.Fatal(err)
	}
	return newTracker(checked)
}

type rec struct {
	at, attempt   int
	kind, verdict string
	upto          int
}

func (t *tracker) sees1(now int, recs ...rec) *tracker {
	var all []driver.Record
	for _, r := range recs {
		full := Record{Key: Key{at(r.at), r.attempt, r.kind}, Verdict: r.verdict, By: "p", When: at(r.at + 1),
			Retries: t.job.Retries}
		if r.kind == kindBegin || r.verdict == Fresh || r.kind == kindGap {
			full.Sched, full.Claim = t.job.instants(), t.job.claim(at(r.at), false)
		}
		if r.kind == kindGap {
			full.Upto = at(r.upto)
		}
		d, err := full.driver()
		if err != nil {
			panic(err)
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b driver.Record) int { return -cmpStrings(a.Key, b.Key) })
	t.observe(see(all), at(now))
	return t
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// orders tells orders in short: "run 10.1 skip 20 catchup probe 10.1 anchor".
func (t *tracker) orders(now int) (out []string) {
	for _, o := range t.due(at(now)) {
		s := int(o.id.At.Sub(zero) / time.Second)
		out = append(out, fmt.Sprintf("%s %d.%d", []string{"run", "catchup", "skip", "probe", "anchor"}[o.act], s,
			o.id.Attempt))
	}
	slices.Sort(out)
	return out
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

var fresh0 = rec{at: 0, kind: kindNote, verdict: Fresh}

func ran(s int) []rec {
	return []rec{{at: s, attempt: 1, kind: kindBegin, verdict: Began}, {at: s, attempt: 1, kind: kindEnd, verdict: OK}}
}

func TestTrackerOfANewJob(t *testing.T) {
	tr := trackerOf(t, nil)
	expect(t, "before it has seen anything", tr.orders(100))
	tr.sees1(5)
	expect(t, "new", tr.orders(5), "anchor 5.0")
	expect(t, "its first instant", tr.orders(10), "anchor 5.0", "run 10.1")
	if next := tr.next(at(5)); !next.Equal(at(10)) {
		t.Errorf("next is %v", next)
	}
	var before []driver.Record
	r := Record{Key: Key{at(20), 1, kindBegin}, Verdict: Began, Sched: "another"}
	d, _ := r.driver()
	other := trackerOf(t, nil)
	other.observe(see(append(before, d)), at(95))
	expect(t, "a changed schedule counts from now", other.orders(101), "anchor 95.0", "probe 20.1", "run 100.1")
}

// A decision is in the journal before anybody has said from where instants count, since the record
// that says so was lost on its way: the oldest record says it, and no later one contradicts it.
func TestTheOldestDecisionSaysWhereInstantsCountFrom(t *testing.T) {
	tr := trackerOf(t, nil).sees1(5)
	expect(t, "new", tr.orders(10), "anchor 5.0", "run 10.1")
	tr.sees1(12, ran(10)...)
	expect(t, "decided by whomever", tr.orders(20), "run 20.1")
	expect(t, "who comes later", trackerOf(t, nil).sees1(22, ran(10)...).orders(22), "run 20.1")
}

func TestTrackerFindsWhatNobodyDecided(t *testing.T) {
	recs := append(append([]rec{fresh0}, ran(10)...), ran(30)...)
	tr := trackerOf(t, nil).sees1(35, recs...)
	expect(t, "a hole", tr.orders(35), "catchup 20.0")
	expect(t, "in time", trackerOf(t, nil).sees1(29, append([]rec{fresh0}, ran(10)...)...).orders(29), "run 20.1")
	expect(t, "late", trackerOf(t, nil).sees1(31, append([]rec{fresh0}, ran(10)...)...).orders(31), "catchup 20.0",
		"run 30.1")
	expect(t, "skip", trackerOf(t, func(j *Job) { j.Missed = Skip }).sees1(45,
		append([]rec{fresh0}, ran(10)...)...).orders(45), "run 40.1", "skip 20.0")
	tr = trackerOf(t, nil).sees1(95, append([]rec{fresh0, {at: 20, kind: kindGap, verdict: Missed, upto: 80}},
		ran(10)...)...)
	expect(t, "a gap that was told", tr.orders(95), "run 90.1")
	// The hole is remembered, and what lies behind it is not asked for again.
	tr = trackerOf(t, nil).sees1(95, append([]rec{fresh0, {at: 30, kind: kindGap, verdict: Missed, upto: 80}},
		ran(10)...)...)
	expect(t, "a gap behind a hole", tr.orders(95), "catchup 20.0", "run 90.1")
}

func TestTrackerWhenTheClockGoesBack(t *testing.T) {
	tr := trackerOf(t, nil).sees1(35, append(append(append([]rec{fresh0}, ran(10)...), ran(20)...), ran(30)...)...)
	expect(t, "an hour back", tr.orders(-3600))
	expect(t, "and there again", tr.orders(39))
	expect(t, "only what is new", tr.orders(40), "run 40.1")
}

func TestTrackerTriesAgain(t *testing.T) {
	set := func(j *Job) { j.Retries, j.RetryDelay = 2, 5*time.Second }
	lost := []rec{fresh0, {at: 10, attempt: 1, kind: kindBegin, verdict: Began},
		{at: 10, attempt: 1, kind: kindEnd, verdict: Lost}}
	tr := trackerOf(t, set).sees1(12, lost...)
	expect(t, "too early", tr.orders(15))
	expect(t, "in time", tr.orders(16), "run 10.2")
	if next := tr.next(at(12)); !next.Equal(at(16)) {
		t.Errorf("next is %v", next)
	}
	second := rec{at: 10, attempt: 2, kind: kindBegin, verdict: Began}
	tr.sees1(17, append(lost, second)...)
	expect(t, "it runs", tr.orders(17), "probe 10.2")
	third := append(lost, second, rec{at: 10, attempt: 2, kind: kindEnd, verdict: Failed})
	expect(t, "the last", tr.sees1(18, third...).orders(19), "run 10.3")
	over := append(third, rec{at: 10, attempt: 3, kind: kindBegin, verdict: Began},
		rec{at: 10, attempt: 3, kind: kindEnd, verdict: Failed})
	expect(t, "and no more", tr.sees1(19, over...).orders(19))
	// It is made though its records have left the window; not once the journal has forgotten them.
	tr = trackerOf(t, set).sees1(12, lost...)
	tr.sees1(19, ran(10)[:0]...)
	expect(t, "remembered", tr.orders(19), "run 10.2")
	tr.forget(Key{at(11), 1, kindBegin}, time.Time{})
	expect(t, "forgotten", tr.orders(19))
	none := func(j *Job) { j.RetryOn = []string{Lost} }
	failed := []rec{fresh0, {at: 10, attempt: 1, kind: kindBegin, verdict: Began},
		{at: 10, attempt: 1, kind: kindEnd, verdict: Failed}}
	expect(t, "not for that", trackerOf(t, func(j *Job) { set(j); none(j) }).sees1(12, failed...).orders(19))
	old := func(j *Job) { set(j); j.MissedWithin = time.Minute }
	expect(t, "not after so long", trackerOf(t, old).sees1(12,
		append(lost, rec{at: 20, kind: kindGap, verdict: Missed, upto: 100})...).orders(109))
}

// A run is tried again as often as the definition says under which it began: while a new file is
// rolled out, processes with the old one and the new one decide about it.
func TestARunIsTriedAgainByTheDefinitionUnderWhichItBegan(t *testing.T) {
	for _, retries := range []int{0, 2} {
		tr := trackerOf(t, func(j *Job) { j.Retries = 2 - retries })
		v := &view{attempts: map[ID]*begun{}}
		v.take(Record{Key: Key{at(10), 1, kindBegin}, Verdict: Began, Retries: retries, By: "p", When: at(11),
			Sched: tr.job.instants(), Claim: tr.job.claim(at(10), false)})
		v.take(Record{Key: Key{at(10), 1, kindEnd}, Verdict: Lost, By: "q", When: at(11)})
		tr.observe(v, at(12))
		if got := tr.orders(35); slices.Contains(got, "run 10.2") != (retries > 0) {
			t.Errorf("it began with %d retries, and the file has %d: %q", retries, 2-retries, got)
		}
	}
}

func TestTrackerOfAPausedJob(t *testing.T) {
	paused := append(append([]rec{fresh0}, ran(10)...), rec{at: 15, kind: kindNote, verdict: Paused})
	tr := trackerOf(t, nil).sees1(35, paused...)
	expect(t, "paused", tr.orders(35))
	expect(t, "later", tr.sees1(75, paused...).orders(75))
	wanted := append(slices.Clip(paused), rec{at: 72, kind: kindWant, verdict: Wanted})
	expect(t, "an extra run", tr.sees1(76, wanted...).orders(76), "run 72.1")
	expect(t, "has begun", tr.sees1(77, append(wanted, ran(72)...)...).orders(77))
	resumed := append(slices.Clip(paused), rec{at: 95, kind: kindNote, verdict: Resumed})
	expect(t, "resumed", trackerOf(t, nil).sees1(35, paused...).sees1(99, resumed...).orders(101), "run 100.1")
	behind := append(slices.Clip(paused), rec{at: 16, kind: kindNote, verdict: Resumed}) // by a clock that is behind
	expect(t, "what was due until it was last seen paused is not missed", tr.sees1(80, behind...).orders(80),
		"run 80.1")
	expect(t, "resumed, to who was not there", trackerOf(t, nil).sees1(99, resumed...).orders(101), "run 100.1")
}

func TestTrackerCatchesUp(t *testing.T) {
	seconds := func(all []time.Time) (s []int) {
		for _, a := range all {
			s = append(s, int(a.Sub(zero)/time.Second))
		}
		return s
	}
	for name, c := range map[string]struct {
		set  func(*Job)
		now  int
		run  int // 0: none
		each []int
	}{
		"once":              {nil, 55, 40, []int{20, 30}},
		"all":               {func(j *Job) { j.Missed = All }, 55, 20, nil},
		"all, two at most":  {func(j *Job) { j.Missed, j.CatchUp = All, 2 }, 55, 30, []int{20}},
		"skip":              {func(j *Job) { j.Missed = Skip }, 55, 0, []int{20, 30, 40}},
		"within":            {func(j *Job) { j.Missed, j.MissedWithin = All, 30*time.Second }, 55, 30, []int{20}},
		"nothing is so new": {func(j *Job) { j.MissedWithin = 11 * time.Second }, 53, 0, []int{20, 30, 40}},
	} {
		tr := trackerOf(t, c.set).sees1(c.now, append([]rec{fresh0}, ran(10)...)...)
		run, s := tr.catchUp(at(c.now))
		got := 0
		if !run.IsZero() {
			got = int(run.Sub(zero) / time.Second)
		}
		if got != c.run || !slices.Equal(seconds(s.each), c.each) || s.gap != nil {
			t.Errorf("%s: run %d and skip %v %v, want %d and %v", name, got, seconds(s.each), s.gap, c.run, c.each)
		}
	}
}

// Of more missed instants than one step looks at, with decided ones among them, the newest runs and
// no other.
func TestOfAVeryLongGapTheNewestRuns(t *testing.T) {
	for name, decided := range map[string]int{"none": 0, "one": 1, "very many": maxWalk} {
		tr := trackerOf(t, func(j *Job) { j.Spec = "* * * * * *" }).sees1(1, fresh0)
		for s := range decided {
			tr.decided[at(100+s)] = true
		}
		now, ran := 3*maxWalk, []time.Time(nil)
		for range 10 {
			run, s := tr.catchUp(at(now))
			if s.gap != nil {
				tr.gaps = append(tr.gaps, *s.gap)
			}
			if !run.IsZero() {
				ran, s.each = append(ran, run), append(s.each, run)
			}
			for _, at := range s.each {
				tr.decided[at] = true
			}
			tr.advance(at(now))
		}
		if want := at(now - 11); len(ran) != 1 || !ran[0].Equal(want) {
			t.Errorf("%s decided: %v ran, want %v", name, ran, want)
		}
	}
}

// However long nobody was there, what is told of it is bounded, and so is the work of a step.
func TestALongGapIsToldInFewRecords(t *testing.T) {
	tr := trackerOf(t, func(j *Job) { j.Spec = "* * * * * *" })
	recs := append([]rec{fresh0}, ran(1)...)
	const year = 24 * 3600
	now, steps, records := year, 0, 0
	for ; steps < 1000; steps++ {
		tr.sees1(now, recs...)
		run, s := tr.catchUp(at(now))
		records += len(s.each)
		if s.gap != nil {
			records++
			recs = append(recs, rec{at: int(s.gap.Key.At.Sub(zero) / time.Second), kind: kindGap, verdict: Missed,
				upto: int(s.gap.Upto.Sub(zero) / time.Second)})
		}
		for _, a := range s.each {
			recs = append(recs, rec{at: int(a.Sub(zero) / time.Second), attempt: 1, kind: kindBegin, verdict: Missed})
		}
		if !run.IsZero() {
			break
		}
	}
	if steps > year/maxWalk+1 || records > (steps+1)*(eachSkip+1) {
		t.Errorf("%d steps and %d records for %d instants", steps, records, year)
	}
}

// The journal has forgotten how instants ended that this process does not know about, and has an
// older record all the same: by who was frozen, and told late how a run had ended. What others say
// is over is not done again.
func TestWhatOthersSayIsOverIsNotDoneAgain(t *testing.T) {
	job := trackerOf(t, nil).job
	newer := func(done int) []Record {
		all := []Record{{Key: Key{at(10), 1, kindEnd}, Verdict: OK}}
		for s := 2000; s < 2000+10*window; s += 10 {
			all = append(all, Record{Key: Key{at(s), 1, kindBegin}, Verdict: Missed, Sched: job.instants(),
				Done: at(done)})
		}
		return all
	}
	const now = 2000 + 10*window - 5
	for done, want := range map[int][]string{
		1990: nil,
		now:  nil, // as far as there are many newer records
		945:  {"catchup 950.0"},
	} {
		tr := trackerOf(t, func(j *Job) { j.Retries = 1 }).sees1(15, append([]rec{fresh0}, ran(10)...)...)
		tr.retry[ID{at(10), 2}] = at(20)
		v := &view{attempts: map[ID]*begun{}}
		for _, r := range newer(done) {
			v.take(r)
		}
		tr.observe(v, at(now))
		expect(t, fmt.Sprintf("over up to %d", done), tr.orders(now), want...)
	}
	// Whoever has just learned that it counts from earlier has that before it still.
	tr := trackerOf(t, nil).sees1(1995)
	v := &view{attempts: map[ID]*begun{}}
	v.take(Record{Key: Key{at(1900), 0, kindNote}, Verdict: Fresh, Sched: job.instants()})
	for _, r := range newer(1990)[1:] {
		v.take(r)
	}
	tr.observe(v, at(now))
	expect(t, "it counts from earlier", tr.orders(now), "catchup 1910.0")
}

// What the journal forgets before its end is told; what somebody says was over, or nobody knows
// anything about, is not.
func TestTrackerTellsWhatWasForgottenBeforeItsEnd(t *testing.T) {
	failed := []rec{fresh0, {at: 10, attempt: 1, kind: kindBegin, verdict: Began},
		{at: 10, attempt: 1, kind: kindEnd, verdict: Failed}, {at: 20, attempt: 1, kind: kindBegin, verdict: Began}}
	for done, want := range map[int][]ID{
		10: {{at(10), 2}, {at(20), 1}, {at(30), 0}, {at(40), 0}},
		20: {{at(20), 1}, {at(30), 0}, {at(40), 0}},
		40: {{at(40), 0}},
		50: nil,
	} {
		tr := trackerOf(t, func(j *Job) { j.Retries = 1 }).sees1(25, failed...)
		if lost := tr.forget(Key{at(50), 1, kindBegin}, at(done)); !slices.Equal(lost, want) {
			t.Errorf("over up to %d: forgotten are %v, want %v", done, lost, want)
		}
		expect(t, "it is not made", tr.orders(55))
	}
	tr := trackerOf(t, nil).sees1(25, failed...)
	if lost := tr.forget(Key{at(50), 1, kindBegin}, time.Time{}); lost != nil {
		t.Errorf("nobody says what is over, and %v is told", lost)
	}
}

// A machine whose clock is behind resumes a job, as of a time before the others saw it paused. What
// is over is known all the same, later: else no journal would be trimmed any more.
func TestAJobResumedByAClockThatIsBehindIsTrimmed(t *testing.T) {
	recs := append([]rec{fresh0}, ran(10)...)
	recs = append(recs, rec{at: 15, kind: kindNote, verdict: Paused})
	tr := trackerOf(t, nil).sees1(33, recs...)
	recs = append(recs, rec{at: 29, kind: kindNote, verdict: Resumed})
	tr.sees1(36, recs...)
	if over := tr.over(); !over.IsZero() {
		t.Fatalf("all is over up to %v, though others may know of undecided times before the pause", over)
	}
	for s := 40; s < 4000; s += 10 {
		recs = append(recs, ran(s)...)
		tr.sees1(s+3, recs...)
	}
	if tr.over().IsZero() {
		t.Error("an hour after the job was resumed it is not known what is over")
	}
}
