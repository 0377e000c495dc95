package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var errTest = errors.New("it failed")

// rig drives one member by hand. Each expect is one call of Step.
type rig struct {
	t *testing.T
	*Member
	o    Observation
	incs int
}

const ttl = 3 * time.Second

// newRig is member b, whose server runs as a standby, in the cluster of pgRecord. Nobody leads.
func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	rec := pgRecord()
	r.o = Observation{Now: time.Minute, Record: &rec, Read: true, ReadFor: 1, Line: &Line{},
		Settings: Settings{Durability: Quorum, Acks: 1, DropAfter: 3 * time.Second, StallAfter: 3 * time.Second,
			ReplayAtMost: 10 * time.Minute}}
	r.o.Server = Server{Data: DataReady, Running: true}
	r.Member = NewMember(Config{Name: "b", TTL: ttl, Incarnation: func() string {
		r.incs++
		return fmt.Sprintf("new%d", r.incs)
	}}, State{Incarnation: "1", Sealed: 1, Seq: 7, SystemID: "s"})
	return r
}

// expect demands an order of this kind, and has it end so. No order: "".
func (r *rig) expect(want string, d Done) Action {
	r.t.Helper()
	ended := r.o.Done
	order := r.Step(r.o)
	r.o.Done = nil
	r.o.Now += 2 * time.Second // past every delay after a failure
	if order == nil && ended != nil {
		order = r.Step(r.o)
	}
	got := ""
	if order != nil {
		got = strings.TrimPrefix(fmt.Sprintf("%T", order.Do), "core.")
	}
	if got != want {
		r.t.Fatalf("the order is %q, want %q (%s: %s)", got, want, r.phase, r.why)
	}
	if order == nil {
		return nil
	}
	d.ID = order.ID
	switch do := order.Do.(type) {
	case Write:
		if d.Err == nil {
			r.o.Record = &do.Record
		}
	case Say:
		if d.Err == nil {
			r.hears(do.Answer)
		}
	case Checkpoint:
		r.o.Server.Checkpointed = d.ID
	}
	r.o.Done = []Done{d}
	return order.Do
}

// does expects these orders, one after another, and that each succeeds.
func (r *rig) does(want ...string) {
	r.t.Helper()
	for _, one := range want {
		r.expect(one, ok)
	}
}

// seals is what a member that streams does when it hears of a new term. Its WAL ends there.
func (r *rig) seals(end Done) {
	r.t.Helper()
	r.does("Persist", "Seal")
	r.expect("Read", end)
}

// begin is expect of an order that does not end yet.
func (r *rig) begin(want string) Action {
	r.t.Helper()
	do := r.expect(want, Done{})
	r.o.Done = nil
	return do
}

var ok = Done{}

func failed() Done { return Done{Err: errTest} }

func at(timeline Timeline, lsn LSN) Done {
	return Done{Complete: true, Position: Position{timeline, lsn}}
}

// newTerm has somebody lead a new term; b itself if it is "b".
func (r *rig) newTerm(token uint64, leader string) {
	r.o.Line = &Line{Token: token, Leader: leader}
	r.o.Own, r.o.ReadFor = nil, token
	if leader == "b" {
		r.o.Own = &Term{token, ttl}
	}
	for _, n := range []string{"a", "b", "c"} {
		r.o.Line.Members = append(r.o.Line.Members, Standing{Name: n})
	}
}

// hears has c say where its WAL ends.
func (r *rig) hears(a Answer) {
	for i := range r.o.Line.Members {
		if r.o.Line.Members[i].Name == a.Name {
			r.o.Line.Members[i].Answer = &a
		}
	}
}

// chosen takes b to the record that names it, under token 2.
func (r *rig) chosen() {
	r.t.Helper()
	r.newTerm(2, "b")
	r.hears(answerOf("c", 3, 190))
	r.seals(at(3, 200))
	r.expect("Write", ok)
}

// leading takes b to an undisturbed primary under token 2.
func (r *rig) leading() {
	r.t.Helper()
	r.chosen()
	r.does("SetSync", "Bind", "Promote")
	r.o.Server.Primary, r.o.Server.Timeline, r.o.Server.LSN = true, 5, 300
	r.does("Persist", "")
}

// leadsAlone has b promoted, and no voter.
func (r *rig) leadsAlone() {
	r.t.Helper()
	r.o.Record.Voters, r.o.Record.Needed = []Identity{id("b")}, 1
	r.newTerm(2, "b")
	r.seals(at(3, 200))
	r.does("Write", "SetSync", "Bind", "Promote")
	r.o.Server.Primary, r.o.Server.Timeline, r.o.Server.LSN = true, 5, 300
	r.expect("Persist", ok)
}

func TestASealIsDurableAndAnsweredOnlyThen(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "c")
	if p := r.expect("Persist", failed()).(Persist); p.State.Sealed != 2 {
		t.Fatalf("the state is %+v", p.State)
	}
	r.expect("Persist", ok) // a seal that is not on disk is none
	r.expect("Seal", failed())
	r.expect("Seal", ok)
	r.expect("Read", Done{Position: Position{3, 150}}) // not all local WAL was read
	r.expect("Read", failed())
	r.expect("Read", at(3, 200))
	s := r.expect("Say", failed()).(Say)
	if s.Answer != (Answer{Token: 2, Identity: id("b"), Position: Position{3, 200}, SystemID: "s"}) {
		t.Fatalf("the answer is %+v", s.Answer)
	}
	r.does("Say", "")
	r.o.Line.Members[1].Answer = nil // its claim is a new one, or an older answer came late
	r.does("Say", "")
	r.newTerm(3, "a") // each term asks anew
	r.expect("Persist", ok)
	r.expect("Read", at(3, 200))
	if s := r.expect("Say", ok).(Say); s.Answer.Token != 3 {
		t.Fatalf("the answer is %+v", s.Answer)
	}
}

func TestWhoFollowsIsSealedAgainForTheNextTerm(t *testing.T) {
	r := newRig(t)
	r.newTerm(1, "a")
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	if f := r.expect("Follow", ok).(Follow); f.Primary != id("a") {
		t.Fatalf("it follows %v", f.Primary)
	}
	r.expect("", ok)
	r.newTerm(2, "c")
	r.seals(at(3, 400))
	if s := r.expect("Say", ok).(Say); s.Answer.LSN != 400 {
		t.Fatalf("the answer is %+v", s.Answer)
	}
	r.expect("", ok) // the record is of term 1: nobody is followed
}

func TestNobodyOfAnOlderTermIsFollowedAfterARestart(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{Incarnation: "1", Sealed: 2, Seq: 7, SystemID: "s"})
	r.newTerm(1, "a") // as this member sees it still
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	r.o.ReadFor = 2
	r.does("Say", "")
}

func TestThePathToAPrimary(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	r.o.ReadFor = 1
	r.seals(at(3, 200))
	r.hears(answerOf("c", 3, 190))
	r.expect("", ok) // the record was read before the term was won: another may have written it since
	r.o.ReadFor = 2
	w := r.expect("Write", ok).(Write)
	if w.Record.Primary != id("b") || w.Record.Token != 2 {
		t.Fatalf("the record is %+v", w.Record)
	}
	r.o.Record.Seq-- // the write is done, and what was read is older
	r.expect("", ok)
	r.o.Record.Seq++
	if s := r.expect("SetSync", failed()).(SetSync); s.Sync.String() != "any 1 of c@1" {
		t.Fatalf("the SSN is %v", s.Sync)
	}
	r.does("SetSync", "Bind")
	r.o.Own.Remaining = ttl/3 - 1
	r.expect("", ok) // too little time is left to be sure of the promotion's end
	r.o.Own.Remaining = ttl
	if p := r.expect("Promote", ok).(Promote); p.Timeline != 5 {
		t.Fatalf("to timeline %d", p.Timeline)
	}
}

func TestAPromotionOfUnknownOutcomeIsStopped(t *testing.T) {
	for _, fails := range []string{"Bind", "Promote"} {
		r := newRig(t)
		r.chosen()
		r.expect("SetSync", ok)
		if fails == "Promote" {
			r.expect("Bind", ok)
		}
		r.expect(fails, failed())
		r.expect("Stop", failed())
		if s := r.expect("Stop", ok).(Stop); s.Fast {
			t.Error("a server that must not go on is asked to stop in peace")
		}
	}
}

func TestAServerOnAnotherTimelineIsStopped(t *testing.T) {
	r := newRig(t)
	r.chosen()
	r.does("SetSync", "Bind", "Promote")
	r.o.Server.Primary, r.o.Server.Timeline = true, 4 // somebody was faster, by hand
	r.expect("Stop", ok)
}

// Its pg_promote may still be under way.
func TestWhoHasBegunAPromotionStopsBeforeItAnswers(t *testing.T) {
	r := newRig(t)
	r.chosen()
	r.does("SetSync", "Bind")
	r.begin("Promote")
	r.newTerm(3, "c")
	r.expect("Stop", ok) // at once: the order under way is not waited for
	r.o.Server = Server{Data: DataReady}
	r.does("Persist", "Start")
	r.o.Server.Running = true
	r.expect("Read", at(3, 200))
	r.expect("Say", ok)
}

func TestAPrimaryIsStoppedAtTheEndOfItsTerm(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Own = nil
	if s := r.expect("Stop", ok).(Stop); s.Fast {
		t.Error("a server that must not go on is asked to stop in peace")
	}
	r = newRig(t)
	r.leading()
	r.o.Own.Token = 3 // won again meanwhile
	r.expect("Stop", ok)
}

// Its walsenders may have loaded names that the record of the next term does not count.
func TestAServerMadeReadyForAFormerTermIsStopped(t *testing.T) {
	r := newRig(t)
	r.chosen()
	r.expect("SetSync", ok)
	r.newTerm(3, "b")
	r.expect("Stop", ok)
}

func TestATermWhoseServerIsGoneIsHandedOn(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server = Server{Data: DataReady}
	// It is not started again.
	if do := r.expect("Transfer", failed()).(Transfer); do != (Transfer{"c", "its server has ended"}) {
		t.Fatalf("the order is %+v", do)
	}
	if do := r.expect("Transfer", ok).(Transfer); do != (Transfer{"", "its server has ended"}) {
		t.Fatalf("c did not take it, and then the order is %+v", do)
	}
}

func TestAWriteOfUnknownOutcomeIsRepeated(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	r.hears(answerOf("c", 3, 190))
	r.seals(at(3, 200))
	unknown := Done{Err: errTest, Unknown: true}
	first := r.expect("Write", unknown).(Write).Record
	r.hears(answerOf("c", 3, 300)) // who is better now must wait: the write may land
	again := r.expect("Write", failed()).(Write).Record
	if again.Seq != first.Seq || again.Primary != first.Primary || again.From != first.From {
		t.Fatalf("first %+v, then %+v", first, again)
	}
	// Refused, for the first try has been written; but the record that is known is still the old
	// one.
	r.expect("Write", failed())
	r.o.Record = &first
	r.expect("SetSync", ok)
}

func TestAWriteOfAFormerTermIsNotRepeated(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	r.hears(answerOf("c", 3, 190))
	r.seals(at(3, 200))
	r.expect("Write", Done{Err: errTest, Unknown: true})
	r.newTerm(4, "b")
	r.expect("Persist", ok)
	r.expect("Read", at(3, 200))
	r.expect("", ok) // nobody has answered for term 4
}

func TestARefusedWriteIsNotPending(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	r.hears(answerOf("c", 3, 190))
	r.seals(at(3, 200))
	r.expect("Write", failed())
	r.hears(answerOf("c", 3, 300))
	if to := r.expect("Transfer", ok).(Transfer).To; to != "c" {
		t.Fatalf("to %q", to)
	}
}

func TestTheTermGoesToTheBest(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	r.seals(at(3, 200))
	r.hears(answerOf("c", 3, 201))
	do := r.expect("Transfer", ok).(Transfer)
	if do.To != "c" || !strings.HasPrefix(do.Why, "c is to be promoted: ") {
		t.Fatalf("the order is %+v", do)
	}
}

func TestASwitchover(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.o.Request = &Request{ID: 1, Switchover: true, To: "c"}
	r.expect("Checkpoint", ok)
	if s := r.expect("Stop", Done{LSN: 320}).(Stop); !s.Fast {
		t.Error("a switchover does not wait for its successor")
	}
	r.o.Server = Server{Data: DataReady}
	if w := r.expect("Write", ok).(Write); w.Record.Stopped != 320 {
		t.Fatalf("the record is %+v", w.Record)
	}
	if do := r.expect("Transfer", ok).(Transfer); do != (Transfer{"c", "switchover"}) {
		t.Fatalf("the order is %+v", do)
	}
}

func TestAStopThatWasNotCleanIsNotClaimed(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.o.Request = &Request{ID: 1, Switchover: true}
	r.expect("Checkpoint", ok)
	r.expect("Stop", Done{})
	r.o.Server = Server{Data: DataReady}
	r.expect("Transfer", ok)
}

// A checkpoint takes minutes where a disk is slow, and for ever where it hangs.
func TestNothingWaitsForTheCheckpointBeforeASwitchover(t *testing.T) {
	slow := func() *rig {
		r := newRig(t)
		r.leading()
		r.o.Settings.DropAfter = time.Hour
		r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
		r.o.Request = &Request{ID: 1, Switchover: true, To: "c"}
		r.expect("Checkpoint", ok)
		r.o.Server.Checkpointed = 0
		r.expect("", ok)
		if _, why := r.Phase(); !strings.Contains(why, "checkpoint") {
			t.Errorf("it is told that %q", why)
		}
		return r
	}
	r := slow()
	r.o.Now += time.Hour
	r.o.Server.Hung = true
	if s := r.expect("Stop", ok).(Stop); s.Fast {
		t.Error("a server that hangs is asked to stop")
	}
	r = slow()
	r.o.Server.Senders = nil // c is away
	r.o.Now += time.Minute
	r.expect("", ok)
	r.o.Server.Checkpointed = r.handing.ordered
	if r.expect("", ok); r.handing != nil {
		t.Error("the switchover goes on without its successor")
	}
	r = slow()
	r.End()
	r.o.Now = r.handing.began + checkpointAtMost
	if s := r.expect("Stop", ok).(Stop); !s.Fast {
		t.Error("a member that ends does not shut down")
	}
}

// A server whose port is in use, or whose data are damaged, ends within a second, and would be
// started ten times a second.
func TestAServerThatEndsSoonIsStartedLessAndLessOften(t *testing.T) {
	r := newRig(t)
	r.newTerm(1, "a")
	r.o.Server.Running = false
	begin := func() (waited time.Duration) {
		t.Helper()
		for {
			r.o.Server.Running = false
			if order := r.Step(r.o); order != nil {
				if _, ok := order.Do.(Start); !ok {
					t.Fatalf("%T", order.Do)
				}
				r.o.Done, r.o.Server.Running = []Done{{ID: order.ID}}, true
				order, r.o.Done = r.Step(r.o), nil
				if order != nil { // a question, which comes to nothing
					r.o.Done = []Done{{ID: order.ID, Err: errTest}}
				}
				return waited
			}
			r.o.Done = nil
			if r.Wake() <= r.o.Now {
				t.Fatal("nobody wakes it")
			}
			waited += r.Wake() - r.o.Now
			r.o.Now = r.Wake()
		}
	}
	var waits []time.Duration
	for range 12 {
		waits = append(waits, begin())
		r.o.Now += 100 * time.Millisecond
	}
	if waits[0] != 0 || waits[1] > time.Second || waits[11] != retryMost {
		t.Errorf("waits %v", waits)
	}
	r.o.Now += 2 * shortLife // this one lives
	if w := begin(); w != 0 {
		t.Errorf("a server that lived is started after %v", w)
	}
	// One whose end was ordered is none that has ended.
	r.o.Server.Running = true
	r.End()
	r.expect("Stop", ok)
	r.o.Server.Running = false
	r.ending = false
	r.expect("Start", ok)
}

// Also where the server is shut down for another reason: a stop of its agent names the successor.
func TestAPrimaryHandsOverByPriority(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Senders = []Sender{{Identity: id("a"), Flushed: 300}, {Identity: id("c"), Flushed: 299, Priority: 1}}
	r.o.Record.Voters = []Identity{id("a"), id("c")}
	for what, want := range map[string]string{"": "c", "a": "a"} {
		if to, why := r.o.successor(what); to != want {
			t.Errorf("%q: the successor is %q: %s", what, to, why)
		}
	}
	r.o.Record.Durability = Async // the primary may not come to send c the rest
	if to, _ := r.o.successor(""); to != "a" {
		t.Errorf("async: the successor is %q, which has less", to)
	}
	r.o.Record.Durability = Quorum
	r.o.Server.Senders[1].NoFailover = true
	if to, _ := r.o.successor(""); to != "a" {
		t.Errorf("the successor is %q", to)
	}
	if to, why := r.o.successor("c"); to != "" || !strings.Contains(why, "must not be promoted") {
		t.Errorf("the successor is %q: %s", to, why)
	}
}

func TestASwitchoverNeedsASuccessor(t *testing.T) {
	for what, x := range map[string]Sender{
		"lags behind": {Identity: id("c"), Flushed: 300},
		"no voter":    {Identity: Identity{"c", "2"}, Flushed: 300 + switchoverLag},
		"nofailover":  {Identity: id("c"), Flushed: 300 + switchoverLag, NoFailover: true},
	} {
		r := newRig(t)
		r.leading()
		r.o.Server.LSN = 301 + switchoverLag
		r.o.Server.Senders = []Sender{x}
		r.o.Request = &Request{ID: 1, Switchover: true}
		r.o.Settings.DropAfter = time.Hour
		r.Step(r.o)
		if r.handing != nil {
			t.Errorf("%s: and it is the successor", what)
		}
	}
}

func TestAPrimaryThatHangsOrIsCutOffStops(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Hung = true
	r.expect("Stop", ok)

	// c and a live: a commit waits for c, which had all that was needed to follow.
	r = newRig(t)
	r.leading()
	r.o.Record.Needed = 1
	r.o.Server.Waiting = 3 * time.Second
	r.o.Settings.DropAfter = time.Hour
	r.expect("", ok)
	r.o.Now += r.o.Settings.StallAfter
	r.expect("Stop", ok)

	// c lives, and must be rewound before it can stream: that needs a primary that stays.
	r = newRig(t)
	r.newTerm(2, "b")
	r.o.Record.Granted, r.o.Record.Timeline = 5, 5
	r.o.Record.Lineage = []Fork{{1, 0}, {3, 100}, {5, 180}}
	r.hears(answerOf("c", 3, 190))
	r.seals(at(5, 200))
	r.does("Write", "SetSync", "Bind", "Promote")
	r.o.Server.Primary = true
	r.expect("Persist", ok)
	r.o.Record.Needed = 1
	r.o.Server.Waiting = time.Hour
	r.o.Settings.DropAfter = 2 * time.Hour
	r.expect("", ok)
	r.o.Now += r.o.Settings.StallAfter
	r.expect("", ok)
}

// Commits that have waited for the first voter are acknowledged in a moment.
func TestTheFirstVoterIsNoStall(t *testing.T) {
	r := newRig(t)
	r.leadsAlone()
	r.o.Server.Waiting = time.Hour
	r.expect("", ok)
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.expect("Write", ok)
	if s := r.expect("SetSync", ok).(SetSync).Sync; s.String() != "any 1 of c@1" {
		t.Fatalf("the SSN is %v", s)
	}
	r.o.Now += r.o.Settings.StallAfter
	r.expect("Stop", ok) // c does not acknowledge, though it lives
}

// A commit with synchronous_commit = remote_apply waits for a standby that replays nothing, while
// the standbys copy all: another primary would have to wait for the same.
func TestACommitThatWaitsForAReplayIsNoStall(t *testing.T) {
	r := newRig(t)
	r.leadsAlone()
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.does("Write", "SetSync", "Persist")
	r.o.Server.Proven, r.o.Server.Senders[0].Counts = r.server.setID, true
	r.expect("", ok)
	r.o.Server.Waiting = time.Hour
	for range 10 {
		r.o.Now += r.o.Settings.StallAfter / 2
		r.o.Server.LSN += 10
		r.o.Server.Senders[0].Flushed = r.o.Server.LSN - 5
		r.expect("", ok)
	}
	r.o.Now += r.o.Settings.StallAfter
	r.o.Server.LSN += 10
	r.expect("Stop", ok) // c copies nothing any more
}

func TestBeforeARewindTheIncarnationChanges(t *testing.T) {
	r := newRig(t)
	r.newTerm(1, "a")
	r.o.Record.Lineage = []Fork{{1, 0}, {3, 100}}
	r.expect("Seal", ok)
	r.expect("Read", at(4, 200)) // promoted by hand
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	w := r.expect("Rewind", failed()).(Rewind)
	if w.State.Incarnation != "new1" || w.State.Copied != copying || w.From != 1 {
		t.Fatalf("%+v", w)
	}
	r.o.Server.Data = DataPartial
	if p := r.expect("Persist", ok).(Persist); p.State.Incarnation != "new1" { // the rewind may have failed before
		t.Fatalf("%+v", p)
	}
	if c := r.expect("Clone", ok).(Clone); c.State.Incarnation != "new2" {
		t.Fatalf("%+v", c)
	}
	r.o.Server.Data = DataReady
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Follow", ok) // without an answer: it takes no SQL before it has more WAL
}

// A server that was killed replays its own WAL, which may take minutes. If it followed before the
// end of that was known it might have too much, and would find no way to stream.
func TestAServerThatReplaysIsWaitedFor(t *testing.T) {
	r := newRig(t)
	rec := pgRecord().Promotion(2, answerOf("c", 3, 200))
	r.o.Record = &rec
	r.newTerm(2, "c")
	r.does("Persist", "Seal")
	for i := range 6 * readTriesAtMost { // longer than one file may take
		r.expect("Read", Done{Recovering: fmt.Sprint("segment ", i/readTriesAtMost)})
	}
	r.expect("Read", at(3, 300))
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.expect("Rewind", ok)
}

// The title names no file while the data directory is synced, and names the same one for as long as
// its records take. A server that followed with WAL past the fork would report its own end of WAL
// to the primary, which would take commits for copied that only the primary has.
func TestAServerThatIsSlowToBecomeConsistentFollowsNobody(t *testing.T) {
	for _, title := range []string{"", "000000030000000000000002"} {
		r := newRig(t)
		rec := pgRecord().Promotion(2, answerOf("c", 3, 200))
		r.o.Record = &rec
		r.newTerm(2, "c")
		r.does("Persist", "Seal")
		for began := r.o.Now; r.o.Now-began < r.o.Settings.ReplayAtMost-5*time.Second; {
			r.expect("Read", Done{Recovering: title, Err: errTest})
		}
		if title == "" {
			r.expect("Read", at(3, 300))
		} else { // it lacks WAL, as a backup may
			r.o.Now += 10 * time.Second
		}
		r.expect("Stop", ok)
		r.o.Server = Server{Data: DataReady}
		r.expect("Rewind", ok)
	}
}

// The data that a clone copied are consistent only with what that primary had.
func TestACloneOfAFormerPrimaryIsNotUsed(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{Incarnation: "1", Sealed: 1, Seq: 7, SystemID: "s", Copied: 1})
	rec := pgRecord().Promotion(2, answerOf("c", 3, 200))
	r.o.Record = &rec
	r.newTerm(2, "c")
	r.does("Persist", "Seal")
	for range readTriesAtMost + 1 {
		r.expect("Read", failed())
	}
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.expect("Rewind", ok)
}

func TestReadsThatSucceedAreNotCounted(t *testing.T) {
	r := newRig(t)
	for token := uint64(2); token < 2+readTriesAtMost+5; token++ {
		r.newTerm(token, "c")
		r.expect("Persist", ok)
		if token == 2 {
			r.expect("Seal", ok)
		}
		r.expect("Read", at(3, 200))
		r.expect("Say", ok)
	}
	r.newTerm(200, "c")
	rec := pgRecord().Promotion(200, answerOf("c", 3, 100))
	r.o.Record = &rec
	r.expect("Persist", ok)
	r.expect("Read", at(3, 200))
	r.expect("Stop", ok) // past the fork: it is rewound, and does not just follow
}

func TestAMemberThatCannotStreamIsRewound(t *testing.T) {
	r := newRig(t)
	r.newTerm(1, "a")
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	r.does("Follow", "")
	r.o.Now += strayAfter
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
	r.o.Line = &Line{} // and only from a primary that leads
	r.expect("", ok)
}

// strays takes b, which follows a, through a rewind because it does not stream.
func (r *rig) strays() {
	r.t.Helper()
	r.o.Now += strayAfter
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady}
}

// restarted takes b from a rewind to where it follows a again.
func (r *rig) restarted() {
	r.t.Helper()
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.does("Follow", "")
}

// rewound takes b to where it follows a after a rewind.
func (r *rig) rewound() {
	r.t.Helper()
	r.newTerm(1, "a")
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	r.does("Follow", "")
	r.strays()
	r.does("Rewind", "Persist")
	r.restarted()
}

// Where the primary has removed the WAL that a member needs, pg_rewind has nothing to do, and says
// that all is well. So a rewind that did not help is not done again.
func TestAMemberThatARewindDoesNotHelpIsCloned(t *testing.T) {
	r := newRig(t)
	r.rewound()
	r.o.Server.Follows = true // it connects, and is told that the WAL is gone
	r.expect("", ok)
	r.o.Server.Follows = false
	r.expect("", ok)
	r.strays()
	r.expect("Reinit", ok)
	r.o.Server.Data = DataPartial
	r.expect("Clone", ok)
	r.o.Server.Data = DataReady
	r.restarted()
	r.strays()
	r.expect("Rewind", ok) // what is wrong is something else
}

// A member that was cut off, and not for long, is not cloned because it was rewound once.
func TestAMemberThatHasStreamedSinceIsRewoundAgain(t *testing.T) {
	r := newRig(t)
	r.rewound()
	r.o.Server.Follows = true
	r.expect("", ok)
	r.o.Now += strayAfter
	r.expect("", ok)
	r.o.Server.Follows = false
	r.expect("", ok)
	r.strays()
	r.expect("Rewind", ok)
}

// A full disk is no reason to give data up: the server streams again as soon as there is room. If
// it must be rewound, that waits too.
func TestNobodyIsRewoundWhileItsDiskIsFull(t *testing.T) {
	r := newRig(t)
	r.newTerm(1, "a")
	r.expect("Seal", ok)
	r.expect("Read", at(3, 200))
	r.does("Follow", "")
	r.o.Server.Full = true
	for range 5 {
		r.o.Now += strayAfter
		r.expect("", ok)
	}
	r.o.Server.Full = false
	r.o.Now += strayAfter / 2 // it connects
	r.expect("", ok)
	r.o.Now += strayAfter
	r.expect("Stop", ok)
	r.o.Server = Server{Data: DataReady, Full: true}
	r.expect("", ok)
	if p, why := r.Phase(); p != PhaseStopped || why != noRoom {
		t.Errorf("it is %s: %s", p, why)
	}
	r.o.Server.Full = false
	r.does("Rewind")
	if _, why := r.Phase(); why != "" {
		t.Errorf("it says still: %s", why)
	}

	r = newRig(t)
	rec := pgRecord().Promotion(2, answerOf("c", 3, 100))
	r.o.Record, r.o.Server.Full = &rec, true
	r.newTerm(2, "c")
	r.does("Persist", "Seal")
	r.expect("Read", at(3, 200)) // past the fork
	r.expect("", ok)
	if p, why := r.Phase(); p != PhaseRejoining || why != noRoom {
		t.Errorf("it is %s: %s", p, why)
	}
	r.newTerm(3, "c") // and it answers in the next term
	r.expect("Persist", ok)
	r.expect("Read", at(3, 200))
	r.does("Say", "")
}

// A rewind that failed has changed nothing. The data are still a copy of a former primary that was
// further than the present one: they would stream, vote, and never become consistent.
func TestARewindThatFailedIsNoCopyOfThePrimary(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{Incarnation: "1", Sealed: 1, Seq: 7, SystemID: "s", Copied: 1})
	rec := pgRecord().Promotion(2, answerOf("c", 3, 200))
	r.o.Record = &rec
	r.newTerm(2, "c")
	r.does("Persist", "Seal")
	toRewind := func() {
		t.Helper()
		for range readTriesAtMost + 1 {
			r.expect("Read", failed())
		}
		r.expect("Stop", ok)
		r.o.Server = Server{Data: DataReady}
	}
	again := func() {
		t.Helper()
		r.expect("Start", ok)
		r.o.Server.Running = true
	}
	toRewind()
	r.expect("Rewind", failed())
	if p := r.expect("Persist", ok).(Persist); p.State.Copied != copying {
		t.Fatalf("it notes %+v", p.State)
	}
	again()
	toRewind()
	r.expect("Rewind", ok)
	if p := r.expect("Persist", ok).(Persist); p.State.Copied != 2 {
		t.Fatalf("it notes %+v", p.State)
	}
	again()
	r.does("Follow", "")
}

func TestAmnesiaOfTheStore(t *testing.T) {
	for what, change := range map[string]func(*Observation){
		"no record":                func(o *Observation) { o.Record = nil },
		"an older record":          func(o *Observation) { o.Record.Seq, o.ReadFor = 6, 0 }, // and smaller tokens
		"another database":         func(o *Observation) { o.Record.SystemID = "x" },
		"another database there":   func(o *Observation) { o.Server.SystemID = "x" },
		"another one, and no data": func(o *Observation) { o.Record.SystemID, o.Server.Data = "x", DataEmpty },
		"none of what I know of":   func(o *Observation) { o.Record, o.Server.Data = nil, DataEmpty },
		"somebody has found it":    func(o *Observation) { o.Record, o.Lost = nil, &Lost{By: "c", Seen: 9} },
	} {
		r := newRig(t)
		r.state.Noted = pgRecord().note()
		r.newTerm(1, "a")
		change(&r.o)
		r.expect("Stop", ok)
		r.o.Server.Running = false
		switch what { // it tells all, so that who has seen less does not act by the store either
		case "no record", "an older record", "none of what I know of":
			if m := r.expect("Mark", ok).(Mark); m.Lost.By != "b" || m.Lost.Seen != 7 {
				t.Errorf("%s: %+v", what, m)
			}
			r.o.Record, r.o.Lost = nil, &Lost{By: "b", Seen: 7}
		}
		r.expect("", ok)
		if p, why := r.Phase(); p != PhaseBroken || why == "" || r.Stands(r.o) {
			t.Errorf("%s: %s, %q", what, p, why)
		}
	}
	// Not read yet is not gone.
	r := newRig(t)
	r.o.Record, r.o.Read = nil, false
	r.expect("Seal", ok)
}

// A member that knows nothing makes no database, and one that has seen less than another promotes
// nobody, where that other one has found that the store was lost.
func TestWhoHasSeenLessObeys(t *testing.T) {
	for what, s := range map[string]State{"new": {}, "behind": {Incarnation: "1", Seq: 3, SystemID: "s"}} {
		r := newRig(t)
		r.Member = NewMember(r.cfg, s)
		r.o.Record, r.o.Lost = nil, &Lost{By: "c", Seen: 9, SystemID: "s"}
		r.o.Server = Server{}
		if what == "behind" {
			r.o.Server.Data = DataReady
		}
		r.newTerm(1, "b")
		r.expect("Transfer", ok)
		r.o.Own = nil
		r.expect("", ok)
		if p, why := r.Phase(); p != PhaseBroken || !strings.Contains(why, "c has seen record 9") || r.Stands(r.o) {
			t.Errorf("%s: %s, %q", what, p, why)
		}
	}
}

// A store that was set back may have gone on since, further than it had been: then it has given the
// number of a timeline to another member, or for WAL that ends elsewhere, or has not come to it.
func TestAStoreThatWentOnFromABackup(t *testing.T) {
	history := func(all ...Promoted) []Promoted { return all }
	first, second := Promoted{Member: "a", Timeline: 3, From: 100}, Promoted{Member: "b", Timeline: 5, From: 200}
	for what, c := range map[string]struct {
		history []Promoted
		forgot  bool
	}{
		"the same":             {history(first, second), false},
		"a later one":          {history(first, second, Promoted{Member: "c", Timeline: 7, From: 300}), false},
		"so old it is dropped": {history(Promoted{Member: "c", Timeline: 7, From: 300}), false},
		"it has gone on":       {history(first, second, Promoted{Member: "b", Timeline: 5, From: 200}), false},
		"another member":       {history(first, Promoted{Member: "c", Timeline: 5, From: 200}), true},
		"from elsewhere":       {history(first, Promoted{Member: "b", Timeline: 5, From: 180}), true},
		"none":                 {history(first), true},
	} {
		s := State{Seq: 7, SystemID: "s", Noted: Noted{"s", "b", 5, 200, ""}}
		l := s.Forgotten("b", &Record{Seq: 99, SystemID: "s", History: c.history})
		if (l != nil) != c.forgot {
			t.Errorf("%s: %v", what, l)
		}
	}
	if l := (State{Seq: 7, SystemID: "s"}).Forgotten("b", &Record{Seq: 3, SystemID: "x"}); l != nil {
		t.Errorf("another database's record is no older one: %v", l)
	}
}

// The store has a record of another life of the cluster: it was adopted anew since, or this machine
// was copied, or is run against another store. Nothing was lost, and this member must not stop the
// others: it stops by itself, also where it knows of smaller numbers than the record has.
func TestAnotherLifeIsNotLost(t *testing.T) {
	for what, x := range map[string]struct {
		noted, lives Lives
		why          string
	}{
		"adopted anew":                         {"x", "x,y", "a is the primary now"},
		"adopted anew, after a former version": {"", ",y", "a is the primary now"},
		"adopted anew twice":                   {"x", "x,y,z", "a is the primary now"},
		"another cluster":                      {"x", "y", "another cluster of this name"},
		"the cluster of a former version":      {"x", "", "another cluster of this name"},
	} {
		for seq, data := range map[uint64]DataState{1: DataReady, 2: DataEmpty, 99: DataReady} {
			r := newRig(t)
			r.state.Noted = pgRecord().note()
			r.state.Noted.Lives = x.noted
			n := pgRecord() // the same numbers of timelines: they were given out twice
			n.Seq, n.Token, n.Primary, n.Lives = seq, 9, Identity{"a", "9"}, x.lives
			n = n.promoted("adopted")
			r.o.Record, r.o.Server = &n, Server{Data: data}
			r.newTerm(9, "a")
			r.expect("", ok)
			if p, why := r.Phase(); p != PhaseBroken || !strings.Contains(why, x.why) || r.Stands(r.o) {
				t.Errorf("%s, record %d: %s, %q", what, seq, p, why)
			}
		}
	}
}

// The store was set back to before the cluster was adopted anew: who belongs to the later life says
// so, for members of the former one would act by that record.
func TestAStoreFromBeforeAnAdoptionIsLost(t *testing.T) {
	for noted, lives := range map[Lives]Lives{"x,y": "x", "w,x,y": "w,x", ",y": ""} {
		s := State{Seq: 2, SystemID: "s", Noted: Noted{"s", "b", 35, 200, noted}}
		r := pgRecord()
		r.Seq, r.Lives = 99, lives
		if s.Forgotten("b", &r) == nil {
			t.Errorf("%q is believed by who has seen %q", lives, noted)
		}
	}
}

// Who finds that the store was lost may hold a term there. It says so before it hands that on: the
// next may be the primary of an older record, and be promoted by it at once.
func TestALostStoreIsToldBeforeTheTermGoesOn(t *testing.T) {
	begin := func() *rig {
		r := newRig(t)
		r.state.Noted = pgRecord().note()
		r.o.Record.Seq, r.o.Server.Running = 6, false
		r.newTerm(2, "b")
		return r
	}
	r := begin()
	r.expect("Mark", ok)
	r.o.Record, r.o.Lost = nil, &Lost{By: "b", Seen: 7}
	r.expect("Transfer", ok)
	r = begin()
	r.expect("Mark", failed())
	r.expect("Transfer", ok) // else nobody could lead where the mark is refused
}

// Where the store was set back, whoever has seen less may hold a term there, and counts the answers
// of those who have seen more: these read the record before they answer.
func TestNoAnswerByARecordFromBeforeTheTerm(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "a")
	r.o.ReadFor = 1
	r.expect("Persist", ok)
	r.expect("Seal", ok)
	r.expect("Read", at(3, 150))
	r.expect("", ok)
	r.o.ReadFor = 2
	r.expect("Say", ok)
}

func TestWhoStands(t *testing.T) {
	r := newRig(t)
	if !r.Stands(r.o) {
		t.Error("a member with data does not stand")
	}
	r.o.Server.Data = DataEmpty
	if r.Stands(r.o) {
		t.Error("a member without data stands, though there is a record")
	}
	r.o.Server.Data = DataPartial
	if r.Stands(r.o) {
		t.Error("a member stands with half a clone")
	}
	r.o.Record = nil
	if !r.Stands(r.o) {
		t.Error("nobody stands to make the first server")
	}
}

// A person must look before the first server of a cluster takes the place of a database.
func TestABirth(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{})
	r.o.Record = nil
	r.o.Server = Server{Data: DataEmpty}
	r.newTerm(1, "b")
	r.expect("Persist", ok)
	if i := r.expect("Initdb", Done{SystemID: "s"}).(Initdb); i.State.Incarnation != "new1" {
		t.Fatalf("%+v", i)
	}
	r.o.Server.Data = DataPartial
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.expect("Read", at(1, 10))
	if s := r.expect("SetSync", ok).(SetSync); s.Sync.Kind != SyncNobody {
		t.Fatalf("%v: a commit would be acknowledged that no record counts", s.Sync)
	}
	r.does("Bind", "Promote")
	r.o.Server.Primary = true
	w := r.expect("Write", ok).(Write)
	if w.Record.Seq != 1 || w.Record.Primary != (Identity{"b", "new1"}) || w.Record.SystemID != "s" ||
		w.Record.Timeline != 3 {
		t.Fatalf("%+v", w.Record)
	}
	r.expect("Persist", ok) // it leads, with the marker of initdb still there
	r.expect("", ok)
	if !r.Stands(r.o) {
		t.Error("the first primary does not stand")
	}
	r = newRig(t)
	r.Member = NewMember(r.cfg, State{})
	r.o.Record = nil
	r.newTerm(1, "b")
	r.seals(at(1, 10))
	r.expect("Stop", ok)
	if p, why := r.Phase(); p != PhaseStopped || r.broken == "" {
		t.Errorf("a database is taken over without a record: %s %s", p, why)
	}
}

// Without its state file a member does not know which life of its data it votes for.
func TestAMemberWithoutAStateGetsAnIncarnation(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{})
	r.newTerm(1, "a")
	if p := r.expect("Persist", ok).(Persist); p.State.Incarnation != "new1" || p.State.Sealed != 1 {
		t.Fatalf("%+v", p.State)
	}
	r.expect("Seal", ok)
	// Nor which database system they are of: the control file does.
	r = newRig(t)
	r.Member = NewMember(r.cfg, State{})
	r.o.Server.SystemID = "s"
	r.newTerm(2, "a")
	r.seals(at(3, 100))
	if a := r.expect("Say", ok).(Say).Answer; a.SystemID != "s" {
		t.Errorf("the answer is of database system %q", a.SystemID)
	}
}

// Who copies data back from a backup leaves the state that lies beside them. Commits that this
// incarnation has acknowledged are not in these data, so it must not vote for them.
func TestADirectoryInThePlaceOfAnotherIsNoVoter(t *testing.T) {
	r := newRig(t)
	r.o.Server = Server{Data: DataReady, Directory: "5"}
	if p := r.expect("Persist", ok).(Persist); p.State.Directory != "5" || p.State.Incarnation != "1" {
		t.Fatalf("noted: %+v", p.State)
	}
	r.expect("Start", ok)
	state := r.State()

	r = newRig(t) // the agent starts again
	r.Member = NewMember(r.cfg, state)
	r.o.Server = Server{Data: DataReady, Directory: "5"}
	r.expect("Start", ok)

	r = newRig(t)
	r.Member = NewMember(r.cfg, state)
	r.o.Server = Server{Data: DataReady, Directory: "6", SystemID: "s"}
	p := r.expect("Persist", ok).(Persist).State
	if p.Directory != "6" || p.Incarnation != "new1" || p.Sealed != 1 || p.Seq != 7 || p.SystemID != "s" {
		t.Fatalf("%+v", p)
	}
	r.expect("Start", ok)
}

func TestADirectoryThatCannotBeSeenIsNotAnotherOne(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{Incarnation: "1", Sealed: 1, Seq: 7, SystemID: "s", Directory: "5"})
	r.o.Server = Server{Data: DataReady}
	r.expect("Start", ok)
}

// A file system may be put back as a whole: its directories are the same ones then.
func TestAShorterWALIsNoVoter(t *testing.T) {
	for what, last := range map[string]Position{"an LSN": {3, 101}, "a timeline": {5, 50}} {
		r := newRig(t)
		r.Member = NewMember(r.cfg, State{Incarnation: "1", Sealed: 1, Seq: 7, SystemID: "s", Last: last})
		r.newTerm(2, "a")
		r.seals(at(3, 100))
		if p := r.expect("Persist", ok).(Persist); p.State.Incarnation != "new1" {
			t.Fatalf("%s below: %+v", what, p.State)
		}
		r.expect("Read", at(3, 100))
		if a := r.expect("Say", ok).(Say).Answer; a.Incarnation != "new1" || a.LSN != 100 {
			t.Errorf("%s below: %+v", what, a)
		}
	}
}

// What is known to be on disk is remembered while the server runs, and not taken back by what is
// read before all WAL was replayed.
func TestHowFarTheWALHasBeen(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "a")
	for _, p := range []Position{{3, 90}, {3, 110}, {3, 80}} {
		r.o.Server.Reached = p
		r.begin("Persist")
		if r.order != nil {
			r.o.Done = []Done{{ID: r.order.ID, Err: errTest}}
		}
	}
	r.does("Persist", "Seal")
	if last := r.State().Last; last != (Position{3, 110}) {
		t.Fatalf("it has been at %v", last)
	}
	r.expect("Read", at(3, 110))
	if a := r.expect("Say", ok).(Say).Answer; a.Incarnation != "1" {
		t.Errorf("%+v", a)
	}
	// Another life of the data begins anew.
	r.o.Server = Server{Data: DataEmpty}
	r.o.Record.Token = 2
	r.expect("Clone", ok)
	if s := r.State(); s.Last != (Position{}) || s.Directory != "" {
		t.Errorf("after a clone: %+v", s)
	}
}

// Two members were born at once: the one whose record was written is the cluster.
func TestWhoWasBornInVainStops(t *testing.T) {
	r := newRig(t)
	r.Member = NewMember(r.cfg, State{})
	r.o.Record = nil
	r.o.Server = Server{Data: DataEmpty}
	r.newTerm(1, "b")
	r.expect("Persist", ok)
	r.expect("Initdb", Done{SystemID: "other"})
	r.o.Server.Data = DataPartial
	r.expect("Start", ok)
	r.o.Server.Running = true
	r.newTerm(2, "a")
	rec := pgRecord()
	rec.Token = 2
	r.o.Record, r.o.ReadFor = &rec, 2
	r.expect("Stop", ok)
	r.o.Server.Running = false
	r.does("Persist", "Clone")
}

func TestAnEndedMemberHandsOverFirst(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Senders = []Sender{{Identity: id("c"), Flushed: 300}}
	r.End()
	r.expect("Checkpoint", ok)
	r.expect("Stop", Done{LSN: 320})
	r.o.Server = Server{Data: DataReady}
	r.expect("Write", ok)
	if do := r.expect("Transfer", ok).(Transfer); do != (Transfer{"c", "its agent was told to end"}) {
		t.Fatalf("the order is %+v", do)
	}
	r.newTerm(3, "c")
	r.expect("", ok)
	if !r.Ended(r.o) || r.Stands(r.o) {
		t.Error("it has not ended")
	}
}

func TestAServerThatCameUpThoughItsStartFailedIsPromoted(t *testing.T) {
	r := newRig(t)
	r.chosen()
	r.o.Server.Running = false // it crashed before it was promoted
	r.expect("Start", failed())
	r.o.Server.Running = true
	r.expect("Seal", ok) // what it listens to is not known
	r.expect("SetSync", ok)
}

func TestAsyncComparesWithWhatThePrimaryPublished(t *testing.T) {
	for name, from := range map[string]LSN{"published": 0, "was promoted with, and has published nothing": 300} {
		r := newRig(t)
		r.o.Record.Durability, r.o.LastLSN, r.o.Settings.MaxLag = Async, 300-from, 50
		r.o.Record.From = from
		r.newTerm(2, "b")
		r.seals(at(3, 249))
		r.expect("", ok)
		if _, why := r.Phase(); !strings.Contains(why, "51 bytes behind") {
			t.Errorf("what the primary %s: %s", name, why)
		}
		r.o.Settings.MaxLag = 51
		r.expect("Write", ok)
	}
}

// A server that is being killed and waits for its disk does not keep the term.
func TestAServerThatDoesNotEndKeepsNoTerm(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Server.Hung = true
	r.expect("Stop", failed())
	do := r.expect("Transfer", ok).(Transfer)
	if do != (Transfer{"c", "the server does not answer, or its disk hangs"}) {
		t.Fatalf("the order is %+v", do)
	}
	r.o.Own = nil
	r.expect("Stop", failed())
	if !r.MustKeepTerm() {
		t.Error("it may stand again while its server is there")
	}
}

// A member whose disk hangs keeps its claim alive, and may win a term: it writes down for which
// term it is sealed before anything else, and that does not end. Nor does the start of its server,
// or that it follows.
func TestAMemberWhoseDiskHangsKeepsNoTerm(t *testing.T) {
	for _, what := range []string{"Persist", "Seal", "Start", "Follow"} {
		r := newRig(t)
		switch what {
		case "Persist":
			r.newTerm(2, "b")
		case "Seal":
			r.newTerm(2, "b")
			r.expect("Persist", ok)
		case "Start":
			r.o.Server = Server{Data: DataReady}
			r.newTerm(2, "b")
			r.expect("Persist", ok)
		case "Follow":
			r.newTerm(1, "a")
			r.expect("Seal", ok)
			r.expect("Read", at(3, 200))
		}
		r.begin(what)
		began := r.ordered
		if what == "Follow" {
			r.newTerm(2, "b")
		}
		for _, tc := range []struct {
			after time.Duration
			late  bool
			wake  time.Duration
		}{{ttl - time.Millisecond, false, began + ttl}, {ttl, true, 0}, {time.Hour, true, 0}} {
			r.o.Now = began + tc.after
			if o := r.Step(r.o); o != nil {
				t.Fatalf("an order of %T while %s hangs", o.Do, what)
			}
			if r.Late(r.o) != tc.late || r.Stands(r.o) == tc.late || r.Wake() != tc.wake {
				t.Errorf("%v after the order of %s: late %v, stands %v, looks again at %v", tc.after, what, r.Late(r.o),
					r.Stands(r.o), r.Wake())
			}
		}
		if !strings.Contains(r.why, "does the disk hang") {
			t.Errorf("it says %q", r.why)
		}
		r.o.Done = []Done{{ID: r.order.ID}}
		if o := r.Step(r.o); what == "Follow" { // it was behind: the new token comes to its disk first
			r.o.Done = []Done{{ID: o.ID}}
			r.Step(r.o)
		}
		if r.Late(r.o) || !r.Stands(r.o) {
			t.Errorf("it does not stand once its disk answers: %s", what)
		}
	}
}

// Where a disk is full or takes no writes, each try fails at once.
func TestAMemberThatCannotWriteKeepsNoTerm(t *testing.T) {
	r := newRig(t)
	r.newTerm(2, "b")
	began := r.o.Now
	step := func(err error) {
		t.Helper()
		r.o.Done = nil
		if r.order != nil {
			r.o.Done = []Done{{ID: r.order.ID, Err: err}}
		}
		if o := r.Step(r.o); o != nil && NameOf(o.Do) != "persist" {
			t.Fatalf("an order of %T before the term is noted", o.Do)
		}
	}
	for ; r.o.Now < began+3*ttl; r.o.Now += 100 * time.Millisecond {
		step(errTest)
		if late := r.o.Now-began >= ttl; r.Late(r.o) != late || r.Stands(r.o) == late {
			t.Fatalf("after %v: late %v, stands %v", r.o.Now-began, r.Late(r.o), r.Stands(r.o))
		}
	}
	for r.order == nil {
		r.o.Now += 100 * time.Millisecond
		step(nil)
	}
	r.o.Done = []Done{{ID: r.order.ID}}
	if r.Step(r.o); r.Late(r.o) || !r.Stands(r.o) {
		t.Error("it does not stand once it has written")
	}
}

// A copy of the primary's data takes hours. A term that begins meanwhile is noted after it: the
// member cannot use a term until then, but no disk hangs.
func TestACloneDuringWhichATermBeganIsNoDiskThatHangs(t *testing.T) {
	r := newRig(t)
	r.rewound()
	r.strays()
	r.expect("Reinit", ok)
	r.o.Server.Data = DataPartial
	r.begin("Clone")
	r.newTerm(2, "a")
	r.expect("", ok)
	r.o.Now += ttl
	r.expect("", ok)
	if !r.Late(r.o) || strings.Contains(r.why, "does the disk hang") {
		t.Errorf("late %v, and it says %q", r.Late(r.o), r.why)
	}
}

func TestAServerThatHangsIsStoppedWhateverIsUnderWay(t *testing.T) {
	r := newRig(t)
	r.leading()
	r.o.Instructions = asked(4, TaskRestart)
	r.begin("Persist")
	r.expect("", ok)
	r.o.Server.Hung = true
	r.expect("Stop", failed())
	r.expect("Transfer", ok)
}

// A standby that has replayed that its primary has a larger max_connections replays nothing more:
// it can neither say what it has nor be promoted until it is started anew.
func TestAStandbyWhoseRecoveryWaitsIsRestarted(t *testing.T) {
	for _, leads := range []bool{false, true} {
		r := newRig(t)
		if leads {
			r.o.Own = &Term{Token: 2, Remaining: ttl}
			r.o.Line, r.o.ReadFor = &Line{Token: 2, Leader: "b"}, 2
			r.expect("Persist", Done{})
		}
		r.o.Server.Short = true
		if do := r.expect("Stop", Done{}).(Stop); !do.Fast {
			t.Error("it is killed")
		}
		r.o.Server.Running, r.o.Server.Short = false, false
		r.expect("Start", Done{})
	}
}
