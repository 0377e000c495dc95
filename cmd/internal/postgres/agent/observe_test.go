package agent

import (
	"encoding/json"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// A member that copies from a machine that is frozen would wait for it, and the new primary for the
// member.
func TestACopyOfAFormerPrimaryIsGivenUp(t *testing.T) {
	gone := 0
	a := &Agent{cancel: func() { gone++ }}
	one, other := core.Identity{Name: "a", Incarnation: "1"}, core.Identity{Name: "b", Incarnation: "1"}
	for i, x := range []struct {
		copied core.Identity
		rec    *core.Record
		want   int
	}{
		{core.Identity{}, &core.Record{Primary: other}, 0}, // no copy is under way
		{one, &core.Record{Seq: 2, Primary: one}, 0},
		{one, nil, 0},
		{one, &core.Record{Seq: 3, Primary: other}, 1},
		{core.Identity{}, &core.Record{Seq: 4, Primary: other}, 1},
	} {
		a.copied = x.copied
		if a.sawRecord(x.rec, nil, 1, uint64(i)+1); gone != x.want {
			t.Errorf("record %d: %d copies were given up, want %d", i, gone, x.want)
		}
	}
}

// A member that is told to end does not copy on for hours. Data that a rewind has changed in part
// would have to be copied: it goes on.
func TestACloneIsGivenUpAtTheEnd(t *testing.T) {
	for _, x := range []struct {
		do   core.Action
		gone bool
	}{{core.Clone{}, true}, {core.Rewind{}, false}, {core.Start{}, false}} {
		a, gone := &Agent{}, false
		begins(a, core.Clone{}, func() {}, &core.Record{})
		begins(a, x.do, func() { gone = true }, &core.Record{})
		if giveUpClone(a); gone != x.gone {
			t.Errorf("%T is given up: %v, want %v", x.do, gone, x.gone)
		}
	}
}

// With durability async a member whose agent was started again is compared with what the others
// have heard of the primary.
func TestWhatTheOthersHaveHeardOfThePrimaryCounts(t *testing.T) {
	said := func(s Said) []byte {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a := &Agent{heard: map[string]Said{}, reading: true}
	line := primacy.State{Waiting: []primacy.Entry{{ID: "b", Value: said(Said{Heard: 700, HeardOn: 3})},
		{ID: "c", Value: said(Said{Heard: 500, HeardOn: 3})}}}
	a.sawLine(t.Context(), line)
	if a.sawRecord(&core.Record{Seq: 1, Timeline: 3}, nil, 1, 1); lastLSN(a) != 700 {
		t.Errorf("the primary's WAL has ended at %v, want 700", lastLSN(a))
	}
	a.last.LSN = 300 // as it was noted before a restart
	if a.sawLine(t.Context(), line); lastLSN(a) != 700 {
		t.Errorf("a value of its own that is older hides what the others have heard: %v", lastLSN(a))
	}
	line.Leader = &primacy.Entry{ID: "d", Held: true,
		Value: said(Said{Phase: core.PhaseLeading, LSN: 600, Timeline: 3})}
	if a.sawLine(t.Context(), line); lastLSN(a) != 600 {
		t.Errorf("the primary says that its WAL ends at 600, and %v counts", lastLSN(a))
	}

	// One that was down since it heard of a former primary comes back while nobody leads.
	line.Leader, line.Waiting[0].Value = nil, said(Said{Heard: 900, HeardOn: 1})
	if a.sawLine(t.Context(), line); lastLSN(a) != 600 {
		t.Errorf("what a former primary had counts: %v, want 600", lastLSN(a))
	}
	line.Waiting[1].Value = said(Said{Heard: 650, HeardOn: 3})
	if a.sawLine(t.Context(), line); lastLSN(a) != 650 {
		t.Errorf("one has heard that the primary's WAL ended at 650, and %v counts", lastLSN(a))
	}
	a.last = core.Position{Timeline: 9, LSN: 800} // as it was noted before the cluster was begun anew
	if a.sawLine(t.Context(), line); lastLSN(a) != 650 {
		t.Errorf("what was noted of another life hides what the others have heard: %v", lastLSN(a))
	}
	line.Waiting, a.heard, a.last = line.Waiting[:1], map[string]Said{}, core.Position{}
	// Nobody has heard the record's primary lead: it may have died before it was promoted. Then
	// what the former one had counts.
	if a.sawLine(t.Context(), line); lastLSN(a) != 900 {
		t.Errorf("only a former primary was heard of, and %v counts, want 900", lastLSN(a))
	}
	line.Waiting[0].Value = said(Said{Heard: 660}) // of a former version
	if a.sawLine(t.Context(), line); lastLSN(a) != 660 {
		t.Errorf("a member of a former version has heard 660, and %v counts", lastLSN(a))
	}
}

// A read of the record that ends late does not hide what a later one has found, and a store that
// was wiped is seen though its tokens begin anew.
func TestTheLastReadOfTheRecordCounts(t *testing.T) {
	a := &Agent{}
	seen := func(rec *core.Record, token, number uint64) uint64 {
		a.sawRecord(rec, nil, token, number)
		return seqOf(a.seen.Record)
	}
	if got := seen(&core.Record{Seq: 5}, 9, 2); got != 5 {
		t.Errorf("got record %d", got)
	}
	if got := seen(&core.Record{Seq: 4}, 9, 1); got != 5 {
		t.Errorf("an older read under the same token came late: got record %d", got)
	}
	a.reads.Store(4) // one has begun since, which a write's own read may overtake
	if got := seen(&core.Record{Seq: 6}, 9, 3); got != 6 {
		t.Errorf("got record %d", got)
	}
	if got := seen(&core.Record{Seq: 5}, 9, 4); got != 6 {
		t.Errorf("an older record by a read that began before the last had come: got record %d", got)
	}
	if got := seen(nil, 0, 5); got != 0 || !a.seen.Read || a.seen.ReadFor != 9 {
		t.Errorf("the store was wiped: got record %d, read for %d", got, a.seen.ReadFor)
	}
}

// TestAStoreThatGivesATokenOutAgain: what was read before a term was won says nothing of it, though
// the token is one that was seen before.
func TestAStoreThatGivesATokenOutAgain(t *testing.T) {
	a := &Agent{}
	a.sawRecord(&core.Record{Seq: 5, Token: 9}, nil, 9, a.reads.Add(1))
	late := a.reads.Add(1)
	won(a, nil)
	if a.sawRecord(&core.Record{Seq: 5, Token: 9}, nil, 9, late); a.seen.ReadFor != 0 {
		t.Errorf("a read that had begun before counts for token %d", a.seen.ReadFor)
	}
	if a.sawRecord(&core.Record{Seq: 5, Token: 9}, nil, 9, a.reads.Add(1)); a.seen.ReadFor != 9 {
		t.Errorf("one that began since counts for token %d", a.seen.ReadFor)
	}
}
