package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

func (a *app) drainCommand() *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain ID",
		Short: "Move everything that one candidate leads to others",
		Long: `Ask the candidate ID, for each election that it leads, to hand over to the oldest candidate of another ID, and wait until it has: before
a machine is taken out of service. What it leads where nobody else stands is left to it, and listed.

It may win again what it still stands for, once others leave: stop it before the next one goes. Locks do not move; their holders give them
back. Exit 0 if it leads nothing any more; 1 if something is left because nobody else stands; 124 if something has not moved in the time given.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return fmt.Errorf("give the ID of one candidate: 'primacy status' shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.drain(cmd.Context(), args[0], reason, wait) },
	}
	c.Flags().StringVar(&reason, "reason", "", "told to the candidate")
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

func (a *app) drain(ctx context.Context, id, reason string, wait time.Duration) error {
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
		fmt.Fprintf(d.stdout, "%s: moved: %s leads under token %d\n", clean(m.Name), orDash(m.Leader.ID), m.Leader.Token)
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
