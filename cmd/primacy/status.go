package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status [NAME | PREFIX/...]",
		Short: "Show who leads or holds what, under which token, and who waits",
		Long: `Show all elections and locks, those below a prefix (billing/...), or one with its whole line: who leads or holds, and who waits.
Several hold a lock at once where they share it: readers (shared), or those in a semaphore (slot of N). The token is that of the claim;
the fencing token of a lock is 65,536 times that, or a little more. With one NAME also the last terms and why they ended; exit 1 if nobody
leads or holds it. Whether an exclusive claim leads an election or holds a lock is known from the history, which locks do not have.`,
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
	past, _ := s.Election(name).History(ctx, lastTerms) // a store without it shows the line
	if a.output != "table" {
		j := stateToJSON(state, nil)
		j.Terms = shown.TermsOf(past)
		if state.Leader != nil {
			j.Since = since(past, state.Leader.Token)
		}
		err = a.writeJSON(j)
	} else {
		err = a.printLine(state, past, st.Caps().Store)
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
		return a.writeStates(states, a.sinces(ctx, s, states))
	}
	if len(states) == 0 {
		fmt.Fprintf(a.stdout, "nobody leads or waits%s. Start one: primacy run NAME -- COMMAND\n", below(prefix))
		return nil
	}
	rows := [][]string{{"NAME", "LEADER", "SINCE", "TOKEN", "WAITING", "VALUE"}}
	led := a.sinces(ctx, s, states)
	for i, st := range states {
		token, value := "-", "-"
		if st.Leader != nil {
			token, value = tokenText(st.Leader.Token), orDash(string(st.Leader.Value))
		}
		rows = append(rows, []string{clean(st.Name), whoAll(st), clock(led[i]), token, fmt.Sprint(waiting(st)), value})
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
func (a *app) writeStates(states []primacy.State, led []time.Time) error {
	out := []stateJSON{}
	for i, st := range states {
		out = append(out, stateToJSON(st, nil))
		out[i].Since = led[i]
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

// tokenText is a token for people: some stores have none.
func tokenText(t primacy.Token) string {
	if t == 0 {
		return "-"
	}
	return t.String()
}

// lastTerms is how many terms the status of one name tells.
const lastTerms = 5

// printLine prints one election with everybody in its line, and its last terms.
func (a *app) printLine(st primacy.State, past []primacy.Reign, store string) error {
	rows := [][]string{{"PLACE", "ID", "TOKEN", "LEASE", "VALUE", "NOTE"}}
	row := func(place string, s primacy.Entry) {
		rows = append(rows, []string{place, who(&s), tokenText(s.Token), orDash(s.Lease), orDash(string(s.Value)), cmp.Or(printable(s.Note), "-")})
	}
	if st.Leader == nil {
		fmt.Fprintf(a.stdout, "nobody leads %s\n", clean(st.Name))
	}
	mixed, does := isShared(st), "leads"
	if len(past) == 0 || len(past) == 1 && past[0].From.IsZero() {
		does = mayLead
	}
	for _, h := range holders(st) {
		row(place(does, "holds", h, mixed), h)
	}
	n := 0
	for _, w := range st.Waiting {
		if !w.Held {
			n++
			row(place(fmt.Sprintf("waits %d", n), "", w, mixed), w)
		}
	}
	if len(rows) > 1 {
		if err := table(a.stdout, rows...); err != nil {
			return err
		}
	}
	if led := since(past, leaderToken(st)); !led.IsZero() {
		fmt.Fprintf(a.stdout, "\nleads since %s, for %s\n", clock(led), short(max(0, time.Since(led))))
	}
	if ended := slices.DeleteFunc(past, func(r primacy.Reign) bool { return r.Reason == primacy.Leads }); len(ended) > 0 {
		fmt.Fprintln(a.stdout, "\nthe last terms:")
		if err := printReigns(a, ended); err != nil {
			return err
		}
	}
	a.printAsOf(st.AsOf, store, st.Revision)
	return nil
}

func leaderToken(st primacy.State) primacy.Token {
	if st.Leader == nil {
		return 0
	}
	return st.Leader.Token
}

// isShared says whether some in the line share the name: then it is a lock, not an election.
func isShared(st primacy.State) bool {
	all := st.Waiting
	if st.Leader != nil {
		all = append([]primacy.Entry{*st.Leader}, all...)
	}
	return slices.ContainsFunc(all, func(s primacy.Entry) bool { return s.Slots != 0 })
}

// place says what a claim does in the line; in that of a shared lock, in the lock's words and beside whom.
func place(does, inLock string, s primacy.Entry, shared bool) string {
	if !shared {
		return does
	}
	return cmp.Or(inLock, does) + ", " + cmp.Or(share(s.Slots), "exclusive")
}

// printAsOf says how old the picture is: a page must not look live when it is not.
func (a *app) printAsOf(asOf time.Time, store string, revision uint64) {
	fmt.Fprintf(a.stdout, "\nas read at %s from %s, revision %d\n", asOf.Format("15:04:05"), store, revision)
}
