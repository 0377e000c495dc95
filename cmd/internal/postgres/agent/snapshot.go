package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Snapshot is what a member knows at one instant, for tools and people. Nothing in it changes any
// more, and nothing that is done with it holds up the member. Times are on the boot clock.
type Snapshot struct {
	At           time.Duration
	Cluster      string
	Name         string
	Phase        core.Phase
	Why          string
	State        core.State
	Term         *primacy.Term // that this member holds, or held last; nil: none
	Line         *core.Line
	Record       *core.Record
	Instructions *core.Instructions
	Server       core.Server       // as it was when it last answered; see Looked
	PID          int               // of the postmaster, when it was last looked at; 0: none runs
	Up           bool              // the server that runs has answered by SQL
	Looked       time.Duration     // when the look began that it answered
	Position     core.Position     // where its WAL ended when it answered last
	LastLSN      core.LSN          // where the primary's WAL ended when it last said so
	MaxLag       core.LSN          // maximum_lag_on_failover
	Pending      string            // parameters that wait for a restart
	Overridden   []server.Override // settings of primacy that are in force from elsewhere
	Full         []string          // directories whose disk is full, or nearly so
	Tally        Tally
	Discarded    uint64        // bytes of WAL, by rewinds
	Reloads      uint64        // of the users' settings: by a tool, or for the shared ones have changed
	StoreSeen    time.Duration // when the store last answered
	TTL          time.Duration
	LoopWait     time.Duration

	Runs func() bool // at this instant: the server that was looked at does

	changed chan struct{} // closed once more than positions has changed
}

// display is what a member shows to tools and people.
type display struct {
	server   *server.Server
	loopWait time.Duration
	shown    atomic.Pointer[Snapshot]
	details  atomic.Pointer[server.Details]
	reloads  atomic.Uint64 // asked for by tools
}

// Snapshot returns what the member knows now. It is never nil once Run has begun.
func (d *display) Snapshot() *Snapshot { return d.shown.Load() }

// Changed is closed once a later snapshot differs from this one in more than how far the WAL is.
func (s *Snapshot) Changed() <-chan struct{} { return s.changed }

// Fresh says whether the last look at the server is not older than looks usually are. What is older
// says nothing of now: the process may have been frozen.
func (s *Snapshot) Fresh() bool { return boottime.Now()-s.Looked < s.LoopWait+3*lookLimit }

// Leads says whether this member's server is the cluster's primary at this instant: its term lives
// by the clock, and the server runs and is out of recovery.
func (s *Snapshot) Leads() bool {
	return s.Server.Primary && s.Fresh() && s.Runs() && s.Holds()
}

// Holds says whether this member holds the cluster's term at this instant.
func (s *Snapshot) Holds() bool { return s.Term != nil && s.Term.Check() == nil }

// Task returns what a person has asked of this member and it has not carried out yet, or nil.
func (s *Snapshot) Task() *core.Task {
	if s.Instructions == nil {
		return nil
	}
	t, ok := s.Instructions.Members[s.Name]
	if !ok || t.Seq <= s.State.Instructed || t.Life != s.State.Incarnation {
		return nil
	}
	return &t
}

// snapshotOf is called by the loop: it is what that knows.
func snapshotOf(a *Agent) *Snapshot {
	phase, why := a.member.Phase()
	process, pid := a.answered.process, 0
	if process != nil {
		pid = process.PID()
	}
	return &Snapshot{At: boottime.Now(), Cluster: a.cfg.Cluster, Name: a.cfg.Name, Phase: phase, Why: why,
		State: a.member.State(), Term: a.term, Line: a.seen.Line, Record: a.seen.Record,
		Instructions: a.seen.Instructions, Server: a.answered.server, PID: pid, Up: a.answered.up,
		Looked: a.answered.began, Reloads: max(a.common.loads, 1) - 1 + a.reloads.Load(),
		Position: a.at, LastLSN: lastLSN(a), MaxLag: a.common.settings.MaxLag,
		Pending: a.common.pending, Overridden: a.common.overridden, Full: a.common.full, Tally: a.tally.Tally,
		Discarded: a.discarded.Load(), StoreSeen: a.storeSeen, TTL: a.cfg.TTL, LoopWait: a.cfg.LoopWait,
		Runs: func() bool {
			p, ok := a.server.Running()
			return ok && p == process
		}, changed: make(chan struct{})}
}

// publish shows a snapshot, and tells who waits for a change.
func (d *display) publish(s *Snapshot) {
	last := d.shown.Load()
	if last != nil && !s.differs(last) {
		s.changed = last.changed
	}
	d.shown.Store(s)
	if last != nil && s.changed != last.changed {
		close(last.changed)
	}
}

func (s *Snapshot) differs(t *Snapshot) bool {
	is, was := s.State, t.State
	is.Last, was.Last = core.Position{}, core.Position{}
	return s.Phase != t.Phase || s.Why != t.Why || s.Term != t.Term || is != was || s.Up != t.Up ||
		s.Pending != t.Pending || s.PID != t.PID || s.Reloads != t.Reloads ||
		seqOf(s.Record) != seqOf(t.Record) || s.Server.Primary != t.Server.Primary ||
		!slices.Equal(s.Overridden, t.Overridden) ||
		s.Server.Running != t.Server.Running || s.Server.Follows != t.Server.Follows ||
		leaderOf(s.Line) != leaderOf(t.Line) || s.Instructions != t.Instructions && askedOf(s) != askedOf(t)
}

func leaderOf(l *core.Line) uint64 {
	if l == nil {
		return 0
	}
	return l.Token
}

func askedOf(s *Snapshot) uint64 {
	if s.Instructions == nil {
		return 0
	}
	return s.Instructions.Seq
}

// Details returns what the server last told for people and tools, or nil. It is asked for only
// where [Config.Details] says so.
func (d *display) Details() *server.Details { return d.details.Load() }

// Reload has the server read its configuration again.
func (d *display) Reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	err := d.server.Reload(ctx)
	if err == nil {
		d.reloads.Add(1)
	}
	return err
}

// ask asks the server again and again for what only people and tools want to know.
func (d *display) ask(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, d.loopWait) {
		if _, ok := d.server.Running(); !ok {
			d.details.Store(nil)
			continue
		}
		began := boottime.Now()
		askCtx, cancel := context.WithTimeout(ctx, lookLimit)
		all, err := server.DetailsOf(askCtx, d.server)
		cancel()
		if err != nil {
			d.details.Store(nil)
			continue
		}
		all.At = began
		d.details.Store(&all)
	}
}
