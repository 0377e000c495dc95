package core

import (
	"strings"
	"testing"
)

// adoptedRig is member b, whose data were adopted, while the former manager's server runs in them.
func adoptedRig(t *testing.T, as Adoption) *rig {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{Incarnation: "1", SystemID: "s", Adopted: as})
	r.o.Record = nil
	r.o.Server.Running = false
	return r
}

// The former manager's server goes on until the member that was adopted as the primary has a term.
// Then it ends, and the first record is written, before anybody is promoted.
func TestAnAdoptedPrimary(t *testing.T) {
	r := adoptedRig(t, AdoptedPrimary)
	r.expect("", ok)
	if !r.Stands(r.o) {
		t.Fatal("it does not stand")
	}
	r.newTerm(4, "b")
	r.expect("Persist", ok)
	if p := r.expect("Persist", ok).(Persist); p.State.Adopted != AdoptionBegun {
		t.Fatalf("it begins, and notes %+v", p.State)
	}
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(7, 100))
	rec := r.expect("Write", ok).(Write).Record
	if rec.Seq != 1 || rec.Primary != (Identity{"b", "1"}) || rec.SystemID != "s" || rec.Token != 4 ||
		rec.Timeline != 9 ||
		rec.Granted != 9 || rec.From != 100 || rec.Durability != Quorum || len(rec.Voters) != 0 || !rec.onlyPrimary() {
		t.Fatalf("the first record: %+v", rec)
	}
	if s := r.expect("SetSync", ok).(SetSync); s.Sync.Kind != SyncNobody {
		t.Errorf("commits wait for %v", s.Sync)
	}
	r.expect("Bind", ok)
	if p := r.expect("Promote", ok).(Promote); p.Timeline != 9 {
		t.Errorf("promoted to timeline %d", p.Timeline)
	}
	for _, x := range []struct {
		own  Position
		want Rejoin
	}{{Position{7, 100}, RejoinFollow}, {Position{7, 60}, RejoinFollow}, {Position{7, 101}, RejoinRewind}} {
		if got := RejoinFor(x.own, rec); got != x.want {
			t.Errorf("a standby at %v: %v", x.own, got)
		}
	}
}

// Until the new primary has published what it has, nobody else can be promoted, also in async: a
// standby may lack much of what the former manager's primary had acknowledged.
func TestAnAdoptedPrimaryAloneCanBePromoted(t *testing.T) {
	r := adoptedRig(t, AdoptionBegun)
	r.o.Settings.Durability = Async
	r.newTerm(4, "b")
	r.expect("Persist", ok)
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(7, 100))
	rec := r.expect("Write", ok).(Write).Record
	v := Survey{Record: rec, Token: 5, Holder: "c", Answers: []Answer{{Token: 5, Identity: Identity{"c", "x"},
		Position: Position{7, 40}, SystemID: "s"}}}.Judge()
	if v.Best != nil || !strings.Contains(v.Why, "b") {
		t.Errorf("%+v is promoted by %+v", v.Best, rec)
	}
}

// The server of the former manager is not touched without a term, nor as long as the record was not
// read; a former beginning goes on.
func TestAnAdoptionThatWasBegunGoesOn(t *testing.T) {
	r := adoptedRig(t, AdoptionBegun)
	r.expect("", ok)
	r.o.Read = false
	r.expect("", ok)
	r.o.Read = true
	r.newTerm(4, "b")
	r.expect("Persist", ok)
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(7, 100))
	r.o.Own, r.o.Line.Leader = nil, ""
	r.expect("", ok)
	r.newTerm(5, "b")
	r.expect("Persist", ok)
	r.expect("Read", at(7, 100))
	r.expect("Write", ok)
}

// A standby's server follows the former primary until there is a record. The member never leads
// before.
func TestAnAdoptedStandbyWaits(t *testing.T) {
	r := adoptedRig(t, AdoptedStandby)
	r.expect("", ok)
	if r.Stands(r.o) {
		t.Error("it stands before there is a primary")
	}
	r.newTerm(4, "a")
	r.expect("Persist", ok) // the token, and no more
	r.expect("", ok)
	rec := pgRecord()
	rec.Token, rec.Primary, rec.SystemID = 4, Identity{"a", "1"}, "s"
	r.o.Record, r.o.ReadFor = &rec, 4
	if !r.Stands(r.o) {
		t.Error("it does not stand though there is a record")
	}
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(rec.Timeline, rec.From))
	r.expect("Follow", ok)
}

// Of two that were adopted as the primary one is not: its data are left as they are.
func TestASecondAdoptedPrimaryIsBroken(t *testing.T) {
	r := adoptedRig(t, AdoptedPrimary)
	rec := pgRecord()
	rec.Primary = Identity{"a", "1"}
	r.o.Record = &rec
	r.expect("", ok)
	if p, why := r.Phase(); p != PhaseBroken || !strings.Contains(why, "a is the cluster's primary already") ||
		r.Stands(r.o) {
		t.Errorf("%s: %s", p, why)
	}
}

// A directory that is empty though it was adopted is no reason to make a new database.
func TestAnAdoptedMemberMakesNoDatabase(t *testing.T) {
	for _, as := range []Adoption{AdoptedPrimary, AdoptionBegun, AdoptedStandby} {
		r := adoptedRig(t, as)
		r.o.Server.Data = DataEmpty
		r.newTerm(4, "b")
		for range 4 {
			order := r.Step(r.o)
			if order == nil {
				continue
			}
			if _, initdb := order.Do.(Initdb); initdb {
				t.Fatalf("%s: it makes a new database", as)
			}
			r.o.Done = []Done{{ID: order.ID}}
		}
	}
}

// Once a record is known the data are like any others: a store that is away keeps no server down.
func TestAnAdoptionIsOver(t *testing.T) {
	r := newRig(t)
	r.state.Adopted = AdoptedStandby
	r.o.Server.Running, r.o.Read, r.o.Record = false, false, nil
	r.expect("Start", ok)
}
