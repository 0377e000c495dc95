package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

func resignCommand(a *app) *cobra.Command {
	var r request
	c := &cobra.Command{
		Use:   "resign NAME",
		Short: "Ask the leader to stop its work and let the next one lead",
		Long: `Ask the leader of NAME to resign: it stops its work, then gives the name up, and the candidate
that has waited longest leads. Waits until it has resigned. With --token only the term under that token is asked.
Exit 1 if nobody leads, or another term than that one; 124 if the leader has not resigned within --wait.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error { return r.make(cmd, a, args[0]) },
	}
	r.flags(c, "why, for the leader and the history", "how long to wait until it has resigned")
	r.tokenFlag(c)
	return c
}

func transferCommand(a *app) *cobra.Command {
	var r request
	c := &cobra.Command{
		Use:     "transfer NAME [--to ID | --to HOST]",
		Aliases: []string{"switchover"},
		Short:   "Ask the leader to stop its work and hand over to a candidate you name",
		Long: `Ask the leader of NAME to hand over: it stops its work, and then the candidate named by --to
leads, although others may have waited longer; they keep waiting, behind it. Waits until it leads. HOST means the
candidate whose ID is HOST-PID-XXXX, as those are that were given no --id. Without --to the leader steps down: the
same as 'primacy resign NAME'. With --token only the term under that token is asked.

Exit 1 if nobody leads, or another term than that one; if no such candidate, or more than one, is waiting (the
leader is not asked then); or if another one leads in the end, or an earlier process of the same ID, which may be
dead. 124 if the leader has not handed over within --wait. If the candidate leads already, nothing is asked.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			// An empty variable, most likely: stepping down is not what was meant.
			if r.to == "" && cmd.Flags().Changed("to") {
				return errors.New("--to is empty: give the ID of a candidate, " +
					"or leave it out to let the oldest one lead")
			}
			return r.make(cmd, a, args[0])
		},
	}
	c.Flags().StringVar(&r.to, "to", "",
		"the ID or the host of the candidate to lead next (default: the one that has waited longest)")
	r.flags(c, "why, for the leader and the history", "how long to wait until it leads")
	r.tokenFlag(c)
	return c
}

// request is what resign, transfer and drain ask of a leader.
type request struct {
	to     string // who is to lead next; "": who has waited longest
	reason string
	wait   time.Duration // until it is done
	force  bool          // resign also where a pause lets nobody follow
	exempt bool          // no pause is meant for it: a cluster of PostgreSQL has its own
	only   string        // the token of the only term that is asked, as it was typed; "": of whoever leads
	token  primacy.Token // the same, 0: of whoever leads
}

func (r *request) flags(c *cobra.Command, why, howLong string) {
	c.Flags().StringVar(&r.reason, "reason", "", why)
	_ = c.Flags().SetAnnotation("reason", noVariable, nil) // a hook finds in PRIMACY_REASON why a term ended
	c.Flags().DurationVar(&r.wait, "wait", 30*time.Second, howLong)
	c.Flags().BoolVar(&r.force, "force", false,
		"step down also where 'primacy pause --no-elections' lets nobody follow")
}

func (r *request) tokenFlag(c *cobra.Command) {
	c.Flags().StringVar(&r.only, "token", "", "ask only the term under this token, as 'primacy status' shows it "+
		"(default: whoever leads)")
	_ = c.Flags().SetAnnotation("token", noVariable, nil) // a command of run finds its own in PRIMACY_TOKEN
}

// check refuses what the store would.
func (r *request) check() error {
	if r.only != "" {
		if err := r.token.UnmarshalText([]byte(r.only)); err != nil || r.token == 0 {
			return fmt.Errorf("--token %q is not a token: a whole number above 0", r.only)
		}
	}
	if len(r.reason) > primacy.MaxName {
		return fmt.Errorf("--reason has %d bytes, more than %d", len(r.reason), primacy.MaxName)
	}
	return nil
}

// make asks the leader of name, and waits until it has done it.
func (r *request) make(cmd *cobra.Command, a *app, name string) error {
	if r.only == "" && cmd.Flags().Changed("token") { // an empty variable: whoever leads is not who was meant
		return errors.New("--token is empty: give the token of a term, or leave it out to ask whoever leads")
	}
	if err := r.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	e := s.Election(name)
	if r.to != "" {
		askCtx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		now, err := e.State(askCtx)
		if err != nil {
			return err
		}
		if err := r.find(now); err != nil {
			return err
		}
		if now.Leader != nil && now.Leader.ID == r.to && r.token != 0 && now.Leader.Token != r.token {
			return r.over(ctx, e)
		}
		if now.Leader != nil && now.Leader.ID == r.to {
			a.say("%s leads %s already, under token %d", r.to, e.Name(), now.Leader.Token)
			return printLeader(ctx, a, nil, now)
		}
	}
	m, err := handover.NewMover(s, s.Store(), r.reason, r.wait, a.timeout)
	if err != nil {
		return err
	}
	m.By, m.Force = a.person(), r.force
	token, err := r.ask(ctx, a, m, e)
	if err != nil {
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	now, changed := m.Await(waitCtx, e, token, r.to)
	if !changed {
		return r.late(ctx, a, e, token)
	}
	return r.answered(ctx, a, s.Store(), now, token)
}

// ask asks the leader, and returns under which token it leads. An exempt request needs no m.
func (r *request) ask(ctx context.Context, a *app, m *handover.Mover, e *primacy.Election,
) (token primacy.Token, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if r.exempt {
		token, err = e.Ask(ctx, primacy.Request{To: r.to, Reason: r.reason, By: a.person(), Token: r.token,
			Automatic: true})
	} else {
		token, err = m.Ask(ctx, e, r.to, r.token)
	}
	switch {
	case errors.Is(err, handover.ErrNobodyFollows):
		return 0, fmt.Errorf("%s: %w, or give --force", e.Name(), err)
	case errors.Is(err, driver.ErrGone):
		return 0, r.over(ctx, e)
	case errors.Is(err, primacy.ErrNoLeader) && r.exempt:
		return 0, fail(exitNo, "nobody leads %s", e.Name())
	case errors.Is(err, primacy.ErrNoLeader):
		return 0, nobodyLeads(ctx, m.Session.Store(), e.Name())
	case errors.Is(err, primacy.ErrNotInLine), errors.Is(err, primacy.ErrDuplicateID):
		return 0, &exitError{exitNo, err}
	}
	return token, err
}

// over says that no other term was asked, since the one that was meant is over. It may have ended
// for an earlier try of this request, whose answer was lost.
func (r *request) over(ctx context.Context, e *primacy.Election) error {
	now := ""
	if st, err := e.State(ctx); err == nil && st.Leader == nil {
		now = ": nobody leads now"
	} else if err == nil {
		now = fmt.Sprintf(": %s leads now under token %d", who(st.Leader), st.Leader.Token)
	}
	return fail(exitNo, "the term of %s under token %d is over%s; nobody else was asked", e.Name(), r.token, now)
}

// find takes --to for a host if no candidate has it for its ID. What means nobody is left as it is:
// the answer to the request then says who waits.
func (r *request) find(now primacy.State) error {
	if slices.ContainsFunc(now.Waiting, func(w primacy.Entry) bool { return w.ID == r.to }) ||
		now.Leader != nil && now.Leader.ID == r.to {
		return nil
	}
	whom, err := handover.Find(r.to, []primacy.State{now})
	if err != nil {
		return fail(exitNo, "transfer %s: --to: %w", now.Name, err)
	}
	if now.Leader != nil && whom.Means(now.Leader.ID) {
		r.to = now.Leader.ID
		return nil
	}
	switch ids := whom.In([]primacy.State{now}); len(ids) {
	case 0:
	case 1:
		r.to = ids[0]
	default:
		return fail(exitNo, "transfer %s: %d candidates on %s are waiting: give --to the ID of one: %s", now.Name,
			len(ids), r.to, listed(ids))
	}
	return nil
}

// listed names candidates for people, not too many.
func listed(ids []string) string {
	const most = 10
	var out []string
	for _, id := range ids[:min(most, len(ids))] {
		out = append(out, clean(id))
	}
	if more := len(ids) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(out, ", "), more)
	}
	return strings.Join(out, ", ")
}

// late says that the leader was asked and leads still.
func (r *request) late(ctx context.Context, a *app, e *primacy.Election, token primacy.Token) error {
	if r.to == "" {
		return fail(exitNotAcquired, "the leader of %s was asked, but still leads under token %d after %v", e.Name(),
			token, r.wait)
	}
	return fail(exitNotAcquired,
		"the leader of %s was asked to hand over to %s, but still leads under token %d after %v%s", e.Name(), r.to,
		token, r.wait, stillStands(ctx, a, e, r.to))
}

// answered says what came after the term with that token.
func (r *request) answered(ctx context.Context, a *app, store driver.Store, st primacy.State, token primacy.Token,
) error {
	earlier := handover.Earlier(st, r.to)
	switch {
	case r.to == "":
		a.say("the leader of %s under token %d has resigned; now: %s", st.Name, token, who(st.Leader))
	case st.Leader == nil:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s does not lead: %w", st.Name, token,
			r.to, nobodyLeads(ctx, store, st.Name))
	case st.Leader.ID != r.to:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s leads now under token %d, not %s",
			st.Name, token, who(st.Leader), st.Leader.Token, r.to)
	case earlier != nil:
		return fail(exitNo, "%s, under token %d: %w", st.Name, token, earlier)
	default:
		a.say("%s leads %s under token %d, after token %d", r.to, st.Name, st.Leader.Token, token)
	}
	return printLeader(ctx, a, nil, st)
}

// stillStands says so if the candidate does not wait any more: then the leader leads on.
func stillStands(ctx context.Context, a *app, e *primacy.Election, id string) string {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	st, err := e.State(ctx)
	if err != nil || slices.ContainsFunc(st.Waiting, func(s primacy.Entry) bool { return s.ID == id }) {
		return ""
	}
	return fmt.Sprintf("; %s is not waiting any more", id)
}

func drainCommand(a *app) *cobra.Command {
	var r request
	c := &cobra.Command{
		Use:   "drain HOST | ID",
		Short: "Move everything that one machine or one candidate leads to others",
		Long: `Ask each leader on HOST, or the one candidate with that ID, to hand over to the candidate that has
waited longest elsewhere, and wait until it has: before a machine is taken out of service. HOST means all
candidates whose ID is HOST-PID-XXXX, as those are that were given no --id. What no other candidate waits for is
not moved, and listed.

A candidate that goes on waiting may lead again once others leave: stop it before you drain the next machine.
Locks do not move; their holders give them back. Exit 0 if nothing is led there any more; 1 if there is no such
candidate, or if something was not moved because nobody else waits for it, or was given up and nobody leads it;
124 if something was not moved within --wait.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return fmt.Errorf("give one HOST, or the ID of one candidate: 'primacy status' shows the leaders")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return drainCandidate(cmd.Context(), a, args[0], r)
		},
	}
	r.flags(c, "why, for the leaders and the history", "how long to wait until all has moved")
	return c
}

// moveJSON is what became of one election.
type moveJSON struct {
	Name   string        `json:"name"`
	Token  primacy.Token `json:"token"`  // of the term that was to end
	Result string        `json:"result"` // moved, left, late or failed
	Leader *shown.Entry  `json:"leader"` // who leads now
	Error  string        `json:"error,omitempty"`

	code    int
	givenUp bool // and nobody is known to lead
}

// drained is what became of all that one candidate led.
type drained struct {
	*app
	id    string   // as it was typed
	known []string // the IDs that it means
	moves []moveJSON
}

func drainCandidate(ctx context.Context, a *app, id string, r request) error {
	if err := r.check(); err != nil {
		return err
	}
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	m, err := handover.NewMover(s, st, r.reason, r.wait, a.timeout)
	if err != nil {
		return err
	}
	m.By, m.Force = a.person(), r.force
	listCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	states, err := s.List(listCtx, "")
	if err != nil {
		return err
	}
	whom, err := handover.Find(id, states)
	if err != nil {
		return fail(exitNo, "drain: %w", err)
	}
	d := &drained{app: a, id: id, known: whom.In(states)}
	if len(d.known) > 1 || len(d.known) == 1 && d.known[0] != id {
		a.say("on %s: %s", id, listed(d.known))
	}
	m.Drain(ctx, whom, states, d.tell)
	return d.sum()
}

// tell prints one line as soon as it is known what became of an election; -o json waits for all.
func (d *drained) tell(move handover.Move) {
	m := moveToJSON(move)
	d.moves = append(d.moves, m)
	switch {
	case d.output == "json":
	case d.output == "ndjson":
		_ = d.writeJSON(m)
	case m.givenUp:
		fmt.Fprintf(d.stdout, "%s: %s\n", clean(m.Name), m.Error)
	case m.Error != "":
		fmt.Fprintf(d.stdout, "%s: not moved: %s\n", clean(m.Name), m.Error)
	default:
		fmt.Fprintf(d.stdout, "%s: moved: %s leads under token %d\n", clean(m.Name), orDash(m.Leader.ID),
			m.Leader.Token)
	}
}

func moveToJSON(move handover.Move) moveJSON {
	m := moveJSON{Name: move.Name, Token: move.Token, Result: string(move.Result)}
	if l := move.Now.Leader; l != nil {
		j := shown.EntryOf(*l)
		m.Leader = &j
	}
	if move.Err != nil {
		m.Error = oneLine(move.Err)
	}
	m.givenUp = errors.Is(move.Err, handover.ErrGivenUp)
	switch {
	case move.Result == handover.Left, m.givenUp:
		m.code = exitNo
	case move.Result == handover.Late:
		m.code = exitNotAcquired
	case move.Result == handover.Failed:
		m.code = codeOf(move.Err)
	}
	return m
}

// sum says how it went on the whole.
func (d *drained) sum() error {
	slices.SortFunc(d.moves, func(a, b moveJSON) int { return strings.Compare(a.Name, b.Name) })
	if d.output == "json" {
		if err := d.writeJSON(append([]moveJSON{}, d.moves...)); err != nil {
			return err
		}
	}
	code, stays, givenUp := 0, 0, 0
	for _, m := range d.moves {
		switch code = max(code, m.code); {
		case m.givenUp:
			givenUp++
		case m.code != 0:
			stays++
		}
	}
	lost := fmt.Sprintf("%d of the %d that %s led have no leader that is known to live", givenUp, len(d.moves), d.id)
	switch {
	case stays > 0 && givenUp > 0:
		return fail(code, "%s still leads %d of the %d it led; %s", d.id, stays, len(d.moves), lost)
	case stays > 0:
		return fail(code, "%s still leads %d of the %d it led", d.id, stays, len(d.moves))
	case givenUp > 0:
		return fail(code, "%s", lost)
	case len(d.known) == 0:
		return fail(exitNo, "no candidate has the ID %s or is on a host of that name: "+
			"'primacy status -o json' shows all", d.id)
	case len(d.moves) == 0:
		d.say("%s leads nothing", d.id)
	}
	return nil
}
