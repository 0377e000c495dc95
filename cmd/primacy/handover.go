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
)

func resignCommand(a *app) *cobra.Command {
	var r request
	c := &cobra.Command{
		Use:   "resign NAME",
		Short: "Ask the leader to stop its work and let the next one lead",
		Long: `Ask the leader of NAME to resign: it stops its work, then gives the name up, and the candidate
that has waited longest leads. Waits until it has resigned. Exit 1 if nobody leads, 124 if the leader has not
resigned within --wait.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error { return r.make(cmd.Context(), a, args[0]) },
	}
	r.flags(c, "why, for the leader and the history", "how long to wait until it has resigned")
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
same as 'primacy resign NAME'.

Exit 1 if nobody leads, if no such candidate, or more than one, is waiting (the leader is not asked then), or if
another one leads in the end; 124 if the leader has not handed over within --wait. If the candidate leads
already, nothing is asked.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			// An empty variable, most likely: stepping down is not what was meant.
			if r.to == "" && cmd.Flags().Changed("to") {
				return errors.New("--to is empty: give the ID of a candidate, " +
					"or leave it out to let the oldest one lead")
			}
			return r.make(cmd.Context(), a, args[0])
		},
	}
	c.Flags().StringVar(&r.to, "to", "",
		"the ID or the host of the candidate to lead next (default: the one that has waited longest)")
	r.flags(c, "why, for the leader and the history", "how long to wait until it leads")
	return c
}

// request is what resign, transfer and drain ask of a leader.
type request struct {
	to     string // who is to lead next; "": who has waited longest
	reason string
	wait   time.Duration // until it is done
}

func (r *request) flags(c *cobra.Command, why, howLong string) {
	c.Flags().StringVar(&r.reason, "reason", "", why)
	c.Flags().DurationVar(&r.wait, "wait", 30*time.Second, howLong)
}

// check refuses what the store would.
func (r *request) check() error {
	if len(r.reason) > primacy.MaxName {
		return fmt.Errorf("--reason has %d bytes, more than %d", len(r.reason), primacy.MaxName)
	}
	return nil
}

// make asks the leader of name, and waits until it has done it.
func (r *request) make(ctx context.Context, a *app, name string) error {
	if err := r.check(); err != nil {
		return err
	}
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	return r.makeOf(ctx, a, s.Election(name))
}

// makeOf is make, of an election that was opened before.
func (r *request) makeOf(ctx context.Context, a *app, e *primacy.Election) error {
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
		if now.Leader != nil && now.Leader.ID == r.to {
			a.say("%s leads %s already, under token %d", r.to, e.Name(), now.Leader.Token)
			return printLeader(a, now)
		}
	}
	token, err := r.ask(ctx, a, e)
	if err != nil {
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	st, changed := handover.AwaitChange(waitCtx, e, token)
	if !changed {
		return r.late(ctx, a, e, token)
	}
	return r.answered(a, st, token)
}

// ask asks the leader, and returns under which token it leads.
func (r *request) ask(ctx context.Context, a *app, e *primacy.Election) (primacy.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	token, err := e.Ask(ctx, primacy.Request{To: r.to, Reason: r.reason, By: a.person()})
	switch {
	case errors.Is(err, primacy.ErrNoLeader):
		return 0, fail(exitNo, "nobody leads %s", e.Name())
	case errors.Is(err, primacy.ErrNotInLine), errors.Is(err, primacy.ErrDuplicateID):
		return 0, &exitError{exitNo, err}
	}
	return token, err
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
func (r *request) answered(a *app, st primacy.State, token primacy.Token) error {
	switch {
	case r.to == "":
		a.say("the leader of %s under token %d has resigned; now: %s", st.Name, token, who(st.Leader))
	case st.Leader == nil:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s does not lead: nobody does", st.Name,
			token, r.to)
	case st.Leader.ID != r.to:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s leads now under token %d, not %s",
			st.Name, token, who(st.Leader), st.Leader.Token, r.to)
	default:
		a.say("%s leads %s under token %d, after token %d", r.to, st.Name, st.Leader.Token, token)
	}
	return printLeader(a, st)
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
candidate, or if something was not moved because nobody else waits for it; 124 if something was not moved within
--wait.`,
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
	code   int
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
	m.By = a.person()
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
	case m.Error != "":
		fmt.Fprintf(d.stdout, "%s: not moved: %s\n", clean(m.Name), m.Error)
	case m.Leader == nil:
		fmt.Fprintf(d.stdout, "%s: moved: nobody leads\n", clean(m.Name))
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
	switch move.Result {
	case handover.Left:
		m.code = exitNo
	case handover.Late:
		m.code = exitNotAcquired
	case handover.Failed:
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
	code, stays := 0, 0
	for _, m := range d.moves {
		if code = max(code, m.code); m.code != 0 {
			stays++
		}
	}
	switch {
	case code != 0:
		return fail(code, "%s still leads %d of the %d it led", d.id, stays, len(d.moves))
	case len(d.known) == 0:
		return fail(exitNo, "no candidate has the ID %s or is on a host of that name: "+
			"'primacy status -o json' shows all", d.id)
	case len(d.moves) == 0:
		d.say("%s leads nothing", d.id)
	}
	return nil
}
