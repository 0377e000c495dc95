package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	pauses "github.com/primacy-go/primacy/pause"
	"github.com/primacy-go/primacy/shards"
)

func shardsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "shards NAME",
		Short: "Show who has which shards of a group, and what moves",
		Long: `Show the group NAME of 'primacy run --shards' or of the library's package shards: its members and how
many shards each has, the moves under way and why, and the shards that nobody has. The line of one shard, and its
history, are those of an election: 'primacy status NAME/0007'. Exit 1 if the group has no members.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error { return showShards(cmd.Context(), a, args[0]) },
	}
}

func showShards(ctx context.Context, a *app, name string) error {
	s, store, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	st, err := shards.Read(ctx, s, name)
	switch {
	case errors.Is(err, primacy.ErrNoLeader):
		return fail(exitNo, "shards %s: no member runs. Start one: primacy run --shards N %s -- COMMAND", name, name)
	case err != nil:
		return err
	case a.output != "table":
		return a.writeJSON(st)
	}
	if err := table(a.stdout, memberRows(st)...); err != nil {
		return err
	}
	if len(st.Moves) > 0 {
		fmt.Fprintf(a.stdout, "\n%d under way:\n", len(st.Moves))
		if err := table(a.stdout, moveRows(st)...); err != nil {
			return err
		}
	}
	free := st.Unowned()
	fmt.Fprintf(a.stdout, "\n%d of %d shards have an owner; the assigner is %s\n", len(st.Shards)-len(free),
		len(st.Shards), orDash(st.Assigner))
	if len(free) > 0 {
		fmt.Fprintf(a.stdout, "without an owner: %s\n", shown.Ranges(free))
	}
	now, err := pauses.Read(ctx, store)
	names := []string{name, name + "/"} // a pause of all that is below is one of all shards
	for _, s := range st.Shards {
		names = append(names, shards.NameOf(name, s.Number))
	}
	paused := pausesOf(now, names...)
	printPauses(a, paused, err)
	if slices.ContainsFunc(paused, func(p pauses.Pause) bool { return p.NoElections }) {
		fmt.Fprintln(a.stdout, "meanwhile no command of 'primacy run' begins in a paused shard, though it has an owner")
	}
	printAsOf(a, st.AsOf, store.Caps().Store, 0)
	return nil
}

func memberRows(st shards.Status) [][]string {
	rows := [][]string{{"MEMBER", "SHARDS", "SHOULD", "WEIGHT", "STATE", "VALUE"}}
	for _, m := range st.Members {
		rows = append(rows, []string{orDash(m.ID), strconv.Itoa(m.Owns), strconv.Itoa(m.Quota), strconv.Itoa(m.Weight),
			shown.MemberState(m), orDash(string(m.Value))})
	}
	return rows
}

func moveRows(st shards.Status) [][]string {
	rows := [][]string{{"SHARD", "FROM", "TO", "WHY", "STATE"}}
	for _, m := range st.Moves {
		rows = append(rows, []string{strconv.Itoa(m.Shard), orDash(m.From), orDash(m.To), clean(string(m.Reason)),
			shown.MoveState(m)})
	}
	return rows
}
