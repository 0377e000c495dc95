package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
)

func statusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status [NAME | PREFIX/...]",
		Aliases: []string{"list"},
		Short:   "Show the leaders and lock holders, their tokens, and who waits",
		Long: `Show all elections and locks, those below a prefix (billing/...), or one with its whole line: who
leads or holds, and who waits. Several hold a lock at once where they share it: readers (shared), or those in a
semaphore (slot of N). The token is that of the claim; the fencing token of a lock is 65,536 times that, or a
little more. With one NAME also the last terms and why they ended; exit 1 if nobody leads or holds it. Whether
an exclusive claim leads an election or holds a lock is known from the history, which locks do not have.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, all := "", true
			if len(args) == 1 {
				name, all = strings.CutSuffix(args[0], "...")
			}
			return showStatus(cmd.Context(), a, name, all)
		},
	}
}

func showStatus(ctx context.Context, a *app, name string, all bool) error {
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
		return showAll(ctx, a, st, s, name)
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
		err = printLine(a, state, past, st.Caps().Store)
	}
	if err == nil && state.Leader == nil {
		return &exitError{code: exitNo}
	}
	return err
}

func showAll(ctx context.Context, a *app, st driver.Store, s *primacy.Session, prefix string) error {
	states, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return writeStates(a, states, sinces(ctx, s, states))
	}
	if len(states) == 0 {
		fmt.Fprintf(a.stdout, "nobody leads or waits%s. Start one: primacy run NAME -- COMMAND\n", below(prefix))
		return nil
	}
	rows := [][]string{{"NAME", "LEADER", "SINCE", "TOKEN", "WAITING", "VALUE"}}
	led := sinces(ctx, s, states)
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
	printAsOf(a, states[0].AsOf, st.Caps().Store, states[0].Revision)
	return nil
}

func below(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " below " + clean(prefix)
}

// writeStates writes one array for json, an object a line for ndjson.
func writeStates(a *app, states []primacy.State, led []time.Time) error {
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
func printLine(a *app, st primacy.State, past []primacy.TermRecord, store string) error {
	rows := [][]string{{"PLACE", "ID", "TOKEN", "LEASE", "VALUE", "NOTE"}}
	row := func(place string, s primacy.Entry) {
		rows = append(rows, []string{place, who(&s), tokenText(s.Token), orDash(s.Lease), orDash(string(s.Value)),
			cmp.Or(printable(s.Note), "-")})
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
	if ended := slices.DeleteFunc(past,
		func(r primacy.TermRecord) bool { return r.Reason == primacy.Leads }); len(ended) > 0 {
		fmt.Fprintln(a.stdout, "\nthe last terms:")
		if err := printTerms(a, ended); err != nil {
			return err
		}
	}
	printAsOf(a, st.AsOf, store, st.Revision)
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

// place says what a claim does in the line; in that of a shared lock, in the lock's words and
// beside whom.
func place(does, inLock string, s primacy.Entry, shared bool) string {
	if !shared {
		return does
	}
	return cmp.Or(inLock, does) + ", " + cmp.Or(share(s.Slots), "exclusive")
}

// printAsOf says how old the picture is: a page must not look live when it is not.
func printAsOf(a *app, asOf time.Time, store string, revision uint64) {
	fmt.Fprintf(a.stdout, "\nas read at %s from %s, revision %d\n", asOf.Format("15:04:05"), store, revision)
}

func historyCommand(a *app) *cobra.Command {
	limit := 20
	c := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who led before: from when to when, why each term ended, by whom, and the gap before it",
		Long: `Show the last terms of an election, the newest first: token, leader, from when to when, how long,
for how long nobody led before it, why it ended and who asked for that. Each leader writes its own terms into
the store, so a term whose end nobody could write (killed, or cut off for good) is shown as such. Times are of
the leaders' own wall clocks. Locks have no history. Exit 1 if nothing is known of NAME.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit must not be negative; 0 is all that are kept")
			}
			return showHistory(cmd.Context(), a, args[0], limit)
		},
	}
	c.Flags().IntVar(&limit, "limit", limit,
		"how many terms; 0: all that are kept (at least 100, unless the leader says otherwise)")
	return c
}

func showHistory(ctx context.Context, a *app, name string, limit int) error {
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	all, err := s.Election(name).History(ctx, limit)
	if err != nil {
		return err
	}
	if n := s.Stats().Unreadable; n > 0 {
		a.say("warning: %d records of %s cannot be read and are left out", n, clean(name))
	}
	switch {
	case a.output != "table":
		err = writeTerms(a, all)
	case len(all) > 0:
		err = printTerms(a, all)
	}
	if err == nil && len(all) == 0 {
		return fail(exitNo, "nothing is known of %s: nobody has led it, or it is a lock", name)
	}
	return err
}

// writeTerms writes one array for json, an object a line for ndjson.
func writeTerms(a *app, all []primacy.TermRecord) error {
	if a.output == "json" {
		return a.writeJSON(shown.TermsOf(all))
	}
	for _, j := range shown.TermsOf(all) {
		if err := a.writeJSON(j); err != nil {
			return err
		}
	}
	return nil
}

func printTerms(a *app, all []primacy.TermRecord) error {
	rows := [][]string{{"TOKEN", "LEADER", "FROM", "TO", "LASTED", "GAP BEFORE", "WHY", "BY"}}
	for _, r := range all {
		lasted, gap := "-", "-"
		if d, known := r.Lasted(); known {
			lasted = short(d)
		} else if r.Reason == primacy.Leads && !r.From.IsZero() {
			lasted = short(max(0, time.Since(r.From))) + " so far"
		}
		if r.Gap != nil {
			gap = short(*r.Gap)
		}
		rows = append(rows, []string{r.Token.String(), orDash(r.ID), clock(r.From), clock(r.To), lasted, gap, why(r),
			orDash(r.By)})
	}
	return table(a.stdout, rows...)
}

// mayLead is said of an exclusive claim of which no term was recorded: it may be a lock's, or in
// its first moment, or another program's.
const mayLead = "leader or lock holder"

// why tells people why a term ended.
func why(r primacy.TermRecord) string {
	if r.Reason == primacy.Leads && r.From.IsZero() {
		return mayLead
	}
	s := clean(shown.Told(r.Reason))
	switch r.Reason {
	case primacy.Leads, primacy.Unknown:
		return s
	case primacy.Transferred:
		s += " to " + cmp.Or(clean(r.Successor), "another")
	}
	if r.Text != "" {
		s += ": " + clean(r.Text)
	}
	return s
}

// clock is a time as people read it, to the second.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// short is a duration in two or three digits, as far as people care.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// maxSince is of how many names a list says since when they are led: each is a request.
const maxSince = 200

// sinces returns since when the leaders of states lead, zero where it is not known.
func sinces(ctx context.Context, s *primacy.Session, states []primacy.State) []time.Time {
	out := make([]time.Time, len(states))
	if len(states) > maxSince {
		return out
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(8, len(states)) {
		wg.Go(func() {
			for i := range next {
				if st := states[i]; st.Leader != nil {
					past, _ := s.Election(st.Name).History(ctx, 1)
					out[i] = since(past, st.Leader.Token)
				}
			}
		})
	}
	for i := range states {
		next <- i
	}
	close(next)
	wg.Wait()
	return out
}

// since returns when the term with that token was won, zero if the history does not say.
func since(past []primacy.TermRecord, token primacy.Token) time.Time {
	for _, r := range past {
		if r.Token == token {
			return r.From
		}
	}
	return time.Time{}
}
