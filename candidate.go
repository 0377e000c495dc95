package primacy

import (
	"context"
	"iter"
	"log/slog"
	"sync"

	"github.com/primacy-go/primacy/internal/core"
)

// Candidate is the endless loop around an election: follower → candidate → leader → follower. It
// campaigns, runs the work while it leads, stops the work when the term ends, waits for the work,
// gives the claim up, and campaigns again.
type Candidate struct {
	e *Election
	o CampaignOptions

	mu      sync.Mutex
	running bool
	core    core.Candidate
	term    *Term
	last    error // why the last term ended
	subs    map[*candidateFeed]struct{}
}

// Run stands for election until the work returns by itself or ctx ends, and runs work on this
// goroutine while leading. Work gets the term's context. When that ends, work has until
// [Term.Deadline] to return; Options.Overrun says what happens to work that has not. Run gives the
// claim up only after work has returned.
//
// Work that returns while its term lives has finished: Run resigns and returns its error. Work that
// returns because the term was lost runs again in the next term that this candidate wins; the error
// it returned is only logged. If ctx ends while work runs, Run returns what work returned. If ctx
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
	if err := c.begin(); err != nil {
		return err
	}
	defer c.end()
	var term *Term
	var cause error // why the last term ended
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
			return unreachableOr(ctx, "campaign for "+c.e.name, nil)
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
			cause = t.contextError()
			return false, false, err
		case once:
			return true, false, cause
		}
		c.e.s.log.log(slog.LevelInfo, "campaigning again", "election", c.e.name, "lost", cause, "work", err)
		return true, true, nil
	}
	// RunCandidate calls wait, win and lead in turn, until one fails or lead says not to go on.
	return core.RunCandidate(step, wait, win, lead)
}

func (c *Candidate) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return invalid("this candidate for %s runs already; make another one", c.e.name)
	}
	c.running = true
	return nil
}

// end marks that the candidate does not run. Its state is still leader if the work panicked.
func (c *Candidate) end() {
	if state, _ := c.State(); state == StateLeader {
		c.step(core.Finished, nil, nil)
	}
	c.mu.Lock()
	c.running = false
	c.mu.Unlock()
}

// lead runs the work in the term and gives the claim up. It returns why the term was lost, nil if
// the work finished or the caller gave up, and what work returned.
func (c *Candidate) lead(ctx context.Context, t *Term, work func(context.Context, *Term) error) (lost, err error) {
	t.run(ctx, work, func(notBegun, failed error, returned bool) {
		lost, err = t.contextError(), failed
		switch {
		case ctx.Err() != nil: // the caller gave up
			lost = nil
			if notBegun != nil {
				err = context.Cause(ctx)
			}
		case lost == nil && notBegun != nil: // the process was paused between winning and working
			lost = notBegun
		case lost == nil:
			t.explain(err, returned)
		}
	})
	return lost, err
}

// CandidateState is where a candidate stands: follower, candidate or leader.
type CandidateState int

const (
	StateFollower  = CandidateState(core.Follower)
	StateCandidate = CandidateState(core.Standing)
	StateLeader    = CandidateState(core.Leader)
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

// CandidateEvent is a change in a candidate's life, or of the leader it follows.
type CandidateEvent struct {
	State  CandidateState
	Term   *Term  // while it leads
	Cause  error  // why the last term ended; nil before the first has
	Leader *Entry // who leads now, as far as known
	Missed int    // older events that a slow reader lost before this one
}

// Events yields the present state and then each change, until ctx ends: the candidate's state, why
// a term ended, another leader. A slow reader loses the oldest events, which Missed counts, and
// never blocks the candidate. Each call uses a goroutine, which follows the leader.
func (c *Candidate) Events(ctx context.Context) iter.Seq[CandidateEvent] {
	return func(yield func(CandidateEvent) bool) {
		ctx, cancel := context.WithCancel(ctx)
		f := &candidateFeed{feed: newFeed[CandidateEvent](candidateFeedSize)}
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		c.mu.Lock()
		c.subs[f] = struct{}{}
		f.push(c.eventLocked())
		c.mu.Unlock()
		defer c.unsubscribe(f)
		wg.Go(func() {
			for st, err := range c.e.Observe(ctx) {
				if err == nil {
					c.mu.Lock()
					f.leader = st.Leader
					f.push(c.eventLocked())
					c.mu.Unlock()
				}
			}
		})
		for {
			ev, missed, ok := f.next(ctx, nil)
			if ev.Missed = missed; !ok || !yield(ev) {
				return
			}
		}
	}
}

func (c *Candidate) unsubscribe(f *candidateFeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, f)
}

func (c *Candidate) eventLocked() CandidateEvent {
	return CandidateEvent{State: CandidateState(c.core.State()), Term: c.term, Cause: c.last}
}

// step takes one event and tells the readers of [Candidate.Events].
func (c *Candidate) step(e core.CandidateEvent, t *Term, cause error) core.CandidateOrder {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.core.Step(c.e.s.clock(), e)
	c.term = t
	if cause != nil {
		c.last = cause
	}
	for f := range c.subs {
		f.push(c.eventLocked())
	}
	return o
}

const candidateFeedSize = 64

// candidateFeed is one reader of a candidate's events.
type candidateFeed struct {
	*feed[CandidateEvent]
	leader *Entry // as Observe told this reader last; guarded by the candidate's mutex
}

func (f *candidateFeed) push(ev CandidateEvent) {
	ev.Leader = f.leader
	f.feed.push(ev)
}

// Candidate returns a candidate for name; nil options are the zero value.
func (s *Session) Candidate(name string, o *CampaignOptions) *Candidate {
	if o == nil {
		o = &CampaignOptions{}
	}
	return &Candidate{e: s.Election(name), o: *o, subs: map[*candidateFeed]struct{}{}}
}

// Run stands for name until ctx ends or the work returns, and runs work while leading: see
// [Candidate.Run].
func (s *Session) Run(ctx context.Context, name string, work func(ctx context.Context, t *Term) error) error {
	return s.Candidate(name, nil).Run(ctx, work)
}
