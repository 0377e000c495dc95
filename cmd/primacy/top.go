package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	pauses "github.com/primacy-go/primacy/pause"
)

func topCommand(a *app) *cobra.Command {
	o := topOptions{}
	c := &cobra.Command{
		Use:   "top [PREFIX]",
		Short: "Watch all elections and locks, the worst first",
		Long: `Show all elections and locks, or those whose names begin with PREFIX, on a page that is kept up
to date: those that nobody leads first, then those whose leader changes too often, then those whose lease is
nearly over. With the keys of the page leaders are asked to hand over: t transfer, r resign, d drain a member;
each asks for a reason, and has you type the name. ? shows all keys.

Where the output is no terminal, or one that cannot do it (TERM=dumb), it is one table; with -o json or ndjson,
one array or an object a line.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("give one PREFIX, or none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.prefix = strings.TrimSuffix(args[0], "...")
			}
			return runTop(cmd.Context(), a, o)
		},
	}
	f := c.Flags()
	f.DurationVar(&o.every, "every", time.Second, "from one refresh to the next")
	f.BoolVar(&o.once, "once", false, "print one table and exit")
	f.BoolVar(&o.noColor, "no-color", false, "no colours; also where NO_COLOR is set")
	f.DurationVar(&o.wait, "wait", 30*time.Second, "time limit for a leader that was asked to hand over")
	return c
}

type topOptions struct {
	prefix        string
	every, wait   time.Duration
	once, noColor bool
}

func runTop(ctx context.Context, a *app, o topOptions) error {
	if o.every < 100*time.Millisecond {
		return fmt.Errorf("--every %v: use at least 100ms", o.every)
	}
	in, out := pageTerminal(a, o)
	if out != nil && stderrIsTerminal(a) {
		a.verbose = false // log lines would be written across the page
	}
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	src := top.SourceOf(s, st, o.prefix, time.Local)
	src.Paused = func(ctx context.Context) (lines []string, err error) {
		all, err := pausesBelow(ctx, st, o.prefix)
		for _, p := range all {
			lines = append(lines, pauseText(p))
		}
		return lines, err
	}
	if out == nil {
		list, elected := src.List, shown.NewElected(s, st, false)
		src.List = func(ctx context.Context) ([]primacy.State, error) {
			states, err := list(ctx)
			return elected.Correct(ctx, states...), err
		}
		return topOnce(ctx, a, src, func(ctx context.Context) ([]pauses.Pause, error) {
			return pausesBelow(ctx, st, o.prefix)
		})
	}
	opts := top.Options{Source: src, Every: o.every, In: in, Out: out, ASCII: !utf8Locale(), Value: valueText,
		Colours: !o.noColor && os.Getenv("NO_COLOR") == ""}
	if _, ok := st.(driver.Asker); ok {
		opts.Act = func(ctx context.Context, act top.Action) (string, error) {
			return topAct(ctx, a, s, st, act, o.wait)
		}
	}
	err = top.Run(ctx, opts)
	if errors.Is(err, top.ErrUnderWay) {
		a.say("%v", err)
		return nil
	}
	return err
}

// pageTerminal returns what a page is shown on, or nil where it must be a table.
func pageTerminal(a *app, o topOptions) (in, out *os.File) {
	in, isIn := a.stdin.(*os.File)
	out, isOut := a.stdout.(*os.File)
	t := os.Getenv("TERM")
	if o.once || a.output != "table" || !isIn || !isOut || t == "" || t == "dumb" || !term.IsTerminal(int(in.Fd())) ||
		!term.IsTerminal(int(out.Fd())) {
		return nil, nil
	}
	return in, out
}

func stderrIsTerminal(a *app) bool {
	f, ok := a.stderr.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// utf8Locale says whether the terminal's user reads UTF-8.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// topAct does what was asked for on the page, and says what became of it.
func topAct(ctx context.Context, a *app, s *primacy.Session, st driver.Store, act top.Action,
	wait time.Duration,
) (string, error) {
	m, err := handover.NewMover(s, st, act.Reason, wait, a.timeout)
	if err != nil {
		return "", err
	}
	m.By = a.person()
	if act.Verb == "drain" {
		return topDrain(ctx, a, s, m, act.To)
	}
	did := m.One(ctx, act.State, act.To)
	switch {
	case did.Err != nil:
		return act.Verb + " " + act.State.Name + ": ", did.Err
	case did.Now.Leader == nil:
		return act.State.Name + ": its leader has given it up; nobody leads", nil
	case act.To != "" && did.Now.Leader.ID != act.To:
		return act.State.Name + ": ", fmt.Errorf("its leader has given it up, but %s leads now, not %s",
			who(did.Now.Leader), named(act.To))
	}
	return fmt.Sprintf("%s: %s leads now under token %d", act.State.Name, who(did.Now.Leader),
		did.Now.Leader.Token), nil
}

func topDrain(ctx context.Context, a *app, s *primacy.Session, m *handover.Mover, id string) (string, error) {
	listCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	states, err := s.List(listCtx, "")
	if err != nil {
		return "drain " + id + ": ", err
	}
	moved := 0
	var left []string
	m.Drain(ctx, handover.Only(id), states, func(did handover.Move) {
		if did.Result == handover.Moved {
			moved++
		} else {
			left = append(left, fmt.Sprintf("%s (%s: %s)", did.Name, did.Result, oneLine(did.Err)))
		}
	})
	switch {
	case len(left) > 0:
		return fmt.Sprintf("drain %s: %d moved, ", id, moved),
			fmt.Errorf("%d not: %s", len(left), strings.Join(left, ", "))
	case moved == 0:
		return id + " leads nothing", nil
	}
	return fmt.Sprintf("%s: all %d that it led have moved", id, moved), nil
}

func topOnce(ctx context.Context, a *app, src top.Source,
	read func(context.Context) ([]pauses.Pause, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	all, asOf, unlooked, err := top.Snapshot(ctx, src)
	if err != nil {
		return err
	}
	more := fmt.Sprintf("%d more %s a history that was not looked at, and nobody stands for: see "+
		"'primacy status PREFIX...'", unlooked, plural(unlooked, "name has", "names have"))
	paused, pausedErr := read(ctx)
	if a.output == "table" {
		if len(all) == 0 {
			_, err = fmt.Fprintln(a.stdout, "nobody leads or waits. Start one: primacy run NAME -- COMMAND")
			return err
		}
		if err := table(a.stdout, topRows(all, asOf)...); err != nil {
			return err
		}
		states := make([]primacy.State, len(all))
		for i, e := range all {
			states[i] = e.State
		}
		if unlooked > 0 {
			fmt.Fprintln(a.stdout, more)
		}
		printAsOf(a, asOf, src.Store, commonRevision(states))
		printPauses(a, paused, pausedErr)
		return nil
	}
	if pausedErr != nil { // no pause in the JSON does not say that there is none
		a.say("what is paused is not known: %s", oneLine(pausedErr))
	}
	if unlooked > 0 {
		a.say("%s", more)
	}
	rows := []top.Shown{}
	for _, e := range all {
		j := e.Shown()
		j.Paused = shown.PauseOf(pauses.Strongest(paused, e.State.Name))
		rows = append(rows, j)
	}
	return writeRows(a, rows)
}

func topRows(all []top.Entry, asOf time.Time) [][]string {
	rows := [][]string{{"", "HEALTH", "NAME", "LEADER", "SINCE", "TOKEN", "WAIT", "CHG", "LEASE", "LAST END"}}
	for _, e := range all {
		mark, token := "", "-"
		if e.Trouble {
			mark = "!"
		}
		if e.State.Leader != nil {
			token = e.State.Leader.Token.String()
		}
		leader, since, waits, changes, lease := e.Row(asOf)
		rows = append(rows, []string{mark, e.Health, named(e.State.Name), named(leader), since, token, waits, changes,
			lease, cmp.Or(e.Last.Why, "-")})
	}
	return rows
}
