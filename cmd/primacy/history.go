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
)

func historyCommand(a *app) *cobra.Command {
	limit := 20
	c := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who led before: from when to when, why each term ended, by whom, and the gap before it",
		Long: `Show the last terms of an election, the newest first: token, leader, from when to when, how long,
for how long nobody led before it, why it ended and who asked for that. Each leader writes its own terms into
the store. Where nobody could write an end (killed, or cut off for good) bounds are shown: <= is at the latest,
or at most. Short terms in a row that ended for the same reason are one line, with their number: ×43. Times are
of the leaders' own wall clocks. Locks have no history. With -o json every term has its own entry. Exit 1 if
nothing is known of NAME.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit must not be negative; 0 is all that are kept")
			}
			return showHistory(cmd.Context(), a, args[0], limit)
		},
	}
	c.Flags().IntVar(&limit, "limit", limit,
		"how many lines, or with -o json terms; 0: all that are kept (at least 1000 of 'primacy run', else 100)")
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
	read := limit
	if a.output == "table" {
		read = 0 // a line may be of many terms
	}
	all, err := s.Election(name).History(ctx, read)
	if err != nil {
		return err
	}
	if n := s.Stats().Unreadable; n > 0 {
		a.say("warning: %d %s of %s left out: unreadable", n, plural(int(n), "record", "records"), clean(name))
	}
	switch {
	case a.output != "table":
		err = writeTerms(a, all)
	case len(all) > 0:
		err = printTerms(a, all, limit)
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

// printTerms prints at most limit lines of terms, the newest first; 0: all.
func printTerms(a *app, all []primacy.TermRecord, limit int) error {
	rows := [][]string{{"TOKEN", "LEADER", "FROM", "TO", "LASTED", "GAP BEFORE", "WHY", "BY"}}
	for _, g := range alike(all) {
		if limit > 0 && len(rows) > limit {
			break
		}
		rows = append(rows, g.row())
	}
	return table(a.stdout, rows...)
}

// terms are the newest first: one, or a loop of short ones that ended for the same reason.
type terms []primacy.TermRecord

// What makes a loop of terms.
const (
	shortTerm = time.Minute // none lasted longer
	fewTerms  = 3           // fewer are shown one by one
)

// alike groups terms.
func alike(all []primacy.TermRecord) (groups []terms) {
	for len(all) > 0 {
		n := 1
		for n < len(all) && loops(all[0]) && loops(all[n]) && why(all[0]) == why(all[n]) {
			n++
		}
		if n < fewTerms {
			n = 1
		}
		groups = append(groups, all[:n])
		all = all[n:]
	}
	return groups
}

// loops says whether a term may be one of a loop: it was short, and its own command ended it.
func loops(r primacy.TermRecord) bool {
	lasted, known := r.Lasted()
	return known && lasted <= shortTerm && r.By == "" && r.Outlived == 0 &&
		(r.Reason == primacy.Failed || r.Reason == primacy.Resigned)
}

// row is the line of a group.
func (g terms) row() []string {
	last, first := g[0], g[len(g)-1]
	token, by := last.Token.String(), orDash(last.By)
	if len(g) > 1 {
		token = first.Token.String() + ".." + token
	}
	return []string{token, g.leaders(), clock(first.From), endedAt(last), g.lasted(), gapBefore(first), g.why(), by}
}

// leaders names who led, each once.
func (g terms) leaders() string {
	var ids []string
	for _, r := range g {
		if !slices.Contains(ids, r.ID) {
			ids = append(ids, r.ID)
		}
	}
	const most = 3
	slices.Sort(ids)
	more := ""
	if len(ids) > most {
		ids, more = ids[:most], fmt.Sprintf(" and %d more", len(ids)-most)
	}
	for i := range ids {
		ids[i] = orDash(ids[i])
	}
	return strings.Join(ids, ", ") + more
}

func (g terms) lasted() string {
	var longest time.Duration
	for _, r := range g {
		d, known := r.Lasted()
		longest = max(longest, d)
		switch {
		case known && len(g) == 1:
			return short(d)
		case known:
		case r.Reason == primacy.Leads && !r.From.IsZero():
			return short(max(0, time.Since(r.From))) + " so far"
		case r.ToAfter.After(r.From) && !r.From.IsZero():
			return ">= " + short(r.ToAfter.Sub(r.From))
		default:
			return "-"
		}
	}
	return "<= " + short(longest)
}

func (g terms) why() string {
	if len(g) == 1 {
		return why(g[0])
	}
	return fmt.Sprintf("%s ×%d", why(g[0]), len(g))
}

// endedAt is when a term ended, or at the latest.
func endedAt(r primacy.TermRecord) string {
	if r.To.IsZero() && !r.ToBefore.IsZero() {
		return "<= " + clock(r.ToBefore)
	}
	return clock(r.To)
}

// gapBefore is for how long nobody led before a term, or at most.
func gapBefore(r primacy.TermRecord) string {
	switch {
	case r.Gap != nil:
		return short(*r.Gap)
	case r.GapMost != nil:
		return "<= " + short(*r.GapMost)
	}
	return "-"
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
	case primacy.Leads:
		return s
	case primacy.Transferred:
		s += " to " + cmp.Or(clean(r.Successor), "another")
	case primacy.Unknown, primacy.Expired:
		s = whyExpired(s, r)
	}
	if r.Text != "" {
		s += ": " + clean(r.Text)
	}
	if r.Outlived > 0 {
		s += fmt.Sprintf("; its work was alive %s after the lease deadline", short(r.Outlived))
	}
	return s
}

// whyExpired says what is known of a term that was not renewed, or of whose end nobody told.
func whyExpired(s string, r primacy.TermRecord) string {
	outage := ""
	switch {
	case r.DownFrom.IsZero():
	case r.DownTo.IsZero():
		outage = fmt.Sprintf("the store had not answered since %s", r.DownFrom.Local().Format(time.TimeOnly))
	default:
		outage = fmt.Sprintf("the store did not answer for %s (%s to %s)", short(r.DownTo.Sub(r.DownFrom)),
			r.DownFrom.Local().Format(time.TimeOnly), r.DownTo.Local().Format(time.TimeOnly))
	}
	switch {
	case r.Reason == primacy.Unknown && outage != "":
		s = "no end was recorded: " + outage
	case outage != "":
		s += ": " + outage
	case r.Paused > 0:
		s += fmt.Sprintf(": its process was frozen for %s", short(r.Paused))
	}
	if r.Reason == primacy.Unknown && r.ToAfter.After(r.From) {
		s += "; last known to lead at " + clock(r.ToAfter)
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
