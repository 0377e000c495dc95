package cron

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"
)

// do carries one order out.
func (l *jobLoop) do(o order) {
	switch o.act {
	case actOrigin:
		l.note(o.id.At)
	case actSkip:
		l.skip(o.skip)
	case actProbe:
		l.probe(o)
	case actCatchUp:
		l.catchUp()
	case actRun:
		mustRun := o.id.Attempt > 1
		l.attempt(&attempt{id: o.id, forbid: l.job.Overlap == Forbid, replace: l.job.Overlap == Replace,
			mustRun: mustRun}, nil, false)
	}
}

// append appends a record, once. Unknown answers are the caller's to ask again.
func (l *jobLoop) append(r Record) event {
	if r.By, r.Host = l.e.o.ID, l.e.o.Host; r.When.IsZero() {
		r.When = l.e.o.Now().UTC()
	}
	d, err := r.driver()
	if err != nil {
		l.e.log(l.job, ID{r.Key.At, r.Key.Attempt}, "trouble", r.Run, err.Error())
		return evOther
	}
	ctx, cancel := l.e.writeCall()
	defer cancel()
	there, added, err := l.e.o.Journal.Append(ctx, Prefix+l.job.Name, d, l.keeps(r))
	if err != nil {
		return evUnknown
	}
	if added {
		return evAdded
	}
	if was, ok := ParseRecord(there); ok && was.Run != "" && was.Run == r.Run && was.Verdict == r.Verdict {
		return evAdded // by an earlier try of ours, whose answer was lost
	}
	return evOther
}

// definition fills in what the job is.
func (l *jobLoop) definition(r Record) Record {
	r.Def, r.Sched, r.Spec, r.Zone = l.job.Definition(), l.job.instants(), l.job.schedule.String(),
		l.job.schedule.Zone()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Done = l.t.over()
	return r
}

// note records that the schedule counts from an instant.
func (l *jobLoop) note(at time.Time) {
	if e := l.append(l.definition(Record{Key: Key{at, 0, kindNote}, Verdict: Fresh, Run: runName()})); e != evUnknown {
		l.mu.Lock()
		if l.t.needsOrigin = false; e == evAdded {
			l.t.sent = at
		}
		l.mu.Unlock()
		l.e.log(l.job, ID{At: at}, Fresh, "", "counts from here: "+l.job.schedule.String())
	}
}

// skip records instants as missed. What is not recorded now is tried again with the next look.
func (l *jobLoop) skip(s skips) {
	if s.gap != nil {
		r := l.definition(*s.gap)
		r.Run = runName()
		if l.append(r) == evAdded {
			l.e.counters.Add(l.job.Name, Missed, uint64(r.Count))
			l.e.log(l.job, ID{At: r.Key.At}, Missed, "", "and every scheduled time up to "+r.Upto.Format(time.RFC3339))
		}
	}
	for _, at := range s.each {
		r := l.definition(Record{Key: Key{at, 1, kindBegin}, Verdict: Missed, Run: runName()})
		if l.append(r) == evAdded {
			l.e.counters.Add(l.job.Name, Missed, 1)
			l.e.log(l.job, ID{at, 1}, Missed, "", "")
		}
	}
	l.lookSoon()
}

func (l *jobLoop) lookSoon() {
	l.mu.Lock()
	l.soon = true
	l.mu.Unlock()
}

// catchUp deals with what was missed. Under the job's claim, so that all processes together make up
// for one gap once.
func (l *jobLoop) catchUp() {
	claim := l.job.claim(time.Time{}, true)
	if standing, err := l.standing(claim); err != nil || standing {
		l.sleep(2 * time.Second)
		return
	}
	h, err := l.try(claim)
	if err != nil {
		l.sleep(time.Second)
		return
	}
	if !l.read() || h.Check() != nil {
		l.release(h)
		l.sleep(200 * time.Millisecond)
		return
	}
	l.mu.Lock()
	run, s := l.t.catchUp(l.e.o.Now())
	l.mu.Unlock()
	l.skip(s)
	if run.IsZero() || h.Check() != nil {
		l.release(h)
		return
	}
	l.attempt(&attempt{id: ID{run, 1}, mustRun: true, state: stBegin}, h, true)
}

// sleep waits a moment before the next try, unless the process is to end.
func (l *jobLoop) sleep(d time.Duration) {
	select {
	case <-time.After(time.Duration((0.5 + l.e.o.Rand()) * float64(d))):
	case <-l.e.stop:
	}
}

// probe looks whether a run that has begun is lost. It holds the run's claim while it says so: then
// nobody runs it, and nobody ever will.
func (l *jobLoop) probe(o order) {
	claim := o.begun.begin.Claim
	if standing, err := l.standing(claim); err != nil || standing {
		return
	}
	h, err := l.try(claim)
	if err != nil {
		return
	}
	defer l.release(h)
	if l.stale() && !l.read() || !l.isOpen(o.id) {
		return
	}
	switch e, end := l.endOf(o.id); {
	case h.Check() != nil:
	case e == evNobody:
		l.lost(o.id, o.begun.begin)
	case e == evDecided:
		l.mu.Lock() // it has left the window
		v := &view{attempts: map[ID]*begun{}}
		v.take(o.begun.begin)
		v.take(end)
		l.t.sees(v, o.id, v.attempts[o.id])
		l.mu.Unlock()
	case e == evOther:
		l.mu.Lock()
		delete(l.t.open, o.id)
		l.mu.Unlock()
	}
}

// endOf reads the end of an attempt that has begun: evDecided with it, evNobody if there is none,
// evOther if the journal has forgotten the attempt.
func (l *jobLoop) endOf(id ID) (event, Record) {
	ctx, cancel := l.e.readCall()
	defer cancel()
	records, err := l.e.o.Journal.Records(ctx, Prefix+l.job.Name, id.key(kindLate).String(), 2)
	if err != nil {
		return evUnknown, Record{}
	}
	begun := false
	for _, d := range records {
		r, ok := ParseRecord(d)
		if ok && r.Key == id.key(kindEnd) {
			return evDecided, r
		}
		begun = begun || d.Key == id.key(kindBegin).String()
	}
	if begun {
		return evNobody, Record{}
	}
	return evOther, Record{}
}

// lost declares a run lost. The caller holds its claim.
func (l *jobLoop) lost(id ID, begin Record) {
	r := Record{Key: id.key(kindEnd), Verdict: Lost, Run: runName(),
		Text: "its runner " + begin.By + " died, or lost the store"}
	if l.append(r) != evAdded {
		return
	}
	l.e.counters.Add(l.job.Name, Lost, 1)
	l.e.log(l.job, id, Lost, begin.Run, r.Text)
	r.When = l.e.o.Now()
	l.mu.Lock()
	v := &view{attempts: map[ID]*begun{}}
	v.take(begin)
	v.take(r)
	l.t.sees(v, id, v.attempts[id])
	l.mu.Unlock()
	l.lookSoon()
}

func (l *jobLoop) standing(claim string) (bool, error) {
	ctx, cancel := l.e.readCall()
	defer cancel()
	return l.e.o.Claims.Standing(ctx, claim)
}

func (l *jobLoop) try(name string) (Hold, error) {
	ctx, cancel := l.e.writeCall()
	defer cancel()
	return l.e.o.Claims.Try(ctx, name)
}

// release gives a claim up. One that the store has not confirmed goes on in the background, or runs
// out with the lease.
func (l *jobLoop) release(h Hold) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.Release(ctx)
}

func runName() string {
	var b [6]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}
