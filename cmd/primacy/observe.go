package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
)

func (a *app) observeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "observe NAME...",
		Aliases: []string{"watch"},
		Short:   "Follow who leads: a line now and one for each change",
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
		RunE: func(cmd *cobra.Command, args []string) error { return a.observe(cmd.Context(), args) },
	}
}

func (a *app) observe(ctx context.Context, names []string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Go(func() {
			for st, err := range s.Election(n).Observe(ctx) {
				mu.Lock()
				werr := a.printChange(st, err)
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

// printChange prints one line: when it was read, who leads, under which token, with which value.
func (a *app) printChange(st primacy.State, err error) error {
	if a.output != "table" {
		return a.writeJSON(stateToJSON(st, err))
	}
	when := st.AsOf
	if when.IsZero() {
		when = time.Now()
	}
	line := fmt.Sprintf("%s  %s  ", when.Format("15:04:05.000"), clean(st.Name))
	switch {
	case err != nil:
		line += fmt.Sprintf("the store does not answer (last known: %s): %s", who(st.Leader), oneLine(err))
	case st.Leader == nil:
		line += "nobody leads"
	case st.Leader.Slots != 0:
		line += fmt.Sprintf("%s: shared, the first under claim %d", whoAll(st), st.Leader.Token)
	default:
		line += fmt.Sprintf("%s leads  token %d", who(st.Leader), st.Leader.Token)
		if len(st.Leader.Value) > 0 && string(st.Leader.Value) != st.Leader.ID {
			line += "  " + clean(string(st.Leader.Value))
		}
	}
	_, werr := fmt.Fprintln(a.stdout, line)
	return werr
}
