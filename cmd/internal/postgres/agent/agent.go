package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Prefix begins the names of elections of PostgreSQL clusters.
const Prefix = "postgres/"

// askedLimit is how long a term that somebody asked to hand over to one member waits for that
// member. Then any other will do: the term was asked to end.
const askedLimit = 30 * time.Second

// Config is one member.
type Config struct {
	Cluster    string
	Name       string
	Server     server.Config
	Clone      clone.Config
	Shared     *config.Config  // of the cluster
	First      config.Document // what a new cluster begins with
	Priority   int
	NoFailover bool
	NoSync     bool
	TTL        time.Duration // of the lease
	LoopWait   time.Duration // longest time between two looks at the server when nothing happens
	Log        *slog.Logger
	// LastAction is what the guardian does when this process is killed: it gives the lease back, so
	// that nobody waits for it to run out. The token is that of the term, 0 while the claim waits.
	// Nil: nothing.
	LastAction func(lease string, token primacy.Token) *supervise.LastAction
	// TakeOver is asked before this member begins where there is no record, and before anything is
	// touched: another manager may keep the cluster. It gets what a person has said of the data,
	// and what they are. Its error ends [Agent.Run]. Nil: nothing is asked.
	TakeOver func(ctx context.Context, as core.Adoption, systemID string, at core.Timeline) error
	// Details has the server asked for what tools show; see [Agent.Details].
	Details bool
}

// Agent is one member at work.
type Agent struct {
	*display
	cfg      Config
	session  *primacy.Session
	election *primacy.Election
	record   *record.Record
	server   *server.Server
	runner   *runner
	ssn      *ssn
	claim    *claim
	disk     *clone.Dir
	dir      string // beside the data directory: what the agent itself keeps

	events    chan func()
	standing  atomic.Bool   // the member is to campaign
	givenUp   chan struct{} // a value for each term that was
	silent    atomic.Int32  // how many looks in a row the server has not answered
	unflushed atomic.Int32  // how many flushes of its WAL in a row did not end in time
	looks     atomic.Uint64
	reads     atomic.Uint64 // of the record
	waits     waits
	discarded discarded
	notes     notes
	states    states
	directory *directory
	shared    *shared

	// What follows belongs to the goroutine of Run.
	member  *core.Member
	seen    core.Observation // but for Now, Own, Done, Settings and LastLSN
	common  inForce
	heard   map[string]Said // what each member said last, also who stands no more
	term    *primacy.Term
	lease   string // of this member's claim, as the last state of the election has it
	left    left
	asked   *asked             // to end the term; nil: nobody has
	cancel  context.CancelFunc // ends the order under way
	copied  core.Identity      // whose data that order copies
	clones  bool               // it copies all of them
	done    []core.Done
	looked  uint64   // the number of the look that is in seen
	former  []string // names that a walsender may have loaded
	reading bool
	// The last read of the record that is in seen.
	readNumber uint64
	readBefore uint64        // how many had begun when it came
	readsWon   uint64        // how many had begun when the term was won
	stale      bool          // the record may have changed since the read under way began
	at         core.Position // where the server's WAL ends
	last       core.Position // where the primary's WAL ended, as it was heard last
	answered   seenServer    // the last look at the server that runs now which got an answer
	tally      tally
	gap        gap
	storeSeen  time.Duration // when the store last answered
}

// New returns a member. It takes the lock of its data directory: nobody else may work in it.
func New(cfg Config, session *primacy.Session, store record.Store, supervisor *supervise.Supervisor) (*Agent, error) {
	name := Prefix + cfg.Cluster
	a := &Agent{cfg: cfg, session: session, election: session.Election(name), record: record.New(store, name),
		dir: cfg.Server.Data + ".primacy", events: make(chan func(), 64), givenUp: make(chan struct{}, 1),
		heard:  map[string]Said{},
		runner: &runner{supervisor: supervisor, ttl: cfg.TTL}}
	a.notes.dir, a.notes.answered = a.dir, make(chan struct{}, 1)
	a.states.dir = a.dir
	var err error
	if a.server, err = server.New(cfg.Server, a.runner); err != nil {
		return nil, err
	}
	a.ssn = &ssn{server: a.server}
	a.display = &display{server: a.server, loopWait: cfg.LoopWait}
	if a.disk, err = clone.Open(cfg.Clone); err != nil {
		return nil, err
	}
	a.directory = newDirectory(a.disk)
	if _, err := a.disk.Look(); err != nil {
		return nil, errors.Join(err, a.disk.Close())
	}
	state, last, err := readState(a.dir)
	if err != nil {
		return nil, errors.Join(err, a.disk.Close())
	}
	if err := foreign(a, state); err != nil {
		return nil, errors.Join(err, a.disk.Close())
	}
	a.member = core.NewMember(core.Config{Name: cfg.Name, TTL: cfg.TTL, Priority: cfg.Priority,
		NoFailover: cfg.NoFailover, Incarnation: incarnation}, state)
	a.last = last
	a.shared = &shared{config: cfg.Shared, first: cfg.First, path: configPath(a.dir), server: a.server,
		disks: func() []string { return server.Full(cfg.Server.Data) }, log: cfg.Log}
	a.claim = &claim{election: a.election, log: cfg.Log, ttl: cfg.TTL}
	a.claim.say(func(s *Said) {
		s.Address, s.NoSync = cfg.Server.Listen, cfg.NoSync
		s.Priority, s.NoFailover = cfg.Priority, cfg.NoFailover
	})
	return a, nil
}

func incarnation() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// Run works until ctx ends. Then it hands over if it leads, stops the server, and returns nil, or
// the error of writing down how far the WAL has been.
func (a *Agent) Run(ctx context.Context) error {
	defer a.disk.Close()
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	a.discarded.count(a.dir)
	if err := a.finishInitdb(ctx); err != nil {
		return err
	}
	if err := beginAdoption(ctx, a); err != nil {
		return err
	}
	if err := a.shared.begin(ctx, knows(a.member.State())); err != nil {
		return err
	}
	a.shared.look(ctx, nil) // before the server starts
	a.common = a.shared.now
	a.sawServer(a.ask(work)) // before the loop runs
	a.publish(snapshotOf(a))
	if a.cfg.Details {
		go a.display.ask(work)
	}
	for _, f := range []func(context.Context){
		a.followLine, a.followInstructions, a.stand, a.lookAgain, a.keepSlots,
		func(ctx context.Context) { a.shared.follow(ctx, a) },
	} {
		go f(work)
	}
	go a.notes.keep(work, func(ctx context.Context) position {
		p := make(chan position, 1)
		a.send(ctx, func() { p <- reached(a) })
		select {
		case p := <-p:
			return p
		case <-ctx.Done():
			return position{}
		}
	}, a.cfg.Log)
	a.read(work)
	timer := time.NewTimer(time.Hour)
	ending := ctx.Done()
	for {
		a.step(work)
		if a.term == nil && a.member.Ended(a.seen) {
			return a.notes.write(reached(a))
		}
		wait := time.Hour
		if at := a.member.Wake(); at > 0 {
			wait = max(0, at-boottime.Now())
		}
		timer.Reset(wait)
		select {
		case f := <-a.events:
			f()
			for more := true; more; {
				select {
				case f := <-a.events:
					f()
				default:
					more = false
				}
			}
		case <-timer.C:
		case <-ending:
			ending = nil
			a.member.End()
			giveUpClone(a)
		}
	}
}

// finishInitdb is for an agent that died between the first record and the end of its initdb:
// without it the data of the cluster's first primary would count as unfinished.
func (a *Agent) finishInitdb(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.TTL)
	defer cancel()
	rec, _, err := recordOf(ctx, a)
	if err != nil || rec == nil {
		return err
	}
	return a.disk.Finish(rec.SystemID)
}

// send has the loop run f.
func (a *Agent) send(ctx context.Context, f func()) {
	select {
	case a.events <- f:
	case <-ctx.Done():
	}
}

// step tells the member what is known and starts what it orders.
func (a *Agent) step(ctx context.Context) {
	o := a.seen
	o.Now = boottime.Now()
	o.LastLSN = lastLSN(a)
	o = a.common.decided(o)
	a.leaveBehind()
	o.Own = a.own()
	o.Request = a.request()
	o.Done, a.done = a.done, nil
	order := a.member.Step(o)
	a.report()
	defer func() { a.publish(snapshotOf(a)) }() // once a term that is over was given up
	a.standing.Store(a.member.Stands(o))
	defer a.giveUp(ctx, a.member.Late(o)) // last: what the order needs of the term is taken before
	lookForPrimary(a, order)
	if order == nil {
		return
	}
	if a.cancel != nil {
		a.cancel() // a stop supersedes what is under way; all else has ended
	}
	orderCtx, cancel := context.WithCancel(ctx)
	begins(a, order.Do, cancel, o.Record)
	do := a.action(ctx, order, o)
	go func() {
		began := boottime.Now()
		d := do(orderCtx)
		d.ID = order.ID
		a.cfg.Log.Debug("done", "order", describe(order.Do), "took", boottime.Now()-began, "err", d.Err)
		if !touches(order.Do) {
			a.send(ctx, func() { ended(a, order, d) })
			return
		}
		seen := a.ask(orderCtx)
		a.send(ctx, func() {
			ended(a, order, d)
			a.sawServer(seen)
		})
	}()
}

// begins notes what may be given up of an order before it has ended.
func begins(a *Agent, do core.Action, cancel context.CancelFunc, rec *core.Record) {
	a.cancel, a.copied = cancel, core.Identity{}
	if _, a.clones = do.(core.Clone); copies(do) {
		a.copied = rec.Primary
	}
}

// giveUpClone ends a copy of the primary's data that is under way: it may take hours, and the
// member is to end now. What it leaves is copied anew at the next start. A rewind goes on to its
// end: data that it has changed in part would have to be copied.
func giveUpClone(a *Agent) {
	if a.clones {
		a.cancel()
	}
}

// ended takes the result of an order.
func ended(a *Agent, order *core.Order, d core.Done) {
	a.done = append(a.done, d)
	a.tally.note(order.Do, d)
	if _, ok := order.Do.(core.Promote); ok && d.Err == nil {
		a.tally.promoted(a.gap.ended(boottime.Now(), a.cfg.TTL))
	}
}

// copies says whether an order makes the data directory like that of the record's primary.
func copies(do core.Action) bool {
	switch do.(type) {
	case core.Clone, core.Rewind:
		return true
	}
	return false
}

// touches says whether an order changes what the member decides by of a look at the server. After
// any other no look is needed, and each takes some milliseconds of a failover.
func touches(do core.Action) bool {
	switch do.(type) {
	case core.Start, core.Stop, core.Promote, core.Initdb, core.Clone, core.Rewind, core.Reinit:
		return true
	}
	return false
}

// own returns the member's own term while it may act under it. A term that somebody asked to end
// is one still: the server is shut down under it.
func (a *Agent) own() *core.Term {
	if a.term == nil || a.term.Check() != nil {
		return nil
	}
	if cause := context.Cause(a.term.Context()); cause != nil && a.asked == nil {
		var end *primacy.EndedError
		if !errors.As(cause, &end) || end.By == "" {
			return nil
		}
		a.asked = &asked{end.To, boottime.Now()}
	}
	return &core.Term{Token: uint64(a.term.Token()), Remaining: a.term.Remaining()}
}

// asked is that somebody asked to end the term.
type asked struct {
	to string // for that member; may be empty
	at time.Duration
}

// request is what was asked, for core. One that cannot be met is tried again each second, and at
// last for any other member.
func (a *Agent) request() *core.Request {
	if a.asked == nil {
		return nil
	}
	waited, to := boottime.Now()-a.asked.at, a.asked.to
	if waited > askedLimit {
		to = ""
	}
	return &core.Request{ID: uint64(waited/time.Second) + 1, Switchover: true, To: to}
}

// giveUp releases a term that is over, or that the member cannot use, once nothing acts under it.
func (a *Agent) giveUp(ctx context.Context, useless bool) {
	if a.term == nil || a.own() != nil && !useless || a.member.MustKeepTerm() {
		return
	}
	term := a.term
	a.term, a.asked = nil, nil
	go func() {
		ctx, cancel := context.WithTimeout(ctx, term.TTL())
		defer cancel()
		if err := term.Resign(ctx); err != nil {
			a.cfg.Log.Warn("the term was not given up", "token", term.Token(), "err", err)
		}
		a.givenUp <- struct{}{}
	}()
}

// report tells people and the other members what has changed.
func (a *Agent) report() {
	phase, why := a.member.Phase()
	state := a.member.State()
	a.claim.report(func(s *Said) {
		s.Leaving = core.Leaving(a.seen, state, a.cfg.Name)
		s.NoSync = a.cfg.NoSync || s.Leaving
		s.Phase, s.Why, s.Life, s.Instructed = phase, why, state.Incarnation, state.Instructed
		c := a.common
		s.Config, s.Refused, s.Pending, s.Held = c.version, c.refused, c.pending, c.held
		s.Overridden, s.Full = told(c.overridden), strings.Join(c.full, ", ")
		s.Seq, s.Timeline, s.LSN = seqOf(a.seen.Record), a.at.Timeline, a.at.LSN
		s.Heard, s.HeardOn = a.last.LSN, a.last.Timeline
	})
}

func seqOf(r *core.Record) uint64 {
	if r == nil {
		return 0
	}
	return r.Seq
}

func describe(do core.Action) string {
	name := core.NameOf(do)
	switch do := do.(type) {
	case core.Follow:
		return name + " " + do.Primary.Name
	case core.SetSync:
		return name + " " + do.Sync.String()
	case core.Transfer:
		return name + " " + do.To
	case core.Promote:
		return fmt.Sprintf("%s to timeline %d", name, do.Timeline)
	}
	return name
}

var errUnknownMember = errors.New("the primary has told no address: does its agent run?")
