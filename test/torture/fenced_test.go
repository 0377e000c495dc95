//go:build linux

package torture

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/primacy-go/primacy/internal/safety"
)

// fencedModel is what a fenced register does: it keeps the largest token, and refuses a write under
// a smaller one. A write whose outcome is unknown may be applied at any later time; if a larger
// token is there by then it changes nothing.
var fencedModel = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		largest := state.(uint64)
		if input == nil {
			return output.(uint64) == largest, largest
		}
		token := input.(uint64)
		switch output.(safety.Outcome) {
		case safety.Applied:
			return token >= largest, token
		case safety.Stale:
			return token < largest, largest
		}
		return true, max(token, largest)
	},
}

// linearizable asks porcupine whether one fenced register could have given all those answers. A
// write that the register knows and no caller tells of, because the caller was killed, counts as
// one of unknown outcome.
func linearizable(writes []safety.Write, called map[safety.Stamp]time.Duration, reads []read) porcupine.CheckResult {
	var ops []porcupine.Operation
	told := map[safety.Stamp]bool{}
	for _, w := range writes {
		told[w.Stamp] = true
		back := w.Return.Nanoseconds()
		if w.Outcome == safety.Unknown {
			if _, arrived := called[w.Stamp]; !arrived {
				continue // it never came, and the register is closed: it changed nothing and never will
			}
			back = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{Input: w.Token, Output: w.Outcome, Call: w.Call.Nanoseconds(),
			Return: back})
	}
	for w, at := range called {
		if !told[w] {
			ops = append(ops, porcupine.Operation{Input: w.Token, Output: safety.Unknown, Call: at.Nanoseconds(),
				Return: math.MaxInt64})
		}
	}
	for _, r := range reads {
		ops = append(ops, porcupine.Operation{Output: r.largest, Call: r.call.Nanoseconds(),
			Return: r.back.Nanoseconds()})
	}
	return porcupine.CheckOperationsTimeout(fencedModel, ops, time.Minute)
}

// TestFencedModel shows that the checkers of the register bite.
func TestFencedModel(t *testing.T) {
	w := func(token, seq uint64, call, back time.Duration, o safety.Outcome) safety.Write {
		return safety.Write{Stamp: safety.Stamp{Token: token, Who: "w", Seq: seq}, Call: call, Return: back, Outcome: o}
	}
	for name, test := range map[string]struct {
		writes []safety.Write
		reads  []read
		want   porcupine.CheckResult
	}{
		"in order": {[]safety.Write{w(1, 1, 0, 1, "ok"), w(2, 2, 2, 3, "ok"),
			w(1, 3, 4, 5, "stale")}, nil, porcupine.Ok},
		"a smaller token was let pass": {[]safety.Write{w(2, 1, 0, 1, "ok"), w(1, 2, 2, 3, "ok")}, nil,
			porcupine.Illegal},
		"refused for nothing": {[]safety.Write{w(1, 1, 0, 1, "ok"), w(1, 2, 2, 3, "stale")}, nil,
			porcupine.Illegal},
		"at the same time": {[]safety.Write{w(2, 1, 0, 10, "ok"), w(1, 2, 5, 12, "ok")}, nil, porcupine.Ok},
		"an unknown write that came": {[]safety.Write{w(2, 1, 0, 1, "unknown"), w(1, 2, 5, 6, "stale")}, nil,
			porcupine.Ok},
		"a lost write": {[]safety.Write{w(2, 1, 0, 1, "ok")}, []read{{call: 5, back: 6, largest: 1}},
			porcupine.Illegal},
		"a read of what is there": {[]safety.Write{w(2, 1, 0, 1, "ok")}, []read{{call: 5, back: 6, largest: 2}},
			porcupine.Ok},
	} {
		called := map[safety.Stamp]time.Duration{}
		for _, w := range test.writes {
			called[w.Stamp] = w.Call
		}
		if got := linearizable(test.writes, called, test.reads); got != test.want {
			t.Errorf("%s: porcupine says %v, want %v", name, got, test.want)
		}
	}
}

// TestSink holds a write back until a larger token was written, and looks that the fence refuses
// it.
func TestSink(t *testing.T) {
	s := newSink(t, t.TempDir())
	h := s.hold("old")
	late := make(chan string, 1)
	go func() { late <- s.answer("1 old 1 10") }()
	<-h.caught
	if got := s.answer("2 new 1 20"); got != "ok" {
		t.Errorf("a write under a larger token = %q, want ok", got)
	}
	s.let("old", h)
	if got := <-late; got != "stale 2" {
		t.Errorf("the late write = %q, want stale 2", got)
	}
	if len(s.late) != 1 || len(s.log) != 1 || s.answer("read") != "2" {
		t.Errorf("late %v, log %v, largest %s: want one each, and 2", s.late, s.log, s.answer("read"))
	}
	if got := s.answer("nonsense"); !strings.HasPrefix(got, "error ") {
		t.Errorf("nonsense is answered with %q, want an error", got)
	}
}
