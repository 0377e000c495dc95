package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"syscall"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// What the startup process of a standby waits for. In waitRetry it has read all WAL that is on
// disk, has no walreceiver, and reads new settings before it does anything else. In waitStream a
// walreceiver runs, or was asked for.
const (
	waitRetry  = "RecoveryRetrieveRetryInterval"
	waitStream = "RecoveryWalStream"
)

// ErrPrimary says that the server is not in recovery.
var ErrPrimary = errors.New("the server is a primary")

// Upstream is the primary that a standby is to follow.
type Upstream struct {
	Host, Port string // a member's own address, never one that moves
	Slot       string // on the primary; empty: none
	As         string // application_name: what the primary's SSN calls this standby
}

// Follow has the standby stream from there, in place of what it streamed from. A standby that takes
// no SQL, because it needs WAL to become consistent, follows too: the address goes by the file.
// Follow returns when the postmaster was told; [Server.Position] says whether WAL comes.
func (s *Server) Follow(ctx context.Context, u Upstream) error {
	text, err := s.connection(u)
	if err != nil {
		return err
	}
	before := s.children()
	changed, err := s.writeAutoConf(nil, setting{conninfo, text}, setting{slotName, u.Slot})
	if err != nil {
		return err
	}
	if err := s.reload(ctx); err != nil || !changed {
		return err
	}
	// PostgreSQL keeps a walreceiver that waits for its upstream to take a new timeline, and lets
	// it go on over its old connection, whatever the setting says by then.
	s.tell(before, map[int]bool{})
	return nil
}

// connection is the connection string of a walreceiver.
func (s *Server) connection(u Upstream) (string, error) {
	if err := checkName(u.As); err != nil {
		return "", err
	}
	return s.cfg.Replication.Conninfo(u.Host, u.Port, u.As)
}

// Seal makes the standby stop listening to any primary, durably, and returns nil when it has: no
// walreceiver runs, none was asked for, and none will be until [Server.Follow]. When ctx ends it
// says what is missing; the setting stays. A server that starts is sealed as well once it takes
// SQL; until then a walreceiver that runs goes on. ErrPrimary: it is none that could be sealed.
//
// An empty pg_stat_wal_receiver proves nothing: a walreceiver that is about to connect is not in
// it, and acknowledges a moment later. The proof is this. The startup process alone asks for
// walreceivers. It got SIGHUP after the new setting was on disk; a signal is handled before
// anything else when a process goes on. After that it was seen to wait in waitRetry. In that state
// it has ended the walreceiver before, and the next thing that it does is to read the settings.
func (s *Server) Seal(ctx context.Context) error {
	if err := s.setForGood(ctx, setting{conninfo, ""}); err != nil {
		return err
	}
	if err := s.reload(ctx); err != nil {
		return err
	}
	told := map[int]bool{} // processes that got their signal after the setting was on disk
	var primary error
	err := s.until(ctx, "not sealed", func() error {
		s.tell(s.children(), told)
		err := s.sealed(ctx, told)
		if errors.Is(err, ErrPrimary) {
			primary = err
			return nil
		}
		return err
	})
	return cmp.Or(primary, err)
}

// tell has each startup process among these read its settings, and ends each walreceiver, once.
// PostgreSQL ends a walreceiver only after it has replayed all that was received, which on a busy
// primary may be never, and one that waits for a new timeline not at all. A walreceiver flushes on
// its way out, and sends no reply.
func (s *Server) tell(all []process, told map[int]bool) {
	for _, kind := range []struct {
		name string
		sig  syscall.Signal
	}{{"startup", syscall.SIGHUP}, {"walreceiver", syscall.SIGTERM}} {
		for _, p := range all {
			if p.is(kind.name) && !told[p.pid] {
				told[p.pid] = s.signal(p.pid, kind.sig)
			}
		}
	}
}

// children returns the processes of the server that runs.
func (s *Server) children() []process {
	p, ok := s.Running()
	if !ok {
		return nil
	}
	return slices.DeleteFunc(s.processes(), func(c process) bool { return c.parent != p.PID() })
}

// conflict is what the startup process waits for where a query of a client holds it up.
var conflict = regexp.MustCompile(`^(RecoveryConflict.*|BufferPin|relation|transactionid|virtualxid|tuple)$`)

// sealed returns nil where there is evidence, and else what is missing.
func (s *Server) sealed(ctx context.Context, told map[int]bool) error {
	row, err := s.row(ctx, `SELECT pg_is_in_recovery(), a.pid, a.wait_event,
		(SELECT applied AND setting = '' FROM pg_file_settings WHERE name = $1 ORDER BY seqno DESC LIMIT 1),
		(SELECT sourcefile || ':' || sourceline || ': ' || error FROM pg_file_settings
			WHERE NOT applied AND error IS NOT NULL LIMIT 1)
		FROM (SELECT 1) one LEFT JOIN pg_stat_activity a ON a.backend_type = 'startup'`, conninfo)
	if err != nil {
		return err
	}
	recovers, event, applied, fault := row[0] == "t", row[2], row[3] == "t", row[4]
	startup, _ := strconv.Atoi(row[1])
	switch {
	case !recovers:
		return ErrPrimary
	case !applied:
		return fmt.Errorf("%s = '' is not in force: %s", conninfo, cmp.Or(fault, "another line sets it"))
	case !told[startup]:
		return errors.New("the startup process has not been told yet")
	case conflict.MatchString(event):
		// The startup process waits up to max_standby_streaming_delay for queries that read what it
		// wants to remove. A failover does not wait for them.
		_, err := s.query(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL`)
		return cmp.Or(err, errors.New("the startup process waits for queries, which are being ended"))
	case event != waitRetry:
		return fmt.Errorf("the startup process is still busy (it waits for %s)", cmp.Or(event, "nothing"))
	}
	for _, p := range s.children() {
		if p.is("walreceiver") {
			return fmt.Errorf("walreceiver %d still runs", p.pid)
		}
	}
	return nil
}

// Standing is where the WAL of a running server ends.
type Standing struct {
	core.Position // received or replayed, whichever is more; of a primary: flushed
	Primary       bool
	// Complete: all WAL that is on disk has been read. A standby that was just started has not; it
	// may have acknowledged much more than it says.
	Complete bool
	Replayed core.LSN // of a standby
	Streams  bool     // a walreceiver receives WAL
	Waits    string   // what the startup process waits for
}

// Backlog returns how many bytes of WAL a standby has still to replay before it can be promoted.
func (x Standing) Backlog() core.LSN { return x.LSN - min(x.LSN, x.Replayed) }

// Position asks where the WAL ends. Only an answer that is Complete may be counted. ErrNotUp while
// the server takes no SQL.
func (s *Server) Position(ctx context.Context) (Standing, error) {
	var x Standing
	// The order matters: what is complete now is complete in the position that is read after it.
	row, err := s.row(ctx, `SELECT NOT pg_is_in_recovery(), coalesce(pg_last_wal_receive_lsn(), '0/0'),
		coalesce(pg_last_wal_replay_lsn(), '0/0'), coalesce(a.wait_event, ''),
		EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
		CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_current_wal_flush_lsn()::text END,
		CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_walfile_name(pg_current_wal_flush_lsn()) END
		FROM (SELECT 1) one LEFT JOIN pg_stat_activity a ON a.backend_type = 'startup'`)
	if err != nil {
		return x, err
	}
	x.Primary, x.Waits, x.Streams = row[0] == "t", row[3], row[4] == "t"
	received, err := core.ParseLSN(row[1])
	if err != nil {
		return x, err
	}
	if x.Replayed, err = core.ParseLSN(row[2]); err != nil {
		return x, err
	}
	if x.Primary { // it may have no walsender left: a primary is asked by SQL alone
		x.Complete = true
		x.Position, err = positionOf(row[5], row[6])
		return x, err
	}
	if x.Position, err = s.identify(ctx); err != nil {
		return x, err
	}
	// A walreceiver is asked for only when all WAL on disk has been replayed. What it has received
	// on a timeline that is not yet replayed is not in the position.
	read := received != 0 || x.Waits == waitRetry || x.Waits == waitStream
	x.Complete = read && received <= x.LSN
	return x, nil
}

// positionOf is for an LSN and the file of WAL in which it lies, whose name begins with the
// timeline.
func positionOf(lsn, file string) (p core.Position, err error) {
	f, ok := walfile.Parse(file)
	if !ok {
		return p, fmt.Errorf("WAL at %s is in the file %q", lsn, file)
	}
	p.Timeline = f.Timeline
	p.LSN, err = core.ParseLSN(lsn)
	return p, err
}

// identify asks a standby by the replication protocol, which alone tells the timeline of its last
// record: up to where WAL is received on the timeline that it replays, or replayed if that is more.
func (s *Server) identify(ctx context.Context) (core.Position, error) {
	rows, err := s.once(ctx, map[string]string{"replication": "true"}, "IDENTIFY_SYSTEM")
	if err != nil {
		return core.Position{}, fmt.Errorf("IDENTIFY_SYSTEM: %w", err)
	}
	if len(rows) != 1 || len(rows[0]) < 3 {
		return core.Position{}, fmt.Errorf("IDENTIFY_SYSTEM returns %q", rows)
	}
	timeline, err := strconv.ParseUint(rows[0][1], 10, 32)
	if err != nil {
		return core.Position{}, fmt.Errorf("IDENTIFY_SYSTEM: timeline %q", rows[0][1])
	}
	lsn, err := core.ParseLSN(rows[0][2])
	return core.Position{Timeline: core.Timeline(timeline), LSN: lsn}, err
}
