package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

func (a *app) historyCommand() *cobra.Command {
	limit := 20
	c := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who led before: from when to when, why each term ended, by whom, and the gap before it",
		Long: `Show the last terms of an election, the newest first: token, leader, from when to when, how long, for how long nobody led before it, why it ended
and who asked for that. Each leader writes its own terms into the store, so a term whose end nobody could write (killed, or cut off for good) is told
as that. Times are of the leaders' own wall clocks. Locks have no history. Exit 1 if nothing is known of NAME.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit must not be negative; 0 is all that are kept")
			}
			return a.history(cmd.Context(), args[0], limit)
		},
	}
	c.Flags().IntVar(&limit, "limit", limit, "how many terms; 0: all that are kept (at least 100, unless the leader says otherwise)")
	return c
}

func (a *app) history(ctx context.Context, name string, limit int) error {
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
		err = a.writeReigns(all)
	case len(all) > 0:
		err = printReigns(a, all)
	}
	if err == nil && len(all) == 0 {
		return fail(exitNo, "nothing is known of %s: nobody has led it, or it is a lock", name)
	}
	return err
}

// writeReigns writes one array for json, an object a line for ndjson.
func (a *app) writeReigns(all []primacy.Reign) error {
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

func printReigns(a *app, all []primacy.Reign) error {
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
		rows = append(rows, []string{r.Token.String(), orDash(r.ID), clock(r.From), clock(r.To), lasted, gap, why(r), orDash(r.By)})
	}
	return table(a.stdout, rows...)
}

// mayLead is said of an exclusive claim of which no term was recorded: it may be a lock's, or in its first moment, or another program's.
const mayLead = "leads or holds"

// why tells people why a term ended.
func why(r primacy.Reign) string {
	if r.Reason == primacy.Leads && r.From.IsZero() {
		return mayLead
	}
	s := clean(shown.Told(r.Reason))
	switch r.Reason {
	case primacy.Leads, primacy.Unknown:
		return s
	case primacy.Transferred:
		s += " to " + cmp.Or(clean(r.Heir), "another")
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
func (a *app) sinces(ctx context.Context, s *primacy.Session, states []primacy.State) []time.Time {
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
func since(past []primacy.Reign, token primacy.Token) time.Time {
	for _, r := range past {
		if r.Token == token {
			return r.From
		}
	}
	return time.Time{}
}
