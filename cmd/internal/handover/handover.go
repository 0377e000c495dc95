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
	"github.com/primacy-go/primacy/internal/storeutil"
	pauses "github.com/primacy-go/primacy/pause"
)

// Mover asks leaders, and waits until they have done it.
type Mover struct {
	Session *primacy.Session
	Asker   driver.Asker
	Reason  string        // told to the leader
	By      string        // who asks; empty: the session's ID
	Wait    time.Duration // how long it may take
	Attempt time.Duration // how long one call on the store may take
	Force   bool          // let leaders resign though a pause lets nobody follow
	Once    bool          // Drain asks for the end of the terms in states, and of no later one
	Anyway  bool          // Ask asks for a resignation also if nobody may follow, or nobody knows

	pauses *pauses.Reader
}

// NewMover returns a Mover on a session's store, or an error if the store carries no requests.
func NewMover(s *primacy.Session, st driver.Store, reason string, wait, attempt time.Duration) (*Mover, error) {
	asker, ok := st.(driver.Asker)
	if !ok {
		return nil, fmt.Errorf("%s cannot carry a request to a leader; stop it where it runs", st.Caps().Store)
	}
	return &Mover{Session: s, Asker: asker, Reason: reason, Wait: wait, Attempt: attempt,
		pauses: pauses.NewReader(st, attempt)}, nil
}

// Result is what became of one election.
type Result string

// The results.
const (
	Moved  Result = "moved"
	Left   Result = "left"   // no other candidate waits: it was not asked
	Late   Result = "late"   // it still leads: it was asked, or not in time
	Failed Result = "failed" // it could not be asked, or nobody is known to lead after it
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

// ErrGivenUp says that a leader has given a name up, and that nobody is known to lead it now.
var ErrGivenUp = errors.New("it was given up")

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
		switch {
		case m.Once && errors.Is(err, driver.ErrGone):
			return done.ends(Failed, st, overBefore(done.Token))
		case m.Once && err == nil && whom.leads(next):
			return done.ends(Failed, next, fmt.Errorf("%s leads again, under token %d", next.Leader.ID,
				next.Leader.Token))
		case errors.Is(err, driver.ErrGone):
			var changed bool
			if next, changed = AwaitChange(ctx, e, st.Leader.Token); changed {
				err = nil
			}
		}
		if err != nil {
			return done.fails(ctx, st, st.Leader.ID, m.Wait, err)
		}
		if err := Earlier(next, to); err != nil {
			return done.ends(Failed, next, err)
		}
		st = next
	}
	if st.Leader == nil {
		return done.ends(Failed, st, fmt.Errorf("%w, and nobody leads", ErrGivenUp))
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
		return done.ends(Failed, st, overBefore(done.Token))
	case err != nil:
		return done.fails(ctx, st, st.Leader.ID, m.Wait, err)
	case to != "" && next.Leader == nil:
		return done.ends(Failed, next, fmt.Errorf("%s has given it up, but %s does not lead: nobody does",
			st.Leader.ID, to))
	}
	if err := Earlier(next, to); err != nil {
		return done.ends(Failed, next, err)
	}
	return done.ends(Moved, next, nil)
}

func overBefore(token primacy.Token) error {
	return fmt.Errorf("the term under token %d was over before it could be asked", token)
}

func (m *Mover) by() string { return cmp.Or(m.By, m.Session.ID()) }

// errLate is that the leader has been asked, and still leads.
var errLate = errors.New("late")

// errNotAsked is that the time was over before the leader could be asked.
var errNotAsked = errors.New("not asked")

// end asks for the end of one term, and waits for it. The error is driver.ErrGone if it was over
// before.
func (m *Mover) end(ctx context.Context, e *primacy.Election, token primacy.Token, to string) (primacy.State, error) {
	r := driver.Request{Token: uint64(token), By: m.by(), Reason: m.Reason, To: to}
	err := m.mayFollow(ctx, e, r)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return primacy.State{}, errNotAsked
	}
	if err != nil {
		return primacy.State{}, err
	}
	if err := m.ask(ctx, e.Name(), r); err != nil {
		return primacy.State{}, err
	}
	if st, changed := m.Await(ctx, e, token, to); changed {
		return st, nil
	}
	return primacy.State{}, errLate
}

// Ask asks for the end of the term under only, or of whoever leads if that is 0. It lets to, or who
// is next, be elected as a move does: the library alone knows no groups. It does not wait for the
// end, and returns the token of the term that was asked. The errors are ErrNobodyFollows, and those
// of primacy.Election.Ask; a lock that is shared is an ErrInvalid. A driver.ErrGone says that
// another term leads than the one under only.
func (m *Mover) Ask(ctx context.Context, e *primacy.Election, to string, only primacy.Token) (primacy.Token, error) {
	for asked := primacy.Token(0); ; {
		st, err := e.State(ctx)
		switch {
		case err != nil:
			return 0, err
		case asked != 0 && only == 0 && to != "" && st.Leader != nil && st.Leader.ID == to:
			return asked, nil // it leads since, as was wanted
		case only != 0 && (st.Leader == nil || st.Leader.Token != only):
			return 0, driver.ErrGone
		case st.Leader == nil:
			return 0, primacy.ErrNoLeader
		case st.Leader.Slots != 0: // the store would refuse, as if it were at fault
			return 0, fmt.Errorf("%w: %s is a lock that several share: only one that is held alone can be asked for; "+
				"stop a holder where it runs", primacy.ErrInvalid, e.Name())
		}
		asked = st.Leader.Token
		r := primacy.Request{To: to, Reason: m.Reason, By: m.by(), Token: asked, Automatic: to == ""}
		admitted, err := m.admitted(ctx, e, st, r)
		if err == nil {
			r.Automatic = r.Automatic || admitted
			_, err = e.Ask(ctx, r)
		}
		if err == nil {
			return asked, nil
		}
		if only != 0 || !errors.Is(err, driver.ErrGone) {
			return 0, err
		}
		if storeutil.Sleep(ctx, askPause) != nil {
			return 0, fmt.Errorf("%w: %w; last: %w", primacy.ErrUnreachable, context.Cause(ctx), err)
		}
	}
}

// admitted calls mayFollow for r if the leader of st can be asked for it. False: nobody was
// admitted, and the library does it, or says what is wrong with the request.
func (m *Mover) admitted(ctx context.Context, e *primacy.Election, st primacy.State, r primacy.Request) (bool, error) {
	_, waits := successor(st, r.To)
	_, asks := m.Session.Store().(driver.Asker)
	if !asks || st.Leader.ID == "" || r.To != "" && (!waits || several(st, r.To) || st.Leader.ID == r.To) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.Attempt)
	defer cancel()
	err := m.mayFollow(ctx, e, driver.Request{Token: uint64(r.Token), By: r.By, To: r.To})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, driver.ErrGone):
		return false, err
	case m.Anyway && r.To == "",
		errors.Is(err, driver.ErrRefused) && !errors.Is(err, pauses.ErrNotAdmitted): // who may not read may ask
		return false, nil
	case errors.Is(err, ErrNobodyFollows), errors.Is(err, primacy.ErrNotInLine), errors.Is(err, pauses.ErrInvalid),
		errors.Is(err, driver.ErrRefused), errors.Is(err, primacy.ErrUnreachable):
		return false, err
	}
	return false, fmt.Errorf("%w: %w", primacy.ErrUnreachable, err)
}

// mayFollow lets r.To be elected though a pause forbids elections: an operator has named it. Where
// nobody is named, it returns an ErrNobodyFollows in such a pause; in one that is set while the
// leader stops, whoever is next is elected. It returns a driver.ErrGone if the term under r.Token
// is over: whoever stands would be admitted to a later one.
func (m *Mover) mayFollow(ctx context.Context, e *primacy.Election, r driver.Request) error {
	if r.To == "" && m.Force {
		return nil
	}
	// What the caller has seen of the line may be old: an admission is for one claim.
	now, err := e.State(ctx)
	if err != nil {
		return err
	}
	if now.Leader == nil || uint64(now.Leader.Token) != r.Token {
		return driver.ErrGone
	}
	over, err := Over(ctx, m.Session, e.Name())
	if err != nil {
		return err
	}
	st := m.Session.Store()
	next, ok := successor(now, r.To)
	switch {
	case r.To != "" && !ok:
		return fmt.Errorf("%s %w", r.To, primacy.ErrNotInLine)
	case r.To != "":
		err = pauses.Admit(ctx, st, e.Name(), r.To, uint64(next.Token), r.By, over...)
	case ok:
		var p *pauses.Pause
		limited, cancel := context.WithTimeout(ctx, m.Attempt/4)
		p, err = pauses.AdmitNext(limited, st, e.Name(), next.ID, uint64(next.Token), r.By, over...)
		cancel()
		if p != nil {
			err = nobodyFollows(p)
		} else if err != nil && !errors.Is(err, driver.ErrRefused) {
			// It is not admitted to a pause that comes later: a broken journal keeps nobody from
			// resigning.
			err = nobodyMayFollow(ctx, st, e.Name(), over)
		}
	default:
		err = nobodyMayFollow(ctx, st, e.Name(), over)
	}
	if errors.Is(err, driver.ErrRefused) && !errors.Is(err, pauses.ErrNotAdmitted) {
		return nil // who may not read the pauses may ask all the same
	}
	return err
}

// successor returns the claim of the session with the ID to that would lead next, or of whoever is
// next where to is empty; false if there is none, or a program that has no session.
func successor(st primacy.State, to string) (primacy.Entry, bool) {
	for _, w := range st.Waiting {
		switch {
		case to == "":
			return w, w.Slots == 0 && w.ID != "" && w.Token != 0
		case w.ID == to && w.Slots == 0 && w.Token != 0:
			return w, true
		}
	}
	return primacy.Entry{}, false
}

// askPause is how long Ask, or a request, waits before it tries again.
const askPause = 200 * time.Millisecond

// ask repeats a request until the store has taken it, or never will.
func (m *Mover) ask(ctx context.Context, name string, r driver.Request) error {
	for {
		try, cancel := context.WithTimeout(ctx, m.Attempt)
		err := m.Asker.Ask(try, name, r)
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrRefused) {
			return err
		}
		if storeutil.Sleep(ctx, askPause) != nil {
			return fmt.Errorf("%w: %w", primacy.ErrUnreachable, err)
		}
	}
}

// otherThan returns the oldest candidate that whom does not mean. One whose ID several processes
// have is the last resort: the older of them may be dead. A claim of another program has no ID:
// then it is "", whoever is next.
func otherThan(st primacy.State, whom Whom) (to string, ok bool) {
	for _, w := range st.Waiting {
		if w.Slots != 0 || whom.Means(w.ID) {
			continue
		}
		if ok = true; w.ID != "" && !several(st, w.ID) {
			return w.ID, true
		}
		to = cmp.Or(to, w.ID)
	}
	return to, ok
}

func (d Move) ends(r Result, st primacy.State, err error) Move {
	d.Result, d.Now, d.Err = r, st, err
	return d
}

// fails tells a leader that takes its time, or was not asked in time, from a store that does not do
// as it is told.
func (d Move) fails(ctx context.Context, st primacy.State, id string, wait time.Duration, err error) Move {
	if errors.Is(err, errNotAsked) {
		return d.ends(Late, st, fmt.Errorf("%s was not asked: the %v were over before its turn", id, wait))
	}
	if errors.Is(err, errLate) || ctx.Err() != nil {
		return d.ends(Late, st, fmt.Errorf("%s has not given it up after %v", id, wait))
	}
	return d.ends(Failed, st, err)
}
