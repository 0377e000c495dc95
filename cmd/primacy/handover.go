package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

func resignCommand(a *app) *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "resign NAME",
		Short: "Ask the leader to stop its work and let the next one lead",
		Long: `Ask the leader of NAME to resign: it stops its work, then gives the name up, and the oldest
candidate in the line leads. Waits until it has. Exit 1 if nobody leads, 124 if the leader has not resigned in
the time given.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return askToResign(cmd.Context(), a, args[0], reason, wait)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the leader and the history")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until it has resigned")
	return c
}

func askToResign(ctx context.Context, a *app, name, reason string, wait time.Duration) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	e := s.Election(name)
	askCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	token, err := e.Ask(askCtx, primacy.Request{Reason: reason})
	if errors.Is(err, primacy.ErrNoLeader) {
		return fail(exitNo, "nobody leads %s", name)
	}
	if err != nil {
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if st, changed := handover.AwaitChange(waitCtx, e, token); changed {
		a.say("the leader of %s under token %d has resigned; now: %s", name, token, who(st.Leader))
		return printLeader(a, st)
	}
	return fail(exitNotAcquired, "the leader of %s was asked, but still leads under token %d after %v", name, token,
		wait)
}

func transferCommand(a *app) *cobra.Command {
	var to, reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "transfer NAME [--to ID]",
		Short: "Ask the leader to stop its work and hand over to a candidate you name",
		Long: `Ask the leader of NAME to hand over: it stops its work, and then the candidate with the ID given
leads, although others may have waited longer; they keep waiting, behind it. Waits until it leads. Without --to
the leader steps down: the same as 'primacy resign NAME'.

Exit 1 if nobody leads, if that candidate does not stand in the line (the leader is not asked then), or if
another one leads in the end; 124 if the leader has not handed over in the time given. If the candidate leads
already, nothing is asked.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to != "" {
				return askToTransfer(cmd.Context(), a, args[0], to, reason, wait)
			}
			if cmd.Flags().Changed("to") { // an empty variable, most likely: stepping down is not what was meant
				return fmt.Errorf("--to is empty: give the ID of a candidate, or leave it out to let the oldest one lead")
			}
			return askToResign(cmd.Context(), a, args[0], reason, wait)
		},
	}
	c.Flags().StringVar(&to, "to", "", "the candidate to lead next (default: the oldest in the line)")
	c.Flags().StringVar(&reason, "reason", "", "why, for the leader and the history")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until it leads")
	return c
}

func askToTransfer(ctx context.Context, a *app, name, to, reason string, wait time.Duration) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	e := s.Election(name)
	askCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	now, err := e.State(askCtx)
	if err != nil {
		return err
	}
	if now.Leader != nil && now.Leader.ID == to {
		a.say("%s leads %s already, under token %d", to, name, now.Leader.Token)
		return printLeader(a, now)
	}
	token, err := e.Ask(askCtx, primacy.Request{To: to, Reason: reason})
	switch {
	case errors.Is(err, primacy.ErrNoLeader):
		return fail(exitNo, "nobody leads %s", name)
	case errors.Is(err, primacy.ErrNotInLine):
		return &exitError{exitNo, err}
	case err != nil:
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	st, changed := handover.AwaitChange(waitCtx, e, token)
	switch {
	case !changed:
		return fail(exitNotAcquired,
			"the leader of %s was asked to hand over to %s, but still leads under token %d after %v%s", name, to,
			token, wait, stillStands(ctx, a, e, to))
	case st.Leader == nil:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s does not lead: nobody does", name,
			token, to)
	case st.Leader.ID != to:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s leads now under token %d, not %s",
			name, token, who(st.Leader), st.Leader.Token, to)
	}
	a.say("%s leads %s under token %d, after token %d", to, name, st.Leader.Token, token)
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
	return fmt.Sprintf("; %s stands in the line no more", id)
}

func checkReason(reason string) error {
	if len(reason) > primacy.MaxName {
		return fmt.Errorf("--reason has %d bytes, more than %d", len(reason), primacy.MaxName)
	}
	return nil
}

func drainCommand(a *app) *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain ID",
		Short: "Move everything that one candidate leads to others",
		Long: `Ask the candidate ID, for each election that it leads, to hand over to the oldest candidate of
another ID, and wait until it has: before a machine is taken out of service. What it leads where nobody else
stands is left to it, and listed.

It may win again what it still stands for, once others leave: stop it before the next one goes. Locks do not
move; their holders give them back. Exit 0 if it leads nothing any more; 1 if something is left because nobody
else stands; 124 if something has not moved in the time given.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return fmt.Errorf("give the ID of one candidate: 'primacy status' shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return drainCandidate(cmd.Context(), a, args[0], reason, wait)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the leaders and the history")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until all has moved")
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
	id    string
	moves []moveJSON
}

func drainCandidate(ctx context.Context, a *app, id, reason string, wait time.Duration) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	m, err := handover.NewMover(s, st, reason, wait, a.timeout)
	if err != nil {
		return err
	}
	listCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	states, err := s.List(listCtx, "")
	if err != nil {
		return err
	}
	d := &drained{app: a, id: id}
	m.Drain(ctx, id, states, d.tell)
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
		fmt.Fprintf(d.stdout, "%s: %s: %s\n", clean(m.Name), m.Result, m.Error)
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
	slices.SortFunc(d.moves, func(a, b moveJSON) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
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
	case len(d.moves) == 0:
		d.say("%s leads nothing", d.id)
	}
	return nil
}
