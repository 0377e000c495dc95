package primacy

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/core"
)

// Candidate is the endless loop around an election: follower → candidate → leader → follower. It stands, runs the work while it leads,
// stops the work when the term ends, waits for it, gives the claim up, and stands again.
type Candidate struct {
	e *Election
	o CandidateOptions

	mu      sync.Mutex
	running bool
	core    core.Candidate
	term    *Term
	last    error // why the last term ended
	subs    map[*feed]struct{}
}

// CandidateOptions of a candidate. The zero value works.
type CandidateOptions struct {
	Value []byte // what observers see; Term.Proclaim replaces it
	Once  bool   // Run returns after one term, with the *EndedError if it was lost
	// Priority lets this candidate take the lead from a leader whose own priority is smaller. Once it has stood in the line for Steady without a
	// break, and has seen the same leader for as long, it asks for a hand-over, and asks again each time Steady has passed. The leader decides: its work
	// stops, and then the name goes to this candidate, before those who came earlier. A leader of the same or a larger priority goes on, and so
	// does one that entered by another program. Not negative; the default, 0, is that of [Election.Campaign] too: it never asks.
	//
	// A priority is the candidate's own and is kept nowhere, so it does not change who follows a leader that crashes: the oldest in the line does, and
	// hands over later. A leader with a priority that was asked by hand to hand over takes the lead back, as soon as it has stood for Steady.
	Priority int
	// Steady is how long that is. Default three times the TTL.
	Steady time.Duration
}

// Candidate returns a candidate for name; nil options are the zero value.
func (s *Session) Candidate(name string, o *CandidateOptions) *Candidate {
	if o == nil {
		o = &CandidateOptions{}
	}
	return &Candidate{e: s.Election(name), o: *o, subs: map[*feed]struct{}{}}
}

// Run stands for election until the work returns by itself or ctx ends, and runs work on this goroutine while leading. Work
// gets the term's context: when that ends, it has until [Term.Deadline] to return, and what happens to work that does not is
// Options.Overrun. Only when it has returned is the claim given up.
//
// Work that returns while its term lives has finished: Run resigns and returns its error. Work that returns because the term was lost is
// run again in the next term this candidate wins, and its error is only logged. When ctx ends during a term Run returns what work
// returned, otherwise the cause of ctx. ErrRefused and ErrInvalid end the loop; with a Priority, a store that cannot hand over is an ErrInvalid. A candidate runs once at a time.
func (c *Candidate) Run(ctx context.Context, work func(ctx context.Context, t *Term) error) error {
	if err := c.begin(); err != nil {
		return err
	}
	defer c.end()
	o := c.step(core.Begin, nil, nil)
	for {
		if err := pause(ctx, o.Tries); err != nil {
			c.step(core.NotWon, nil, nil)
			return unreachableOr(ctx, "campaign for "+c.e.name, nil)
		}
		t, err := c.e.CampaignAs(ctx, c.o)
		if err != nil {
			c.step(core.NotWon, nil, nil)
			return err
		}
		c.step(core.Won, t, nil)
		lost, err := c.lead(ctx, t, work)
		if lost == nil {
			c.step(core.Finished, nil, t.stopping())
			return err
		}
		c.step(core.TermLost, nil, lost)
		if c.o.Once {
			return lost
		}
		c.e.s.log.log(slog.LevelInfo, "standing again", "election", c.e.name, "lost", lost, "work", err)
		o = c.step(core.Begin, nil, nil)
	}
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

// end leaves no leader behind, also when the work panicked.
func (c *Candidate) end() {
	if state, _ := c.State(); state == StateLeader {
		c.step(core.Finished, nil, nil)
	}
	c.mu.Lock()
	c.running = false
	c.mu.Unlock()
}

// lead runs the work in the term and gives the claim up. It returns why the term was lost, nil if it was not.
func (c *Candidate) lead(ctx context.Context, t *Term, work func(context.Context, *Term) error) (lost, err error) {
	unhook := context.AfterFunc(ctx, func() { t.stop(context.Cause(ctx)) })
	defer unhook()
	over := t.c.beginWork(t)
	defer func() { // also when the work panics: it has stopped, so the next one may lead
		if over == nil {
			t.c.endWork(t)
		}
		if lost = t.stopping(); lost == nil {
			lost = over // it was paused between winning and working
		}
		if ctx.Err() != nil {
			lost = nil // given up by the caller
		}
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*t.l.timing.Attempt)
		defer cancel()
		_ = t.Resign(limit) // unconfirmed: it goes on in the background until the lease runs out
	}()
	if over != nil {
		return nil, context.Cause(ctx)
	}
	return nil, work(t.Context(), t)
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

// State returns where the candidate stands, and its term while it leads. What counts is [Term.Check].
func (c *Candidate) State() (CandidateState, *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CandidateState(c.core.State()), c.term
}

// Event is a change in a candidate's life, or of the leader it follows.
type Event struct {
	State  CandidateState
	Term   *Term     // while it leads
	Cause  error     // why the last term ended; nil before the first has
	Leader *Standing // who leads now, as far as known
	Missed int       // older events that a slow reader lost before this one
}

// Events yields the present state and then each change: elected, leader changed, deposed with the cause. A reader that is slow loses
// the oldest events, counted in Missed, and never blocks the candidate. It ends with ctx. It uses one goroutine of its own, to
// follow the leader.
func (c *Candidate) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		ctx, cancel := context.WithCancel(ctx)
		f := &feed{ready: make(chan struct{}, 1)}
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
			ev, ok := f.next(ctx)
			if !ok || !yield(ev) {
				return
			}
		}
	}
}

func (c *Candidate) unsubscribe(f *feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, f)
}

func (c *Candidate) eventLocked() Event {
	return Event{State: CandidateState(c.core.State()), Term: c.term, Cause: c.last}
}

// step takes one event and tells whoever listens.
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

// feed is a bounded queue of events for one reader.
type feed struct {
	leader *Standing // as this reader's Observe has it; guarded by the candidate's mutex
	mu     sync.Mutex
	queue  []Event
	missed int
	ready  chan struct{}
}

const feedSize = 64

func (f *feed) push(ev Event) {
	ev.Leader = f.leader
	f.mu.Lock()
	if len(f.queue) == feedSize {
		f.queue = f.queue[1:]
		f.missed++
	}
	f.queue = append(f.queue, ev)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (f *feed) next(ctx context.Context) (Event, bool) {
	for {
		f.mu.Lock()
		if len(f.queue) > 0 {
			ev := f.queue[0]
			ev.Missed, f.missed = f.missed, 0
			f.queue = f.queue[1:]
			f.mu.Unlock()
			return ev, true
		}
		f.mu.Unlock()
		select {
		case <-f.ready:
		case <-ctx.Done():
			return Event{}, false
		}
	}
}
