package cron

import (
	"slices"
	"testing"
)

// playAttempt drives one attempt with events made of bytes and returns its steps, or fails where it
// breaks a rule.
func playAttempt(t *testing.T, a *attempt, input []byte) (steps []step) {
	t.Helper()
	possible := map[step][]event{
		doClaim: {evOurs, evHeld, evUnknown, evFull}, doLook: {evDecided, evOther, evNobody, evUnknown},
		doSkip: {evAdded, evOther, evUnknown},
		doAsk:  {evDone}, doPause: {evDone, evShut}, doBegin: {evAdded, evOther, evUnknown}, doCheck: {evOurs, evHeld},
		doRun: {evDone},
		doEnd: {evAdded, evOther, evUnknown}, doLate: {evDone}, doLeave: {evDone},
	}
	claimed, added, ran, ended, left, skipped := a.state == stBegin, false, false, false, false, false
	for _, b := range input {
		s := a.next()
		if s == doNothing {
			break
		}
		steps = append(steps, s)
		e := possible[s][int(b)%len(possible[s])]
		switch s {
		case doClaim, doLook, doSkip, doAsk:
			if claimed && !left {
				t.Fatalf("%v while the claim is held: %v", s, steps)
			}
			claimed = claimed || s == doClaim && e == evOurs
			skipped = skipped || s == doSkip
		case doBegin:
			if !claimed || left || ran {
				t.Fatalf("begins without the claim, or after the run: %v", steps)
			}
			added = e == evAdded
		case doRun:
			if !claimed || !added || ran || left || skipped {
				t.Fatalf("runs: claimed %v, added %v, ran before %v, left %v: %v", claimed, added, ran, left, steps)
			}
			ran = true
		case doEnd:
			if !ran || ended || left {
				t.Fatalf("tells the end: ran %v, told %v, left %v: %v", ran, ended, left, steps)
			}
			ended = e == evAdded || e == evOther
		case doLeave:
			if !claimed || left {
				t.Fatalf("gives up a claim that it does not hold: %v", steps)
			}
			left = true
		}
		a.take(e)
	}
	if a.next() == doNothing && claimed && !left {
		t.Fatalf("it is over, and the claim is still held: %v", steps)
	}
	if a.next() == doNothing && ran && !slices.Contains(steps, doEnd) {
		t.Fatalf("ran, and never told: %v", steps)
	}
	return steps
}

func FuzzAttempt(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0}, byte(0))
	f.Add([]byte{1, 1, 0, 1, 1, 0, 0}, byte(1))
	f.Add([]byte{0, 2, 0, 0, 0, 2, 0, 1, 0}, byte(2))
	f.Fuzz(func(t *testing.T, input []byte, kind byte) {
		a := &attempt{forbid: kind&3 == 1, replace: kind&3 == 2, mustRun: kind&4 != 0}
		if kind&8 != 0 {
			a.state = stBegin
		}
		playAttempt(t, a, input)
	})
}

func TestAnAttemptKeepsItsRules(t *testing.T) {
	// Every sequence of up to eight answers.
	var all func(prefix []byte, kind byte)
	n := 0
	all = func(prefix []byte, kind byte) {
		a := &attempt{forbid: kind == 1, replace: kind == 2}
		playAttempt(t, a, prefix)
		n++
		if len(prefix) == 8 || a.next() == doNothing {
			return
		}
		for b := range byte(4) {
			all(append(slices.Clip(prefix), b), kind)
		}
	}
	for kind := range byte(3) {
		all(nil, kind)
	}
	t.Logf("%d sequences", n)
}

func TestTheStepsOfAnAttempt(t *testing.T) {
	type answer = event
	for name, c := range map[string]struct {
		a       attempt
		answers []answer
		want    []step
	}{
		"it runs": {attempt{}, []answer{evOurs, evAdded, evDone, evAdded, evDone},
			[]step{doClaim, doBegin, doRun, doEnd, doLeave}},
		"another was first": {attempt{}, []answer{evOurs, evOther, evDone},
			[]step{doClaim, doBegin, doLeave}},
		"there is no room":              {attempt{}, []answer{evFull, evDone}, []step{doClaim, doNothing}},
		"another has decided meanwhile": {attempt{}, []answer{evHeld, evDecided}, []step{doClaim, doLook}},
		"an answer was lost": {attempt{},
			[]answer{evOurs, evUnknown, evOurs, evAdded, evDone, evAdded, evDone},
			[]step{doClaim, doBegin, doCheck, doBegin, doRun, doEnd, doLeave}},
		"an answer was lost, and the claim": {attempt{}, []answer{evOurs, evUnknown, evHeld, evDone},
			[]step{doClaim, doBegin, doCheck, doLeave}},
		"overlap, seen twice": {attempt{forbid: true},
			[]answer{evHeld, evOther, evDone, evHeld, evOther, evAdded},
			[]step{doClaim, doLook, doPause, doClaim, doLook, doSkip}},
		"no overlap: it ended in between": {attempt{forbid: true},
			[]answer{evHeld, evOther, evDone, evOurs, evAdded, evDone, evAdded, evDone},
			[]step{doClaim, doLook, doPause, doClaim, doBegin, doRun, doEnd, doLeave}},
		"who catches up waits": {attempt{forbid: true, mustRun: true},
			[]answer{evHeld, evOther, evDone, evHeld, evOther, evDone, evHeld, evOther, evDone},
			[]step{doClaim, doLook, doPause, doClaim, doLook, doPause, doClaim, doLook, doPause}},
		"replace asks once": {attempt{replace: true},
			[]answer{evHeld, evOther, evDone, evDone, evHeld, evOther, evDone},
			[]step{doClaim, doLook, doAsk, doPause, doClaim, doLook, doPause}},
		"declared lost": {attempt{}, []answer{evOurs, evAdded, evDone, evOther, evDone, evDone},
			[]step{doClaim, doBegin, doRun, doEnd, doLate, doLeave}},
		"the end is told again and again": {attempt{},
			[]answer{evOurs, evAdded, evDone, evUnknown, evDone, evUnknown, evDone, evAdded, evDone},
			[]step{doClaim, doBegin, doRun, doEnd, doPause, doEnd, doPause, doEnd, doLeave}},
		"the process ends while it waits": {attempt{}, []answer{evHeld, evNobody, evShut},
			[]step{doClaim, doLook, doPause}},
		"the process ends, the end not told": {attempt{},
			[]answer{evOurs, evAdded, evDone, evUnknown, evShut, evDone},
			[]step{doClaim, doBegin, doRun, doEnd, doPause, doLeave}},
	} {
		var got []step
		for _, e := range c.answers {
			got = append(got, c.a.next())
			c.a.take(e)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
