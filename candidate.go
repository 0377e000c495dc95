package primacy

import (
	"bytes"
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// Candidate is the endless loop around an election: follower → candidate → leader → follower. It
// campaigns, runs the work while it leads, stops the work when the term ends, waits for the work,
// gives the claim up, and campaigns again.
type Candidate struct {
	e *Election
	o CampaignOptions

	mu        sync.Mutex
	running   context.Context // Run's; nil while it does not run
	returned  chan struct{}   // closed when Run returns
	core      core.Candidate
	dropValue func() // ends Run's use of the announcements, which keeps them between its campaigns
	term      *Term
	own       *Entry        // this candidate as the leader of its last term; nil before the first
	won       time.Duration // when that term began, by uptime
	lastCause error         // why the last term ended
	subs      map[*candidateFeed]struct{}
}

// Run stands for election until the work returns by itself or ctx ends, and runs work on this
// goroutine while leading. Work gets the term's context. When that ends, work has until
// [Term.Deadline] to return; Options.Overrun says what happens to work that has not. Run gives the
// claim up only after work has returned.
//
// Work that returns while its term lives has finished: Run resigns and returns its error. Work that
// returns because the term was lost runs again in the next term that this candidate wins; the error
// it returned is only logged. A term that work itself has resigned is lost too: to end Run, return
// and leave that to Run. If ctx ends while work runs, Run returns what work returned. If ctx
// ends at another time, Run returns its cause. ErrRefused and ErrInvalid end the loop; with a
// Priority, a store that cannot hand over is an ErrInvalid. A candidate runs once at a time.
func (c *Candidate) Run(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	return c.run(ctx, work, false)
}

// RunOnce is [Candidate.Run] for one term: if that is lost, it returns the *EndedError.
func (c *Candidate) RunOnce(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	return c.run(ctx, work, true)
}

func (c *Candidate) run(ctx context.Context, work func(context.Context, *Term) error, once bool) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.end()
	// The loop is core.RunCandidate: step, wait, win, step, lead, step, and so on. It returns the
	// error of the wait or the win that failed, or of the lead that says not to go on.
	var term *Term  // that win has won last, for step
	var cause error // why the last term ended, for step: lead sets it
	step := func(e core.CandidateEvent) core.CandidateOrder {
		switch e {
		case core.Won:
			return c.step(e, term, nil)
		case core.TermLost, core.Finished:
			return c.step(e, nil, cause)
		}
		return c.step(e, nil, nil)
	}
	wait := func(tries int) error {
		if pause(ctx, tries) != nil {
			return ctxEnded(ctx, "campaign for "+c.e.name, nil)
		}
		return nil
	}
	win := func() (_ *Term, err error) {
		term, err = c.e.Campaign(ctx, &c.o)
		return term, err
	}
	lead := func(t *Term) (lost, again bool, err error) {
		cause, err = c.lead(ctx, t, work)
		switch {
		case cause == nil: // it was not lost
			cause = t.contextError() // for the event of core.Finished
			return false, false, err
		case once:
			return true, false, cause
		}
		c.e.s.log.log(slog.LevelInfo, "campaigning again", "election", c.e.name, "lost", cause, "work", err)
		return true, true, nil
	}
	return core.RunCandidate(step, wait, win, lead)
}

func (c *Candidate) begin(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		return invalid("this candidate for %s runs already; make another one", c.e.name)
	}
	c.running, c.returned = ctx, make(chan struct{})
	_, c.dropValue = c.e.s.announced.use(c.e.name) // what is restated in one term stands in the next
	return nil
}

// end marks that the candidate does not run. Its state is still leader if the work panicked, and
// candidate if the store's client did.
func (c *Candidate) end() {
	switch state, t := c.State(); state {
	case StateLeader:
		c.step(core.Finished, nil, t.contextError())
	case StateCandidate:
		c.step(core.NotWon, nil, nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
	c.dropValue()
	close(c.returned)
}

// lead runs the work in the term and gives the claim up. It returns why the term was lost, nil if
// the work finished or the caller gave up, and what work returned.
func (c *Candidate) lead(ctx context.Context, t *Term, work func(context.Context, *Term) error) (lost, err error) {
	// If the work does not stop, or the store does not answer the release, the readers of Events
	// learn all the same that it leads no more.
	defer context.AfterFunc(t.contexts().right, func() { c.tell(LeaderChanged) })()
	t.run(ctx, work, func(notBegun, failed error, returned bool) {
		lost, err = t.contextError(), failed
		switch {
		case ctx.Err() != nil: // the caller gave up
			lost = nil
			if notBegun != nil {
				err = context.Cause(ctx)
			}
		case lost == nil && notBegun != nil: // the right ended before the work began: the process was paused
			lost = notBegun
		case lost == nil:
			t.explain(err, returned)
		}
	})
	return lost, err
}

// CandidateState is where a candidate stands.
type CandidateState int

const (
	// StateFollower: it does not stand in the line. So it is before Run and after it, and between
	// the end of a term and the next campaign.
	StateFollower = CandidateState(core.Follower)
	// StateCandidate: it stands in the line and waits, however long another leads. This is what
	// other systems call a standby, and Raft a follower.
	StateCandidate = CandidateState(core.Standing)
	// StateLeader: it won a term. It stays so until the work of that term has returned, and the
	// name is given up or the store has not answered in time. Whether it may still act is what
	// [Term.Check] says.
	StateLeader = CandidateState(core.Leader)
)

// String returns the state as one word.
func (s CandidateState) String() string { return [...]string{"follower", "candidate", "leader"}[s] }

// State returns where the candidate stands, and its term while it leads. What counts is
// [Term.Check].
func (c *Candidate) State() (CandidateState, *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CandidateState(c.core.State()), c.term
}

// CandidateEventKind is what a [CandidateEvent] tells.
type CandidateEventKind int

const (
	// CandidateNow is how things are: the first event of each reader.
	CandidateNow CandidateEventKind = iota + 1
	// CandidateStands: it campaigns.
	CandidateStands
	// CandidateElected: it leads. Leader is this candidate itself, unless its right is over
	// already.
	CandidateElected
	// CandidateEnded: its term is over, for Cause. Its work has returned, and the name is given up,
	// or the store has not answered yet. LeaderChanged may have told before that it leads no more.
	CandidateEnded
	// CandidateGaveUp: it stands no more and has won nothing. Run is about to return.
	CandidateGaveUp
	// LeaderChanged: only the leader has changed, or the value that he announces. If something else
	// changes at the same time, that event brings the new Leader.
	LeaderChanged
)

var candidateEventKinds = [...]string{CandidateNow: "now", CandidateStands: "stands", CandidateElected: "elected",
	CandidateEnded: "ended", CandidateGaveUp: "gave_up", LeaderChanged: "leader_changed"}

// String returns the kind as one word that does not change.
func (k CandidateEventKind) String() string {
	if k <= 0 || int(k) >= len(candidateEventKinds) {
		return "unknown"
	}
	return candidateEventKinds[k]
}

// CandidateEvent is a change in a candidate's life, or of the leader it follows. Whatever its kind,
// its fields say how things are after it.
type CandidateEvent struct {
	Kind  CandidateEventKind
	State CandidateState
	Term  *Term // while it leads
	Cause error // why the last term ended; nil before the first has
	// Leader is who leads, as far as this candidate knows: nil if nobody does, or none is known.
	// While the Check of this candidate's term says yes, Leader is this candidate. After that
	// Leader is nil until the store shows a later leader. Other leaders are known from the store:
	// one that crashed is shown until its lease runs out. On a store without tokens a later leader
	// of the same session is not told from this candidate: Leader is nil.
	Leader *Entry
	Missed int // older events that a slow reader lost before this one
}

// Events yields the present state and then each change. A slow reader loses the oldest events,
// which Missed counts, and never blocks the candidate. Each call uses a goroutine, which follows
// the leader.
//
// It ends with ctx. To get the last event, CandidateEnded or CandidateGaveUp, pass Run's own ctx:
// then Events goes on until Run has returned. If ctx is the context of the present term, or made
// from it, Events does not wait for Run: work may wait for its own reader to end, and Run waits for
// the work.
func (c *Candidate) Events(ctx context.Context) iter.Seq[CandidateEvent] {
	return func(yield func(CandidateEvent) bool) {
		following, cancel := context.WithCancel(ctx)
		f := &candidateFeed{feed: newFeed[CandidateEvent](candidateFeedSize)}
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		c.mu.Lock()
		c.subs[f] = struct{}{}
		c.tellLocked(f, CandidateNow)
		c.mu.Unlock()
		defer c.unsubscribe(f)
		// over is closed when no more events will come: ctx has ended, and the reader need not wait
		// for Run. Then f.next yields what is left, and after that returns false. gone is closed
		// when the caller ranges no more, so that the goroutine ends though Run goes on.
		over, gone := make(chan struct{}), make(chan struct{})
		defer close(gone)
		wg.Go(func() {
			defer close(over)
			c.follow(following, f)
			<-following.Done()
			select {
			case <-c.settled(ctx):
			case <-gone: // the caller ranges no more
			}
		})
		for {
			ev, missed, ok := f.next(context.Background(), over)
			if ev.Missed = missed; !ok || !yield(ev) {
				return
			}
		}
	}
}

// follow tells a reader of each change of the leader, until ctx ends.
func (c *Candidate) follow(ctx context.Context, f *candidateFeed) {
	for st, err := range c.e.observe(ctx, sameLeaders, c.reportDuplicates, c.o.ObeyPauses) {
		if err == nil {
			c.mu.Lock()
			f.seen = st.Leader
			c.tellLocked(f, LeaderChanged)
			c.mu.Unlock()
		}
	}
}

// reportDuplicates reports other processes that wait under this one's ID while this candidate
// leads. It looks only at what a reader of Events has fetched anyway. If nobody reads Events, only
// the process that waits reports this one.
func (c *Candidate) reportDuplicates(st State) {
	c.mu.Lock()
	t, age := c.term, c.e.s.uptime()-c.won
	c.mu.Unlock()
	if !c.e.s.givenID || t == nil || t.Check() != nil || age < duplicateAge(t.l) {
		return
	}
	for _, w := range st.Waiting {
		c.e.s.reportDuplicate(c.e.name, false, driver.Entry{Owner: w.ID, Lease: w.Lease, Value: w.Value})
	}
}

// settled returns a channel that is closed when a reader whose ctx has ended may stop. If Run's ctx
// has ended too, that is when Run returns, so that the reader gets the last event; otherwise it is
// at once. It is at once too for a reader under the context of the present term: the work may wait
// for that reader, and Run waits for the work.
func (c *Candidate) settled(ctx context.Context) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil && c.running.Err() != nil && (c.term == nil || !worksUnder(ctx, c.term)) {
		return c.returned
	}
	now := make(chan struct{})
	close(now)
	return now
}

func (c *Candidate) unsubscribe(f *candidateFeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, f)
}

// tell sends an event to all readers.
func (c *Candidate) tell(k CandidateEventKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.subs {
		c.tellLocked(f, k)
	}
}

// tellLocked sends an event to one reader: LeaderChanged only if it was told another leader last.
func (c *Candidate) tellLocked(f *candidateFeed, k CandidateEventKind) {
	leader := c.leaderLocked(f)
	if k == LeaderChanged && sameLeader(leader, f.told) {
		return
	}
	f.told = leader
	state := CandidateState(c.core.State())
	f.push(CandidateEvent{Kind: k, State: state, Term: c.term, Cause: c.lastCause, Leader: leader})
}

// leaderLocked returns who leads, for one reader. What the store has shown him last may be older
// than the win, or than the end, of the candidate's own term: a client that sends requests where
// Leader points would send them to a dead term.
func (c *Candidate) leaderLocked(f *candidateFeed) *Entry {
	leads := c.term != nil && c.term.Check() == nil
	switch {
	case c.own == nil: // it has never led
		return f.seen
	case leads && c.isOwnLocked(f.seen): // f.seen has the present value, c.own that of the win
		return f.seen
	case leads: // the store has not shown the win yet; or its claim was removed, and its right ends in a moment
		return c.own
	case f.seen == nil, c.isOwnLocked(f.seen): // nobody is known to lead since
		return nil
	case f.seen.Token < c.own.Token: // an earlier leader. On a store without tokens electedLocked has removed it
		return nil
	}
	return f.seen
}

// isOwnLocked says whether an entry is this candidate in its last term.
func (c *Candidate) isOwnLocked(e *Entry) bool {
	return e != nil && e.Lease == c.own.Lease && e.Token == c.own.Token
}

// electedLocked notes that the candidate has won. It forgets the leader that the store has shown
// before: he leads no more, and on a store without tokens leaderLocked could not tell.
func (c *Candidate) electedLocked(t *Term) {
	t.c.mu.Lock()
	value := announcedLocked(t.c)
	t.c.mu.Unlock()
	c.own = &Entry{ID: c.e.s.o.ID, Token: t.token, Held: true, Value: value, Lease: t.Lease()}
	c.won = c.e.s.uptime()
	for f := range c.subs {
		if f.seen != nil && f.seen.Token <= c.own.Token && !c.isOwnLocked(f.seen) {
			f.seen = nil
		}
	}
}

var eventOfStep = [...]CandidateEventKind{core.Begin: CandidateStands, core.Won: CandidateElected,
	core.NotWon: CandidateGaveUp, core.TermLost: CandidateEnded, core.Finished: CandidateEnded}

// step takes one event and tells the readers of [Candidate.Events].
func (c *Candidate) step(e core.CandidateEvent, t *Term, cause error) core.CandidateOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.core.Step(c.e.s.clock(), e)
	if c.term = t; t != nil {
		c.electedLocked(t)
	}
	if cause != nil {
		c.lastCause = cause
	}
	for f := range c.subs {
		c.tellLocked(f, eventOfStep[e])
	}
	return o
}

const candidateFeedSize = 64

// candidateFeed is one reader of a candidate's events. The candidate's mutex guards its fields.
type candidateFeed struct {
	*feed[CandidateEvent]
	seen *Entry // the leader that the store showed this reader last
	told *Entry // the leader of the last event
}

// LeaderCallbacks are the callbacks of client-go's leader election, for programs that come from
// there: see [Candidate.RunCallbacks].
type LeaderCallbacks struct {
	// OnStartedLeading is called when this process leads. Its context ends when the work has to
	// stop. It must return once all that it has started has stopped, at the latest at the deadline
	// (Options.Overrun), for the next leader may begin then. If it returns earlier, this process
	// goes on leading.
	OnStartedLeading func(ctx context.Context)
	// OnStoppedLeading is called after OnStartedLeading has returned, before the name is given up.
	// Unlike client-go's, it is not called in a process that has never led. May be nil.
	OnStoppedLeading func()
	// OnNewLeader is called with the ID of each new leader, this process among them, and with ""
	// once nobody is known to lead any more: one call at a time, in order. RunCallbacks returns
	// after the last call has. May be nil.
	OnNewLeader func(id string)
}

// RunCallbacks is [Candidate.RunOnce] by callbacks: it stands for election, leads for one term and
// returns, as client-go's LeaderElector.Run does. It returns the *EndedError of a term that was
// lost, nil if ctx ended while this process led, ctx's cause if it ended before. What differs from
// client-go is the promise: here OnStartedLeading has returned before another process leads.
func (c *Candidate) RunCallbacks(ctx context.Context, f LeaderCallbacks) error {
	if f.OnStartedLeading == nil {
		return invalid("candidate for %s: OnStartedLeading is nil", c.e.name)
	}
	if f.OnNewLeader != nil {
		following, cancel := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() {
			var told string
			for ev := range c.Events(following) {
				var id string
				if ev.Leader != nil {
					id = ev.Leader.ID
				}
				if id != told {
					told = id
					f.OnNewLeader(id)
				}
			}
		})
		defer wg.Wait()
		defer cancel()
	}
	return c.RunOnce(ctx, func(ctx context.Context, _ *Term) error {
		if f.OnStoppedLeading != nil {
			defer f.OnStoppedLeading()
		}
		f.OnStartedLeading(ctx)
		<-ctx.Done()
		return nil
	})
}

// Candidate returns a candidate for name; nil options are the zero value.
func (s *Session) Candidate(name string, o *CampaignOptions) *Candidate {
	if o == nil {
		o = &CampaignOptions{}
	}
	c := &Candidate{e: s.Election(name), o: *o, subs: map[*candidateFeed]struct{}{}}
	c.o.Value = bytes.Clone(o.Value) // each campaign of this candidate shows it
	return c
}

// Run stands for name until ctx ends or the work returns, and runs work while leading: see
// [Candidate.Run].
func (s *Session) Run(ctx context.Context, name string, work func(ctx context.Context, t *Term) error) error {
	return s.Candidate(name, nil).Run(ctx, work)
}
