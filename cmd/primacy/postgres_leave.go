package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// leaving is `primacy postgres leave`.
type leaving struct {
	*cluster
	wait time.Duration
}

func postgresLeaveCommand(a *app) *cobra.Command {
	v := &leaving{cluster: &cluster{app: a}}
	c := &cobra.Command{
		Use:   "leave -f FILE",
		Short: "Give the database of this machine back to Patroni: its server goes on by itself",
		Long: `Give the database of this machine back to Patroni. The cluster must be paused. It waits until the member
of this machine has been stopped, which ends its server, and starts the server again at once, by itself: as the
primary or the standby that it was. Patroni finds it so. The standbys leave first, the primary last: then the store
has no record of the cluster any more. The steps are in docs/postgres-migration.md.

Exit 1 if something has to be done first: nothing was changed then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if v.path == "" {
				return errors.New("postgres leave: give -f FILE")
			}
			return v.leave(cmd.Context())
		},
	}
	c.Flags().StringVarP(&v.path, "file", "f", "", "the file of this member")
	c.Flags().DurationVar(&v.wait, "wait", time.Minute, "how long to wait until the member was stopped")
	return c
}

func (v *leaving) leave(ctx context.Context) error {
	r, done, err := v.reach(ctx)
	if err != nil {
		return err
	}
	defer done()
	member := v.postgresMember(v.file)
	server, err := pgserver.New(member.Server, pgserver.Exec{})
	if err != nil {
		return err
	}
	if _, err := v.paused(ctx, r); err != nil {
		return fail(exitNo, "nothing was changed: %w", err)
	}
	d, _, err := r.readConfig(ctx)
	if err != nil {
		return err
	}
	shared, _, err := d.Read()
	if err == nil && !shared.Pause {
		return fail(exitNo, "nothing was changed: Patroni would not find the cluster paused: primacy postgres config "+
			"set -f %s pause=true", v.path)
	}
	if err == nil {
		err = server.Configure(ctx, shared.Parameters)
	}
	if err != nil {
		return err
	}
	disk, err := v.stopped(ctx, member.Clone)
	if err != nil {
		return err
	}
	defer disk.Close()
	rec, err := v.paused(ctx, r) // the member may have done much until it was stopped
	if err == nil {
		has, lookErr := disk.Look()
		if err = lookErr; err == nil && has != core.DataReady {
			err = fmt.Errorf("the data in %s are not whole: start it again, and wait until list says that it follows",
				v.file.Data)
		}
	}
	pid, runs := pgserver.Foreign(server)
	if s, stateErr := pgagent.StateOf(v.file.Data); err == nil && runs {
		if err = stateErr; s.Incarnation != "" { // else it has left, and this is the second try
			err = fmt.Errorf("a server runs in %s (process %d), which is not the member's", v.file.Data, pid)
		}
	}
	if err != nil {
		return fail(exitNo, "the member is stopped, and has not left: %w", err)
	}
	if err := pgagent.Leave(v.file.Data); err != nil {
		return err
	}
	return v.goOn(ctx, r, server, *rec, runs)
}

// goOn has the server of a member that has left go on without it. The record goes before the
// primary's server writes: it says where that one's WAL ended, and who has that could be promoted.
func (v *leaving) goOn(ctx context.Context, r *reached, server *pgserver.Server, rec core.Record, runs bool) error {
	primary := rec.Primary.Name == v.file.Name
	log := filepath.Join(v.file.Data+".primacy", "server.log")
	var sync *pgserver.Sync
	if primary {
		sync = syncOf(rec)
		p := former{r, v.file.Name, rec.SystemID, 0}
		if err := p.initialize(ctx, rec.SystemID); err != nil {
			return fmt.Errorf("the key initialize of Patroni was not written: %w; to try again: the same command", err)
		}
		if err := r.record.Forget(ctx, rec); err != nil {
			return fmt.Errorf("the cluster's record was not removed: %w; to try again: the same command", err)
		}
	}
	if !runs {
		if err := pgserver.Detach(ctx, server, sync, log); err != nil {
			next := "to try again: the same command"
			if primary { // there is no record any more that the command would find
				next = "start Patroni here now"
			}
			return fmt.Errorf("%s has left, and its server was not started: %w; %s", v.file.Name, err, next)
		}
	}
	if primary {
		v.say("%s has left: its server goes on as the primary, and its commits wait for the same standbys", v.file.Name)
	} else {
		v.say("%s has left: its server goes on, and follows %s", v.file.Name, rec.Primary.Name)
	}
	return nil
}

// syncOf has commits wait for as many of the voters as before, also once Patroni has named those as
// it does: without the incarnation.
func syncOf(rec core.Record) *pgserver.Sync {
	y := &pgserver.Sync{Acks: rec.Acks, Alone: rec.Durability == core.Async}
	for _, x := range rec.Voters {
		y.Names = append(y.Names, x.String(), x.Name)
	}
	if len(y.Names) == 0 && rec.Durability == core.Available {
		y.Alone = true
	}
	return y
}

// stopped waits until nobody works on the data directory.
func (v *leaving) stopped(ctx context.Context, c clone.Config) (*clone.Dir, error) {
	end := time.Now().Add(v.wait)
	for told := false; ; told = true {
		disk, err := clone.Open(c)
		switch {
		case !errors.Is(err, clone.ErrHeld):
			return disk, err
		case time.Now().After(end):
			return nil, fail(exitNo, "nothing was changed: the member was not stopped within %v: %w", v.wait, err)
		case !told:
			v.say("%s: waiting until its member is stopped: stop it now", v.file.Name)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// paused returns the record, or why this member cannot leave by it.
func (v *leaving) paused(ctx context.Context, r *reached) (*core.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	rec, err := r.record.Read(ctx)
	if err != nil {
		return nil, err
	}
	s, err := pgagent.Left(v.file.Data)
	me := core.Identity{Name: v.file.Name, Incarnation: s.Incarnation}
	switch {
	case err != nil:
		return nil, err
	case s.Incarnation == "":
		return nil, fmt.Errorf("%s is of no member: there is no %[1]s.primacy/state.json", v.file.Data)
	case rec == nil:
		return nil, fmt.Errorf("there is no cluster %s in this store", v.name)
	case rec.Paused == nil:
		return nil, fmt.Errorf("the cluster is not paused: primacy postgres config set -f %s pause=true", v.path)
	case rec.Primary.Name == v.file.Name && rec.Primary != me:
		return nil, fmt.Errorf("%s was the primary with other data", v.file.Name)
	}
	return rec, nil
}
