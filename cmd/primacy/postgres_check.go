package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/embedded"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

func postgresCheckCommand(a *app) *cobra.Command {
	c := &cluster{app: a}
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Check a member's file, its PostgreSQL, its data directory and its store",
		Long: `Check what a member needs, and change nothing: the file, PostgreSQL's programs and their release, the
directory of the socket, the passfile, the data directory, the callbacks, the store, and whether PostgreSQL takes the
shared configuration. An embedded store is asked only where a process hosts it. Run it as the user as which the
member runs. Exit 1 if something has to be done first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.check(cmd.Context()) },
	}
	cmd.Flags().StringVarP(&c.path, "file", "f", "", "the file of this member")
	return cmd
}

// check tells what is well and what to do.
func (c *cluster) check(ctx context.Context) error {
	election, err := c.election()
	if err != nil {
		return err
	}
	bad := 0
	tell := func(what string, err error, well string) {
		if err != nil {
			bad++
			text := oneLine(err)
			for _, known := range []string{pgserver.ErrUnfit.Error(), clone.ErrUnfit.Error(), what} {
				text = strings.TrimPrefix(text, known+": ")
			}
			fmt.Fprintf(c.stdout, "FAIL  %s: %s\n", what, text)
			return
		}
		fmt.Fprintf(c.stdout, "ok    %s: %s\n", what, well)
	}
	member := c.postgresMember(c.file)
	tell("file", nil, fmt.Sprintf("member %s of cluster %s", c.file.Name, c.file.Cluster))
	server, err := pgserver.New(member.Server, pgserver.Exec{})
	tell("server", err, "programs in "+c.file.Bin)
	if err == nil {
		v := server.Version()
		if !v.ObeysSync() {
			err = fmt.Errorf("PostgreSQL %v may acknowledge commits without its standbys just after a start: "+
				"install the newest minor release", v)
		}
		tell("release", err, fmt.Sprintf("PostgreSQL %v", v))
	}
	tell("socket directory", checkSocketDir(c.file.SocketDir), c.file.SocketDir)
	_, err = member.Clone.Replication.Password()
	tell("passfile", err, c.file.Passfile)
	state, err := clone.Look(member.Clone)
	tell("data directory", err, c.file.Data+": "+map[core.DataState]string{
		core.DataEmpty:   "empty, will be made or cloned",
		core.DataPartial: "unfinished: its content will be deleted, and the primary's copied",
		core.DataReady:   "a database",
	}[state])
	if c.file.API.Listen != "" {
		well, err := checkAPI(ctx, c.file)
		if c.store == "" || strings.HasPrefix(c.store, embeddedScheme) {
			well += ", for HAProxy and curl: patronictl and vip-manager read etcd, and do not reach an embedded store"
		}
		tell("api", err, well)
	}
	for _, action := range callbacks.Actions {
		if command := c.file.Callbacks.Commands[action]; len(command) > 0 {
			path, err := exec.LookPath(command[0])
			tell("callback "+string(action), err, path)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, done, well, err := c.reachUntouched(ctx, election)
	tell("store", err, well)
	if err == nil {
		defer done()
		c.checkCluster(ctx, tell, r, state, server)
	}
	if bad > 0 {
		return &exitError{code: exitNo}
	}
	return nil
}

// checkCluster checks what the store says. r is nil where nobody hosts it, and server where there
// is none.
func (c *cluster) checkCluster(ctx context.Context, tell func(what string, err error, well string), r *reached,
	state core.DataState, server *pgserver.Server,
) {
	var rec *core.Record
	if r != nil {
		var err error
		rec, err = r.read(ctx)
		known := "it has a record"
		if err == nil && rec == nil {
			known = "not there yet"
			if state == core.DataReady {
				known, err = c.kept(ctx, r)
			}
		}
		if err == nil && rec != nil {
			if s, stateErr := agent.StateOf(c.file.Data); stateErr == nil && s.Stranger(*rec) != "" {
				err = errors.New(s.Stranger(*rec))
			}
		}
		tell("cluster", err, c.file.Cluster+": "+known)
	}
	well, err := c.checkConfig(ctx, r, rec, server)
	tell("configuration", err, well)
}

// checkSocketDir says why PostgreSQL could not make its socket there.
func checkSocketDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("%w: make it, and give it to the user that runs primacy", err)
	case !info.IsDir():
		return fmt.Errorf("%s is no directory", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: we may not write there (%w): give it to the user that runs primacy", dir, err)
	}
	return nil
}

// reachUntouched is [cluster.open] that neither makes an embedded store nor hosts it, which would
// change its files. r is nil where nobody hosts it. well says what there is.
func (c *cluster) reachUntouched(ctx context.Context, election string,
) (r *reached, done func(), well string, err error) {
	nothing := func() {}
	if c.store != "" && !strings.HasPrefix(c.store, embeddedScheme) {
		r, done, err = c.open(ctx, election)
		return r, done, doctor.Public(c.store), err
	}
	dir, err := c.embeddedDir()
	if err != nil {
		return nil, nothing, "", err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nothing, dir + " is not there yet: the first member makes it", nil
	}
	endpoint, closeDir, err := embedded.Reach(dir)
	if err != nil {
		return nil, nothing, "", err
	}
	socket, err := url.Parse(endpoint)
	if err != nil {
		return nil, nothing, "", err
	}
	conn, err := net.Dial("unix", socket.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		closeDir()
		return nil, nothing, dir + ": no member runs, so it is not asked", nil
	case err != nil:
		closeDir()
		return nil, nothing, "", err
	}
	_ = conn.Close()
	c.store = "etcd+" + endpoint
	r, closeStore, err := c.open(ctx, election)
	if err != nil {
		closeDir()
		return nil, nothing, "", err
	}
	return r, func() { closeStore(); closeDir() }, embeddedScheme + dir, nil
}

// checkConfig says whether PostgreSQL takes what the cluster's members share, or what a new cluster
// begins with.
func (c *cluster) checkConfig(ctx context.Context, r *reached, rec *core.Record, server *pgserver.Server,
) (well string, err error) {
	parameters, well := c.file.Begin().Parameters, "none is known yet: [first] of the file"
	if r != nil {
		d, version, err := r.shared.Read(ctx)
		switch {
		case err != nil:
			return "", err
		case version != 0:
			said, _, err := d.Read()
			if err != nil {
				return "", fmt.Errorf("%s: %w", r.shared.Key(), err)
			}
			parameters, well = said.Parameters, r.shared.Key()
		case rec != nil: // [first] does not count any more
			return "somebody has removed it: the primary writes it again", nil
		}
	}
	if server == nil {
		return well + ", not tried: there is no server", nil
	}
	return well, server.Try(ctx, parameters)
}
