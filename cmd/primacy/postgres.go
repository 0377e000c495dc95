package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/etcdstore"
)

// postgresStore is what a cluster of PostgreSQL asks of its store.
type postgresStore interface {
	record.Store
	Raw() *etcdstore.Raw
}

// postgresVerb is one `primacy postgres`.
type postgresVerb struct {
	*app
	path string
}

func postgresCommand(a *app) *cobra.Command {
	v := &postgresVerb{app: a}
	c := &cobra.Command{
		Use:         "postgres -f FILE",
		Annotations: map[string]string{stays: "yes"},
		Short:       "Keep at most one primary of a PostgreSQL cluster, and lose no acknowledged row",
		Long: `Run beside each PostgreSQL server of a cluster, as the user that owns its data. At most one server is
the primary. When it is lost a standby is promoted. In the modes quorum and available no acknowledged commit is lost:
before a standby is promoted, so many members have cut themselves off from the former primary that it can acknowledge
nothing more.

  primacy postgres demo                        see it work, on this machine
  primacy postgres -f pg.toml                  one on each machine; SIGTERM hands over, and stops the server
  primacy postgres check -f pg.toml            what is missing before the first start
  primacy postgres list -f pg.toml             members, roles, what a commit and a failover need
  primacy postgres switchover -f pg.toml --to pg2
  primacy postgres history -f pg.toml          who was the primary when, and why each term ended
  primacy postgres pause -f pg.toml            work on the store: no deadline, no election; then resume
  primacy postgres restart -f pg.toml          the servers, one after another
  primacy postgres config show -f pg.toml      what all members share; also set and edit
  primacy postgres reinit -f pg.toml pg3       copy the primary's data anew
  primacy postgres failover -f pg.toml --to pg2   when a safe election is not possible any more
  primacy postgres lost -f pg.toml             what rewinds have discarded on this machine

The store is etcd, or the embedded one. The file says which, and the ttl and the member's name: --store, --ttl and
--id are refused beside it, and PRIMACY_STORE, PRIMACY_TTL and PRIMACY_ID do not count.

Exit codes: 0 stopped by a signal; 121 store unreachable before start; 125 usage, a mistake in the file, or a
data directory that cannot be used. A member that is broken does not exit: it leaves the election, and its log says
why.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd.Context()) },
	}
	c.Flags().StringVarP(&v.path, "file", "f", "", "the file of this member, in TOML: docs/postgres-failover.md")
	c.AddCommand(postgresDemoCommand(a), postgresListCommand(a), postgresSwitchoverCommand(a), postgresCheckCommand(a),
		postgresLostCommand(a), postgresHistoryCommand(a), postgresPauseCommand(a), postgresResumeCommand(a),
		postgresRestartCommand(a), postgresReinitCommand(a), postgresFailoverCommand(a), postgresConfigCommand(a),
		postgresAdoptCommand(a), postgresLeaveCommand(a))
	return c
}

// run is one member, until a signal.
func (v *postgresVerb) run(ctx context.Context) error {
	if v.path == "" {
		return errors.New("postgres: give -f FILE")
	}
	f, err := pgfile.Load(v.path)
	if err == nil {
		err = v.saidByFile(v.path, "store", "ttl", "id")
	}
	if err != nil {
		return err
	}
	supervisor, err := newSupervisor("")
	if err != nil {
		return err
	}
	shows, err := openPatroni(f)
	if err != nil {
		return fmt.Errorf("%s: %w", v.path, err)
	}
	defer shows.close()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	told := v.postgresCallbacks(f, supervisor)
	defer told.End() // last: nothing of the cluster waits for a callback
	v.store, v.id, v.ttl = f.Store, f.Name, f.TTL
	session, st, done, err := v.openSession(ctx, primacy.Options{History: 1000}, true)
	if err != nil {
		return err
	}
	defer done()
	keeper, ok := st.(postgresStore)
	if !ok {
		return fmt.Errorf("%s: store %q cannot keep the cluster's record: use etcd://… or embedded:DIR", v.path,
			doctor.Public(f.Store))
	}
	member := v.postgresMember(f)
	member.Shared = pgconfig.Of(keeper.Raw(), pgconfig.Key(f.Namespace, f.Cluster))
	member.TakeOver = func(ctx context.Context, adopted core.Adoption, system string, at core.Timeline) error {
		r := &reached{cluster: &cluster{app: v.app, name: f.Cluster, namespace: f.Namespace}, shared: member.Shared,
			keeper: keeper}
		return former{r, f.Name, system, at}.takeOver(ctx, adopted)
	}
	a, err := agent.New(member, session, keeper, supervisor)
	if err != nil {
		return err
	}
	if shows != nil {
		keys, ok := st.(patroniStore)
		if !ok {
			return fmt.Errorf("%s: store %q cannot keep Patroni's keys: take [api] out, or use etcd://…", v.path,
				doctor.Public(f.Store))
		}
		showing, end := context.WithCancel(context.WithoutCancel(ctx))
		wait, err := shows.serve(showing, v, f, a, keys, session)
		if err != nil {
			end()
			return err
		}
		defer func() { end(); wait() }()
	}
	told.Follow(a)
	return a.Run(ctx)
}

// postgresCallbacks are those that the file names. Their environment is ours, as with Patroni, but
// for what may hold secrets of ours, and what the service manager has said to this process alone.
func (a *app) postgresCallbacks(f *pgfile.File, s *supervise.Supervisor) *callbacks.Callbacks {
	env := slices.DeleteFunc(os.Environ(), func(one string) bool {
		return strings.HasPrefix(one, "PRIMACY_") || strings.HasPrefix(one, "NOTIFY_SOCKET=")
	})
	return callbacks.New(callbacks.Config{Commands: f.Callbacks.Commands, Primary: f.Callbacks.Primary,
		Cluster: f.Cluster, Env: env, Log: a.postgresLog(), Start: s.StartOther})
}

// saidByFile refuses flags for which a member's file has keys: they would be ignored. The
// environment, and the file of --config, speak to all verbs: what they say is no mistake.
func (a *app) saidByFile(path string, flags ...string) error {
	for _, name := range flags {
		if !slices.Contains(a.typed, name) {
			continue
		}
		key := cmp.Or(map[string]string{"id": "name"}[name], name)
		return fmt.Errorf("--%s: leave it out: with -f the file counts, and `%s` in %s says it", name, key, path)
	}
	return nil
}

// postgresLog writes for people, and what was ordered too with --verbose.
func (a *app) postgresLog() *slog.Logger {
	level := slog.LevelInfo
	switch {
	case a.verbose:
		level = slog.LevelDebug
	case a.quiet:
		level = slog.LevelError
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}

// postgresMember is what the file says, as the agent takes it.
func (a *app) postgresMember(f *pgfile.File) agent.Config {
	first, login := f.Begin(), libpq.Replication{User: f.ReplicationUser, Passfile: f.Passfile}
	return agent.Config{
		Cluster: f.Cluster, Name: f.Name, TTL: f.TTL, LoopWait: f.LoopWait, First: pgconfig.First(f.First),
		Priority: f.Priority, NoSync: f.NoSync, NoFailover: f.NoFailover, Log: a.postgresLog(),
		Details: f.API.Listen != "",
		Server: pgserver.Config{Data: f.Data, Bin: f.Bin, Listen: f.Listen, SocketDir: f.SocketDir,
			Superuser: f.Superuser, Parameters: first.Parameters, Replication: login},
		Clone: clone.Config{Data: f.Data, Bin: f.Bin, Superuser: f.Superuser, HBA: f.HBA,
			Replication: login},
		LastAction: func(lease string, token primacy.Token) *supervise.LastAction {
			w := lastAction{Lease: lease, ID: f.Name,
				Message: "primacy: the agent is gone; its server was ended and its lease given up\n"}
			if token != 0 {
				w.Name, w.Token = agent.Prefix+f.Cluster, token
			}
			return a.endLease(w, f.TTL)
		},
	}
}
