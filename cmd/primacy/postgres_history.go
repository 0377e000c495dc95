package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/shown"
)

func postgresHistoryCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	limit := 20
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show who was the primary when, on which timeline, and why each term ended",
		Long: `Show the last terms of a cluster, the newest first: token, member, from when to when, for how long
nobody led before it, the timeline to which the member was promoted, where its WAL ended before, on what the promotion
rested, and why the term ended. A term without a timeline promoted nobody: it was handed on. Of promotions the last 32
are kept. Exit 1 if nothing is known.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.history(cmd.Context(), limit) },
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "how many terms; 0: all that are kept")
	return cmd
}

// termJSON is one term of a cluster.
type termJSON struct {
	shown.Term
	Promotion *core.Promoted `json:"promotion"` // null: it promoted nobody
}

func (c *cluster) history(ctx context.Context, limit int) error {
	if limit < 0 {
		return fmt.Errorf("--limit must not be negative; 0 is all that are kept")
	}
	r, done, err := c.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	all, err := r.election.History(ctx, limit)
	if err != nil {
		return err
	}
	var promotions []core.Promoted
	if rec != nil {
		promotions = rec.History
	}
	if c.output != "table" {
		j := []termJSON{}
		for _, t := range all {
			j = append(j, termJSON{shown.TermOf(t), promotionOf(t, promotions)})
		}
		err = c.writeJSON(j)
	} else if len(all) > 0 {
		err = table(c.stdout, termRows(all, promotions)...)
	}
	if err == nil && len(all) == 0 {
		return fail(exitNo, "nothing is known of the cluster %s", clean(c.name))
	}
	return err
}

func promotionOf(t primacy.TermRecord, all []core.Promoted) *core.Promoted {
	i := slices.IndexFunc(all, func(p core.Promoted) bool { return p.Token == uint64(t.Token) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func termRows(all []primacy.TermRecord, promotions []core.Promoted) [][]string {
	rows := [][]string{{"TOKEN", "MEMBER", "FROM", "TO", "GAP BEFORE", "TIMELINE", "AFTER WAL", "PROMOTED BY",
		"ENDED BY"}}
	for _, t := range all {
		timeline, from, ground := "-", "-", "-"
		if p := promotionOf(t, promotions); p != nil {
			timeline, from, ground = fmt.Sprint(p.Timeline), p.From.String(), clean(p.Ground)
		}
		ended := why(t)
		if t.By != "" {
			ended += ", asked by " + clean(t.By)
		}
		rows = append(rows, []string{t.Token.String(), clean(t.ID), clock(t.From), endedAt(t),
			shown.GapBefore(t), timeline, from, ground, ended})
	}
	return rows
}
