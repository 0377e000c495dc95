package primacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/core"
	pauses "github.com/primacy-go/primacy/pause"
)

// Transfer ends the term and hands the name to another candidate, which must stand in the line: to
// is the ID of its session. Its oldest exclusive claim leads next, under a larger token, and in
// between the name is never free. Candidates that stood before it lose their place, and stand again
// behind it. To call Transfer is to say that the work has stopped, as with [Term.Resign].
//
// Transfer reads the line first. If the successor does not stand there, the error is ErrNotInLine
// and the term goes on. The term also goes on after ErrDuplicateID (several processes with that ID
// stand there), after ErrInvalid (a lock, a transfer to oneself, a store that cannot hand over),
// and after ErrUnreachable if Check still says yes.
//
// Then the context ends for ErrTransferred, Check says no, and the store is asked to hand over
// until it answers. Transfer returns nil once the store has confirmed the hand-over. If the
// successor has left the line meanwhile, the name is released and the error is ErrNotInLine. If ctx
// ends first, the error is ErrUnreachable, and the hand-over goes on in the background until the
// store confirms it or the lease runs out. If the work of a [Candidate] calls Transfer, pass a ctx
// that ends within Options.Grace: after that the work has outlived its right.
func (t *Term) Transfer(ctx context.Context, to string) error {
	if err := t.transferable(to); err != nil {
		return err
	}
	successor, err := t.successorToken(ctx, to)
	if err != nil {
		return err
	}
	t.c.giveUpTo(successor, to)
	what := "transfer " + t.c.name + " to " + to
	if err := t.c.waitFreed(ctx, what); err != nil {
		return err
	}
	return t.handed(ctx, "primacy: "+what, successor)
}

// transferable returns why the term cannot be handed over to the session with the ID to.
func (t *Term) transferable(to string) error {
	if err := checkText("ID to transfer to", to); err != nil {
		return err
	}
	switch _, ok := t.l.stored.(driver.Transferer); {
	case t.c.lock:
		return invalid("the lock on %s goes to whoever is next in the queue, and to nobody by name", t.c.name)
	case !ok:
		return invalid("%s cannot hand %s over to a named candidate: resign", t.l.s.store.Caps().Store, t.c.name)
	case to == t.l.s.o.ID:
		return invalid("transfer %s: %s leads already", t.c.name, to)
	}
	return t.Check()
}

// successorToken returns the token of the claim that the session with the ID to has in the line.
func (t *Term) successorToken(ctx context.Context, to string) (uint64, error) {
	st, err := t.l.s.Election(t.c.name).State(ctx)
	if err != nil {
		return 0, err
	}
	if err := t.Check(); err != nil {
		return 0, err // it may have ended while we looked
	}
	if st.Leader == nil || st.Leader.Token != t.token {
		return 0, &EndedError{Name: t.c.name, Token: t.token, Cause: ErrDeposed} // News has not told it yet
	}
	successor, err := st.named(to)
	return uint64(successor.Token), err
}

// handed returns the error with which Transfer ends, once the claim is freed. Resign,
// another Transfer or the end of the lease may have come before this Transfer. Then the claim has
// another successor or none, and the error is why the term ended. Otherwise the outcome of the
// hand-over says it:
//
//	core.Handed         nil
//	core.SuccessorGone  the name was released, since the store would not hand it over
//	core.ClaimMissing   the claim was gone: nil if the line shows that the successor leads
//	core.Undecided      the lease was over before the store confirmed the hand-over
func (t *Term) handed(ctx context.Context, what string, successor uint64) error {
	t.c.mu.Lock()
	outcome, tried, lastErr := t.c.core.Outcome(), t.c.core.Successor(), t.c.lastErr
	t.c.mu.Unlock()
	switch {
	case tried != successor:
		return t.Check() // not nil: the right of a claim that is freed has ended
	case outcome == core.Handed:
		return nil
	case outcome == core.SuccessorGone && errors.Is(lastErr, driver.ErrNoSuccessor):
		return fmt.Errorf("%s: it %w any more; the name was released", what, ErrNotInLine)
	case outcome == core.SuccessorGone:
		return fmt.Errorf("%s: %w; the name was released", what, lastErr)
	case outcome == core.ClaimMissing:
		st, err := t.l.s.Election(t.c.name).State(ctx)
		if err == nil && st.Leader != nil && uint64(st.Leader.Token) == successor {
			return nil // an earlier try handed over, and its answer was lost
		}
		return fmt.Errorf("%s: %w before the store confirmed it; whether it was handed over is not known", what, ErrDeposed)
	}
	return fmt.Errorf("%s: not confirmed: %w", what, ErrExpired)
}

// named is oldestOf with errors: ErrNotInLine if no session with that ID waits to lead, and
// ErrDuplicateID if several processes do.
func (st State) named(id string) (Entry, error) {
	first, ok := st.oldestOf(id)
	if !ok {
		return Entry{}, st.notInLine(id)
	}
	for _, s := range st.Waiting {
		if s.ID == id && s.Slots == 0 && s.Token != 0 && s.Lease != first.Lease {
			return Entry{}, fmt.Errorf("primacy: transfer %s: %w: %q waits under the leases %s and %s; "+
				"give each process its own ID, or wait for the lease of one that has died to run out",
				st.Name, ErrDuplicateID, id, first.Lease, s.Lease)
		}
	}
	return first, nil
}

// notInLine is the error for a successor that does not wait in the line: it names those who do.
func (st State) notInLine(id string) error {
	return fmt.Errorf("primacy: transfer %s: %q %w; %s", st.Name, id, ErrNotInLine, st.whoWaits())
}

// whoWaits says to which candidates the name could be handed over.
func (st State) whoWaits() string {
	const most = 10
	var ids []string
	for _, s := range st.Waiting {
		if id := fmt.Sprintf("%q", s.ID); s.ID != "" && s.Slots == 0 && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch n := len(ids); {
	case n == 0:
		return "nobody who could be named does"
	case n > most:
		return fmt.Sprintf("waiting: %s and %d more", strings.Join(ids[:most], ", "), n-most)
	}
	return "waiting: " + strings.Join(ids, ", ")
}

// addLocked adds a request, unless the same one waits already or too many do. The caller holds the
// claim's lock.
func (q *handOverRequests) addLocked(c *claim, w handOverRequest) {
	if len(q.waiting) == maxHandOverRequests || slices.Contains(q.waiting, w) {
		return
	}
	q.waiting = append(q.waiting, w)
	if !q.running {
		q.running = true
		go q.run(c)
	}
}

// next returns the oldest request, and whether there is one.
func (q *handOverRequests) next(c *claim) (w handOverRequest, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.running = len(q.waiting) > 0; q.running {
		w = q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
	}
	return w, q.running
}

// run carries out the requests one after the other, until there are no more. Once the claim is
// being given up it only drops them.
func (q *handOverRequests) run(c *claim) {
	for w, ok := q.next(c); ok; w, ok = q.next(c) {
		if c.givenUp() {
			continue
		}
		successor, err := w.successorToken(c)
		if err != nil {
			c.l.s.log.log(slog.LevelWarn, "not handed over as asked", "election", c.name, "to", w.r.To, "by", w.r.By, "err", err)
			continue
		}
		if successor != 0 {
			c.notify(w.id, core.ClaimEvent{Kind: core.Ask, Cause: core.Transferred, Successor: successor}, &w.r)
		}
	}
}

// successorToken returns the token of the claim to hand over to, 0 if the request is for another
// term.
func (w handOverRequest) successorToken(c *claim) (uint64, error) {
	if _, ok := c.l.stored.(driver.Transferer); !ok {
		return 0, invalid("%s cannot hand over to a named candidate", c.l.s.store.Caps().Store)
	}
	if c.lock {
		return 0, invalid("%s is held as a lock, which goes to whoever is next in the queue", c.name)
	}
	ctx, cancel := context.WithTimeout(c.l.ctx, c.l.timing.TTL)
	defer cancel()
	st, err := c.l.s.Election(c.name).State(ctx)
	if err != nil || st.Leader == nil || uint64(st.Leader.Token) != w.r.Token {
		return 0, err
	}
	successor, ok := st.oldestOf(w.r.To)
	if !ok {
		return 0, st.notInLine(w.r.To)
	}
	if w.r.Priority != 0 { // it can wait: while the election is paused, or nobody knows, it does
		p, err := pauses.AdmitUnlessPaused(ctx, c.l.s.store, c.name, w.r.To, uint64(successor.Token), w.r.By)
		if err != nil {
			return 0, err
		} else if p != nil {
			return 0, errors.New(p.String())
		}
	}
	return uint64(successor.Token), nil
}

// Request is what the present leader is asked for. The zero value asks it to resign.
type Request struct {
	To     string // the ID of the session to hand over to; empty: whoever is next in the line
	Reason string // told to the leader
	By     string // who asks, for the history; empty: the session's ID
	// Token is of the only term that is asked. If another one leads, the error of Ask is a
	// driver.ErrGone. 0: the term of whoever leads.
	Token Token
	// Automatic says that no person asks. In a pause in which nobody new is elected (package pause)
	// To is then not elected either: it is only where a person names it.
	Automatic bool
}

// Ask asks the present leader to give the name up. The context of its term ends for ErrResigned, or
// with To for ErrTransferred. Once its work has stopped, it releases the name, or hands it over.
// Ask does not wait for that: it returns the token of the term that was asked. The error is
// ErrNoLeader if nobody leads, and ErrInvalid if the leader cannot be asked. Ask repeats the
// request until the store has taken it or ctx ends (ErrUnreachable). If the term ends meanwhile, it
// asks the next leader, unless Request.Token names the term.
//
// With To, Ask reads the line first. If To does not wait there, the error is ErrNotInLine, which
// names those who do; if several processes with that ID wait, it is ErrDuplicateID; if To leads
// already, it is ErrInvalid. The leader reads the line too: if To does not wait, it leads on. If To
// leaves the line while the work is stopping, the name is released to whoever is next. A process
// that has died stands in the line until its lease runs out: a name that is handed to it has no
// leader until then.
func (e *Election) Ask(ctx context.Context, r Request) (Token, error) {
	if r.To != "" {
		if err := errors.Join(CheckName(e.name), checkText("ID to transfer to", r.To)); err != nil {
			return 0, err
		}
	}
	if r.By != "" {
		if err := checkText("name of who asks", r.By); err != nil {
			return 0, err
		}
	}
	return e.ask(ctx, driver.Request{To: r.To, Reason: r.Reason, By: r.By}, r.Token, r.Automatic)
}

// ask sends a request to whoever leads, or only to the term with the token only, if that is not 0.
// Unless it is automatic, it lets r.To be elected in a pause, or who is next in one that comes
// later.
func (e *Election) ask(ctx context.Context, r driver.Request, only Token, automatic bool) (Token, error) {
	asker, ok := e.s.store.(driver.Asker)
	if !ok {
		return 0, invalid("%s cannot carry a request to a leader; stop the leader where it runs", e.s.store.Caps().Store)
	}
	r.By = cmp.Or(r.By, e.s.o.ID)
	for try := 0; ; try++ {
		if err := pause(ctx, try); err != nil {
			return 0, unreachable(ctx, "ask the leader of "+e.name, errors.New("its term ended each time"))
		}
		st, err := e.State(ctx)
		if err != nil {
			return 0, err
		}
		if try > 0 && st.Leader != nil && r.To != "" && st.Leader.ID == r.To {
			return Token(r.Token), nil // it leads now, perhaps because an earlier try arrived
		}
		if only != 0 && (st.Leader == nil || st.Leader.Token != only) {
			return 0, fmt.Errorf("primacy: ask the leader of %s: the term under token %d is %w", e.name, only,
				driver.ErrGone)
		}
		if err := st.askable(r.To); err != nil {
			return 0, err
		}
		if !automatic {
			if err := e.admit(ctx, st, r.To, r.By); err != nil {
				return 0, err
			}
		}
		r.Token = uint64(st.Leader.Token)
		err = e.s.retry(ctx, "ask the leader of "+e.name, func(ctx context.Context) error { return asker.Ask(ctx, e.name, r) })
		if !errors.Is(err, driver.ErrGone) {
			return st.Leader.Token, err
		}
	}
}

// askable returns why the leader cannot be asked to hand over to to, or to resign if to is empty.
func (st State) askable(to string) error {
	switch {
	case st.Leader == nil:
		return ErrNoLeader
	case to != "" && st.Leader.ID == to:
		return invalid("transfer %s: %q leads already", st.Name, to)
	case st.Leader.ID == "":
		return invalid("the leader of %s was entered by another program, which does not listen", st.Name)
	case to != "":
		_, err := st.named(to)
		return err
	}
	return nil
}

// admit lets the session with the ID to be elected though nobody new is: an operator hands over to
// it. Who may not read the pauses asks all the same. Who sees that nobody would be elected, and may
// not change that, does not ask: the leader would stop for nobody.
func (e *Election) admit(ctx context.Context, st State, to, by string) error {
	if to == "" {
		e.admitNext(ctx, st, by)
		return nil
	}
	successor, err := st.named(to)
	if err != nil {
		return err
	}
	err = e.s.retry(ctx, "admit "+to+" to "+e.name, func(ctx context.Context) error {
		return pauses.Admit(ctx, e.s.store, e.name, to, uint64(successor.Token), by)
	})
	if errors.Is(err, driver.ErrRefused) && !errors.Is(err, pauses.ErrNotAdmitted) {
		e.s.log.log(slog.LevelWarn, "whether anybody new is elected is not known", "election", e.name, "err", err)
		return nil
	}
	return err
}

// admitNext lets whoever is next in the line be elected in a pause that is set while the leader
// stops: it was asked to resign before. In a pause that stands already it lets nobody. The leader
// is asked all the same if this fails.
func (e *Election) admitNext(ctx context.Context, st State, by string) {
	if len(st.Waiting) == 0 || st.Waiting[0].ID == "" || st.Waiting[0].Slots != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.s.callLimit)
	defer cancel()
	next := st.Waiting[0]
	if _, err := pauses.AdmitNext(ctx, e.s.store, e.name, next.ID, uint64(next.Token), by); err != nil {
		e.s.log.log(slog.LevelDebug, "who is next was not admitted", "election", e.name, "err", err)
	}
}
