package cron

import (
	"maps"
	"slices"
	"time"
)

// What a tracker orders.
type act int

const (
	actRun     act = iota // decide about an attempt, and run it if that falls to us
	actCatchUp            // deal with what was missed, under the job's claim
	actSkip               // record instants as missed: they are in skip
	actProbe              // look whether a run that has begun is lost
	actOrigin             // record that the schedule counts from here
)

// order is one thing to do. Two of one name are the same.
type order struct {
	act   act
	id    ID
	begun *begun // of actProbe
	skip  skips
}

// skips are instants to be recorded as missed: a few one by one, what is older than these in one
// record.
type skips struct {
	gap   *Record // nil: none
	each  []time.Time
	total int
}

const (
	eachSkip = 20    // of many missed instants the newest have a record each
	maxWalk  = 10000 // instants looked at in one go; a longer gap takes several
)

// tracker knows, of one job in one process, what is decided and what is to be done. It is pure:
// views and the time in, orders out.
//
//	                cursor                                          now
//	every instant ──┤ decided · decided · ? · decided · ? · ? ───────┤── future
//	is decided      └─ what has no record is due: begun in time it runs, older than Late it
//	                   was missed
//
// It never goes back: an instant at or before the cursor is decided for good, whatever the clock
// does. What it has seen begin it remembers until it has seen the end, and an attempt that is to be
// made until that has begun, also when the records have long left the window.
type tracker struct {
	job         *Job
	begins      bool      // it has seen the journal once
	from        time.Time // where it began to count
	cursor      time.Time
	decided     map[time.Time]bool // after the cursor
	open        map[ID]*begun
	retry       map[ID]time.Time
	paused      bool
	noted       time.Time // of the newest record about that
	leap        time.Time // the cursor is here, since the job was paused then, and not by a record
	rewound     time.Time // when it went back: what was said to be over before may not be
	sent        time.Time // from where we have said to count, until the journal was read back to there
	needsOrigin bool      // a record of the instant from which the schedule counts is to be written
	wanted      map[time.Time]bool
	gaps        []Record // recorded as missed, and not yet behind the cursor
}

func newTracker(j *Job) *tracker {
	return &tracker{job: j, decided: map[time.Time]bool{}, open: map[ID]*begun{}, retry: map[ID]time.Time{},
		wanted: map[time.Time]bool{}}
}

// observe takes in what the journal said when it was asked, at now: a process may have been frozen
// since.
func (t *tracker) observe(v *view, now time.Time) {
	now = now.UTC().Truncate(time.Second)
	t.starts(v, now)
	t.pauses(v, now)
	t.gaps = slices.DeleteFunc(append(t.gaps, v.gaps...), func(g Record) bool { return !g.Upto.After(t.cursor) })
	slices.SortFunc(t.gaps, func(a, b Record) int { return a.Key.At.Compare(b.Key.At) })
	t.gaps = slices.CompactFunc(t.gaps, func(a, b Record) bool { return a.Key.At.Equal(b.Key.At) })
	for id, a := range v.attempts {
		t.sees(v, id, a)
	}
	t.believe(v)
	t.advance(now)
	for at := range v.wanted {
		if t.wanted[at] = true; v.attempts[ID{at, 1}] != nil {
			delete(t.wanted, at)
		}
	}
}

// pauses takes in whether the job is paused. Nothing is missed while it is, or was. An older view
// that comes late says nothing.
//
// Where a process has seen the job paused later than it was resumed, as their clocks have it, it
// says no more what is over: others may know better.
func (t *tracker) pauses(v *view, now time.Time) {
	if v.told && !v.noted.Before(t.noted) {
		t.paused, t.noted = v.paused, v.noted
	}
	switch { // not Fresh: another process, that began a moment later, must not make us skip an instant
	case t.paused && now.After(t.cursor):
		t.cursor, t.leap = now, now
	case !t.paused && t.noted.After(t.cursor) && !t.noted.After(now):
		t.cursor = t.noted
	}
	over := v.done(t.job.instants())
	resumed := !t.paused && !t.noted.Before(t.leap)
	// A clock that is behind may have noted the resumption as before the leap. By now nobody else
	// knows better of what lies before that, and no journal is trimmed as long as nothing is over.
	long := !t.paused && now.Sub(t.leap) > leapAtMost
	if resumed || long || !over.Before(t.leap) {
		t.leap = time.Time{}
	}
}

// leapAtMost is how long after a pause that has ended the time of its resumption may be missing.
const leapAtMost = time.Hour

// over returns up to where everything is decided, has ended and is not tried again; zero: that is
// not known here.
func (t *tracker) over() time.Time {
	if t.needsOrigin || !t.leap.IsZero() {
		return time.Time{}
	}
	return t.concern()
}

// starts finds out from where on instants count. As long as no record of ours says from where, what
// another has written is taken for it: else that record, once there, would be the journal's oldest,
// and what lies before it forgotten. One that arrives later and counts from earlier takes us back
// there: it stands in the journal, and with it everything since.
func (t *tracker) starts(v *view, now time.Time) {
	sched := t.job.instants()
	if !t.begins || t.needsOrigin {
		from, known := v.start(sched)
		if done := v.done(sched); known && done.After(from) {
			from = done
		}
		switch {
		case known:
			t.cursor, t.from, t.needsOrigin = from, from, false
		case !t.begins:
			t.cursor, t.from, t.needsOrigin = now, now, true
		}
		t.begins = true
	}
	if from, ok := v.origin(sched); ok && from.Before(t.from) {
		t.rewind(from)
		t.rewound = now
	}
}

// believe gives up what others say is over, once there are many newer records: the journal may have
// forgotten what became of it. Its oldest record does not tell: one that says how a run ended, by
// who was frozen meanwhile, may stand before others that have been removed, and what lies between
// would look as if nobody had decided about it, and run again.
func (t *tracker) believe(v *view) {
	over := v.done(t.job.instants())
	if edge := v.edge(t.job.Keep); edge.Before(over) {
		over = edge
	}
	if over.After(t.rewound) {
		t.forget(Key{At: over}, over)
	}
}

// rewind counts from an earlier instant, whose record is in the journal.
func (t *tracker) rewind(from time.Time) {
	if from.Before(t.from) {
		t.from = from
	}
	if from.Before(t.cursor) {
		t.cursor = from
	}
}

// sees takes in one attempt.
func (t *tracker) sees(v *view, id ID, a *begun) {
	if id.Attempt == 1 && id.At.After(t.cursor) {
		t.decided[id.At] = true
	}
	delete(t.retry, id)
	if !a.finished {
		t.open[id] = a
		return
	}
	delete(t.open, id)
	next := ID{id.At, id.Attempt + 1}
	if _, begun := v.attempts[next]; !begun && a.end != nil && t.job.retries(a.end.Verdict) &&
		id.Attempt <= a.begin.Retries {
		t.retry[next] = a.end.When.Add(t.job.RetryDelay)
	}
}

// concern returns the oldest instant that the tracker has something to do about: it has to know the
// journal from there on.
func (t *tracker) concern() time.Time {
	oldest := t.cursor
	if !t.sent.IsZero() && t.sent.Before(oldest) {
		oldest = t.sent
	}
	older := func(at time.Time) {
		if at.Before(oldest) {
			oldest = at
		}
	}
	for id := range t.open {
		older(id.At)
	}
	for id := range t.retry {
		older(id.At)
	}
	for at := range t.wanted {
		older(at)
	}
	return oldest
}

// forget gives up what is older than the journal's oldest record: what became of it is not known
// any more, so it must not be done again. The oldest may be the last word about a later attempt of
// the same instant.
//
// It returns what was forgotten before its end, the oldest first, with attempt 0 for an instant
// that nobody had decided. Up to done all was over, as a record says; zero: none does, and nothing
// is known.
func (t *tracker) forget(oldest Key, done time.Time) (lost []ID) {
	gone := func(id ID) bool {
		if id.key(kindBegin).String() >= oldest.String() {
			return false
		}
		if !done.IsZero() && !id.At.Before(done) {
			lost = append(lost, id)
		}
		return true
	}
	if t.cursor.Before(oldest.At) {
		fresh, missed, _ := t.undecided(oldest.At.Add(-time.Second))
		for _, at := range append(missed, fresh...) {
			gone(ID{At: at})
		}
		t.cursor = oldest.At
	}
	maps.DeleteFunc(t.open, func(id ID, _ *begun) bool { return gone(id) })
	maps.DeleteFunc(t.retry, func(id ID, _ time.Time) bool { return gone(id) })
	maps.DeleteFunc(t.wanted, func(at time.Time, _ bool) bool { return gone(ID{at, 1}) })
	slices.SortFunc(lost, ID.compare)
	return lost
}

// isDue says whether an attempt is still to be made.
func (t *tracker) isDue(id ID) bool {
	if id.Attempt > 1 {
		_, due := t.retry[id]
		return due
	}
	return t.wanted[id.At] || id.At.After(t.cursor) && !t.decided[id.At] && t.skippedTo(id.At).IsZero()
}

// advance moves the cursor over what is decided.
func (t *tracker) advance(now time.Time) {
	for range maxWalk {
		next := t.job.schedule.Next(t.cursor)
		if next.IsZero() || next.After(now) {
			break
		}
		if upto := t.skippedTo(next); !upto.IsZero() {
			next = upto
		} else if !t.decided[next] {
			break
		}
		t.cursor = next
	}
	maps.DeleteFunc(t.decided, func(at time.Time, _ bool) bool { return !at.After(t.cursor) })
}

// skippedTo returns the end of the gap that was recorded as missed and that an instant is in, zero
// if it is in none.
func (t *tracker) skippedTo(at time.Time) time.Time {
	for _, g := range t.gaps {
		if !at.Before(g.Key.At) && !at.After(g.Upto) {
			return g.Upto
		}
	}
	return time.Time{}
}

// due returns what is to be done at a time, the oldest first.
func (t *tracker) due(now time.Time) (orders []order) {
	if !t.begins {
		return nil
	}
	orders = t.probes()
	for at, open := range t.wanted {
		if open && !at.After(now) {
			orders = append(orders, order{act: actRun, id: ID{at, 1}})
		}
	}
	if t.paused {
		return orders
	}
	if t.needsOrigin {
		orders = append(orders, order{act: actOrigin, id: ID{At: t.cursor}})
	}
	fresh, missed, _ := t.undecided(now)
	switch {
	case len(missed) > 0 && t.job.Missed == Skip:
		orders = append(orders, order{act: actSkip, id: ID{At: missed[0]}, skip: gather(missed)})
	case len(missed) > 0:
		orders = append(orders, order{act: actCatchUp, id: ID{At: missed[0]}})
	}
	for _, at := range fresh {
		orders = append(orders, order{act: actRun, id: ID{at, 1}})
	}
	for id, at := range t.retry {
		switch {
		case t.job.MissedWithin > 0 && now.Sub(id.At) > t.job.MissedWithin:
			delete(t.retry, id)
		case !now.Before(at):
			orders = append(orders, order{act: actRun, id: id})
		}
	}
	return orders
}

func (t *tracker) probes() (orders []order) {
	for id, a := range t.open {
		orders = append(orders, order{act: actProbe, id: id, begun: a})
	}
	return orders
}

// waits says whether an attempt that is to be made again, or what was missed, has waited for its
// turn for longer than an instant may be late. A new instant of a job that runs alone then stands
// back: it asks for the claim more often, so that what is older might never get it.
func (t *tracker) waits(now time.Time) bool {
	for id, at := range t.retry {
		if now.Sub(at) > t.job.Late && (t.job.MissedWithin == 0 || now.Sub(id.At) <= t.job.MissedWithin) {
			return true
		}
	}
	_, missed, _ := t.undecided(now)
	return len(missed) > 0 && t.job.Missed != Skip && now.Sub(t.job.due(missed[0])) > 2*t.job.Late
}

// undecided returns the oldest instants up to now that nobody has decided about. More: there are
// others, that were missed as well.
func (t *tracker) undecided(now time.Time) (fresh, missed []time.Time, more bool) {
	at, n := t.job.schedule.Next(t.cursor), 0
	for ; !at.IsZero() && !at.After(now) && n < maxWalk; at = t.job.schedule.Next(at) {
		if upto := t.skippedTo(at); !upto.IsZero() {
			at = upto
			continue
		}
		if t.decided[at] { // these do not count: which one is the newest that was missed is to be known
			continue
		}
		n++
		switch due := t.job.due(at); {
		case due.After(now):
		case now.Sub(due) > t.job.Late:
			missed = append(missed, at)
		default:
			fresh = append(fresh, at)
		}
	}
	return fresh, missed, n == maxWalk && !at.IsZero() && now.Sub(at) > t.job.Late
}

// catchUp says what becomes of what was missed: one instant to run now, if there is one, and what
// is to be recorded as missed. Its caller holds the job's claim and has taken in the journal since.
func (t *tracker) catchUp(now time.Time) (run time.Time, s skips) {
	_, missed, more := t.undecided(now)
	if more { // the oldest never run
		return time.Time{}, gather(missed)
	}
	can := missed
	for t.job.MissedWithin > 0 && len(can) > 0 && now.Sub(can[0]) > t.job.MissedWithin {
		can = can[1:]
	}
	keep := 1
	if t.job.Missed == All {
		keep = t.job.CatchUp
	}
	if t.job.Missed == Skip {
		keep = 0
	}
	can = can[max(0, len(can)-keep):]
	if len(can) > 0 {
		run = can[0]
	}
	return run, gather(missed[:len(missed)-len(can)])
}

// gather turns missed instants, the oldest first, into records to be: bounded, however many they
// are.
func gather(missed []time.Time) skips {
	s := skips{total: len(missed)}
	if n := len(missed) - eachSkip; n > 1 {
		s.gap = &Record{Key: Key{missed[0], 0, kindGap}, Verdict: Missed, Upto: missed[n-1], Count: n}
		missed = missed[n:]
	}
	s.each = missed
	return s
}

// next returns when the next instant or attempt is due, as far as it is known now: zero for never.
func (t *tracker) next(now time.Time) (first time.Time) {
	sooner := func(at time.Time) {
		if at.After(now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for at, n := t.job.schedule.Next(t.cursor), 0; !at.IsZero() && n < maxWalk; at, n = t.job.schedule.Next(at), n+1 {
		if !t.decided[at] {
			sooner(t.job.due(at))
		}
		if at.After(now) && !t.decided[at] {
			break
		}
	}
	for _, at := range t.retry {
		sooner(at)
	}
	return first
}
