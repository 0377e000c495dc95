// Package handover has leaders give up what they lead, for an operator: one term, or all that one
// candidate or one host leads. Each request is for one term: whoever leads next is not asked.
package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// Mover asks leaders, and waits until they have done it.
type Mover struct {
	Session *primacy.Session
	Asker   driver.Asker
	Reason  string        // told to the leader
	By      string        // who asks; empty: the session's ID
	Wait    time.Duration // how long it may take
	Attempt time.Duration // how long one call on the store may take
}

// NewMover returns a Mover on a session's store, or an error if the store carries no requests.
func NewMover(s *primacy.Session, st driver.Store, reason string, wait, attempt time.Duration) (*Mover, error) {
	asker, ok := st.(driver.Asker)
	if !ok {
		return nil, fmt.Errorf("%s cannot carry a request to a leader; stop it where it runs", st.Caps().Store)
	}
	return &Mover{Session: s, Asker: asker, Reason: reason, Wait: wait, Attempt: attempt}, nil
}

// Result is what became of one election.
type Result string

// The results.
const (
	Moved  Result = "moved"
	Left   Result = "left"   // no other candidate waits: it was not asked
	Late   Result = "late"   // it was asked, and still leads
	Failed Result = "failed" // it could not be asked
)

// Move is what became of one election: Now is its state as last read, Err says why it has not
// moved.
type Move struct {
	Name   string
	Token  primacy.Token // of the term that was to end
	Result Result
	Now    primacy.State
	Err    error
}

// Together is how many are moved at once: work takes its time to stop, and the store should not be
// asked for a thousand at a time.
const Together = 16

// Drain moves all that the candidates meant by whom lead in states to others, and tells of each as
// soon as it is known what became of it, one at a time.
func (m *Mover) Drain(ctx context.Context, whom Whom, states []primacy.State, tell func(Move)) {
	ctx, cancel := context.WithTimeout(ctx, m.Wait)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns := make(chan struct{}, Together)
	for _, st := range states {
		if !whom.leads(st) {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			done := m.leave(ctx, st, whom)
			mu.Lock()
			defer mu.Unlock()
			tell(done)
		})
	}
	wg.Wait()
}

// errAlone is that there is no candidate to move an election to.
var errAlone = errors.New("no other candidate is waiting")

// alone is errAlone, or says that who waits has the leader's own ID: a drain of that ID means both.
func alone(st primacy.State) error {
	for _, w := range st.Waiting {
		if w.ID == st.Leader.ID && w.Lease != st.Leader.Lease {
			return fmt.Errorf("%w but another process with the ID %s: give each process its own", errAlone, w.ID)
		}
	}
	return errAlone
}

// several says whether several processes wait under an ID.
func several(st primacy.State, id string) bool {
	var lease string
	for _, w := range st.Waiting {
		if id == "" || w.ID != id || w.Slots != 0 || w.Lease == lease {
			continue
		}
		if lease != "" {
			return true
		}
		lease = w.Lease
	}
	return false
}

// leave moves one election away from whom, as often as one of them leads.
func (m *Mover) leave(ctx context.Context, st primacy.State, whom Whom) Move {
	done := Move{Name: st.Name, Token: st.Leader.Token}
	e := m.Session.Election(st.Name)
	for whom.leads(st) {
		to, ok := otherThan(st, whom)
		if !ok {
			return done.ends(Left, st, alone(st))
		}
		next, err := m.end(ctx, e, st.Leader.Token, to)
		if errors.Is(err, driver.ErrGone) {
			next, err = e.State(ctx)
		}
		if err != nil {
			return done.fails(ctx, st, st.Leader.ID, m.Wait, err)
		}
		st = next
	}
	return done.ends(Moved, st, nil)
}

// One ends the term that leads in st, and no later one, in favour of the candidate to, or of
// whoever is next where to is empty.
func (m *Mover) One(ctx context.Context, st primacy.State, to string) Move {
	ctx, cancel := context.WithTimeout(ctx, m.Wait)
	defer cancel()
	done := Move{Name: st.Name}
	if st.Leader == nil {
		return done.ends(Failed, st, primacy.ErrNoLeader)
	}
	done.Token = st.Leader.Token
	if several(st, to) {
		return done.ends(Failed, st, fmt.Errorf("%w: %s: give each process its own", primacy.ErrDuplicateID, to))
	}
	next, err := m.end(ctx, m.Session.Election(st.Name), done.Token, to)
	switch {
	case errors.Is(err, driver.ErrGone):
		return done.ends(Failed, st, fmt.Errorf("the term under token %d was over before it could be asked",
			done.Token))
	case err != nil:
		return done.fails(ctx, st, st.Leader.ID, m.Wait, err)
	}
	return done.ends(Moved, next, nil)
}

// errLate is that the leader has been asked, and still leads.
var errLate = errors.New("late")

// end asks for the end of one term, and waits for it. The error is driver.ErrGone if it was over
// before.
func (m *Mover) end(ctx context.Context, e *primacy.Election, token primacy.Token, to string) (primacy.State, error) {
	r := driver.Request{Token: uint64(token), By: cmp.Or(m.By, m.Session.ID()), Reason: m.Reason, To: to}
	if err := m.ask(ctx, e.Name(), r); err != nil {
		return primacy.State{}, err
	}
	if st, changed := AwaitChange(ctx, e, token); changed {
		return st, nil
	}
	return primacy.State{}, errLate
}

// ask repeats a request until the store has taken it, or never will.
func (m *Mover) ask(ctx context.Context, name string, r driver.Request) error {
	for {
		try, cancel := context.WithTimeout(ctx, m.Attempt)
		err := m.Asker.Ask(try, name, r)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused) {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", primacy.ErrUnreachable, err)
		}
	}
}

// otherThan returns the oldest candidate that whom does not mean. A claim of another program has no
// ID: then it is "", whoever is next.
func otherThan(st primacy.State, whom Whom) (to string, ok bool) {
	for _, w := range st.Waiting {
		if w.Slots != 0 || whom.Means(w.ID) {
			continue
		}
		if ok = true; w.ID != "" {
			return w.ID, true
		}
	}
	return "", ok
}

func (d Move) ends(r Result, st primacy.State, err error) Move {
	d.Result, d.Now, d.Err = r, st, err
	return d
}

// fails tells a leader that takes its time from a store that does not do as it is told.
func (d Move) fails(ctx context.Context, st primacy.State, id string, wait time.Duration, err error) Move {
	if errors.Is(err, errLate) || ctx.Err() != nil {
		return d.ends(Late, st, fmt.Errorf("%s has not given it up after %v", id, wait))
	}
	return d.ends(Failed, st, err)
}

// AwaitChange waits until another term than that one, or none, is the present one.
func AwaitChange(ctx context.Context, e *primacy.Election, token primacy.Token) (primacy.State, bool) {
	for st, err := range e.Observe(ctx) {
		if err == nil && (st.Leader == nil || st.Leader.Token != token) {
			return st, true
		}
	}
	return primacy.State{}, false
}
