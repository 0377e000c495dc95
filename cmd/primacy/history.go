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
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return showTerms(ctx, a, st, s, name, limit)
}

func showTerms(ctx context.Context, a *app, st driver.Store, s *primacy.Session, name string, limit int) error {
	read := limit
	if a.output == "table" {
		read = 0 // a line may be of many terms
	}
	all, err := s.Election(name).History(ctx, read)
	if err != nil {
		return err
	}
	if len(all) > 1 && all[0].Reason == primacy.Leads && all[0].From.IsZero() {
		all = shown.WithoutElected(all, begun(ctx, s, st, name))
	}
	if n := s.Stats().Unreadable; n > 0 {
		a.say("warning: %d %s of %s left out: unreadable", n, plural(int(n), "record", "records"), named(name))
	}
	switch {
	case a.output != "table":
		err = writeTerms(a, all)
	case len(all) > 0:
		if err = printTerms(a, all, limit); err == nil {
			paused, pausedErr := pausesOver(ctx, st, name)
			printPauses(a, paused, pausedErr)
		}
	}
	if err == nil && len(all) == 0 {
		return fail(exitNo, "nothing is known of %s: nobody has led it, or it is a lock", name)
	}
	return err
}

// begun says whether somebody leads, and not only holds the place in a pause of elections.
func begun(ctx context.Context, s *primacy.Session, st driver.Store, name string) bool {
	now, err := s.Election(name).State(ctx)
	return err != nil || shown.NewElected(s, st, false).Correct(ctx, now)[0].Leader != nil
}

// writeTerms writes one array for json, an object a line for ndjson.
func writeTerms(a *app, all []primacy.TermRecord) error {
	return writeRows(a, shown.TermsOf(all))
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
	shortTerm = time.Minute // none lasted longer, nor was there a longer gap between two
	fewTerms  = 3           // fewer are shown one by one
)

// alike groups terms.
func alike(all []primacy.TermRecord) (groups []terms) {
	for len(all) > 0 {
		n := 1
		for n < len(all) && loops(all[0]) && loops(all[n]) && why(all[0]) == why(all[n]) && followed(all[n-1]) {
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

// followed says whether a term began soon after the one before it: else the time in which nobody
// led would stand nowhere.
func followed(r primacy.TermRecord) bool {
	return (r.Gap == nil || *r.Gap <= shortTerm) && (r.GapMost == nil || *r.GapMost <= shortTerm)
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
	token, by := last.Token.String(), cmp.Or(named(last.By), "-")
	if len(g) > 1 {
		token = first.Token.String() + ".." + token
	}
	return []string{token, g.leaders(), clock(first.From), endedAt(last), g.lasted(), shown.GapBefore(first),
		g.why(), by}
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
		ids[i] = cmp.Or(named(ids[i]), "-")
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

// mayLead is said of an exclusive claim of which no term was recorded: it may be a lock's, or in
// its first moment, or another program's.
const mayLead = shown.MayLead

// why tells people why a term ended.
func why(r primacy.TermRecord) string { return shown.Why(r, time.Local) }

// clock is a time as people read it, to the second.
func clock(t time.Time) string { return shown.Clock(t, time.Local) }

// short is a duration in two or three digits, as far as people care.
func short(d time.Duration) string { return shown.Short(d) }
