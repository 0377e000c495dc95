package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [NAME | PREFIX/...]",
		Short: "Show who leads what, under which token, and who waits",
		Long: `Show all elections, those below a prefix (billing/...), or one with its whole line.
With one NAME: exit 1 if nobody leads.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, all := "", true
			if len(args) == 1 {
				name, all = strings.CutSuffix(args[0], "...")
			}
			return a.status(cmd.Context(), name, all)
		},
	}
}

func (a *app) status(ctx context.Context, name string, all bool) error {
	if !all {
		if err := primacy.CheckName(name); err != nil {
			return err
		}
	}
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if all {
		return a.statusAll(ctx, st, s, name)
	}
	state, err := s.Election(name).State(ctx)
	if err != nil {
		return err
	}
	if a.output != "table" {
		err = a.writeJSON(stateToJSON(state, nil))
	} else {
		err = a.printLine(state, st.Caps().Store)
	}
	if err == nil && state.Leader == nil {
		return &exitError{code: exitNo}
	}
	return err
}

func (a *app) statusAll(ctx context.Context, st driver.Store, s *primacy.Session, prefix string) error {
	states, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.writeStates(states)
	}
	if len(states) == 0 {
		fmt.Fprintf(a.stdout, "nobody leads or waits%s. Start one: primacy run NAME -- COMMAND\n", below(prefix))
		return nil
	}
	rows := [][]string{{"NAME", "LEADER", "TOKEN", "WAITING", "VALUE"}}
	for _, st := range states {
		token, value := "-", "-"
		if st.Leader != nil {
			token, value = st.Leader.Token.String(), orDash(string(st.Leader.Value))
		}
		rows = append(rows, []string{clean(st.Name), who(st.Leader), token, fmt.Sprint(len(st.Waiting)), value})
	}
	if err := table(a.stdout, rows...); err != nil {
		return err
	}
	a.printAsOf(states[0].AsOf, st.Caps().Store, states[0].Revision)
	return nil
}

func below(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " below " + clean(prefix)
}

// writeStates writes one array for json, an object a line for ndjson.
func (a *app) writeStates(states []primacy.State) error {
	out := []stateJSON{}
	for _, st := range states {
		out = append(out, stateToJSON(st, nil))
	}
	if a.output == "json" {
		return a.writeJSON(out)
	}
	for _, j := range out {
		if err := a.writeJSON(j); err != nil {
			return err
		}
	}
	return nil
}

// printLine prints one election with everybody in its line.
func (a *app) printLine(st primacy.State, store string) error {
	rows := [][]string{{"PLACE", "ID", "TOKEN", "LEASE", "VALUE", "NOTE"}}
	row := func(place string, s primacy.Standing) {
		rows = append(rows, []string{place, who(&s), s.Token.String(), orDash(s.Lease), orDash(string(s.Value)), cmp.Or(printable(s.Note), "-")})
	}
	if st.Leader == nil {
		fmt.Fprintf(a.stdout, "nobody leads %s\n", clean(st.Name))
	} else {
		row("leads", *st.Leader)
	}
	for i, w := range st.Waiting {
		row(fmt.Sprintf("waits %d", i+1), w)
	}
	if len(rows) > 1 {
		if err := table(a.stdout, rows...); err != nil {
			return err
		}
	}
	a.printAsOf(st.AsOf, store, st.Revision)
	return nil
}

// printAsOf says how old the picture is: a page must not look live when it is not.
func (a *app) printAsOf(asOf time.Time, store string, revision uint64) {
	fmt.Fprintf(a.stdout, "\nas read at %s from %s, revision %d\n", asOf.Format("15:04:05"), store, revision)
}
