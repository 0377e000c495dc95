package core

import (
	"strings"
	"testing"
	"time"
)

func id(name string) Identity { return Identity{name, "1"} }

// pgRecord is that of a primary a with voters b and c: a commit needs one of them, a promotion
// both.
func pgRecord() Record {
	return Record{Seq: 7, Token: 1, SystemID: "s", Primary: id("a"), Timeline: 3, From: 100, Granted: 3,
		Voters: []Identity{id("b"), id("c")}, Acks: 1, Needed: 2, Durability: Quorum, Lineage: []Fork{{1, 0}, {3, 100}}}
}

func answerOf(name string, timeline Timeline, lsn LSN) Answer {
	return Answer{Token: 2, Identity: id(name), Position: Position{timeline, lsn}, SystemID: "s"}
}

func TestWhoIsPromoted(t *testing.T) {
	a, b, c := answerOf("a", 3, 300), answerOf("b", 3, 200), answerOf("c", 3, 210)
	other := func(x Answer, change func(*Answer)) Answer { change(&x); return x }
	for _, tc := range []struct {
		name    string
		change  func(*Survey)
		answers []Answer
		best    string // "": nobody
		why     string
	}{
		{"q voters are enough: the most advanced", nil, []Answer{b, c}, "c", ""},
		{"one voter less than q", nil, []Answer{c}, "", "of the 2"},
		{"no answer", nil, nil, "", "of the 2"},
		{"the former primary is enough", nil, []Answer{a}, "a", ""},
		{"the former primary with another incarnation", nil,
			[]Answer{other(a, func(x *Answer) { x.Incarnation = "2" }), c}, "", "set up anew since"},
		{"a voter with another incarnation", nil, []Answer{b, other(c, func(x *Answer) { x.Incarnation = "2" })}, "",
			"c (set up anew since"},
		{"an answer for another term", nil, []Answer{b, other(c, func(x *Answer) { x.Token = 1 })}, "", "of the 2"},
		{"an answer of another database system", nil, []Answer{b, other(c, func(x *Answer) { x.SystemID = "x" })}, "",
			"of the 2"},
		{"the timeline comes before the LSN", func(s *Survey) { s.Record.Granted, s.Record.Timeline = 5, 5 },
			[]Answer{answerOf("b", 3, 900), answerOf("c", 5, 210)}, "c", ""},
		{"a voter left behind with a longer tail, k = 2", func(s *Survey) {
			s.Record.Granted, s.Record.Timeline, s.Record.Acks, s.Record.Needed = 5, 5, 2, 1
		}, []Answer{answerOf("b", 3, 900), answerOf("c", 5, 210)}, "c", ""},
		{"a timeline above the last one given out", nil, []Answer{answerOf("b", 5, 200), c}, "",
			"b (it was promoted by hand"},
		{"a timeline between two that were given out", func(s *Survey) { s.Record.Granted, s.Record.Timeline = 5, 5 },
			[]Answer{answerOf("b", 4, 900), answerOf("c", 5, 210)}, "", "b (it was promoted by hand"},
		{"q above the number of voters", func(s *Survey) { s.Record.Needed = 3 }, []Answer{b, c}, "",
			"a is needed, which alone may have"},
		{"q above the number of voters, and the primary answers", func(s *Survey) { s.Record.Needed = 3 }, []Answer{a,
			b}, "a", ""},
		{"a voter that stands twice", nil, []Answer{b, b}, "", "1 of the 2"},
		{"a primary alone", func(s *Survey) { s.Record.Voters, s.Record.Needed = nil, 1 }, []Answer{b, c}, "",
			"needed"},
		{"stopped: one that has everything", func(s *Survey) { s.Record.Stopped = 210 }, []Answer{c}, "c", ""},
		{"stopped: anybody, not voters only", func(s *Survey) { s.Record.Stopped = 210 }, []Answer{answerOf("d", 3,
			210)}, "d", ""},
		{"stopped: one that lacks a byte", func(s *Survey) { s.Record.Stopped = 211 }, []Answer{c}, "", "of the 2"},
		{"stopped: a stranger that lacks a byte", func(s *Survey) { s.Record.Stopped = 211 },
			[]Answer{answerOf("d", 3, 210), b, c}, "c", ""},
		{"stopped: the LSN of another timeline", func(s *Survey) {
			s.Record.Stopped, s.Record.Granted, s.Record.Timeline = 200, 5, 5
		}, []Answer{answerOf("c", 3, 400)}, "", "of the 2"},
		{"a stranger is no voter", nil, []Answer{b, answerOf("d", 3, 400)}, "", "of the 2"},
		{"a stranger is not promoted", nil, []Answer{b, c, answerOf("d", 3, 400)}, "c", ""},
		{"equal data: priority", nil, []Answer{other(answerOf("b", 3, 210), func(x *Answer) { x.Priority = 5 }), c},
			"b", ""},
		{"priority does not outweigh data", nil, []Answer{other(b, func(x *Answer) { x.Priority = 5 }), c}, "c", ""},
		{"equal in all: who holds the term", func(s *Survey) { s.Holder = "c" }, []Answer{answerOf("b", 3, 210), c},
			"c", ""},
		{"equal in all: the name", nil, []Answer{c, answerOf("b", 3, 210)}, "b", ""},
		{"nofailover has the most", nil, []Answer{b, other(c, func(x *Answer) { x.NoFailover = true })}, "",
			"must not be promoted"},
		{"nofailover among equals", nil, []Answer{answerOf("b", 3, 210), other(c, func(x *Answer) {
			x.NoFailover, x.Priority = true, 9
		})}, "b", ""},
		{"a moment for a voter who can be reached", func(s *Survey) {
			s.Record.Needed, s.Record.Acks, s.Present, s.Linger = 1, 2, []string{"b", "c"}, time.Second
		}, []Answer{b}, "", "waits a moment"},
		{"no longer than that", func(s *Survey) {
			s.Record.Needed, s.Record.Acks, s.Present, s.Linger, s.Waited = 1, 2, []string{"b", "c"}, time.Second,
				time.Second
		}, []Answer{b}, "b", ""},
		{"async: one answer is enough", func(s *Survey) { s.Record.Durability = Async }, []Answer{answerOf("d", 3,
			50)}, "d", ""},
		{"async: too far behind", func(s *Survey) {
			s.Record.Durability, s.LastLSN, s.MaxLag = Async, 300, 99
		}, []Answer{b}, "", "100 bytes behind"},
		{"async: too far behind, and a person has accepted the loss", func(s *Survey) {
			s.Record.Durability, s.LastLSN, s.MaxLag, s.Accept = Async, 300, 99, &Failover{To: "b", Life: "1"}
		}, []Answer{b}, "b", ""},
		{"nofailover has the most, and a person has accepted the loss", func(s *Survey) {
			s.Accept = &Failover{To: "b", Life: "1"}
		}, []Answer{b, other(c, func(x *Answer) { x.NoFailover = true })}, "b", ""},
		{"async: not too far behind", func(s *Survey) {
			s.Record.Durability, s.LastLSN, s.MaxLag = Async, 300, 100
		}, []Answer{b}, "b", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Survey{Record: pgRecord(), Token: 2, Answers: tc.answers}
			if tc.change != nil {
				tc.change(&s)
			}
			v := s.Judge()
			got := ""
			if v.Best != nil {
				got = v.Best.Name
			}
			if got != tc.best || !strings.Contains(v.Why, tc.why) {
				t.Errorf("%q is promoted (%s), want %q (%s)", got, v.Why, tc.best, tc.why)
			}
		})
	}
}

func TestThePromotionsRecord(t *testing.T) {
	r := pgRecord()
	r.Stopped = 250
	n := r.Promotion(2, answerOf("b", 3, 250))
	switch {
	case n.Seq != 8 || n.Token != 2 || n.Primary != id("b") || n.From != 250 || n.Stopped != 0:
		t.Errorf("the record is %+v", n)
	case len(n.Voters) != 1 || n.Voters[0] != id("c"):
		t.Errorf("the voters are %v: without the primary, whose vote would count for nothing new", n.Voters)
	case n.Acks != 1 || n.Needed != 2:
		t.Errorf("k = %d, q = %d: b alone may have what is acknowledged, so q stays 2", n.Acks, n.Needed)
	case n.Timeline != 5 || n.Granted != 5 || n.Lineage[len(n.Lineage)-1] != Fork{5, 250}:
		t.Errorf("timeline %d of %d, lineage %v", n.Timeline, n.Granted, n.Lineage)
	case len(r.Voters) != 2 || len(r.Lineage) != 2:
		t.Error("the former record has changed")
	}
	again := n.Promotion(3, answerOf("c", 5, 300))
	if again.Timeline != 7 || len(again.Voters) != 0 || again.Acks != 1 || again.Needed != 2 {
		t.Errorf("the next record is %+v", again)
	}
	r.Acks, r.Needed = 2, 1
	if n := r.Promotion(2, answerOf("b", 3, 250)); n.Acks != 1 || n.Needed != 1 {
		t.Errorf("k = %d, q = %d with one voter of two, k = 2", n.Acks, n.Needed)
	}
	// Whoever is promoted by hand takes the number after its own.
	for by, want := range map[Timeline]bool{1: false, 2: true, 3: false, 4: true, 5: false, 6: true, 7: true} {
		if n.byHand(by) != want {
			t.Errorf("timeline %d was promoted by hand: %v", by, !want)
		}
	}
}

func TestHowAMemberRejoins(t *testing.T) {
	r := pgRecord()
	r.Timeline, r.Granted, r.Lineage = 7, 9, []Fork{{1, 0}, {3, 100}, {7, 250}}
	for _, tc := range []struct {
		what string
		own  Position
		want Rejoin
	}{
		{"on the primary's timeline", Position{7, 260}, RejoinFollow},
		{"before the fork", Position{3, 249}, RejoinFollow},
		{"at the fork", Position{3, 250}, RejoinFollow},
		{"past the fork", Position{3, 251}, RejoinRewind},
		{"an older timeline, before its end", Position{1, 100}, RejoinFollow},
		{"an older timeline, past its end", Position{1, 101}, RejoinRewind},
		{"a timeline that the primary never had", Position{5, 10}, RejoinRewind},
		{"a timeline promoted by hand", Position{8, 10}, RejoinRewind},
	} {
		if got := RejoinFor(tc.own, r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
	}
	if p := (Position{3, 900}); !p.Before(Position{5, 100}) || p.Before(Position{3, 900}) || !p.Before(Position{3,
		901}) {
		t.Error("the timeline comes first, then the LSN")
	}
}
