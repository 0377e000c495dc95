package cron

import (
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// loop follows one job. It looks at the clock every second, whatever the schedule says: a timer
// stands still while the machine is suspended, and the clock on the wall may be put on.
func (l *jobLoop) loop() {
	look, fails := l.e.o.Now(), 0 // at once
	for {
		now := l.e.o.Now()
		l.mu.Lock()
		due := l.t.due(now)
		next := l.t.next(now)
		if l.soon {
			look, l.soon = now, false
		}
		l.mu.Unlock()
		acting := slices.ContainsFunc(due, func(o order) bool {
			return o.act != actProbe && !l.isBusy(o) && !l.isHeld(o, now)
		})
		if acting && !l.pause(time.Duration(l.e.o.Rand()*float64(l.e.o.Spread))) {
			return
		}
		if acting || !now.Before(look) {
			look = now.Add(time.Duration((0.75 + l.e.o.Rand()/2) * float64(l.e.o.Look)))
			if l.readBack(!l.mayGlance(due)) {
				l.carryOut()
				fails = 0
			} else {
				fails++
				backoff := 200 * time.Millisecond << min(fails, 4)
				if !l.pause(time.Duration((0.5 + l.e.o.Rand()) * float64(backoff))) {
					return
				}
			}
		}
		wait := min(time.Second, max(time.Millisecond, look.Sub(l.e.o.Now())))
		if !next.IsZero() {
			wait = min(wait, max(time.Millisecond, next.Sub(l.e.o.Now())))
		}
		if !l.pause(wait) {
			return
		}
	}
}

// pause waits; false: the job is over here. News of a run that ended cuts it short.
func (l *jobLoop) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.end:
		return false
	case <-t.C:
	case <-l.wake:
	}
	select {
	case <-l.end:
		return false
	default:
		return true
	}
}

// read takes the journal in, as far back as there is something to do about it. False: the store did
// not answer.
func (l *jobLoop) read() bool { return l.readBack(true) }

// readBack does so, or, where it need not go deep, takes in the newest records alone.
func (l *jobLoop) readBack(deep bool) bool {
	began := l.e.o.Now()
	l.mu.Lock()
	sent := l.t.sent
	l.mu.Unlock()
	records, whole, err := l.records(deep)
	if err != nil {
		if !l.down.Swap(true) {
			l.e.log(l.job, ID{}, "trouble", "", "the store does not answer: "+err.Error())
		}
		return false
	}
	l.down.Store(false)
	v := see(records)
	l.observe(v, began)
	l.mu.Lock()
	if l.t.sent.Equal(sent) {
		l.t.sent = time.Time{}
	}
	if whole && l.t.begins && len(v.records) > 0 {
		l.forget(v)
	}
	l.readAt, l.edge = began, v.edge(l.job.Keep)
	def := l.job.Definition()
	l.mixed = !deep && l.mixed ||
		slices.ContainsFunc(v.records, func(r Record) bool { return r.Def != "" && r.Def != def })
	if deep {
		concern := Key{At: l.t.concern()}.String()
		l.deepAt, l.back = began, 0
		for _, r := range records {
			if r.Key >= concern {
				l.back++
			}
		}
	}
	l.mu.Unlock()
	return true
}

// forget gives up what the journal has forgotten, and tells of what nobody had seen to its end.
// l.mu is held.
func (l *jobLoop) forget(v *view) {
	lost := l.t.forget(v.records[0].Key, v.done(l.job.instants()))
	if len(lost) == 0 {
		return
	}
	missed := uint64(0)
	for _, id := range lost {
		if id.Attempt == 0 {
			missed++
		}
	}
	l.e.counters.Add(l.job.Name, Missed, missed)
	l.e.log(l.job, lost[0], "trouble", "", fmt.Sprintf("from here on %d runs, retries and scheduled times are "+
		"forgotten before their end: the journal keeps %d records at most", len(lost), maxKeep))
}

// keeps returns how many records the journal is to keep beside one more: those from the oldest
// instant on that is not over, and some that others append meanwhile. Else a run that goes on for
// long, a retry that is due late or a long time to catch up would be forgotten behind what came
// after it.
//
// A record that does not say up to where all is over removes none, so that for what was removed
// there is always a record that says so. Nor does one by who has not looked for a while: he does
// not know how many are needed.
func (l *jobLoop) keeps(r Record) int {
	if r.Done.IsZero() || l.stale() {
		return maxKeep
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(maxKeep, max(l.job.Keep, l.back+l.back/4+min(window, l.job.Keep/2)))
}

// mayGlance says whether a look at the newest records is enough for once: to read back to all that
// matters takes many calls, and was done not long ago. What is recorded as missed without a claim
// takes a full look; what begins takes one of its own.
func (l *jobLoop) mayGlance(due []order) bool {
	const page = 4 * window
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.e.o.Now().Sub(l.deepAt)
	return l.back > 4*page && since >= 0 && since < time.Duration(l.back/page)*time.Second &&
		!slices.ContainsFunc(due, func(o order) bool { return o.act == actSkip })
}

// records reads the newest records and, if deep, on back to the oldest that matters. Whole: there
// are no older ones.
func (l *jobLoop) records(deep bool) (all []driver.Record, whole bool, err error) {
	l.mu.Lock()
	begins, concern := l.t.begins, l.t.concern()
	l.mu.Unlock()
	for before, limit := "", window; ; limit = 4 * window {
		ctx, cancel := l.e.readCall()
		page, err := l.e.o.Journal.Records(ctx, Prefix+l.job.Name, before, limit)
		cancel()
		if err != nil {
			return nil, false, err
		}
		all = append(all, page...)
		if len(page) < limit {
			return all, true, nil
		}
		if !deep {
			return all, false, nil
		}
		if !begins { // who begins takes it from the records what is left to be done
			if concern = see(all).done(l.job.instants()); concern.IsZero() {
				return all, false, nil
			}
		}
		if before = page[len(page)-1].Key; before <= (Key{At: concern, Kind: kindGap}).String() {
			return all, false, nil
		}
	}
}

// stale says whether it is some time ago that the journal was read, by a clock that stands still in
// suspend and by one that does not.
func (l *jobLoop) stale() bool {
	const limit = 2 * time.Second
	l.mu.Lock()
	at := l.readAt
	l.mu.Unlock()
	now := l.e.o.Now()
	past, wall := now.Sub(at), now.Round(0).Sub(at.Round(0))
	return past > limit || wall > limit || wall < -limit
}

// uncertain says whether the journal has to be read again, since it was not in full since then: an
// instant is among those that it may forget soon, or other processes have another definition of the
// job, so that our claim keeps no run of theirs away.
func (l *jobLoop) uncertain(at, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deepAt.Before(since) && (at.Before(l.edge) || l.mixed)
}

func (l *jobLoop) isDue(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.isDue(id)
}

// waits says whether something older waits for its turn for too long already. What a pause holds
// does not wait: an extra run need not stand back behind it.
func (l *jobLoop) waits() bool {
	if l.holds.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.waits(l.e.o.Now())
}

func (l *jobLoop) isOpen(id ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t.open[id] != nil
}

// hasBegun says whether the journal has the beginning of an attempt by that run, and no end of it.
func (l *jobLoop) hasBegun(id ID, run string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.t.open[id]
	return a != nil && a.begin.Run == run
}

// observe takes in what the journal said when it was asked.
func (l *jobLoop) observe(v *view, asked time.Time) {
	l.mu.Lock()
	l.t.observe(v, asked)
	l.mu.Unlock()
	now := l.e.o.Now()
	const tolerable = 2 * time.Second
	l.aheadMu.Lock()
	defer l.aheadMu.Unlock()
	for _, r := range v.records {
		if ahead := r.When.Sub(now); ahead > tolerable && !l.ahead[r.By] {
			l.ahead[r.By] = true
			text := "the clock of " + r.By + " is ahead of this machine's by " + ahead.Round(time.Second).String() +
				": its jobs run early"
			if ahead > l.job.Late {
				text += ", and times to come that it records as missed run nowhere"
			}
			l.e.log(l.job, ID{r.Key.At, r.Key.Attempt}, "clock", "", text)
		}
	}
}

// carryOut starts what is due and not under way.
func (l *jobLoop) carryOut() {
	l.mu.Lock()
	due := l.t.due(l.e.o.Now())
	l.mu.Unlock()
	for _, o := range l.letGo(due) {
		if o.act == actProbe && !l.probeDue(o.id) || !l.begin(o) {
			continue
		}
		l.e.runs.Go(func() {
			defer l.done(o)
			l.do(o)
		})
	}
}

// probeDue says whether it is time to look at a run that has no end yet: not in the moment in which
// it begins, and then now and again.
func (l *jobLoop) probeDue(id ID) bool {
	now := l.e.o.Now()
	last, seen := l.probed[id]
	if seen && now.Sub(last) < l.e.o.Look/2 && !now.Before(last) {
		return false
	}
	if len(l.probed) > 10*window {
		clear(l.probed)
	}
	l.probed[id] = now
	return seen
}

func (l *jobLoop) isBusy(o order) bool {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	return l.e.busyWith(l.job.Name, o)
}

// busyWith says whether an order is being carried out; e.mu is held.
func (e *Engine) busyWith(job string, o order) bool {
	for b := range e.busy[job] {
		// what was missed is one matter, whatever is the first of it
		if b.act == o.act && (b.id == o.id || b.act == actCatchUp) {
			return true
		}
	}
	return false
}

// begin says whether an order is to be carried out now: not while it is already, nor a look at a
// run of our own.
func (l *jobLoop) begin(o order) bool {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := e.busy[l.job.Name]
	if e.closed || e.busyWith(l.job.Name, o) || o.act == actProbe && busy[orderKey{actRun, o.id}] {
		return false
	}
	if busy == nil {
		busy = map[orderKey]bool{}
		e.busy[l.job.Name] = busy
	}
	busy[orderKey{o.act, o.id}] = true
	return true
}

func (l *jobLoop) done(o order) {
	l.e.mu.Lock()
	delete(l.e.busy[l.job.Name], orderKey{o.act, o.id})
	l.e.mu.Unlock()
	if o.act == actRun && l.job.Retries > 0 {
		l.mu.Lock()
		l.soon = true
		l.mu.Unlock()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
