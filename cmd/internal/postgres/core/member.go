package core

import (
	"cmp"
	"strings"
	"time"
)

// Config is what a person chose for one member.
type Config struct {
	Name       string
	TTL        time.Duration // of the lease
	Priority   int
	NoFailover bool
	// Incarnation returns a random text that was never returned before, anywhere.
	Incarnation func() string
}

// Phase is what a member is doing, for people.
type Phase string

const (
	PhaseEmpty     Phase = "empty"     // it has no data
	PhaseStopped   Phase = "stopped"   // its server does not run
	PhaseSealed    Phase = "sealed"    // it listens to nobody
	PhaseFollowing Phase = "following" // it streams from the primary, or tries to
	PhaseRejoining Phase = "rejoining" // it is rewound or cloned
	PhaseSurveying Phase = "surveying" // it leads, and asks who is to be promoted
	PhasePromoting Phase = "promoting"
	PhaseLeading   Phase = "leading"
	PhasePaused    Phase = "paused" // the primary of a paused cluster: it has no deadline
	PhaseBroken    Phase = "broken" // a person must act
)

const (
	readEvery       = 20 * time.Millisecond  // between two tries to read where the WAL ends
	readTriesAtMost = 100                    // then a copy is taken to need the WAL of who it was copied from
	retrySoon       = 200 * time.Millisecond // after an order that failed, the same is not given for so long
	retryLater      = time.Second            // the same for a start, an initdb, a clone and a rewind
	retryMost       = time.Minute            // a clone or a rewind that failed again and again
	strayAfter      = 20 * time.Second       // without streaming, though the primary leads: rewind
	// A checkpoint before the stop of a member that is to end; then it is stopped without.
	checkpointAtMost = 30 * time.Second
	switchoverLag    = 1 << 20 // bytes that a member may be behind for a switchover to it
)

// Member is one member of a cluster: all that it decides. Its owner calls [Member.Step] whenever
// something changed, and at [Member.Wake].
type Member struct {
	cfg   Config
	state State // as on disk, or as the order under way is to write it
	phase Phase
	why   string // for people
	wake  time.Duration

	order   *Order // under way
	ordered time.Duration
	// Since when the state on disk is older than what the member knows, and must note before
	// anything else; 0: it is not.
	unwritten time.Duration
	lastID    uint64
	retry     retries // before then an action that failed is not ordered again
	lives     lifetimes

	server serverRun
	answer *Answer // own, for state.Sealed
	said   *Answer // what our claim says
	saidAt time.Duration
	able   []Identity // the voters that could stream at once from the server that the last survey has chosen
	// Of the last survey: the token of its term, and when it began.
	surveyToken uint64
	surveyBegan time.Duration
	writes      writes
	handing     *handing
	stopWhy     string // why its server, which was promoted, was told to end; empty: it was not
	lastRequest uint64 // the last one that was carried out, or refused
	refusal     string // why it cannot be met now
	fails       int    // of rewinds and clones in a row
	mustRewind  bool   // the primary has not all of its WAL: it is to be rewound
	ranInitdb   bool   // this process has made the data by initdb
	broken      string
	ending      bool   // see End
	voidTask    uint64 // the last [Task] that cannot be carried out
	stateUnsure bool   // whether the state is on disk: an order that was to write it has failed
	rewoundFor  uint64 // the token of the record whose primary it was rewound from, until it has streamed from there
	shrunk      bool   // the WAL ends before where it has been: it cannot vote as who it was
}

// NewMember returns a member with the state that was found beside the data directory.
func NewMember(cfg Config, state State) *Member {
	return &Member{cfg: cfg, state: state, phase: PhaseStopped, retry: retries{}}
}

// Phase returns what the member does, and in words why it does not do more.
func (m *Member) Phase() (Phase, string) { return m.phase, m.why }

// State returns what the member knows durably, once no order is under way.
func (m *Member) State() State { return m.state }

// Wake returns when Step is to be called although nothing has changed; 0: never.
func (m *Member) Wake() time.Duration { return m.wake }

// End has the member hand over if it leads, and stop its server. [Member.Ended] says when it has.
func (m *Member) End() { m.ending = true }

// Ended says whether nothing more is to be done after [Member.End].
func (m *Member) Ended(o Observation) bool {
	return m.ending && m.order == nil && !o.Server.Running && o.Own == nil
}

// MustKeepTerm says whether the member's term must not be given up, for the server was promoted or
// is being promoted under it: only when that is gone, or does not end though it was told to, may
// another lead. In a pause it may be given up at once: nobody else stands.
func (m *Member) MustKeepTerm() bool { return m.server.promoted != 0 && !m.mayLackDeadline() }

func (m *Member) me() Identity { return Identity{m.cfg.Name, m.state.Incarnation} }

// Step takes what was observed and returns the next order, or nil.
func (m *Member) Step(o Observation) *Order {
	for _, d := range o.Done {
		if m.order != nil && d.ID == m.order.ID {
			do := m.order.Do
			m.order = nil
			m.finish(do, d, o)
			m.retry.note(do, d, m.fails, o.Now)
			m.lives.note(do, d, o.Now)
			if d.Err != nil {
				m.why = NameOf(do) + ": " + d.Err.Error()
			} else if strings.HasPrefix(m.why, NameOf(do)+": ") {
				m.why = "" // it has succeeded now
			}
		}
	}
	m.learn(o)
	if m.order != nil {
		if at := hangsAt(m); at != 0 && o.Now >= at {
			m.why = NameOf(m.order.Do) + " has not ended for long: does the disk hang? Another can lead meanwhile"
		}
		wakeBeforeLate(m, o)
		// The server must be stopped in time, whatever is under way: also where that waits for a
		// disk that hangs.
		if _, stopping := m.order.Do.(Stop); stopping || !o.Server.Running || !m.overdue(o) && !m.server.hangs(o) {
			return nil
		}
	}
	m.wake = 0
	if m.why == noRoom {
		m.why = "" // it is said again while it holds
	}
	do := m.decide(o)
	if do == nil || m.retry.delayed(do, o.Now, &m.wake) {
		return nil
	}
	m.lastID++
	m.order, m.ordered = &Order{m.lastID, do}, o.Now
	wakeBeforeLate(m, o)
	m.begin(do, o)
	return m.order
}

// Late says whether the member cannot use a term, for it waits for its disk: what it must write
// before anything else has not been written for a whole lease, or what needs no other machine has
// not ended for so long. Its claim is kept alive from memory, so nobody else would lead as long as
// the disk hangs, is full or takes no writes.
func (m *Member) Late(o Observation) bool {
	at := lateAt(m)
	return at != 0 && o.Now >= at
}

// lateAt returns from when on the member is late if nothing happens; 0: never.
func lateAt(m *Member) (at time.Duration) {
	if m.server.promoted != 0 {
		return 0
	}
	if m.unwritten != 0 {
		at = m.unwritten + m.cfg.TTL
	}
	if end := hangsAt(m); end != 0 && (at == 0 || end < at) {
		at = end
	}
	return at
}

// hangsAt returns from when on the order that is under way, which needs no other machine, has not
// ended for too long; 0: never. A clone, which lasts, never hangs, also where the member is late.
func hangsAt(m *Member) time.Duration {
	if m.order == nil || m.server.promoted != 0 {
		return 0
	}
	switch m.order.Do.(type) {
	case Persist, Seal, Start, Follow:
		return m.ordered + m.cfg.TTL
	}
	return 0
}

// wakeBeforeLate has Step called when the member becomes late. What it waited for before the order
// that is under way has come: Step would be called for it again and again.
func wakeBeforeLate(m *Member, o Observation) {
	if at := lateAt(m); at > o.Now {
		m.wake = at
	} else if m.wake <= o.Now {
		m.wake = 0
	}
}

// overdue says whether the term under which the server was promoted, or is being promoted, is over.
// One that a pause has set free goes on until the record says otherwise, or until a person has
// forced an election, which may need its answer.
func (m *Member) overdue(o Observation) bool {
	switch {
	case m.server.promoted == 0:
		return false
	case m.mayLackDeadline():
		other := o.Line != nil && o.Line.Token > m.server.promoted && o.Line.Leader != m.cfg.Name
		return o.Read && (o.Record == nil || o.Record.Primary != m.me() || o.Record.Paused == nil) ||
			other && o.forced()
	}
	return o.Own == nil || o.Own.Token != m.server.promoted
}

// learn notes what happened by itself.
func (m *Member) learn(o Observation) {
	if o.newest() <= m.state.Sealed && !m.stateUnsure {
		m.unwritten = 0
	} else if m.unwritten == 0 {
		m.unwritten = o.Now
	}
	if o.Server.Running && m.state.Last.Before(o.Server.Reached) {
		m.state.Last = o.Server.Reached
	}
	if o.Server.Running || m.order != nil {
		return
	}
	if wait := m.lives.ended(o.Now); wait > 0 {
		m.retry[NameOf(Start{})] = o.Now + wait
		m.why = NameOf(Start{}) + ": the server has ended soon after it, and its log says why"
	}
	promoted := m.server.promoted
	m.server = serverRun{needsWAL: m.server.needsWAL}
	m.answer = nil
	if o.Own != nil && o.Own.Token == promoted {
		m.server.promoted = promoted // this term must be handed on: see handOver
	} else {
		m.handing = nil
	}
}

// begin notes what is true from the moment an order goes out.
func (m *Member) begin(do Action, o Observation) {
	m.server.begin(do, o)
	switch do := do.(type) {
	case Follow:
		m.answer = nil
	case Stop:
		m.answer, m.stopWhy = nil, m.why
	case Promote:
		m.stopWhy = ""
	case Initdb:
		m.state, m.ranInitdb = do.State, false
	case Rewind:
		m.state = do.State
	case Clone:
		m.state = do.State
	}
}

// finish takes the result of an order.
func (m *Member) finish(do Action, d Done, o Observation) {
	m.server.finish(do, d, o)
	switch do := do.(type) {
	case Persist:
		if d.Err == nil {
			was := m.state
			m.state, m.stateUnsure, m.shrunk = do.State, false, false
			if m.state.Last = was.Last; m.state.Incarnation != was.Incarnation {
				m.state.Last = Position{}
			}
			if m.state.Sealed != was.Sealed || m.state.Incarnation != was.Incarnation {
				m.answer = nil
			}
		}
	case Read:
		m.read(d, o.Now)
	case Say:
		if d.Err == nil {
			m.said, m.saidAt = &do.Answer, o.Now
		}
	case Initdb:
		m.ranInitdb = d.Err == nil
		if m.ranInitdb {
			m.state.SystemID = d.SystemID
		}
		m.rejoined(d)
	case Rewind:
		if m.rejoined(d); d.Err == nil {
			m.rewoundFor, m.state.Copied, m.stateUnsure = do.From, do.From, true
		}
	case Clone:
		m.rewoundFor = 0
		m.rejoined(d)
	case Reinit:
		if d.Err != nil {
			m.voidTask = do.Task
		}
	case Write:
		m.writes.done(do.Record, d)
	}
	if h := m.handing; h != nil {
		h.finish(do, d)
	}
}

func (m *Member) read(d Done, now time.Duration) {
	if s := &m.server; d.Recovering != "" && d.Recovering != s.recovering {
		s.recovering, s.readTries = d.Recovering, 0 // it replays its own WAL, and needs no other's for that
	}
	if m.server.readTries++; m.server.readTries == 1 {
		m.server.readSince = now
	}
	complete := d.Err == nil && d.Complete && m.server.cutOff
	switch {
	case complete && d.Position.Before(m.state.Last):
		m.shrunk = true
	case complete:
		m.server.readTries, m.state.Copied = 0, 0
		m.answer = &Answer{Token: m.state.Sealed, Identity: m.me(), Position: d.Position,
			SystemID: m.state.SystemID, Priority: m.cfg.Priority, NoFailover: m.cfg.NoFailover}
	}
}

func (m *Member) rejoined(d Done) {
	m.mustRewind = false
	if d.Err == nil {
		m.server.needsWAL, m.fails = true, 0
		// The file says still that they were promoted by hand: after a restart good data would be
		// rewound.
		m.stateUnsure, m.state.ByHand = m.stateUnsure || m.state.ByHand, false
	} else {
		m.stateUnsure = true
		m.fails++
	}
}

// decide returns the next thing to do. Each rule comes before those that rely on it.
func (m *Member) decide(o Observation) Action {
	if a := m.mustStop(o); a != nil {
		return a
	}
	if m.broken != "" {
		return halted(m, o)
	}
	if m.ending && (m.server.promoted == 0 || m.mayLackDeadline() && o.Own == nil) {
		return m.end(o)
	}
	if o.Own != nil && m.server.promoted != 0 && m.server.stuck {
		return m.handOver(o) // whatever else is to be done may wait for the disk
	}
	if t := o.newest(); t > m.state.Sealed || m.stateUnsure || m.nameless(o) || m.state.unnoted(o) {
		return m.persist(t, o)
	}
	if a := m.task(o); a != nil {
		return a
	}
	if o.Server.Short { // it could neither answer nor be promoted
		return Stop{Fast: true}
	}
	if m.server.promoted == 0 { // a server that was promoted is not started again in that term
		if a, wait := ready(m, o); a != nil || wait {
			return a
		}
	}
	if o.Own != nil {
		return m.lead(o)
	}
	return m.follow(o)
}

// end stops a server that was not promoted.
func (m *Member) end(o Observation) Action {
	m.phase, m.why = PhaseStopped, ""
	switch {
	case o.Server.Running:
		return Stop{Fast: true}
	case o.Own != nil:
		return Transfer{Why: "its agent was told to end"}
	}
	return nil
}

// mustStop is what keeps a server from acting as a primary without a right to it.
func (m *Member) mustStop(o Observation) Action {
	if l := cmp.Or(o.Lost, storeForgot(m, o)); l != nil && !begins(m, l) {
		m.broken = l.tells(m.cfg.Name)
	} else if why := cmp.Or(m.state.otherData(o), m.state.adoptedTwice(o)); why != "" {
		m.broken = why
	}
	s := &m.server
	byHand := o.Server.Primary && s.promoted == 0
	// One that was made ready for a promotion has an SSN that names standbys. It is not promoted
	// under another term: its walsenders may have loaded names that the record no longer counts.
	former := s.setFor != 0 && s.promoted == 0 && (o.Own == nil || o.Own.Token != s.setFor)
	// One that initdb has just made is not of this cluster if somebody else has written the first
	// record.
	other := o.Read && !m.usable(o)
	if m.server.hangs(o) {
		m.phase, m.why = PhaseStopped, "the server does not answer, or its disk hangs"
		return Stop{}
	}
	if byHand && !m.state.ByHand && o.Record != nil { // it acknowledges nothing: first it is noted
		next := m.state
		next.ByHand, next.Incarnation = true, m.cfg.Incarnation()
		m.why = wasTaken + "it has acknowledged nothing since, and is rewound"
		return Persist{next}
	}
	if o.Server.Running && (other || m.overdue(o) || byHand || former || s.mustEnd || m.broken != "") {
		m.phase = PhaseStopped
		return Stop{}
	}
	return nil
}

// nameless says whether the data are not those with which this incarnation has voted: the state was
// lost, or another directory stands in the place of the one that it knows, or the WAL has become
// shorter. The latter two are a data directory that was put back from a backup.
func (m *Member) nameless(o Observation) bool {
	known := m.state.Directory
	other := known != "" && o.Server.Directory != "" && o.Server.Directory != known && !o.Server.Running
	return o.Server.Data == DataReady && (m.state.Incarnation == "" || other || m.shrunk)
}

// unnoted says whether it is to be noted which directory holds the data.
func (s State) unnoted(o Observation) bool {
	return o.Server.Data == DataReady && s.Directory == "" && o.Server.Directory != ""
}

func (m *Member) persist(sealed uint64, o Observation) Action {
	next := m.state
	next.Sealed = max(next.Sealed, sealed)
	if m.nameless(o) {
		next.Incarnation = m.cfg.Incarnation()
		next.SystemID, next.Directory = o.system(next), o.Server.Directory
	}
	if m.state.unnoted(o) {
		next.Directory = o.Server.Directory
	}
	if o.Record != nil {
		next.see(*o.Record)
	}
	return Persist{next}
}

// Stands says whether the member is to stand in the election. One without data cannot be promoted
// where there is a record, and one that is broken cannot be at all. In a paused cluster only the
// primary stands.
func (m *Member) Stands(o Observation) bool {
	return m.broken == "" && !m.ending && !m.Late(o) && o.Read && (o.Record == nil || m.usable(o)) &&
		!o.closed(m.cfg.Name) && (o.Record != nil || m.state.Adopted != AdoptedStandby) &&
		(o.Record != nil || o.Lost != nil || m.state.Adopted != AdoptedAnew)
}
