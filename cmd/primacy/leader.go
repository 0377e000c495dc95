package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
)

func (a *app) leaderCommand() *cobra.Command {
	var o leaderOptions
	c := &cobra.Command{
		Use:   "leader NAME",
		Short: "Print who leads, or ask whether it is me",
		Long: `Print the ID of the leader of NAME; exit 1 if nobody leads. Of a lock: of its holder, or a line for each where several share it.

  primacy leader billing                   who leads
  primacy leader billing --is web-1        exit 0 if web-1 leads, else 1
  primacy leader billing --is-me           the same for --id or PRIMACY_ID
  primacy leader billing --wait 30s        wait until there is one (with --is, --is-me: until it is that one)
  primacy leader billing --valid           inside a command of 'primacy run': is its right to lead still valid? Asks no network.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error { return a.leader(cmd.Context(), args[0], o) },
	}
	f := c.Flags()
	f.BoolVar(&o.isMe, "is-me", false, "exit 0 if --id (or PRIMACY_ID) leads, else 1")
	f.StringVar(&o.is, "is", "", "exit 0 if the candidate with this ID leads, else 1")
	f.DurationVar(&o.wait, "wait", 0, "wait so long until there is one")
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

func (a *app) leader(ctx context.Context, name string, o leaderOptions) error {
	if o.valid {
		return validState(name, os.Getenv(stateFileEnv))
	}
	if o.isMe {
		if o.is = a.id; o.is == "" {
			return fmt.Errorf("--is-me needs --id or PRIMACY_ID: who am I?")
		}
	}
	st, err := a.awaitLeader(ctx, name, o)
	if err != nil {
		return err
	}
	if o.is == "" || a.output != "table" {
		if err := a.printLeader(st); err != nil {
			return err
		}
	}
	if st.Leader == nil {
		return fail(exitNo, "nobody leads %s", name)
	}
	if !o.met(st) {
		return &exitError{code: exitNo}
	}
	return nil
}

// awaitLeader reads the state of name, or waits until it is as asked for.
func (a *app) awaitLeader(ctx context.Context, name string, o leaderOptions) (primacy.State, error) {
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return primacy.State{}, err
	}
	defer done()
	e := s.Election(name)
	readCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	st, err := e.State(readCtx)
	if err != nil || o.wait <= 0 || o.met(st) {
		return st, err
	}
	waitCtx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	for next, err := range e.Observe(waitCtx) {
		if st = next; err == nil && o.met(st) {
			return st, nil
		}
	}
	if ctx.Err() == nil && errors.Is(waitCtx.Err(), context.DeadlineExceeded) {
		return st, nil // the caller says what is missing
	}
	return st, context.Cause(ctx)
}

func (o leaderOptions) met(st primacy.State) bool {
	return slices.ContainsFunc(holders(st), func(h primacy.Entry) bool { return o.is == "" || h.ID == o.is })
}

func (a *app) printLeader(st primacy.State) error {
	if a.output != "table" {
		return a.writeJSON(stateToJSON(st, nil))
	}
	for _, h := range holders(st) {
		fmt.Fprintln(a.stdout, who(&h))
	}
	return nil
}
