package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// attemptRun carries out the steps of one attempt.
type attemptRun struct {
	*jobLoop
	a       *attempt
	missed  bool // it makes up for what was missed
	h       Hold
	claimed time.Time // when it was there; zero: the journal was read since
	run     Run
	began   time.Time
	end     Record
	blocker *begun // the older run that holds the claim
	same    bool   // it is the one seen before
	foreign ID     // it runs under another claim: when it began the job's overlap was another
}

// attempt sees one attempt through. With h the claim is held already.
func (l *jobLoop) attempt(a *attempt, h Hold, missed bool) {
	s := &attemptRun{jobLoop: l, a: a, h: h, missed: missed,
		run: Run{Job: l.job, ID: a.id, Name: runName(), Claim: l.job.claim(a.id.At, missed)}}
	if h != nil && !s.takeSlot() {
		l.release(h)
		s.full()
		return
	}
	for step := a.next(); step != doNothing; step = a.next() {
		a.take(s.do(step))
	}
}

// full tells that the attempt ends here. Others may have room; its instant stays to be decided.
func (s *attemptRun) full() event {
	s.e.log(s.job, s.a.id, "full", "", "no room for another command here")
	s.sleep(time.Second)
	return evFull
}

// takeSlot takes room for one command. It is taken with the claim and freed with it: what only
// waits for its claim must not keep other jobs out.
func (s *attemptRun) takeSlot() bool {
	if s.e.slots == nil {
		return true
	}
	select {
	case s.e.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *attemptRun) freeSlot() {
	if s.e.slots != nil {
		<-s.e.slots
	}
}

func (s *attemptRun) do(what step) event {
	switch what {
	case doClaim:
		return s.claim()
	case doLook:
		return s.look()
	case doSkip:
		return s.overlap()
	case doAsk:
		if s.isPaused() {
			return evHeld
		}
		ctx, cancel := s.e.writeCall()
		defer cancel()
		_ = s.e.o.Claims.Ask(ctx, s.blocker.begin.Claim, "replaced by the run of "+s.a.id.At.Format(time.RFC3339))
		return evDone
	case doPause:
		return s.wait()
	case doBegin:
		return s.begin()
	case doCheck:
		time.Sleep(100 * time.Millisecond) // also when told to stop: the store may refuse at once
		if s.h.Check() != nil {
			return evHeld
		}
		return evOurs
	case doRun:
		return s.work()
	case doEnd:
		return s.finish()
	case doLate:
		s.end.Key.Kind = kindLate
		s.append(s.end)
		return evDone
	case doLeave:
		s.freeSlot() // first: who waits for the claim in this process has room then
		s.release(s.h)
		s.h = nil
	}
	return evDone
}

func (s *attemptRun) wait() event {
	stop := s.e.stop
	if s.h != nil { // the end is being told: that goes on, for a moment, though the process is to end
		stop = s.e.quit
	}
	select {
	case <-time.After(time.Duration((0.5 + s.e.o.Rand()) * float64(s.backoff()))):
		return evDone
	case <-stop:
		if s.h != nil && s.e.o.Now().Sub(s.end.When) < 3*time.Second {
			time.Sleep(100 * time.Millisecond)
			return evDone
		}
		return evShut
	}
}

// backoff is how long to wait before the next try, each time longer: many processes may wait for
// one claim, and what a busy store is asked in vain makes it busier.
func (s *attemptRun) backoff() time.Duration {
	most := 500 * time.Millisecond
	if s.a.mustRun {
		most = 2 * time.Second
	}
	return min(most, 70*time.Millisecond<<min(s.a.tries, 5))
}

func (s *attemptRun) claim() event {
	select {
	case <-s.e.stop: // no run begins any more
		return evUnknown
	default:
	}
	back := s.a.forbid && !s.a.mustRun && s.jobLoop.waits()
	noRoom := s.e.slots != nil && len(s.e.slots) == cap(s.e.slots)
	if back || noRoom || s.a.tries > 0 { // it was held: a read costs the store less than a try
		if standing, err := s.standing(s.run.Claim); err != nil {
			return evUnknown
		} else if standing {
			return evHeld
		}
	}
	switch {
	case back: // it is free, for what is older
		return evUnknown
	case noRoom:
		return s.full()
	}
	h, err := s.try(s.run.Claim)
	switch {
	case err == nil && !s.takeSlot():
		s.release(h)
		return s.full()
	case err == nil:
		s.h, s.claimed = h, s.e.o.Now()
		return evOurs
	case errors.Is(err, ErrHeld):
		return evHeld
	}
	return evUnknown
}

// look says who has the claim, by what the journal says.
func (s *attemptRun) look() event {
	asked := s.e.o.Now()
	ctx, cancel := s.e.readCall()
	records, err := s.e.o.Journal.Records(ctx, Prefix+s.job.Name, "", window)
	cancel()
	if err != nil {
		return evUnknown
	}
	v := see(records)
	s.jobLoop.mu.Lock()
	newer := s.jobLoop.readAt.Before(asked)
	s.jobLoop.mu.Unlock()
	if newer { // an older answer may have what has been forgotten since
		s.observe(v, asked)
	}
	if v.decided(s.a.id) {
		s.e.counters.Add(s.job.Name, Suppressed, 1)
		return evDecided
	}
	open := v.open()
	s.jobLoop.mu.Lock()
	for id, a := range s.t.open { // that have left the window
		if v.attempts[id] == nil {
			open = append(open, a)
		}
	}
	s.jobLoop.mu.Unlock()
	for _, o := range open {
		if o.id != s.a.id && (o.begin.Claim == s.run.Claim || o.id == s.foreign) {
			s.same = s.blocker != nil && s.blocker.id == o.id
			if s.blocker = o; !s.same {
				s.a.seen = 0
			}
			return evOther
		}
	}
	return evNobody
}

// overlap records that the instant is not run.
func (s *attemptRun) overlap() event {
	r := s.definition(Record{Key: s.a.id.key(kindBegin), Verdict: Overlap, Run: s.run.Name,
		Text: "the run of " + s.blocker.id.At.Format(time.RFC3339) + " had not ended"})
	e := s.append(r)
	if e == evAdded {
		s.e.counters.Add(s.job.Name, Overlap, 1)
		s.e.log(s.job, s.a.id, Overlap, "", r.Text)
	}
	return e
}

// begin decides the attempt for us, if nobody else has. What was begun under the same claim and has
// no end is lost: we hold it now.
//
// What we know of the journal must be new: a process that was frozen may come back to an instant
// whose records have been forgotten since. An old instant may have been decided, have ended and
// been forgotten while we waited for the claim.
func (s *attemptRun) begin() event {
	if (s.jobLoop.stale() || s.jobLoop.uncertain(s.a.id.At, s.claimed)) && !s.jobLoop.read() {
		return evUnknown
	}
	if s.jobLoop.hasBegun(s.a.id, s.run.Name) { // by an earlier try of ours, whose answer was lost
		if s.others() != evNobody { // who has another definition may have begun beside it since: it waits for these
			return evUnknown
		}
		return evAdded
	}
	if !s.jobLoop.isDue(s.a.id) {
		s.e.counters.Add(s.job.Name, Suppressed, 1)
		return evOther
	}
	if e := s.others(); e != evNobody {
		return e
	}
	if s.isPaused() {
		return evOther // the next look at the schedule sees to it
	}
	r := s.definition(Record{Key: s.a.id.key(kindBegin), Verdict: Began, Run: s.run.Name, Token: s.h.Token(),
		Claim:   s.run.Claim,
		CatchUp: s.missed, Retries: s.job.Retries})
	e := s.append(r)
	if e == evOther {
		s.e.counters.Add(s.job.Name, Suppressed, 1)
		s.e.log(s.job, s.a.id, Suppressed, "", "")
	}
	return e
}

// others deals with runs that have begun and not ended. Those under the claim that we hold are
// lost. A job whose runs may not overlap waits for those that began while its definition was
// another, here or in a process with another file: these have another claim.
func (s *attemptRun) others() event {
	var dead, foreign []*begun
	s.jobLoop.mu.Lock()
	for id, o := range s.t.open {
		switch {
		case id == s.a.id:
		case o.begin.Claim == s.run.Claim:
			dead = append(dead, o)
		case s.a.forbid || s.a.replace:
			foreign = append(foreign, o)
		}
	}
	s.jobLoop.mu.Unlock()
	for _, o := range foreign {
		if standing, err := s.standing(o.begin.Claim); err != nil {
			return evUnknown
		} else if standing {
			s.foreign = o.id
			return evHeld
		}
	}
	for _, o := range dead {
		if e, _ := s.endOf(o.id); e == evNobody && s.h.Check() == nil {
			s.lost(o.id, o.begin)
		}
	}
	return evNobody
}

// work runs the command, if the claim has been held all the while.
func (s *attemptRun) work() event {
	s.began = s.e.o.Now()
	s.end = Record{Key: s.a.id.key(kindEnd), Run: s.run.Name}
	var ended Ended
	if err := s.h.Check(); err != nil {
		ended = Ended{Verdict: Lost, Code: -1, Text: "it was not started: " + err.Error()}
	} else {
		s.e.o.Log(Event{Job: s.job.Name, ID: s.a.id, What: "begun", Run: s.run.Name,
			Late: s.began.Sub(s.job.due(s.a.id.At))})
		s.e.count(1)
		ended = s.e.o.Runner(s.e.quit, s.h, s.run)
		s.e.count(-1)
	}
	s.end.Verdict, s.end.Text, s.end.When = ended.Verdict, ended.Text, s.e.o.Now()
	s.end.Took = s.e.o.Now().Sub(s.began).Round(time.Millisecond).String()
	if ended.Code >= 0 {
		s.end.Code = &ended.Code
	}
	text := ended.Text
	if ended.Code > 0 { // the record has it in a field of its own
		text = strings.TrimSuffix(fmt.Sprintf("exit status %d; %s", ended.Code, text), "; ")
	}
	s.e.log(s.job, s.a.id, ended.Verdict, s.run.Name, text)
	return evDone
}

func (e *Engine) count(n int) {
	e.mu.Lock()
	e.active += n
	e.mu.Unlock()
}

// finish tells the end. Where another has declared the run lost, that stands: our lease was over,
// and what ran had been killed.
//
// Who was frozen for long does not tell the end of a run that the journal has forgotten: where it
// stands alone before much that has been removed, it looks as if nobody had decided about what lies
// between.
func (s *attemptRun) finish() event {
	if s.stale() || s.jobLoop.uncertain(s.a.id.At, s.e.o.Now()) {
		switch e, _ := s.endOf(s.a.id); e {
		case evUnknown:
			return e
		case evOther:
			s.e.log(s.job, s.a.id, "trouble", s.run.Name,
				"the journal has forgotten this run; it ended as "+s.end.Verdict)
			return evAdded
		}
	}
	e := s.append(s.end)
	switch e {
	case evAdded: // one run counts once: who declares it lost has counted it
		s.e.counters.Add(s.job.Name, s.end.Verdict, 1)
	case evOther:
		s.e.log(s.job, s.a.id, "trouble", s.run.Name,
			"another process has declared this run lost; it had ended as "+s.end.Verdict)
	}
	return e
}
