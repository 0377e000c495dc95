package cron

import (
	"iter"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// window is how many of the newest records of a job are read at a time.
const window = 64

// ID is one attempt at one instant of a job.
type ID struct {
	At      time.Time
	Attempt int
}

func (i ID) key(kind string) Key { return Key{i.At, i.Attempt, kind} }

func (i ID) compare(o ID) int {
	if c := i.At.Compare(o.At); c != 0 {
		return c
	}
	return i.Attempt - o.Attempt
}

// begun is one attempt as the journal has it.
type begun struct {
	id       ID
	begin    Record
	end      *Record
	late     *Record
	finished bool // by its end, or because it never was to run
}

// view is what a part of a job's journal says. It is pure: records in, facts out.
type view struct {
	records  []Record // the oldest first
	attempts map[ID]*begun
	gaps     []Record
	held     map[time.Time]Record
	wanted   map[time.Time]Record
	paused   bool
	told     bool      // a record says whether it is paused
	noted    time.Time // of the newest Paused or Resumed
}

// see reads records, which come with the newest first.
func see(records []driver.Record) *view {
	v := &view{attempts: map[ID]*begun{}, wanted: map[time.Time]Record{}, held: map[time.Time]Record{}}
	for _, d := range slices.Backward(records) {
		if r, ok := ParseRecord(d); ok {
			v.take(r)
		}
	}
	return v
}

func (v *view) take(r Record) {
	v.records = append(v.records, r)
	id := ID{r.Key.At, r.Key.Attempt}
	switch r.Key.Kind {
	case kindNote:
		if r.Verdict != Fresh {
			v.told, v.paused, v.noted = true, r.Verdict == Paused, r.Key.At
		}
	case kindWant:
		v.wanted[r.Key.At] = r
	case kindHeld:
		v.held[r.Key.At] = r
	case kindGap:
		v.gaps = append(v.gaps, r)
	case kindBegin:
		v.attempts[id] = &begun{id: id, begin: r, finished: r.Verdict != Began}
	case kindEnd:
		if a := v.attempts[id]; a != nil { // else its beginning is beyond the window
			a.end, a.finished = &r, true
		} else {
			v.attempts[id] = &begun{id: id, begin: Record{Key: id.key(kindBegin), Verdict: Began}, end: &r,
				finished: true}
		}
	case kindLate:
		if a := v.attempts[id]; a != nil {
			a.late = &r
		}
	}
}

// decided says whether somebody has decided about an attempt.
func (v *view) decided(id ID) bool {
	if _, ok := v.attempts[id]; ok || id.Attempt > 1 {
		return ok
	}
	return slices.ContainsFunc(v.gaps, func(g Record) bool { return !id.At.Before(g.Key.At) && !id.At.After(g.Upto) })
}

// open returns the attempts that have begun and not ended, the oldest first.
func (v *view) open() (all []*begun) {
	for _, a := range v.attempts {
		if !a.finished {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *begun) int { return a.id.compare(b.id) })
	return all
}

// sched returns the newest schedule that a record tells.
func (v *view) sched() string {
	for _, r := range slices.Backward(v.records) {
		if r.Sched != "" {
			return r.Sched
		}
	}
	return ""
}

// since returns the records of a schedule since it was last changed, the newest first.
func (v *view) since(sched string) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for _, r := range slices.Backward(v.records) {
			if r.Sched != "" && (r.Sched != sched || !yield(r)) {
				return
			}
		}
	}
}

// start returns from where on instants count for a schedule: the oldest record since it was last
// changed. False: it is new here.
func (v *view) start(sched string) (from time.Time, known bool) {
	for r := range v.since(sched) {
		from, known = r.Key.At, true
	}
	return from, known
}

// origin returns the oldest instant from where on a process has said that it counts. False: none
// has.
func (v *view) origin(sched string) (from time.Time, known bool) {
	for r := range v.since(sched) {
		if r.Verdict == Fresh {
			from, known = r.Key.At, true
		}
	}
	return from, known
}

// done returns up to where everything was over when one of the records was written; zero: none says
// so.
func (v *view) done(sched string) (upto time.Time) {
	for r := range v.since(sched) {
		if r.Done.After(upto) {
			upto = r.Done
		}
	}
	return upto
}

// edge returns before what there lie only instants that the journal may forget soon, of which keep
// records are kept; zero: none.
func (v *view) edge(keep int) (at time.Time) {
	if n := len(v.records) - min(window, keep/2); n >= 0 {
		at = v.records[n].Key.At
	}
	return at
}
