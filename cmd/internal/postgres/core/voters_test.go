package core

import (
	"slices"
	"testing"
	"time"
)

func quorum(acks int, names ...string) Wanted {
	w := Wanted{Acks: acks, Durability: Quorum}
	for _, n := range names {
		w.Members = append(w.Members, id(n))
	}
	return w
}

// step takes the next step, demands that k + q > |V ∪ S| holds before and after it, and says what
// it was.
func step(t *testing.T, v *Voters, r *Record, want Wanted, flushed map[Identity]LSN) string {
	t.Helper()
	c := v.Next(*r, want, flushed)
	what := ""
	switch {
	case c.Record != nil:
		if c.Record.Seq != r.Seq+1 {
			t.Errorf("record %d after %d", c.Record.Seq, r.Seq)
		}
		*r = *c.Record
		what = "record"
	case c.Sync != nil:
		v.Loading(*c.Sync)
		what = "ssn " + c.Sync.String()
	}
	if !v.Holds(*r) {
		t.Errorf("after %q: k + q > |V ∪ S| does not hold: %+v with %v", what, *r, v.loaded)
	}
	return what
}

// upTo is everybody's flushed LSN.
func upTo(lsn LSN) map[Identity]LSN {
	return map[Identity]LSN{id("b"): lsn, id("c"): lsn, id("d"): lsn, id("e"): lsn}
}

// path demands these steps; "proven" has all walsenders load the SSN with the primary at 500.
func path(t *testing.T, v *Voters, r *Record, want Wanted, steps ...string) {
	t.Helper()
	for i, s := range steps {
		if s == "proven" {
			v.Proven(500)
			continue
		}
		if got := step(t, v, r, want, upTo(500)); got != s {
			t.Fatalf("step %d is %q, want %q", i+1, got, s)
		}
	}
}

func settled() (*Voters, *Record) {
	r := pgRecord()
	v := NewVoters(AnyOf(r.Voters, 1))
	v.Proven(400)
	return v, &r
}

const bc1, b1, c1, bcd1 = "ssn any 1 of b@1,c@1", "ssn any 1 of b@1", "ssn any 1 of c@1", "ssn any 1 of b@1,c@1,d@1"

// The record comes first where it makes a promotion harder.
func TestAVoterIsAddedByTheRecordFirst(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(1, "b", "c", "d"), "record", bcd1, "", "proven", "")
	if len(r.Voters) != 3 || r.Needed != 3 {
		t.Errorf("q = %d of %v", r.Needed, r.Voters)
	}
}

// And last where it makes one easier.
func TestAVoterIsDroppedByTheSSNFirst(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(1, "b"), b1, "", "proven", "record", "")
	if len(r.Voters) != 1 || r.Needed != 1 {
		t.Errorf("q = %d of %v", r.Needed, r.Voters)
	}
}

// With k = 1 of b and c, a commit before the change may be on the dropped one alone.
func TestQFallsOnlyWhenTheBarrierIsFlushed(t *testing.T) {
	v, r := settled()
	want := quorum(1, "b")
	path(t, v, r, want, b1, "proven")
	for lsn, what := range map[LSN]string{0: "", 499: ""} {
		if got := step(t, v, r, want, map[Identity]LSN{id("b"): lsn, id("c"): 900}); got != what {
			t.Errorf("b has flushed %d of 500: %q", lsn, got)
		}
	}
	if got := step(t, v, r, want, map[Identity]LSN{id("b"): 500}); got != "record" {
		t.Errorf("b has flushed all: %q", got)
	}
}

// The barrier is that of the SSN that is loaded now.
func TestANewSSNNeedsANewBarrier(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(1, "b"), b1)
	v.Proven(500)
	path(t, v, r, quorum(1, "c"), c1)
	if got := step(t, v, r, quorum(1, "c"), upTo(900)); got != "" {
		t.Errorf("not loaded, and %q", got)
	}
	v.Proven(700)
	if got := step(t, v, r, quorum(1, "c"), upTo(600)); got != "" {
		t.Errorf("the barrier is 700, c is at 600, and %q", got)
	}
	if got := step(t, v, r, quorum(1, "c"), upTo(700)); got != "record" {
		t.Errorf("the barrier is flushed: %q", got)
	}
	v.Proven(900)
	if v.barrier != 700 {
		t.Error("the barrier moves on, and a busy primary never settles")
	}
}

// A walsender may have any SSN that was set since all have last been seen to have one.
func TestAllThatMayBeLoadedCounts(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(2, "b", "c"), "ssn any 2 of b@1,c@1")
	if got := step(t, v, r, quorum(2, "b", "c"), upTo(900)); got != "" || r.Needed != 2 {
		t.Errorf("a walsender may still need one of two, and %q", got)
	}
	path(t, v, r, quorum(2, "b", "c"), "proven", "record")
	if r.Acks != 2 || r.Needed != 1 {
		t.Errorf("k = %d, q = %d", r.Acks, r.Needed)
	}
	// Back: q rises before anybody may need less.
	path(t, v, r, quorum(1, "b", "c"), "record")
	if r.Needed != 2 {
		t.Errorf("q = %d before k falls", r.Needed)
	}
	path(t, v, r, quorum(1, "b", "c"), bc1, "", "proven", "record", "")
}

// A change that comes before the last one was loaded counts with both.
func TestAnSSNThatMayStillBeLoadedRaisesQ(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(2, "b", "c"), "ssn any 2 of b@1,c@1")
	path(t, v, r, quorum(3, "b", "c", "d"), "record")
	if r.Needed != 3 {
		t.Errorf("q = %d of three voters, and a walsender may need one of two", r.Needed)
	}
}

func TestReplacingAVoter(t *testing.T) {
	v, r := settled()
	path(t, v, r, quorum(1, "b", "d"), "record", "ssn any 1 of b@1,d@1", "", "proven", "record", "")
	if len(r.Voters) != 2 || r.Needed != 2 {
		t.Errorf("q = %d of %v", r.Needed, r.Voters)
	}
}

// After a promotion q is above the number of voters until they have all that the primary had.
func TestQAfterAPromotion(t *testing.T) {
	r := pgRecord().Promotion(2, answerOf("b", 3, 300))
	v := NewVoters(AnyOf(r.Voters, r.Acks))
	if got := step(t, v, &r, quorum(1, "c"), upTo(900)); got != "" || r.Needed != 2 {
		t.Errorf("%q, q = %d: nobody has shown that it has everything", got, r.Needed)
	}
	path(t, v, &r, quorum(1, "c"), "proven", "record")
	if r.Needed != 1 {
		t.Errorf("q = %d of one voter", r.Needed)
	}
}

func TestAPrimaryGoesOnAloneByTheRecordFirst(t *testing.T) {
	v, r := settled()
	alone := Wanted{Members: []Identity{id("b")}, Acks: 1, Alone: true, Durability: Available}
	path(t, v, r, alone, "record")
	if len(r.Voters) != 0 || r.Needed != 2 || r.Durability != Available {
		t.Errorf("the record is %+v", r)
	}
	path(t, v, r, alone, "ssn alone", "")
	// Somebody comes back: q is above the number of voters while a backend may still wait for
	// nobody.
	back := quorum(1, "b")
	path(t, v, r, back, "record")
	if len(r.Voters) != 1 || r.Needed != 2 {
		t.Errorf("q = %d of %v", r.Needed, r.Voters)
	}
	path(t, v, r, back, b1, "", "proven", "record")
	if r.Needed != 1 || r.Durability != Quorum {
		t.Errorf("q = %d, %s", r.Needed, r.Durability)
	}
}

func TestAsyncAndBack(t *testing.T) {
	v, r := settled()
	path(t, v, r, Wanted{Durability: Async}, "record", "ssn alone", "")
	if r.Durability != Async {
		t.Errorf("%s is acknowledged by nobody else", r.Durability)
	}
	path(t, v, r, quorum(1, "b", "c"), bc1, "")
	if r.Durability != Async {
		t.Error("quorum is promised before it is so")
	}
	path(t, v, r, quorum(1, "b", "c"), "proven", "record")
	if r.Durability != Quorum || r.Needed != 2 {
		t.Errorf("%s, q = %d", r.Durability, r.Needed)
	}
}

func TestAnSSNIsNeverEmptyByItself(t *testing.T) {
	if s := AnyOf(nil, 1); s.Kind != SyncNobody {
		t.Errorf("without members the SSN is %v: commits would wait for nobody", s)
	}
	if s := AnyOf([]Identity{id("c"), id("b")}, 5); s.Acks != 2 || !slices.Equal(s.Names, []string{"b@1", "c@1"}) {
		t.Errorf("the SSN is %v", s)
	}
	if s := AnyOf([]Identity{id("b")}, 0); s.Acks != 1 {
		t.Errorf("the SSN is %v", s)
	}
}

func TestWhoShouldVote(t *testing.T) {
	r := pgRecord()
	set := Settings{Durability: Available, Acks: 1, DropAfter: 3 * time.Second, AloneAfter: 10 * time.Second}
	at := func(s int) time.Duration { return time.Duration(s) * time.Second }
	b, c := Sender{Identity: id("b"), Flushed: 600}, Sender{Identity: id("c"), Flushed: 600}
	names := func(w Wanted) (s string) {
		for _, m := range w.Members {
			s += m.Name
		}
		return s
	}
	w := NewRoster(r, nil, 0)
	if got := w.Want(r, set, nil, 600, at(2)); names(got) != "bc" || got.Alone {
		t.Errorf("voters have a while to come: %v", got)
	}
	if got := w.Want(r, set, []Sender{b}, 600, at(3)); names(got) != "b" {
		t.Errorf("c was away for 3 s: %v", got)
	}
	if got := w.Want(r, set, []Sender{b, c}, 600, at(4)); names(got) != "bc" {
		t.Errorf("c is back: %v", got)
	}
	if got := w.Want(r, set, []Sender{{Identity: id("b"), Flushed: 600, NoSync: true}, {Identity: id("c"),
		Flushed: 99}}, 600,
		at(7)); names(got) != "bc" || got.Alone {
		t.Errorf("nobody who counts streams, and the last voters stay: %v", got)
	}
	if got := w.Want(r, set, nil, 600, at(13)); got.Alone {
		t.Errorf("alone after 9 s: %v", got)
	}
	if got := w.Want(r, set, nil, 600, at(14)); !got.Alone {
		t.Errorf("not alone after 10 s: %v", got)
	}
	set.Durability = Quorum
	if got := w.Want(r, set, nil, 600, at(60)); got.Alone || names(got) != "bc" {
		t.Errorf("with quorum: %v", got)
	}
	// Who comes anew has copied what the primary had then, and cannot be started without it.
	d := Sender{Identity: id("d"), Flushed: 550}
	if got := w.Want(r, set, []Sender{b, d}, 600, at(61)); names(got) != "b" {
		t.Errorf("d lacks what the primary had when it came: %v", got)
	}
	d.Flushed = 600
	if got := w.Want(r, set, []Sender{b, d}, 700, at(62)); names(got) != "bd" {
		t.Errorf("d has it: %v", got)
	}
	set.Acks = 5
	if got := w.Want(r, set, []Sender{b, d}, 700, at(62)); got.Acks != 2 {
		t.Errorf("k = %d of two", got.Acks)
	}
}
