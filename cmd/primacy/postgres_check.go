package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

func postgresCheckCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Check a member's file, its PostgreSQL, its data directory and its store",
		Long: `Check what a member needs, and touch nothing: the file, PostgreSQL's programs and their release,
the data directory, and the store. Run it as the user as which the member runs. Exit 1 if something has to be done
first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.check(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&c.path, "file", "f", "", "the file of this member")
	return cmd
}

// check tells what is well and what to do.
func (c *cluster) check(ctx context.Context) error {
	if _, err := c.election(); err != nil {
		return err
	}
	bad := 0
	tell := func(what string, err error, well string) {
		if err != nil {
			bad++
			fmt.Fprintf(c.stdout, "FAIL  %s: %s\n", what, oneLine(err))
			return
		}
		fmt.Fprintf(c.stdout, "ok    %s: %s\n", what, well)
	}
	member := (&postgresVerb{app: c.app}).member(c.file)
	tell("file", nil, fmt.Sprintf("member %s of cluster %s", c.file.Name, c.file.Cluster))
	server, err := pgserver.New(member.Server, pgserver.Exec{})
	tell("programs", err, c.file.Bin)
	if err == nil {
		v := server.Version()
		if !v.ObeysSync() {
			err = fmt.Errorf("PostgreSQL %v may acknowledge commits without its standbys just after a start: "+
				"install the newest minor release", v)
		}
		tell("release", err, fmt.Sprintf("PostgreSQL %v", v))
	}
	state, err := clone.Look(member.Clone)
	tell("data directory", err, c.file.Data+": "+map[core.DataState]string{
		core.DataEmpty:   "empty, will be made or cloned",
		core.DataPartial: "unfinished: its content will be deleted, and the primary's copied",
		core.DataReady:   "a database",
	}[state])
	if c.file.API.Listen != "" {
		well, err := checkAPI(ctx, c.file)
		tell("api", err, well)
	}
	r, done, err := c.reach(ctx)
	if err == nil {
		defer done()
	}
	tell("store", err, c.store)
	if err == nil && state == core.DataReady {
		readCtx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		rec, err := r.record.Read(readCtx)
		if err == nil && rec == nil {
			err = fmt.Errorf("%s holds a database, and the store knows no cluster %s: an existing database is not "+
				"taken over; give an empty directory", c.file.Data, c.file.Cluster)
		}
		tell("cluster", err, c.file.Cluster)
	}
	if bad > 0 {
		return &exitError{code: exitNo}
	}
	return nil
}
