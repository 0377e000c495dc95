package cron

import (
	"context"
	"slices"
	"time"

	"github.com/primacy-go/primacy/pause"
)

// While an operator has paused a job, with others or alone (package pause), no run of it begins. A
// scheduled time that comes meanwhile is recorded as paused, and is decided when the pause is over:
// by then it was missed, and the job's rule for that says what becomes of it. An extra run that an
// operator asks for begins all the same, and runs that have begun are seen to their end.
//
// (A job that `primacy cron pause` has stopped is another thing: what is due then is skipped.)

const (
	heldLook    = 2 * time.Second // how often a job that is held looks whether it still is
	heldRecords = 20              // of one pause so many scheduled times have a record
	pausesFor   = time.Second     // a reading of the pauses that is no older serves all jobs
)

// pauses returns what was paused at that time, or later, or no longer ago than pausesFor if it is
// zero.
func (e *Engine) pauses(at time.Time) ([]pause.Pause, error) {
	age := pausesFor
	if !at.IsZero() {
		age = min(max(e.o.Now().Sub(at), 0), pausesFor)
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.o.Attempt)
	defer cancel()
	return e.o.Pauses(ctx, age)
}

// held says of one job until when it is known to be held.
type held struct {
	until   time.Time // then the pauses are read again
	since   time.Time // of the pause
	told    bool
	records map[time.Time]bool
}

// letGo returns those of the orders that may be carried out now.
func (l *jobLoop) letGo(due []order) []order {
	waits := slices.ContainsFunc(due, l.canWait)
	if l.e.o.Pauses == nil || !waits {
		return due
	}
	if now := l.e.o.Now(); now.Before(l.held.until) && l.held.until.Sub(now) <= heldLook {
		return slices.DeleteFunc(due, l.canWait)
	}
	p, err := l.paused(due)
	switch {
	case err == nil && p == nil:
		l.held = held{}
		l.holds.Store(false)
		return due
	case err != nil && !l.held.told:
		l.held.told = true
		l.e.log(l.job, ID{}, "trouble", "", "no run begins, since nobody knows what is paused: "+err.Error())
	case err == nil:
		l.hold(*p, due)
	}
	l.holds.Store(true)
	l.held.until = l.e.o.Now().Add(heldLook)
	return slices.DeleteFunc(due, l.canWait)
}

// canWait says whether an order is for a run that a pause holds.
func (l *jobLoop) canWait(o order) bool {
	if o.act == actProbe || o.act == actOrigin {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return o.act != actRun || o.id.Attempt > 1 || !l.t.wanted[o.id.At]
}

// isPaused says whether a pause holds the run now, or whether nobody knows. It was let go before,
// and has waited for its turn since: for another run to end, or for the store.
func (s *attemptRun) isPaused() bool {
	if s.e.o.Pauses == nil || !s.missed && !s.canWait(order{act: actRun, id: s.a.id}) {
		return false
	}
	all, err := s.e.pauses(s.e.o.Now())
	p := pause.Strongest(all, Prefix+s.job.Name)
	if err != nil {
		s.e.log(s.job, s.a.id, "trouble", "", "it does not begin, since nobody knows what is paused: "+err.Error())
	}
	return err != nil || p != nil // the next look tells of the pause, and records it
}

// isHeld says whether an order waits for the next look at the pauses.
func (l *jobLoop) isHeld(o order, now time.Time) bool {
	return now.Before(l.held.until) && l.held.until.Sub(now) <= heldLook && l.canWait(o)
}

// paused returns the pause that the job is under since the last of these orders was due, nil if
// there is none.
func (l *jobLoop) paused(due []order) (*pause.Pause, error) {
	var last time.Time
	for _, o := range due {
		if at := l.job.due(o.id.At); o.act == actRun && o.id.Attempt == 1 && at.After(last) {
			last = at
		}
	}
	all, err := l.e.pauses(last)
	return pause.Strongest(all, Prefix+l.job.Name), err
}

// hold records the scheduled times that have come as paused.
func (l *jobLoop) hold(p pause.Pause, due []order) {
	if !l.held.since.Equal(p.Since) {
		l.held = held{since: p.Since, records: map[time.Time]bool{}}
	}
	if !l.held.told {
		l.held.told = true
		l.e.log(l.job, ID{}, Paused, "", p.String())
	}
	for _, o := range due {
		if o.act != actRun || o.id.Attempt > 1 || !l.canWait(o) || l.held.records[o.id.At] ||
			len(l.held.records) >= heldRecords {
			continue
		}
		r := Record{Key: Key{o.id.At, 0, kindHeld}, Verdict: Paused, Run: runName(), Text: p.String()}
		if e := l.append(r); e != evUnknown {
			l.held.records[o.id.At] = true
			if e == evAdded {
				l.e.log(l.job, o.id, Paused, "", p.String())
			}
		}
	}
}
