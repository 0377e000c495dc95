package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/driver"
	pauses "github.com/primacy-go/primacy/pause"
)

func leaderCommand(a *app) *cobra.Command {
	var o leaderOptions
	c := &cobra.Command{
		Use:   "leader NAME",
		Short: "Print who leads, or ask whether it is me",
		Long: `Print the ID of the leader of NAME; exit 1 if nobody leads. For a lock: the ID of its holder, or one
ID per line if several share it.

  primacy leader billing                   who leads
  primacy leader billing --is web-1        exit 0 if web-1 leads, else 1
  primacy leader billing --is-me           the same for --id or PRIMACY_ID
  primacy leader billing --wait 30s        wait until there is one (with --is, --is-me: until it is that one)
  primacy leader billing --valid           within a command of 'primacy run': does it still lead? Needs no network.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			// An empty variable, most likely: whether anybody leads is not what was asked.
			if o.is == "" && cmd.Flags().Changed("is") {
				return errors.New("--is is empty: give the ID of a candidate")
			}
			return showLeader(cmd.Context(), a, args[0], o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.isMe, "is-me", false, "exit 0 if --id (or PRIMACY_ID) leads, else 1")
	f.StringVar(&o.is, "is", "", "exit 0 if the candidate with this ID leads, else 1")
	f.DurationVar(&o.wait, "wait", 0, "wait at most so long until there is one: seconds, such as 2.5, or 2m")
	f.BoolVar(&o.valid, "valid", false, "exit 0 if the term in PRIMACY_STATE_FILE is still valid, else 1; no network")
	c.MarkFlagsMutuallyExclusive("is-me", "is", "valid")
	return c
}

type leaderOptions struct {
	isMe, valid bool
	is          string
	wait        time.Duration
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one NAME, not %d", len(args))
	}
	return primacy.CheckName(args[0])
}

func showLeader(ctx context.Context, a *app, name string, o leaderOptions) error {
	if o.valid {
		return validState(name, os.Getenv(stateFileEnv))
	}
	if o.isMe {
		if o.is = a.id; o.is == "" {
			return fmt.Errorf("--is-me needs --id or PRIMACY_ID: who am I?")
		}
	}
	s, store, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	st, err := awaitLeader(ctx, a, s, store, name, o)
	if err != nil {
		return err
	}
	if o.is == "" || a.output != "table" {
		if err := printLeader(ctx, a, store, st); err != nil {
			return err
		}
	}
	if st.Leader == nil {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		return nobodyLeads(ctx, store, name)
	}
	if !o.met(st) {
		return &exitError{code: exitNo}
	}
	return nil
}

// awaitLeader reads the state of name, or waits until it is as asked for.
func awaitLeader(ctx context.Context, a *app, s *primacy.Session, store driver.Store, name string, o leaderOptions,
) (primacy.State, error) {
	readCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	e := s.Election(name)
	st, err := e.State(readCtx)
	if err == nil && st.Leader != nil {
		st = shown.NewElected(s, store, false).Correct(readCtx, st)[0]
	}
	if err != nil || o.wait <= 0 || o.met(st) {
		return st, err
	}
	waitCtx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	var unread error
	for next, err := range e.Observe(waitCtx, primacy.HeedPauses) {
		if st, unread = next, err; err == nil && o.met(st) {
			return st, nil
		}
	}
	if ctx.Err() == nil {
		return st, unread // without an error the caller says what is missing
	}
	return st, context.Cause(ctx)
}

func (o leaderOptions) met(st primacy.State) bool {
	return slices.ContainsFunc(holders(st), func(h primacy.Entry) bool { return o.is == "" || h.ID == o.is })
}

// printLeader prints who leads. In JSON it adds what is paused, where store is not nil.
func printLeader(ctx context.Context, a *app, store driver.Store, st primacy.State) error {
	if a.output != "table" {
		j := stateToJSON(st, nil)
		if store != nil {
			ctx, cancel := context.WithTimeout(ctx, a.timeout)
			defer cancel()
			p, _ := pauses.Of(ctx, store, st.Name)
			j.Paused = shown.PauseOf(p)
		}
		return a.writeJSON(j)
	}
	for _, h := range holders(st) {
		fmt.Fprintln(a.stdout, who(&h))
	}
	return nil
}

func observeCommand(a *app) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:     "observe NAME...",
		Aliases: []string{"watch"},
		Short:   "Follow who leads: print who leads now, and each change",
		Long: `Print who leads each NAME now, and again after each change, until a signal ends it. While the
store does not answer it says so, with who led last; changes that a later one replaced meanwhile are skipped.
With --once print who leads now, and end.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("give at least one NAME")
			}
			for _, n := range args {
				if err := primacy.CheckName(n); err != nil {
					return err
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return showChanges(cmd.Context(), a, args, once) },
	}
	c.Flags().BoolVar(&once, "once", false, "print who leads now, and end")
	return c
}

func showChanges(ctx context.Context, a *app, names []string, once bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if ctx.Err() != nil {
		if err == nil {
			done()
		}
		return nil // stopped by a signal: that is how it ends
	}
	if err != nil {
		return err
	}
	defer done()
	if a.output == "json" {
		a.output = "ndjson" // a stream is one object a line
	}
	if once {
		return showNow(ctx, a, st, s, names)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Go(func() {
			for st, err := range s.Election(n).Observe(ctx, primacy.HeedPauses) {
				mu.Lock()
				werr := printChange(a, st, err)
				mu.Unlock()
				if werr != nil || errors.Is(err, primacy.ErrRefused) {
					cancel(errors.Join(werr, err))
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// showNow prints who leads each of the names now.
func showNow(ctx context.Context, a *app, store driver.Store, s *primacy.Session, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	for _, n := range names {
		st, err := s.Election(n).State(ctx)
		if err != nil {
			return err
		}
		st = shown.NewElected(s, store, false).Correct(ctx, st)[0]
		if err := printChange(a, st, nil); err != nil {
			return err
		}
	}
	return nil
}

// printChange prints one line: when it was read, who leads, under which token, with which value.
func printChange(a *app, st primacy.State, err error) error {
	if a.output != "table" {
		return a.writeJSON(stateToJSON(st, err))
	}
	when := st.AsOf
	if when.IsZero() {
		when = time.Now()
	}
	line := fmt.Sprintf("%s  %s  ", when.Format("15:04:05.000"), named(st.Name))
	switch {
	case err != nil:
		line += fmt.Sprintf("the store does not answer (last known: %s): %s", who(st.Leader), oneLine(err))
	case st.Leader == nil:
		line += "nobody leads"
	case st.Leader.Slots != 0:
		line += fmt.Sprintf("%s: shared, the first under claim %d", whoAll(st), st.Leader.Token)
	default:
		line += fmt.Sprintf("%s leads  token %s", who(st.Leader), tokenText(st.Leader.Token))
		if len(st.Leader.Value) > 0 && string(st.Leader.Value) != st.Leader.ID {
			line += "  " + clean(string(st.Leader.Value))
		}
	}
	_, werr := fmt.Fprintln(a.stdout, line)
	return werr
}
