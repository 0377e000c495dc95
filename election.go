package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
)

// Election is a name that at most one candidate holds at a time. It is safe for concurrent use, and
// keeps nothing: what is won is a [Term].
type Election struct {
	s    *Session
	name string
}

// Name returns the election's name.
func (e *Election) Name() string { return e.name }

// CampaignOptions of a campaign, or of each campaign of a [Candidate]. The zero value works.
type CampaignOptions struct {
	Value []byte // what observers see; Term.Proclaim replaces it
	// Priority lets this candidate take the lead from a leader whose own priority is smaller. Once
	// it has stood in the line for Steady without a break, and has seen the same leader for as
	// long, it asks for a hand-over, and asks again each time Steady has passed. The leader
	// decides: its work stops, and then the name goes to this candidate, before those who came
	// earlier. A leader of the same or a larger priority goes on, and so does one that entered by
	// another program. It is not negative. With 0, the default, the candidate never asks.
	//
	// A priority is the candidate's own and is kept nowhere, so it does not change who follows a
	// leader that crashes: the oldest in the line does, and hands over later. A leader with a
	// priority that was asked by hand to hand over takes the lead back, as soon as it has stood for
	// Steady.
	Priority int
	// Steady is how long that is. Default three times the TTL.
	Steady time.Duration
}

// Campaign stands in the line for the name and returns when this process leads; nil options are the
// zero value. When ctx ends before that, Campaign returns its cause at once; the place in the line
// is given up in the background. A claim that is lost while it waits, with its lease or without, is
// entered again, at the end of the line. Campaigns of one process for one name wait for each other.
// A store that does not answer is asked until ctx ends; ErrRefused is returned at once.
//
// The answer may be old by the time it arrives: ask [Term.Check] before each act. The caller
// resigns the term once its work has stopped; for the loop around that see [Candidate].
func (e *Election) Campaign(ctx context.Context, opts *CampaignOptions) (*Term, error) {
	var o CampaignOptions
	if opts != nil {
		o = *opts
	}
	if err := errors.Join(CheckName(e.name), checkValue(o.Value)); err != nil {
		return nil, err
	}
	if err := e.s.checkReentry(ctx, e.name, 0); err != nil {
		return nil, err
	}
	if o.Priority < 0 || o.Steady < 0 {
		return nil, invalid("campaign for %s: priority %d and steady %v must not be negative", e.name, o.Priority, o.Steady)
	}
	began := e.s.uptime()
	spec := claimSpec{value: o.Value, priority: o.Priority, began: began,
		watched: e.s.watchElections}
	if o.Priority > 0 {
		if err := e.canPress(ctx); err != nil {
			return nil, err
		}
		spec.press = e.presser(o.Priority, cmp.Or(o.Steady, 3*e.s.o.TTL))
	}
	e.s.readers.event(Event{Kind: CampaignBegun, Name: e.name})
	t, err := e.s.campaign(ctx, seat{name: e.name}, spec)
	if err != nil {
		e.s.notWon(e.name, began, err)
	}
	return t, err
}

// Entry is one candidate in a line.
type Entry struct {
	ID    string // of its session; empty for a claim that another program entered
	Token Token
	Slots int  // of a lock: 0 exclusive, n a semaphore's, Unlimited a reader's
	Held  bool // it leads, or holds the lock, beside others where they share it
	Value []byte
	Lease string // the store's name for its lease
	Note  string // what is unusual about it, in words
}

// State is an election as the store showed it.
type State struct {
	Name     string
	Leader   *Entry // nil: nobody leads
	Waiting  []Entry
	Revision uint64
	AsOf     time.Time // when the store's answer came
}

// Leader returns who leads, as the store has it at some instant during the call; ErrNoLeader if
// nobody does. It needs no lease. It asks until the store answers or ctx ends (ErrUnreachable).
func (e *Election) Leader(ctx context.Context) (Entry, error) {
	st, err := e.State(ctx)
	if err != nil {
		return Entry{}, err
	}
	if st.Leader == nil {
		return Entry{}, ErrNoLeader
	}
	return *st.Leader, nil
}

// State returns the whole line, with the same rules as [Election.Leader].
func (e *Election) State(ctx context.Context) (State, error) {
	if err := CheckName(e.name); err != nil {
		return State{}, err
	}
	var st State
	err := e.s.retry(ctx, "read "+e.name, func(ctx context.Context) error {
		line, err := e.s.store.Line(ctx, e.name)
		st = stateOf(line)
		return err
	})
	return st, err
}

// freshness is how long Observe waits for a push before it reads the line: a push may be lost.
const freshness = 15 * time.Second

// Observe follows who leads: first the present state, then each change of the leader or of its
// value, until ctx ends or the caller stops. A slow caller misses what is over, never the latest.
// While the store does not answer it yields the last known state once with an error, and goes on;
// after ErrRefused or ErrInvalid it ends. It runs on the caller's goroutine.
func (e *Election) Observe(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		if err := CheckName(e.name); err != nil {
			yield(State{Name: e.name}, err)
			return
		}
		last, known, down := State{Name: e.name}, false, false
		for try := 1; ctx.Err() == nil; {
			st, err := e.next(ctx, last.Revision)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if !isRefusal(err) {
					err = fmt.Errorf("primacy: observe %s: %w: %w", e.name, ErrUnreachable, err)
				}
				if (!down || isRefusal(err)) && !yield(last, err) || isRefusal(err) {
					return
				}
				down = true
				if pause(ctx, try) != nil {
					return
				}
				try++
				continue
			}
			if known && st.Revision < last.Revision {
				continue // a read that came from the past, on a store that is not linearizable
			}
			changed := !known || down || !sameLeader(st.Leader, last.Leader)
			last, known, down, try = st, true, false, 1
			if changed && !yield(st, nil) {
				return
			}
		}
	}
}

// next waits for a line newer than after. If none comes within freshness it reads the line, which
// also shows whether the store answers.
func (e *Election) next(ctx context.Context, after uint64) (State, error) {
	waitCtx, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	line, err := e.s.store.Next(waitCtx, e.name, after)
	if err == nil {
		return stateOf(line), nil
	}
	if waitCtx.Err() == nil || ctx.Err() != nil {
		return State{}, err
	}
	readCtx, cancel := context.WithTimeout(ctx, freshness/3)
	defer cancel()
	line, err = e.s.store.Line(readCtx, e.name)
	return stateOf(line), err
}

func sameLeader(a, b *Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Token == b.Token && a.ID == b.ID && string(a.Value) == string(b.Value)
}

func stateOf(l driver.Line) State {
	st := State{Name: l.Name, Revision: l.Revision, AsOf: time.Now()}
	if l.Holder != nil {
		h := entryOf(*l.Holder)
		st.Leader = &h
	}
	for _, w := range l.Waiters {
		st.Waiting = append(st.Waiting, entryOf(w))
	}
	return st
}

func entryOf(s driver.Entry) Entry {
	return Entry{ID: s.Owner, Token: Token(s.Token), Slots: s.Slots, Held: s.Held, Value: s.Value,
		Lease: s.Lease, Note: s.Note}
}

// Election returns the election of that name. It does no I/O; a name that cannot be used is told by
// the first call.
func (s *Session) Election(name string) *Election { return &Election{s: s, name: name} }

// List returns the elections whose name begins with prefix and in whose line somebody stands,
// ordered by name. It needs no lease.
func (s *Session) List(ctx context.Context, prefix string) ([]State, error) {
	var states []State
	err := s.retry(ctx, "list "+prefix, func(ctx context.Context) error {
		lines, err := s.store.Lines(ctx, prefix)
		states = nil
		for _, l := range lines {
			states = append(states, stateOf(l))
		}
		return err
	})
	return states, err
}

// canPress says why this session cannot ask for the lead by its priority.
func (e *Election) canPress(ctx context.Context) error {
	l, err := e.s.live(ctx)
	if err != nil {
		return err
	}
	_, asks := e.s.store.(driver.Asker)
	if _, hands := l.dl.(driver.Transferer); !asks || !hands {
		return invalid("campaign for %s: a priority needs a store in which a leader can be asked to hand over; %s cannot",
			e.name, e.s.store.Caps().Store)
	}
	return nil
}

// presser returns what asks leaders to hand over to a claim for as long as that waits: one look at
// the line every quarter of steady. A look is enough to know that the place was kept, since tokens
// never come back.
func (e *Election) presser(priority int, steady time.Duration) func(context.Context, *claim) {
	s, asker := e.s, e.s.store.(driver.Asker)
	return func(ctx context.Context, c *claim) {
		for p := (core.Press{Steady: steady}); ctx.Err() == nil; {
			limit, cancel := context.WithTimeout(ctx, c.l.timing.TTL)
			st, err := e.State(limit)
			now := s.clock()
			wake := now + max(steady/4, time.Second)
			if err == nil {
				var ask bool
				mine, leader := st.pressed(c)
				if ask, wake = p.Step(now, mine, leader); ask {
					// Whatever comes of it: if nothing does, the same is asked again.
					_ = asker.Ask(limit, e.name, driver.Request{Token: leader, By: s.o.ID, To: s.o.ID,
						Priority: priority, Reason: fmt.Sprintf("priority %d", priority)})
				}
			}
			cancel()
			select {
			case <-time.After(wake - now):
			case <-ctx.Done():
			}
		}
	}
}

// pressed returns the token of the claim's place, if it waits, and of the leader, if that can be
// asked.
func (st State) pressed(c *claim) (mine, leader uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, _ := st.successor(c.l.s.o.ID) // whom the leader would find
	if c.core.Phase() == core.Waiting && own.Token == Token(c.place.Token) {
		mine = c.place.Token
	}
	if st.Leader != nil && st.Leader.ID != "" && st.Leader.Slots == 0 {
		leader = uint64(st.Leader.Token)
	}
	return mine, leader
}

// successor returns the oldest claim of that candidate that waits to lead.
func (st State) successor(id string) (Entry, bool) {
	i := slices.IndexFunc(st.Waiting, func(s Entry) bool { return s.ID == id && s.Slots == 0 && s.Token != 0 })
	if i < 0 {
		return Entry{}, false
	}
	return st.Waiting[i], true
}
