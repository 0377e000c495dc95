package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// Foreign returns the process number of a postmaster that works in the data directory and that this
// process has not started.
func Foreign(s *Server) (pid int, runs bool) {
	if _, ours := s.Running(); ours {
		return 0, false
	}
	all := s.processes()
	for _, p := range all {
		if !slices.ContainsFunc(all, func(q process) bool { return q.pid == p.parent }) {
			return p.pid, true
		}
	}
	return 0, false
}

// LastTimeline returns the last timeline of which the data directory of a stopped server has
// anything.
func LastTimeline(ctx context.Context, s *Server) (core.Timeline, error) {
	c, err := s.Control(ctx)
	if err != nil {
		return 0, err
	}
	last := max(c.Checkpoint.Timeline, c.MinEnd.Timeline)
	segments, _, err := (wal{s.directory}).newer(last)
	for _, f := range segments {
		last = max(last, f.Timeline)
	}
	return last, err
}

// Retire shuts down the server of another manager in the data directory. A primary writes a
// checkpoint, and sends all WAL to the standbys that are connected. It returns when none is left.
func Retire(ctx context.Context, s *Server) error {
	told := map[int]bool{}
	for {
		pid, runs := Foreign(s)
		if !runs {
			return nil
		}
		if !told[pid] {
			told[pid] = s.signal(pid, syscall.SIGINT)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d is still shutting down: %w", pid, ctx.Err())
		case <-time.After(poll):
		}
	}
}

// Manner is how a running server was configured by whoever started it.
type Manner struct {
	DataDirectory, ConfigFile, HBAFile, IdentFile string
	Primary                                       bool
	Timeline                                      core.Timeline // of a primary
	SystemID                                      string
	Settings                                      map[string]string // those that stand on our command line
}

// MannerOf asks a server that anybody has started, at our address.
func MannerOf(ctx context.Context, s *Server) (m Manner, err error) {
	row, err := s.row(ctx, `SELECT current_setting('data_directory'), current_setting('config_file'),
		current_setting('hba_file'), current_setting('ident_file'), NOT pg_is_in_recovery(),
		CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_walfile_name(pg_current_wal_flush_lsn()) END,
		(SELECT system_identifier FROM pg_control_system())`)
	if err != nil {
		return m, err
	}
	m = Manner{DataDirectory: row[0], ConfigFile: row[1], HBAFile: row[2], IdentFile: row[3], Primary: row[4] == "t",
		SystemID: row[6], Settings: map[string]string{}}
	if m.Primary {
		at, err := positionOf("0/0", row[5])
		if err != nil {
			return m, err
		}
		m.Timeline = at.Timeline
	}
	for name := range byDefault {
		if row, err = s.row(ctx, "SELECT current_setting($1)", name); err != nil {
			return m, err
		}
		m.Settings[name] = row[0]
	}
	if _, err = s.identify(ctx); err != nil { // it is how a standby is asked where its WAL ends
		return m, fmt.Errorf("replication over the socket: %w", err)
	}
	return m, nil
}

// Lacks says which setting of a running server primacy would make smaller, and which must not be.
func (m Manner) Lacks(parameters map[string]string) error {
	for _, name := range []string{"wal_level", "max_replication_slots"} {
		next := parameters[name]
		if next == "" {
			next = byDefault[name]
		}
		if next != m.Settings[name] && !(name == "wal_level" && m.Settings[name] != "logical") &&
			!(name != "wal_level" && atLeast(next, m.Settings[name])) {
			return fmt.Errorf("%s is %s here, and %s in the shared configuration: set postgresql.parameters.%[1]s "+
				"there "+
				"before (patronictl edit-config)", name, m.Settings[name], next)
		}
	}
	return nil
}

func atLeast(a, b string) bool { return setOf{"": a}.number("", 0) >= setOf{"": b}.number("", 0) }

// ErrReplicator says that the role of standbys cannot be prepared.
var errReplicator = errors.New("the replication role")

// Prepare lets the role as which standbys log in read what pg_rewind reads, as initdb does.
func Prepare(ctx context.Context, s *Server) error {
	rows, err := s.query(ctx, "SELECT rolreplication, rolcanlogin, rolsuper, quote_ident(rolname) FROM pg_roles "+
		"WHERE rolname = $1", s.cfg.Replication.User)
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		return fmt.Errorf("%w %s does not exist", errReplicator, s.cfg.Replication.User)
	case rows[0][1] != "t" || rows[0][0] != "t" && rows[0][2] != "t":
		return fmt.Errorf("%w %s may not log in for replication", errReplicator, s.cfg.Replication.User)
	case rows[0][2] == "t":
		return nil
	}
	sql := ""
	for _, f := range []string{"pg_ls_dir(text, boolean, boolean)", "pg_stat_file(text, boolean)",
		"pg_read_binary_file(text)", "pg_read_binary_file(text, bigint, bigint, boolean)"} {
		sql += "GRANT EXECUTE ON FUNCTION pg_catalog." + f + " TO " + rows[0][3] + ";"
	}
	if s.version.Major >= 15 {
		sql += "GRANT pg_checkpoint TO " + rows[0][3] + ";"
	}
	_, err = s.once(ctx, map[string]string{"default_transaction_read_only": "off"}, sql)
	return err
}

// Detach starts the server as what it is, for another manager: it ends neither with this process
// nor by a deadline. sync is for whose flush a primary's commits wait; nil: it is a standby, which
// goes on to follow whom it followed last, and must have none when it is promoted one day. What it
// prints goes to that file. Detach returns when the server takes SQL.
func Detach(ctx context.Context, s *Server, sync *Sync, output string) error {
	primary := sync != nil
	if err := s.Examine(); err != nil {
		return err
	}
	c, err := s.Control(ctx)
	if err != nil {
		return err
	}
	if err := s.writeUserConf(s.parameters()); err != nil {
		return fmt.Errorf("parameters: %w", err)
	}
	signal := s.path("standby.signal")
	if _, err := os.Stat(signal); primary && err == nil {
		return unfit("%s is there: this was not the primary when it ended", signal)
	}
	if primary {
		if _, err := s.writeAutoConf(nil, setting{syncSSN, sync.String()}); err != nil {
			return err
		}
	} else {
		if _, err := s.writeAutoConf([]string{syncSSN}); err != nil {
			return err
		}
		if err := durable.Replace(signal, nil); err != nil {
			return err
		}
		if err := (wal{s.directory}).dropParts(ctx, c); err != nil {
			return fmt.Errorf("WAL of newer timelines: %w", err)
		}
	}
	out, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	args := s.arguments(c)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = environment(), s.data, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		row, err := s.row(ctx, "SELECT pg_is_in_recovery()")
		if err == nil && (row[0] == "f") == primary {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the server has ended (%w): %s says why", err, output)
		case <-ctx.Done():
			return fmt.Errorf("the server takes no SQL yet: %s says why (%w)", output, ctx.Err())
		case <-time.After(10 * poll):
		}
	}
}
