package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
)

func (a *app) resignCommand() *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "resign NAME",
		Short: "Ask the leader to stop its work and let the next one lead",
		Long: `Ask the leader of NAME to resign: it stops its work, then gives the name up, and the oldest candidate in the line leads.
Waits until it has. Exit 1 if nobody leads, 124 if the leader has not resigned in the time given.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error { return a.resign(cmd.Context(), args[0], reason, wait) },
	}
	c.Flags().StringVar(&reason, "reason", "", "told to the leader")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until it has resigned")
	return c
}

func (a *app) resign(ctx context.Context, name, reason string, wait time.Duration) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	s, _, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	e := s.Election(name)
	askCtx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	token, err := e.Ask(askCtx, primacy.Request{Reason: reason})
	if errors.Is(err, primacy.ErrNoLeader) {
		return fail(exitNo, "nobody leads %s", name)
	}
	if err != nil {
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if st, changed := handover.AwaitChange(waitCtx, e, token); changed {
		a.say("the leader of %s under token %d has resigned; now: %s", name, token, who(st.Leader))
		return a.printLeader(st)
	}
	return fail(exitNotAcquired, "the leader of %s was asked, but still leads under token %d after %v", name, token, wait)
}
