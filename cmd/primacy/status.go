package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/parallel"
	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	pauses "github.com/primacy-go/primacy/pause"
)

func statusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status [NAME | PREFIX/...]",
		Aliases: []string{"list"},
		Short:   "Show the leaders and lock holders, their tokens, and who waits",
		Long: `Show all elections and locks, those below a prefix (billing/...), or one with its whole line: who
leads or holds, and who waits. Several hold a lock at once where they share it: readers (shared), or those in a
semaphore (slot of N). The token is that of the claim; the fencing token of a lock is 65,536 times that, or a
little more. Elections that were led in the last day, and that nobody stands for now, come last in the table, with
how they ended; 'primacy top -o json' has them too. With one NAME also the last terms and why they ended; exit 1
if nobody leads or holds it. Whether an exclusive claim leads an election or holds a lock is known from the
history, which locks do not have.`,
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
	return showOne(ctx, a, st, s, name)
}

func showOne(ctx context.Context, a *app, st driver.Store, s *primacy.Session, name string) error {
	state, err := s.Election(name).State(ctx)
	if err != nil {
		return err
	}
	state = shown.NewElected(s, st, false).Correct(ctx, state)[0]
	var notes []string // what could not be read: what is shown does not say so by itself
	note := func(what string, err error) {
		if err != nil && !errors.Is(err, primacy.ErrInvalid) { // a store without a history shows the line
			notes = append(notes, what+": "+oneLine(err))
		}
	}
	past, err := s.Election(name).History(ctx, loopTerms)
	note("the history could not be read", err)
	past = shown.WithoutElected(past, state.Leader != nil)
	standing, names, pausedErr := pausesAndNames(ctx, s, name)
	paused, over := pausesOf(standing, names...), standing.Of(names...)
	sick, waits, err := outside(ctx, st, name)
	note("who is unhealthy, and who waits for the end of a pause, is not known", err)
	waits = slices.DeleteFunc(waits, func(h heldBack) bool { // about to find out that it is over, or standing
		return over == nil || !over.NoElections || inLineOf(state, h.ID)
	})
	var lost []lostPlace
	if over != nil && over.NoElections {
		lost = lostPlaces(standing.Admissions(name), state, past)
	}
	if a.output != "table" {
		j := stateToJSON(state, nil)
		j.Paused, j.Unhealthy, j.HeldBack, j.LostPlaces = shown.PauseOf(over), sick, waits, lost
		j.Terms = shown.TermsOf(past[:min(len(past), lastTerms)])
		if state.Leader != nil {
			j.Since = since(past, state.Leader.Token)
		}
		err = a.writeJSON(j)
		note("what is paused is not known", pausedErr)
		for _, n := range notes {
			a.say("%s", n)
		}
	} else {
		err = printLine(a, state, past, st.Caps().Store)
		printPauses(a, paused, pausedErr)
		printOutside(a, state, sick, waits)
		for _, l := range lost {
			fmt.Fprintf(a.stdout, "\nNOT ELECTED: %s, whom %s named to lead next: it has lost its place, token %d; "+
				"while somebody leads it can be named again: 'primacy transfer --to'\n",
				named(l.ID), named(l.By), l.Token)
		}
		for _, n := range notes {
			fmt.Fprintf(a.stdout, "\n%s\n", n)
		}
	}
	if err == nil && state.Leader == nil {
		return &exitError{code: exitNo}
	}
	return err
}

// pausesAndNames reads the pauses, and under which names an election may be paused: its own, and
// that of its group. With an error they are those that are known.
func pausesAndNames(ctx context.Context, s *primacy.Session, name string) (pauses.Reading, []string, error) {
	standing, err := pauses.Read(ctx, s.Store())
	group, overErr := handover.Over(ctx, s, name)
	if overErr != nil {
		overErr = fmt.Errorf("%s may be a shard of a group that is paused: %w", named(name), overErr)
	}
	return standing, append([]string{name}, group...), cmp.Or(err, overErr)
}

// lostPlaces returns who was admitted under a claim that is gone, and has not led under it: such a
// candidate is not elected, though it may wait under another claim. It is elected if it was
// admitted again under a later claim, which stands or has led. Where no terms are recorded nobody
// knows whether it has led.
func lostPlaces(admitted []pauses.Admission, st primacy.State, past []primacy.TermRecord) (lost []lostPlace) {
	if len(past) == 0 {
		return nil
	}
	kept := func(a pauses.Admission) bool {
		token := primacy.Token(a.Token)
		return leaderToken(st) == token ||
			slices.ContainsFunc(past, func(r primacy.TermRecord) bool { return r.Token == token }) ||
			slices.ContainsFunc(st.Waiting, func(e primacy.Entry) bool { return e.Token == token })
	}
	for _, a := range admitted {
		again := func(b pauses.Admission) bool { return b.ID == a.ID && b.Token > a.Token && kept(b) }
		if !kept(a) && !slices.ContainsFunc(admitted, again) {
			lost = append(lost, lostPlace{a.ID, primacy.Token(a.Token), a.By})
		}
	}
	return lost
}

// inLineOf says whether somebody with that ID is in the line.
func inLineOf(st primacy.State, id string) bool {
	return st.Leader != nil && st.Leader.ID == id ||
		slices.ContainsFunc(st.Waiting, func(w primacy.Entry) bool { return w.ID == id })
}

func showAll(ctx context.Context, a *app, st driver.Store, s *primacy.Session, prefix string) error {
	states, err := s.List(ctx, prefix)
	if err != nil {
		return err
	}
	states = shown.NewElected(s, st, false).Correct(ctx, states...)
	paused, pausedErr := pausesBelow(ctx, st, prefix)
	if a.output != "table" {
		led, unread := sinces(ctx, s, states)
		if pausedErr != nil { // no pause in the JSON does not say that there is none
			a.say("what is paused is not known: %s", oneLine(pausedErr))
		}
		if unread != "" {
			a.say("%s", unread)
		}
		return writeStates(a, states, led, paused)
	}
	defer func() { printPauses(a, paused, pausedErr) }()
	led, unread := sinces(ctx, s, states) // before the rest, which may take all the time there is
	left := deserted(ctx, s, st, prefix, states)
	if len(states) == 0 {
		start := ""
		if len(left.last) == 0 {
			start = ". Start one: primacy run NAME -- COMMAND"
		}
		fmt.Fprintf(a.stdout, "nobody leads or waits%s%s\n", below(prefix), start)
		return left.print(a)
	}
	rows := [][]string{{"NAME", "LEADER", "SINCE", "TOKEN", "WAITING", "VALUE"}}
	for i, st := range states {
		token, value := "-", "-"
		if st.Leader != nil {
			token, value = tokenText(st.Leader.Token), orDash(valueText(st.Name, *st.Leader))
		}
		rows = append(rows, []string{named(st.Name), whoAll(st), clock(led[i]), token, fmt.Sprint(waiting(st)), value})
	}
	if err := table(a.stdout, rows...); err != nil {
		return err
	}
	if unread != "" {
		fmt.Fprintln(a.stdout, unread)
	}
	if err := left.print(a); err != nil {
		return err
	}
	printAsOf(a, states[0].AsOf, st.Caps().Store, commonRevision(states))
	return nil
}

// commonRevision returns the revision at which all states were read, 0 if each has its own.
func commonRevision(states []primacy.State) uint64 {
	if slices.ContainsFunc(states, func(st primacy.State) bool { return st.Revision != states[0].Revision }) {
		return 0
	}
	return states[0].Revision
}

// termJournals is where the terms of elections are recorded, by name.
const termJournals = top.TermJournals

// recent is for how long a name is listed that nobody stands for any more.
const recent = 24 * time.Hour

// leftAlone is what somebody led within the last day, and nobody stands for now.
type leftAlone struct {
	last   []terms // of each name: its last term, or the loop that it ended
	more   int     // names that were not looked at
	unread int     // names whose history was not read, or not as far as it should be
	err    error   // the first of those
}

// deserted looks for the elections below prefix that are not in states.
func deserted(ctx context.Context, s *primacy.Session, st driver.Store, prefix string, states []primacy.State,
) (left leftAlone) {
	j, ok := st.(driver.Journal)
	if !ok || st.Caps().Token == driver.TokenNone {
		return left
	}
	names, err := j.Journals(ctx, termJournals+prefix)
	if err != nil {
		return leftAlone{err: err}
	}
	names = unstood(names, states)
	left.more = max(0, len(names)-maxSince)
	all, errs := make([]terms, len(names)-left.more), make([]error, len(names)-left.more)
	parallel.Each(len(all), func(i int) {
		all[i], errs[i] = lastLed(ctx, s.Election(strings.TrimPrefix(names[i], termJournals)))
	})
	for i, past := range all {
		if errs[i] != nil {
			left.unread++
			left.err = cmp.Or(left.err, errs[i])
		}
		if len(past) > 0 {
			left.last = append(left.last, past)
		}
	}
	return left
}

// unstood returns the journals of those names that are not in states.
func unstood(journals []string, states []primacy.State) []string {
	stands := make(map[string]bool, len(states)) // there may be tens of thousands of each
	for _, st := range states {
		stands[st.Name] = true
	}
	return slices.DeleteFunc(journals, func(j string) bool { return stands[strings.TrimPrefix(j, termJournals)] })
}

// lastLed returns the last term of an election, or the loop that it ended; none if it is not
// recent. A long history is read only where there may be a loop: nearly always one term is enough.
func lastLed(ctx context.Context, e *primacy.Election) (terms, error) {
	past, err := e.History(ctx, 1)
	if err != nil || len(past) == 0 || time.Since(lastSeen(past[0])) >= recent {
		return nil, err
	}
	if !loops(past[0]) {
		return past, nil
	}
	long, err := e.History(ctx, loopTerms)
	if err != nil || len(long) == 0 {
		return past, err
	}
	return alike(long)[0], nil
}

// lastSeen is when a term ended, or the last that is known of it.
func lastSeen(r primacy.TermRecord) time.Time {
	return slices.MaxFunc([]time.Time{r.From, r.To, r.ToAfter}, time.Time.Compare)
}

func (l leftAlone) print(a *app) error {
	if len(l.last) > 0 {
		rows := [][]string{{"NAME", "LED BY", "TOKEN", "ENDED", "WHY"}}
		for _, g := range l.last {
			row := g.row()
			rows = append(rows, []string{named(g[0].Name), row[1], row[0], clock(g[0].To), row[6]})
		}
		fmt.Fprintln(a.stdout, "\nled in the last day, and nobody leads or waits now:")
		if err := table(a.stdout, rows...); err != nil {
			return err
		}
	}
	switch {
	case l.unread > 0:
		fmt.Fprintf(a.stdout, "the history of %d %s could not be read, or not whole: %s\n", l.unread,
			plural(l.unread, "name", "names"), oneLine(l.err))
	case l.err != nil:
		fmt.Fprintf(a.stdout, "what was led in the last day could not be read: %s\n", oneLine(l.err))
	}
	if l.more > 0 {
		fmt.Fprintf(a.stdout, "%d more %s a history: give a PREFIX\n", l.more,
			plural(l.more, "name has", "names have"))
	}
	return nil
}

func below(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " below " + named(prefix)
}

// writeStates writes one array for json, an object a line for ndjson.
func writeStates(a *app, states []primacy.State, led []time.Time, paused []pauses.Pause) error {
	out := []stateJSON{}
	for i, st := range states {
		out = append(out, stateToJSON(st, nil))
		out[i].Since = led[i]
		out[i].Paused = shown.PauseOf(pauses.Strongest(paused, st.Name))
	}
	return writeRows(a, out)
}

// tokenText is a token for people: some stores have none.
func tokenText(t primacy.Token) string {
	if t == 0 {
		return "-"
	}
	return t.String()
}

// lastTerms is how many terms the status of one name tells, and loopTerms how many are read: a line
// may be of many.
const (
	lastTerms = 5
	loopTerms = 1000
)

// printLine prints one election with everybody in its line, and its last terms.
func printLine(a *app, st primacy.State, past []primacy.TermRecord, store string) error {
	rows := [][]string{{"PLACE", "ID", "TOKEN", "LEASE", "VALUE", "NOTE"}}
	row := func(place string, s primacy.Entry) {
		rows = append(rows, []string{place, who(&s), tokenText(s.Token), orDash(s.Lease), orDash(valueText(st.Name, s)),
			cmp.Or(printable(s.Note), "-")})
	}
	if st.Leader == nil {
		fmt.Fprintf(a.stdout, "nobody leads %s\n", named(st.Name))
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
	past = slices.DeleteFunc(past, func(r primacy.TermRecord) bool { return r.Reason == primacy.Leads })
	if len(past) > 0 {
		fmt.Fprintln(a.stdout, "\nthe last terms:")
		if err := printTerms(a, past, lastTerms); err != nil {
			return err
		}
	}
	if cluster, ok := strings.CutPrefix(st.Name, pgagent.Prefix); ok {
		fmt.Fprintf(a.stdout, "\nfor a cluster of PostgreSQL: primacy postgres list --cluster %s\n", named(cluster))
	}
	printAsOf(a, st.AsOf, store, st.Revision)
	return nil
}

// valueText is what a candidate announces, for people.
func valueText(name string, e primacy.Entry) string {
	if s, ok := pgagent.SaidBy(name, e.Value); ok {
		return s.String()
	}
	return string(e.Value)
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
	at := ""
	if revision > 0 { // else nobody stands
		at = fmt.Sprintf(", revision %d", revision)
	}
	fmt.Fprintf(a.stdout, "\nas read at %s from %s%s\n", asOf.Format("15:04:05"), store, at)
}

// maxSince is of how many names a list says since when they are led: each is a request.
const maxSince = 200

// sinces returns since when the leaders of states lead, zero where it is not known; and, in words,
// why it is not known of those that it should be.
func sinces(ctx context.Context, s *primacy.Session, states []primacy.State) (led []time.Time, unread string) {
	led = make([]time.Time, len(states))
	if len(states) > maxSince {
		return led, fmt.Sprintf("since when is told of %d names at most: give a PREFIX", maxSince)
	}
	errs := make([]error, len(states))
	parallel.Each(len(states), func(i int) {
		if st := states[i]; st.Leader != nil {
			past, err := s.Election(st.Name).History(ctx, 1)
			if led[i] = since(past, st.Leader.Token); !errors.Is(err, primacy.ErrInvalid) {
				errs[i] = err
			}
		}
	})
	if errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil }); len(errs) > 0 {
		unread = fmt.Sprintf("since when could not be read of %d %s: %s", len(errs),
			plural(len(errs), "name", "names"), oneLine(errs[0]))
	}
	return led, unread
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
