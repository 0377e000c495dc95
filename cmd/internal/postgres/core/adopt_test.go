package core

import (
	"fmt"
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

// chosenRig is member b, which a person has chosen to begin the cluster anew, for the store was
// lost.
func chosenRig(t *testing.T) *rig {
	r := newRig(t)
	former := State{Incarnation: "1", Sealed: 900, Seq: 7, SystemID: "s", Directory: "d", Noted: pgRecord().note()}
	former.Noted.Lives = "x"
	r.Member = NewMember(r.cfg, former.Readopt("2", "s", "d", AdoptedAnew))
	r.o.Record, r.o.Lost = nil, &Lost{By: "c", Seen: 9, SystemID: "s", Anew: Identity{"b", "2"}}
	r.o.Server.Running = false
	return r
}

// Who was chosen to begin the cluster anew reads all of its WAL under a term, and writes the first
// record: over what stands in its place, as a later life of the cluster, and on a timeline whose
// number nobody else has come to.
func TestWhoWasChosenBeginsAnew(t *testing.T) {
	r := chosenRig(t)
	r.expect("", ok)
	if _, why := r.Phase(); !r.Stands(r.o) || why != "waits for its term" {
		t.Fatalf("it does not stand, or says what is not so: %q", why)
	}
	r.newTerm(4, "b") // tokens begin anew
	r.does("Persist", "Start")
	r.o.Server.Running = true
	r.expect("Read", at(7, 100))
	rec := r.expect("Write", ok).(Write).Record
	if rec.Seq != 1 || rec.Primary != (Identity{"b", "2"}) || rec.Lives != "x,2" || rec.Born != rec.Timeline ||
		rec.Timeline != 7+apart("2") || rec.Granted != rec.Timeline || !rec.onlyPrimary() ||
		rec.byHand(7) || rec.byHand(9) || rec.Former != r.state.Noted {
		t.Fatalf("the first record: %+v", rec)
	}
	r.o.Lost = nil
	r.does("SetSync", "Bind")
	if p := r.expect("Promote", ok).(Promote); p.Timeline != rec.Timeline {
		t.Errorf("promoted to timeline %d", p.Timeline)
	}
	for _, p := range []Position{{7, 101}, {9, 100}, {9, 80}} {
		if got := RejoinFor(p, rec); got != RejoinRewind {
			t.Errorf("a former member at %v: %v", p, got)
		}
	}
}

// Nobody else begins: not who was chosen before, nor another life of the data, nor who has begun
// and has seen the store set back since.
func TestNobodyElseBeginsAnew(t *testing.T) {
	for what, change := range map[string]func(*rig){
		"another member":      func(r *rig) { r.o.Lost.Anew.Name = "c" },
		"another life":        func(r *rig) { r.o.Lost.Anew.Incarnation = "1" },
		"nobody yet":          func(r *rig) { r.o.Lost.Anew = Identity{} },
		"it has, and more":    func(r *rig) { r.state.Seq = 5 },
		"of a former manager": func(r *rig) { r.state.Adopted = AdoptionBegun },
	} {
		r := chosenRig(t)
		change(r)
		r.newTerm(4, "b")
		r.expect("Transfer", ok)
		if p, why := r.Phase(); p != PhaseBroken || !strings.Contains(why, "the store was wiped or restored") ||
			r.Stands(r.o) {
			t.Errorf("%s: %s, %q", what, p, why)
		} else if named := r.o.Lost.Anew.Name == "b"; strings.Contains(why, "choose it again") != named {
			t.Errorf("%s: %q", what, why)
		}
	}
}

// What a member knew of its former life counts for nothing, but for what tells the lives apart, and
// what is wrong with the data.
func TestReadopt(t *testing.T) {
	noted := Noted{"s", "b", 5, 200, "x"}
	former := State{Incarnation: "1", Sealed: 900, Seq: 7, SystemID: "s", Noted: noted, Copied: 4, ByHand: true,
		Instructed: 3}
	want := State{Incarnation: "2", SystemID: "s", Directory: "d", Adopted: AdoptedStandby, Noted: noted,
		Copied: copying, ByHand: true}
	if got := former.Readopt("2", "s", "d", AdoptedStandby); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want = State{Incarnation: "2", SystemID: "y", Directory: "d", Adopted: AdoptedStandby}
	if got := former.Readopt("2", "y", "d", AdoptedStandby); got != want {
		t.Errorf("of another database: %+v, want %+v", got, want)
	}
}

// Data of the former life are kept, and rewound, only where no timeline that they have come to has
// a number that was given out again.
func TestWhichDataAreKept(t *testing.T) {
	for _, x := range []struct {
		noted Lives
		last  Timeline
		want  bool
	}{{"x", 7, true}, {"x", 9, true}, {"x", 38, true}, {"x", 39, false}, {"x", 41, false}, {"w", 7, false},
		{"", 7, false}} {
		r := Record{Lives: "w,x,2", Born: 39}
		if got := r.Keeps(Noted{"s", "b", 7, 100, x.noted}, x.last); got != x.want {
			t.Errorf("on timeline %d, of life %q: %v", x.last, x.noted, got)
		}
	}
	// The store was set back, and timeline 7 given out twice: what is on the one and the other
	// looks the same.
	r := Record{Lives: "w,x,2", Born: 39, Former: Noted{"s", "b", 7, 100, "w,x"}}
	for n, want := range map[Noted]bool{
		{"s", "b", 7, 100, "x"}: true,
		{"s", "c", 7, 100, "x"}: false,
		{"s", "b", 7, 80, "x"}:  false,
		{"s", "c", 5, 80, "x"}:  true, // it has seen no more
	} {
		if got := r.Keeps(n, 7); got != want {
			t.Errorf("it has noted %+v: %v", n, got)
		}
	}
	var many Lives
	for range 3 * mostLives {
		many = Noted{Primary: "b", Lives: many}.next("abcdefgh")
	}
	if n := len(many.all()); n != mostLives {
		t.Errorf("%d lives are kept", n)
	}
}

// Who was chosen before waits, and touches nothing, where the store names nobody: it was wiped
// again.
func TestWhoWasChosenWaitsForTheStoreToSaySo(t *testing.T) {
	r := chosenRig(t)
	r.o.Lost = nil
	r.expect("", ok)
	if p, why := r.Phase(); p != PhaseStopped || !strings.Contains(why, "choose again") || r.Stands(r.o) {
		t.Errorf("%s, %q", p, why)
	}
	r.newTerm(4, "b")
	r.does("Persist")
	r.expect("Transfer", ok)
}

// A person's word was for one life of the cluster: in another one the member touches nothing.
func TestAnAdoptionIsForOneLife(t *testing.T) {
	for what, x := range map[string]struct {
		as    Adoption
		joins Lives
		lives Lives
		why   string // empty: it takes part
	}{
		"chosen, and another was since":    {AdoptedAnew, "", "x,z", "a is the primary"},
		"chosen, and the former is back":   {AdoptedAnew, "", "x", "Remove no data: put that store away"},
		"chosen, and an older is back":     {AdoptedAnew, "", "w", "Remove no data: put that store away"},
		"chosen, and it has begun":         {AdoptedAnew, "", "x,2", ""},
		"joins, and another begun since":   {AdoptedStandby, "x,y", "x,z", "a has begun it anew since"},
		"joins, and it begun once more":    {AdoptedStandby, "x,y", "x,y,z", "a has begun it anew since"},
		"joins, and the former is back":    {AdoptedStandby, "x,y", "x", "Remove no data: put that store away"},
		"joins what it was adopted for":    {AdoptedStandby, "x,y", "x,y", ""},
		"adopted from a former manager":    {AdoptedStandby, "", "x", ""},
		"a primary of a former manager is": {AdoptionBegun, "", "x", ""},
	} {
		s := State{Incarnation: "2", SystemID: "s", Adopted: x.as, Joins: x.joins, Noted: pgRecord().note()}
		s.Noted.Lives = "w,x"
		rec := pgRecord()
		rec.Primary, rec.Lives = Identity{"a", "9"}, x.lives
		if why := s.Stranger(rec); (why == "") != (x.why == "") || !strings.Contains(why, x.why) {
			t.Errorf("%s: %q", what, why)
		}
		if rec.SystemID = "y"; x.as == AdoptedAnew || x.joins != "" { // a blank machine's new database
			if why := s.Stranger(rec); !strings.Contains(why, "Delete nothing: this member may have the only data") {
				t.Errorf("%s, and of another database: %q", what, why)
			}
		}
	}
}

// The first timeline of a cluster that begins anew is an even number away, and another one where it
// begins once more.
func TestApart(t *testing.T) {
	all := map[Timeline]bool{}
	for i := range 1000 {
		n := apart(fmt.Sprint(i))
		if all[n] = true; n < 32 || n > 64 || n%2 != 0 {
			t.Fatalf("%d", n)
		}
	}
	if len(all) != 17 {
		t.Errorf("only %d numbers", len(all))
	}
}
