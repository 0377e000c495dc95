package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/handover"
)

func (a *app) transferCommand() *cobra.Command {
	var to, reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "transfer NAME [--to ID]",
		Short: "Ask the leader to stop its work and hand over to a candidate you name",
		Long: `Ask the leader of NAME to hand over: it stops its work, and then the candidate with the ID given leads, although others may have waited
longer; they keep waiting, behind it. Waits until it leads. Without --to the leader steps down: the same as 'primacy resign NAME'.

Exit 1 if nobody leads, if that candidate does not stand in the line (the leader is not asked then), or if another one leads in the
end; 124 if the leader has not handed over in the time given. If the candidate leads already, nothing is asked.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to != "" {
				return a.transfer(cmd.Context(), args[0], to, reason, wait)
			}
			if cmd.Flags().Changed("to") { // an empty variable, most likely: stepping down is not what was meant
				return fmt.Errorf("--to is empty: give the ID of a candidate, or leave it out to let the oldest one lead")
			}
			return a.resign(cmd.Context(), args[0], reason, wait)
		},
	}
	c.Flags().StringVar(&to, "to", "", "the candidate to lead next (default: the oldest in the line)")
	c.Flags().StringVar(&reason, "reason", "", "told to the leader")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until it leads")
	return c
}

func (a *app) transfer(ctx context.Context, name, to, reason string, wait time.Duration) error {
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
	now, err := e.State(askCtx)
	if err != nil {
		return err
	}
	if now.Leader != nil && now.Leader.ID == to {
		a.say("%s leads %s already, under token %d", to, name, now.Leader.Token)
		return a.printLeader(now)
	}
	token, err := e.Ask(askCtx, primacy.Request{To: to, Reason: reason})
	switch {
	case errors.Is(err, primacy.ErrNoLeader):
		return fail(exitNo, "nobody leads %s", name)
	case errors.Is(err, primacy.ErrNotStanding):
		return &exitError{exitNo, err}
	case err != nil:
		return err
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	st, changed := handover.AwaitChange(waitCtx, e, token)
	switch {
	case !changed:
		return fail(exitNotAcquired, "the leader of %s was asked to hand over to %s, but still leads under token %d after %v%s", name, to, token, wait, a.stillStands(ctx, e, to))
	case st.Leader == nil:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s does not lead: nobody does", name, token, to)
	case st.Leader.ID != to:
		return fail(exitNo, "the leader of %s under token %d has stopped, but %s leads now under token %d, not %s", name, token, who(st.Leader), st.Leader.Token, to)
	}
	a.say("%s leads %s under token %d, after token %d", to, name, st.Leader.Token, token)
	return a.printLeader(st)
}

// stillStands says so if the candidate does not wait any more: then the leader leads on.
func (a *app) stillStands(ctx context.Context, e *primacy.Election, id string) string {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	st, err := e.State(ctx)
	if err != nil || slices.ContainsFunc(st.Waiting, func(s primacy.Entry) bool { return s.ID == id }) {
		return ""
	}
	return fmt.Sprintf("; %s stands in the line no more", id)
}

func checkReason(reason string) error {
	if len(reason) > primacy.MaxName {
		return fmt.Errorf("--reason has %d bytes, more than %d", len(reason), primacy.MaxName)
	}
	return nil
}
