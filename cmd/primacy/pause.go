package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/cron"
	"github.com/primacy-go/primacy/cmd/internal/parallel"
	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	pauses "github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

// pauseOptions are what pause and resume are told.
type pauseOptions struct {
	all         bool
	length      string
	reason      string
	noElections bool
	dryRun      bool
}

func pauseCommand(a *app) *cobra.Command {
	var o pauseOptions
	c := &cobra.Command{
		Use:   "pause [NAME | PREFIX/ | --all]",
		Short: "Let no priority, health check or schedule change who leads for a while",
		Long: `While NAME, or everything below PREFIX/, is paused, nothing that could wait changes who leads:
no priority, no failed health check, no move of a shard for balance. Jobs of 'primacy cron' (cron/JOB) do not
begin; their scheduled times are recorded as paused, and when the pause is over the job's rule for missed times
decides. With --no-elections nobody new is elected either: the present leader leads on, but if it ends nobody
follows until the pause is over. Without NAME: list what is paused.

  primacy pause billing --reason "kernel upgrade"                      for an hour
  primacy pause cron/ --for 3h --reason "the database moves"
  primacy pause --all --for forever --no-elections --reason "incident 42"

Never paused: deadlines, renewals, the release of what a command has given up, fences. An operator may still
resign, transfer and drain; 'transfer --to' lets the one that it names be elected. Locks are not paused. For a
cluster of PostgreSQL use 'primacy postgres pause'. A pause is a record in the store; it ends by itself after
--for (1h, by the clocks of the machines), and 'primacy resume' ends it earlier. Exit 0 if it is paused now.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !o.all {
				for _, flag := range []string{"reason", "for", "no-elections"} {
					if cmd.Flags().Changed(flag) {
						return errors.New("give a NAME, a PREFIX/ or --all")
					}
				}
				return listPauses(cmd.Context(), a)
			}
			return setPause(cmd.Context(), a, o, args)
		},
	}
	f := c.Flags()
	o.allFlag(f)
	f.StringVar(&o.length, "for", pauses.Default.String(), "how long: a duration, such as 30m, or "+shown.Forever)
	f.StringVar(&o.reason, "reason", "", "why, for those who will wonder")
	_ = f.SetAnnotation("reason", noVariable, nil) // a hook finds in PRIMACY_REASON why a term ended
	f.BoolVar(&o.noElections, "no-elections", false, "elect nobody new either")
	return c
}

func (o *pauseOptions) allFlag(f *pflag.FlagSet) {
	f.BoolVar(&o.all, "all", false, "everything in this store")
}

// scope returns what the arguments name.
func (o *pauseOptions) scope(verb string, args []string) (string, error) {
	switch {
	case o.all && len(args) > 0:
		return "", fmt.Errorf("%s: give a NAME, a PREFIX/ or --all, not two of them", verb)
	case o.all:
		return "", nil
	case len(args) == 0:
		return "", fmt.Errorf("%s: give a NAME, a PREFIX/ or --all", verb)
	}
	scope := args[0]
	switch {
	case scope == "":
		return "", fmt.Errorf("%s: the NAME is empty: use --all for everything", verb)
	case verb == "pause" && strings.HasSuffix(scope, "..."): // for status it is a prefix
		return "", fmt.Errorf("pause: %s: use PREFIX/ for all that begins with it and a slash, or the whole NAME",
			clean(scope))
	}
	return scope, primacy.CheckName(scope)
}

func setPause(ctx context.Context, a *app, o pauseOptions, args []string) error {
	scope, err := o.scope("pause", args)
	if err != nil {
		return err
	}
	p := pauses.Pause{Scope: scope, By: a.person(), Reason: o.reason, NoElections: o.noElections}
	switch {
	case o.reason == "":
		return errors.New("pause: give --reason: others will wonder why nothing moves")
	case len(o.reason) > pauses.MaxReason:
		return fmt.Errorf("pause: --reason has %d bytes, more than %d", len(o.reason), pauses.MaxReason)
	}
	if err := pausable(scope); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	if p.Until, err = shown.PauseUntil(o.length, time.Now()); err != nil {
		return fmt.Errorf("--for %w", err)
	}
	return withPauses(ctx, a, func(ctx context.Context, st driver.Store) error {
		p, err := pauses.Set(ctx, st, p)
		if err != nil {
			return err
		}
		if a.output != "table" {
			return a.writeJSON(shown.PauseOf(&p))
		}
		fmt.Fprintln(a.stdout, pauseText(p))
		return nil
	})
}

// pausable says why a scope is not for pause; nil if it is.
func pausable(scope string) error {
	if scope != "" && strings.HasPrefix(scope, pgagent.Prefix) {
		return fmt.Errorf("%s is a cluster of PostgreSQL: use 'primacy postgres pause'", clean(scope))
	}
	return nil
}

// withPauses opens the store and has do read or write the pauses in it.
func withPauses(ctx context.Context, a *app, do func(context.Context, driver.Store) error) error {
	return withStore(ctx, a, do, pauses.ErrNotPaused)
}

// pauseText is a pause as one line for people.
func pauseText(p pauses.Pause) string {
	until := "until it is resumed"
	if !p.Until.IsZero() {
		until = "until " + clock(p.Until)
	}
	text := fmt.Sprintf("%s is paused by %s since %s, %s", printable(p.ForScope()), clean(p.By), clock(p.Since), until)
	if p.NoElections {
		text += "; nobody new is elected"
	}
	return text + ": " + printable(p.Reason)
}

func listPauses(ctx context.Context, a *app) error {
	return withPauses(ctx, a, func(ctx context.Context, st driver.Store) error {
		all, err := pauses.List(ctx, st)
		if err != nil {
			return err
		}
		if a.output == "table" {
			if len(all) == 0 {
				fmt.Fprintln(a.stdout, "nothing is paused")
			}
			for _, p := range all {
				fmt.Fprintln(a.stdout, pauseText(p))
			}
			return nil
		}
		out := []*shown.Pause{}
		for _, p := range all {
			out = append(out, shown.PauseOf(&p))
		}
		return writeRows(a, out)
	})
}

// pausesBelow returns the pauses that say something about names with that prefix; none if they
// cannot be read, and why.
func pausesBelow(ctx context.Context, st driver.Store, prefix string) ([]pauses.Pause, error) {
	all, err := pauses.List(ctx, st)
	return slices.DeleteFunc(all, func(p pauses.Pause) bool {
		return !shown.Concerns(p, prefix)
	}), err
}

// pausesOver returns the pauses that a name is under.
func pausesOver(ctx context.Context, st driver.Store, name string) ([]pauses.Pause, error) {
	now, err := pauses.Read(ctx, st)
	return pausesOf(now, name), err
}

// pausesOf returns the pauses that one of the names is under.
func pausesOf(now pauses.Reading, names ...string) []pauses.Pause {
	return slices.DeleteFunc(now.List(), func(p pauses.Pause) bool { return !slices.ContainsFunc(names, p.Covers) })
}

// printPauses prints what is paused, and what could not be found out.
func printPauses(a *app, all []pauses.Pause, err error) {
	for _, p := range all {
		fmt.Fprintf(a.stdout, "\nPAUSED: %s\nto end that: primacy resume %s\n", pauseText(p),
			printable(scopeArgument(p.Scope)))
	}
	if err != nil {
		fmt.Fprintf(a.stdout, "\nwhat is paused is not known: %s\n", oneLine(err))
	}
}

// nobodyLeads is the error for a name that nobody leads. It says so if nobody may.
func nobodyLeads(ctx context.Context, st driver.Store, name string) error {
	p, err := pauses.Of(ctx, st, name)
	if err != nil || p == nil || !p.NoElections {
		return fail(exitNo, "nobody leads %s", name)
	}
	return fail(exitNo, "nobody leads %s, and nobody may: %s; to end that: primacy resume %s", name, pauseText(*p),
		printable(scopeArgument(p.Scope)))
}

// scopeArgument returns a scope as it is typed in a shell.
func scopeArgument(scope string) string {
	switch {
	case scope == "":
		return "--all"
	case strings.ContainsFunc(scope, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/-_.:@%+,", r)
	}):
		return "'" + strings.ReplaceAll(scope, "'", `'\''`) + "'"
	}
	return scope
}

func resumeCommand(a *app) *cobra.Command {
	var o pauseOptions
	c := &cobra.Command{
		Use:   "resume NAME | PREFIX/ | --all",
		Short: "End a pause",
		Long: `End the pause of exactly that NAME or PREFIX/, as 'primacy pause' lists it. With --dry-run tell what
will happen then, and change nothing. Exit 1 if there is no such pause.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			scope, err := o.scope("resume", args)
			if err != nil {
				return err
			}
			if o.dryRun {
				return foretell(cmd.Context(), a, scope)
			}
			return withPauses(cmd.Context(), a, func(ctx context.Context, st driver.Store) error {
				was, err := pauses.Resume(ctx, st, scope, a.person())
				if err != nil {
					return err
				}
				if a.output != "table" {
					return a.writeJSON(shown.PauseOf(&was))
				}
				fmt.Fprintf(a.stdout, "%s is resumed: it was paused by %s since %s\n", printable(was.ForScope()),
					clean(was.By), clock(was.Since))
				return nil
			})
		},
	}
	o.allFlag(c.Flags())
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "tell what will happen, and change nothing")
	return c
}

// effectJSON is what the end of a pause means for one election or job.
type effectJSON struct {
	Name   string `json:"name"`
	Effect string `json:"effect"`
}

// foretell tells what will happen when the pause of scope ends.
func foretell(ctx context.Context, a *app, scope string) error {
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	all, err := pauses.List(ctx, st)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(p pauses.Pause) bool { return p.Scope == scope })
	if i < 0 {
		return fail(exitNo, "resume: %s is not paused; 'primacy pause' lists what is",
			pauses.Pause{Scope: scope}.ForScope())
	}
	p := all[i]
	left := slices.Delete(slices.Clone(all), i, i+1)
	effects, err := effectsOf(ctx, s, st, p, left)
	if err != nil {
		return err
	}
	if a.output != "table" {
		return a.writeJSON(effects)
	}
	fmt.Fprintln(a.stdout, pauseText(p))
	switch {
	case len(effects) == 0 && p.NoElections:
		fmt.Fprintln(a.stdout, "nobody stands for anything that it covers, and no 'primacy run' waits for its end; "+
			"other programs that wait stand then")
	case len(effects) == 0:
		fmt.Fprintln(a.stdout, "nobody stands for anything that it covers: nothing will happen")
	}
	for _, e := range effects {
		fmt.Fprintf(a.stdout, "%s: %s\n", clean(e.Name), e.Effect)
	}
	return nil
}

// effectsOf says what the end of p means for each name that it covers. Left are the other pauses.
func effectsOf(ctx context.Context, s *primacy.Session, st driver.Store, p pauses.Pause, left []pauses.Pause,
) ([]effectJSON, error) {
	effects := []effectJSON{}
	names := map[string]bool{}
	states, err := s.List(ctx, p.Scope)
	if err != nil {
		return nil, err
	}
	for _, e := range states {
		if !p.Covers(e.Name) || isShared(e) {
			continue
		}
		names[e.Name] = true
		effect := fmt.Sprintf("%s leads on; %s, and may take over by priority or health again", who(e.Leader),
			othersWait(e))
		_, isGroup := shards.GroupOf(e)
		_, _, isShard := shards.ShardOf(e.Name)
		switch {
		case isGroup && pauses.Strongest(left, e.Name, e.Name+"/") != nil:
			effect = "its shards stay paused: " + pauseText(*pauses.Strongest(left, e.Name, e.Name+"/"))
		case isGroup:
			effect = "its shards may move for balance and health again"
		case waiting(e) == 0:
			effect = fmt.Sprintf("%s leads on; %s", who(e.Leader), othersWait(e))
		case pauses.Strongest(left, e.Name) != nil:
			effect = "it stays paused: " + pauseText(*pauses.Strongest(left, e.Name))
		}
		if p.NoElections && (isGroup || isShard) {
			effect += "; a command of 'run --shards' that waits for the end begins, unless another pause holds it"
		}
		effects = append(effects, effectJSON{e.Name, effect})
	}
	if p.NoElections {
		waiting, err := leaderless(ctx, st, p, names, left)
		if err != nil {
			return nil, err
		}
		effects = append(effects, waiting...)
	}
	jobs, err := heldJobs(ctx, st, p)
	effects = append(effects, jobs...)
	slices.SortFunc(effects, func(a, b effectJSON) int { return strings.Compare(a.Name, b.Name) })
	return effects, err
}

// leaderless tells of the elections of a pause without elections that nobody stands for, and for
// which somebody has said that it waits for the end of the pause. Left are the other pauses.
func leaderless(ctx context.Context, st driver.Store, p pauses.Pause, standing map[string]bool, left []pauses.Pause,
) (effects []effectJSON, err error) {
	j, ok := st.(driver.Journal)
	if !ok {
		return nil, nil
	}
	journals, err := j.Journals(ctx, healthJournals+p.Scope)
	if err != nil {
		return nil, err
	}
	names := slices.DeleteFunc(journals, func(journal string) bool {
		name := strings.TrimPrefix(journal, healthJournals)
		return !p.Covers(name) || standing[name]
	})
	names = names[:min(len(names), mostSick)]
	waits, errs := make([][]heldBack, len(names)), make([]error, len(names))
	parallel.Each(len(names), func(i int) {
		names[i] = strings.TrimPrefix(names[i], healthJournals)
		_, waits[i], errs[i] = outside(ctx, st, names[i])
	})
	for i, name := range names {
		effect, next := "", pauses.Strongest(left, name)
		switch n := len(waits[i]); {
		case n == 0:
			continue
		case next != nil && next.NoElections:
			effect = "it stays paused: " + pauseText(*next)
		case n == 1:
			effect = fmt.Sprintf("nobody leads; %s waits, and is elected", clean(waits[i][0].ID))
		default:
			effect = fmt.Sprintf("nobody leads; of %d that wait one is elected: %s", n, listed(idsOf(waits[i])))
		}
		effects = append(effects, effectJSON{name, effect})
	}
	return effects, errors.Join(append(errs, ctx.Err())...)
}

func idsOf(waits []heldBack) (ids []string) {
	for _, h := range waits {
		ids = append(ids, h.ID)
	}
	return ids
}

// heldJobs tells of the jobs of cron that the pause holds.
func heldJobs(ctx context.Context, st driver.Store, p pauses.Pause) (effects []effectJSON, err error) {
	all, err := cron.ReadAll(ctx, st, time.Now())
	if errors.Is(err, cron.ErrNoJournal) {
		return nil, nil
	}
	for _, j := range all {
		if name := cron.Prefix + j.Job; p.Covers(name) && j.Held > 0 {
			effects = append(effects, effectJSON{name, fmt.Sprintf("its rule for missed times decides about %d or more",
				j.Held)})
		}
	}
	return effects, err
}
