package core

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// paused takes b to the primary of a paused cluster, with no deadline.
func (r *rig) paused() {
	r.t.Helper()
	r.leading()
	r.o.Settings.DropAfter = time.Hour
	r.o.Instructions = &Instructions{Seq: 1, Paused: &Pause{By: "anna"}}
	if w := r.expect("Write", ok).(Write); w.Record.Paused == nil {
		r.t.Fatalf("the record is %+v", w.Record)
	}
	r.expect("Persist", ok) // the number of the record; a and c still stand
	r.expect("", ok)
	if p, _ := r.Phase(); p == PhasePaused {
		r.t.Fatal("it says that it is paused before the guardian has let go")
	}
	r.o.Line = &Line{Token: 2, Leader: "b", Members: []Standing{{Name: "b"}}}
	r.does("Unbind", "")
	if p, why := r.Phase(); p != PhasePaused || !strings.Contains(why, "anna") {
		r.t.Fatalf("phase %s, %q", p, why)
	}
}

// lost ends b's term: the store does not answer.
func (r *rig) lost() {
	r.o.Own = nil
	r.expect("", ok)
}

func TestAPausedPrimaryOutlivesItsTerm(t *testing.T) {
	r := newRig(t)
	r.paused()
	if r.MustKeepTerm() != false {
		t.Error("its term is not given up")
	}
	r.lost()
	if p, _ := r.Phase(); p != PhasePaused || !r.Stands(r.o) {
		t.Errorf("phase %s, stands: %v", p, r.Stands(r.o))
	}
	r.newTerm(3, "b")
	r.o.Line.Members = r.o.Line.Members[1:2]
	r.expect("Persist", ok)
	w := r.expect("Write", ok).(Write).Record
	if w.Token != 3 || w.Timeline != 5 || w.Primary != id("b") || w.Paused == nil {
		t.Fatalf("the record is %+v", w)
	}
	r.does("Persist", "")
	r.o.Instructions = &Instructions{Seq: 2}
	r.o.Own.Remaining = ttl/3 - 1
	r.expect("", ok) // too little is left to bind it
	r.o.Own.Remaining = ttl
	r.expect("Bind", ok)
	if w := r.expect("Write", ok).(Write).Record; w.Paused != nil {
		t.Fatalf("the record is %+v", w)
	}
	if !r.MustKeepTerm() {
		t.Error("its term can be given up while its server runs")
	}
	r.expect("Persist", ok)
	r.o.Own = nil
	r.expect("Stop", ok)
}

// An unbind whose outcome is not known may have been carried out: the server is bound again before
// the record says that the pause is over.
func TestAnUnbindInDoubt(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Settings.DropAfter = time.Hour
	r.o.Instructions = &Instructions{Seq: 1, Paused: &Pause{By: "anna"}}
	r.expect("Write", ok)
	r.o.Line.Members = r.o.Line.Members[1:2]
	r.expect("Unbind", failed())
	r.expect("Unbind", failed())
	r.o.Instructions = &Instructions{Seq: 2}
	r.does("Bind", "Write")
}

func TestAPausedPrimaryThatWasReplacedStops(t *testing.T) {
	r := newRig(t)
	r.paused()
	r.lost()
	next := r.o.Record.Promotion(3, answerOf("c", 5, 300))
	if next.Paused != nil {
		t.Error("the pause outlives its primary")
	}
	r.o.Record = &next
	r.expect("Stop", ok)

	// An election that was forced may need its answer.
	r = newRig(t)
	r.paused()
	r.lost()
	r.newTerm(3, "c")
	r.does("Persist", "")
	r.o.Instructions = &Instructions{Seq: 2, Forced: r.o.Record.Paused}
	r.expect("Stop", ok)
}

// Its server is not promoted twice under one term: its timeline was given out once.
func TestAServerThatEndsAfterItsNewTermIsHandedOn(t *testing.T) {
	r := newRig(t)
	r.paused()
	r.lost()
	r.newTerm(3, "b")
	r.o.Line.Members = r.o.Line.Members[1:2]
	r.does("Persist", "Write")
	r.o.Server = Server{Data: DataReady}
	r.expect("Transfer", ok)
}

func TestAPausedClusterElectsOnlyItsPrimary(t *testing.T) {
	r := newRig(t)
	r.o.Record.Paused = &Pause{By: "anna"}
	if r.Stands(r.o) {
		t.Error("a standby stands")
	}
	r.chosenInPause("Transfer")

	r = newRig(t)
	r.o.Record.Paused = &Pause{By: "anna"}
	r.o.Instructions = &Instructions{Seq: 2, Forced: &Pause{By: "anna", At: time.Unix(1, 0)}}
	if r.Stands(r.o) {
		t.Error("a standby stands by what was said of an earlier pause")
	}
	r.o.Instructions.Forced = r.o.Record.Paused
	if !r.Stands(r.o) {
		t.Error("a standby does not stand though a person has forced an election")
	}
	r.chosenInPause("Write")
	if r.o.Record.Paused != nil || r.o.Record.Primary != id("b") {
		t.Errorf("the record is %+v", r.o.Record)
	}
}

func (r *rig) chosenInPause(want string) {
	r.t.Helper()
	r.newTerm(2, "b")
	r.hears(answerOf("c", 3, 190))
	r.seals(at(3, 200))
	r.expect(want, ok)
}

// Who ends its agent during a pause stops its server too, with a term or without one.
func TestAnEndDuringAPause(t *testing.T) {
	r := newRig(t)
	r.paused()
	r.lost()
	r.End()
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.expect("", ok)
	if !r.Ended(r.o) {
		t.Error("it has not ended")
	}
}

func asked(seq uint64, what string) *Instructions {
	return &Instructions{Seq: seq, Members: map[string]Task{"b": {Seq: seq, What: what, Life: "1"}}}
}

// following takes b to a standby of a.
func (r *rig) following() {
	r.t.Helper()
	r.newTerm(1, "a")
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	r.expect("Follow", ok)
	r.o.Server.Follows = true
	r.expect("", ok)
}

func TestAStandbyIsRestartedOnce(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Instructions = asked(4, TaskRestart)
	if s := r.expect("Stop", ok).(Stop); !s.Fast {
		t.Error("the stop is not a clean one")
	}
	r.o.Server = Server{Data: DataReady}
	if p := r.expect("Persist", ok).(Persist); p.State.Instructed != 4 || p.State.Incarnation != "1" {
		t.Fatalf("%+v", p)
	}
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(3, 200))
	r.expect("Follow", ok)
}

func TestAStandbyIsMadeAnew(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Instructions = asked(4, TaskReinit)
	r.expect("", ok) // it votes: an acknowledged commit may be here and on the primary alone
	if !Leaving(r.o, r.State(), "b") {
		t.Error("the primary is not told to wait for it no more")
	}
	r.o.Record.Voters = []Identity{id("c")}
	r.o.Line.Leader = ""
	r.expect("", ok) // nobody to copy from: the data stay
	r.o.Line.Leader = "a"
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.expect("Reinit", ok)
	r.o.Server.Data = DataPartial
	if p := r.expect("Persist", ok).(Persist); p.State.Instructed != 4 {
		t.Fatalf("%+v", p)
	}
	if c := r.expect("Clone", ok).(Clone); c.State.Incarnation != "new1" || c.State.Instructed != 4 {
		t.Fatalf("%+v", c)
	}
}

// A person who has said so may have the only voter made anew.
func TestTheLastVoterIsMadeAnew(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Instructions = asked(4, TaskReinit)
	task := r.o.Instructions.Members["b"]
	task.OneCopy = true
	r.o.Instructions.Members["b"] = task
	r.expect("Stop", ok)
}

// Data that cannot be emptied, or copied, stay as they are.
func TestAReinitThatCannotBeDoneIsVoid(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Record.Voters = []Identity{id("c")}
	r.o.Instructions = asked(4, TaskReinit)
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.expect("Reinit", failed())
	if p := r.expect("Persist", ok).(Persist); p.State.Instructed != 4 || p.State.Incarnation != "1" {
		t.Fatalf("%+v", p)
	}
	says := func() {
		t.Helper()
		if _, why := r.Phase(); !strings.HasPrefix(why, "reinit: ") {
			t.Errorf("why: %q", why)
		}
	}
	says()
	r.expect("Start", ok)
	r.o.Server = Server{Data: DataReady, Running: true}
	r.expect("Read", at(3, 200))
	r.does("Follow", "", "")
	says()
	r.o.Server.Follows = true // whoever has asked for it looks now and then, and must not take it for done
	r.expect("", ok)
	says()
}

// A task is for the data that the person has seen, and not for what was put in their place.
func TestATaskForAnotherLifeIsVoid(t *testing.T) {
	for _, what := range []string{TaskRestart, TaskReinit} {
		r := newRig(t)
		r.following()
		r.o.Record.Voters = []Identity{id("c")}
		r.o.Instructions = asked(4, what)
		r.state.Incarnation = "2"
		if Leaving(r.o, r.State(), "b") {
			t.Errorf("%s: it is not waited for", what)
		}
		if p := r.expect("Persist", ok).(Persist); p.State.Instructed != 4 {
			t.Fatalf("%s: %+v", what, p)
		}
		r.expect("", ok)
	}
}

func TestNothingIsAskedOfAPrimary(t *testing.T) {
	for _, what := range []string{TaskRestart, TaskReinit, "dance"} {
		r := newRig(t)
		r.leading()
		r.o.Settings.DropAfter = time.Hour
		r.o.Instructions = asked(4, what)
		if p := r.expect("Persist", ok).(Persist); p.State.Instructed != 4 {
			t.Fatalf("%s: %+v", what, p)
		}
		r.expect("", ok)
	}
}

// What others may have is given up only for the member that a person has named, as the person has
// seen it, and after the others have had a while to answer.
func TestALossThatWasAccepted(t *testing.T) {
	f := Failover{To: "x", Life: "1", From: Position{3, 100}, By: "anna"}
	s := Survey{Record: pgRecord(), Token: 9, Holder: "c", Present: []string{"b", "c"}, Accept: &f,
		Waited: ttl, Patience: ttl}
	s.Answers = []Answer{answerOf("c", 3, 900), answerOf("x", 3, 100)}
	for i := range s.Answers {
		s.Answers[i].Token = 9
	}
	s.Record.Needed, s.LastLSN = 2, 1000
	if v := s.Judge(); v.Best == nil || v.Best.Name != "x" ||
		v.Ground != "a loss was accepted by anna; a was heard to have 900 bytes more" {
		t.Errorf("got %+v", v)
	}
	for what, spoil := range map[string]func(s *Survey, a *Answer){
		"another database":  func(_ *Survey, a *Answer) { a.SystemID = "other" },
		"another term":      func(_ *Survey, a *Answer) { a.Token = 8 },
		"promoted by hand":  func(_ *Survey, a *Answer) { a.Timeline = 99 },
		"has not answered":  func(_ *Survey, a *Answer) { a.Name = "y" },
		"another life":      func(_ *Survey, a *Answer) { a.Incarnation = "2" },
		"less than was":     func(_ *Survey, a *Answer) { a.LSN = 99 },
		"nobody has":        func(s *Survey, _ *Answer) { s.Accept = nil },
		"others may answer": func(s *Survey, _ *Answer) { s.Waited = ttl - 1 },
	} {
		x := s
		x.Answers = slices.Clone(s.Answers)
		spoil(&x, &x.Answers[1])
		if v := x.Judge(); v.Best != nil {
			t.Errorf("%s: %s is promoted", what, v.Best.Name)
		}
	}
	s.Record.Needed = 1 // a safe election is possible
	if v := s.Judge(); v.Best == nil || v.Best.Name != "c" {
		t.Errorf("got %+v", v)
	}
}

// It counts for the record and for a term after that of the record: who has been promoted by the
// record writes no other while all is well.
func TestAnAcceptedLossIsVoidLater(t *testing.T) {
	r := newRig(t)
	r.o.Record.Needed = 2
	f := &Failover{To: "b", Life: "1", From: Position{3, 200}, Record: r.o.Record.Seq - 1, Token: 2}
	r.o.Instructions = &Instructions{Seq: 1, Failover: f}
	r.newTerm(2, "b")
	r.seals(at(3, 200))
	r.expect("", ok) // it was for an older record
	r.o.Now += ttl
	r.expect("", ok)
	f.Record, f.Token = r.o.Record.Seq, r.o.Record.Token
	r.expect("", ok) // it was said while the primary of that record was being promoted
	f.Token = 2
	if w := r.expect("Write", ok).(Write).Record; w.Primary != id("b") || w.Needed < 2 {
		t.Errorf("the record is %+v", w)
	}
}

// What has waited during a pause does not end the primary with it.
func TestTheEndOfAPauseIsNoStall(t *testing.T) {
	r := newRig(t)
	r.paused()
	r.o.Record.Needed = 1
	r.o.Server.Waiting = time.Hour
	r.o.Line.Members = []Standing{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	r.o.Instructions = &Instructions{Seq: 2}
	r.does("Bind", "Write", "Persist")
	r.o.Now += r.o.Settings.StallAfter
	r.expect("Stop", ok)
}

// Twice promoted by hand, a server is on a timeline whose number was given to another.
func TestAServerPromotedByHandCountsForNothing(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Server.Primary = true
	p := r.expect("Persist", ok).(Persist)
	if !p.State.ByHand || p.State.Incarnation != "new1" {
		t.Fatalf("%+v", p)
	}
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.newTerm(2, "b")
	r.expect("Persist", ok)
	r.expect("", ok) // it has nothing to say to a survey
	r.newTerm(2, "a")
	r.o.Record.Token = 2
	if w := r.expect("Rewind", ok).(Rewind); !w.State.ByHand {
		t.Fatalf("%+v", w)
	}
	if p := r.expect("Persist", ok).(Persist); p.State.ByHand { // only now
		t.Fatalf("%+v", p)
	}
	r.expect("Start", ok)
}

// The record keeps the last promotions for people.
func TestPromotionsAreKept(t *testing.T) {
	r := newRig(t)
	r.leading()
	h := r.o.Record.History
	if len(h) != 1 || h[0] != (Promoted{2, "b", 5, 200, "the answers of b, c"}) {
		t.Errorf("got %+v", h)
	}
	rec := pgRecord()
	for range maxHistory + 5 {
		rec = rec.promoted("again")
	}
	if len(rec.History) != maxHistory {
		t.Errorf("%d are kept", len(rec.History))
	}
}

// In async nobody votes, and any standby that streams can take over.
func TestASwitchoverInAsync(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Record.Durability, r.o.Record.Voters = Async, nil
	r.o.Settings.Durability = Async
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.o.Request = &Request{ID: 1, Switchover: true}
	r.expect("Checkpoint", ok)
}

// A rewind that did not help is no reason to delete what a failover may need.
func TestAVoterIsNotCopiedAnewUnasked(t *testing.T) {
	r := newRig(t)
	r.following()
	r.o.Server.Follows = false
	r.expect("", ok)
	r.strays()
	r.does("Rewind", "Persist")
	r.restarted()
	r.expect("", ok)
	r.o.Record.Voters = []Identity{r.me()} // it was admitted meanwhile
	r.strays()
	r.expect("Rewind", ok)
}
