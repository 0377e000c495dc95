package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// reserved begins the names of standbys that do not exist.
const reserved = "primacy_"

// Sync is a value of synchronous_standby_names (SSN). The zero value names a standby that does not
// exist: no commit is acknowledged.
type Sync struct {
	Names []string // application_name of each standby
	Acks  int      // how many of them must have flushed a commit
	Alone bool     // commits wait for nobody; Names is empty

	// Mark makes it a form in which each walsender shows that it has loaded it: FIRST Acks, with so
	// many standbys that do not exist before the others. Each standby has its place in the list as
	// sync_priority then. [Server.Mark] returns one that no walsender can have seen. 0: ANY Acks,
	// in which all have priority 1.
	Mark int
}

// String returns the value as PostgreSQL reads it.
func (y Sync) String() string {
	switch {
	case y.Alone:
		return ""
	case len(y.Names) == 0:
		return "ANY 1 (" + reserved + "nobody)"
	}
	var list []string
	for i := range y.Mark {
		list = append(list, reserved+strconv.Itoa(i+1))
	}
	for _, n := range y.Names {
		list = append(list, `"`+strings.ReplaceAll(n, `"`, `""`)+`"`)
	}
	method := "ANY"
	if y.Mark > 0 {
		method = "FIRST"
	}
	return fmt.Sprintf("%s %d (%s)", method, y.Acks, strings.Join(list, ", "))
}

// priority returns what a walsender of that name shows that has loaded y.
func (y Sync) priority(name string) int {
	i := slices.IndexFunc(y.Names, func(n string) bool { return strings.EqualFold(n, name) })
	switch {
	case i < 0:
		return 0
	case y.Mark == 0:
		return 1
	}
	return y.Mark + i + 1
}

func (y Sync) check() error {
	for i, n := range y.Names {
		if err := checkName(n); err != nil {
			return err
		}
		if slices.ContainsFunc(y.Names[:i], func(m string) bool { return strings.EqualFold(m, n) }) {
			return fmt.Errorf("standby %q is named twice: PostgreSQL takes upper and lower case for the same", n)
		}
	}
	switch {
	case y.Alone && len(y.Names) > 0:
		return errors.New("alone, and yet with standbys")
	case len(y.Names) > 0 && (y.Acks < 1 || y.Acks > len(y.Names)):
		return fmt.Errorf("%d of %d standbys cannot acknowledge a commit", y.Acks, len(y.Names))
	case y.Mark < 0 || y.Mark > 0 && len(y.Names) == 0:
		return fmt.Errorf("mark %d without standbys", y.Mark)
	}
	return nil
}

// checkName refuses what PostgreSQL would change in an application_name, or understand otherwise in
// an SSN: "*" is everybody.
func checkName(n string) error {
	switch {
	case n == "" || n == "*" || len(n) > 63:
		return fmt.Errorf("standby %q: a name has 1 to 63 bytes and is not *", n)
	case strings.ContainsFunc(n, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("standby %q: a name has ASCII characters only", n)
	case strings.HasPrefix(strings.ToLower(n), reserved):
		return fmt.Errorf("standby %q: names that begin with %s are primacy's own", n, reserved)
	}
	return nil
}

// SetSync sets for whom commits wait, and returns when the postmaster has loaded it: who connects
// from now on gets it. What the walsenders that are connected have loaded is another matter: see
// [Server.Proven]. After Alone, commits are first made to wait for nobody that exists, until one is
// seen to wait.
func (s *Server) SetSync(ctx context.Context, y Sync) error {
	if err := y.check(); err != nil {
		return err
	}
	if s.noWait.Load() && !y.Alone {
		if err := s.load(ctx, Sync{}); err != nil {
			return err
		}
		if err := s.seeWait(ctx); err != nil {
			return err
		}
	}
	if y.Alone {
		s.noWait.Store(true)
	}
	return s.load(ctx, y)
}

func (s *Server) load(ctx context.Context, y Sync) error {
	if err := s.setForGood(ctx, setting{syncSSN, y.String()}); err != nil {
		return err
	}
	if err := s.reload(ctx); err != nil {
		return err
	}
	return s.until(ctx, syncSSN+" not loaded", func() error { return s.loaded(ctx, y) })
}

// seeWait returns nil when a commit was seen to wait, under an SSN that nobody can meet. Whether
// commits wait at all is a flag in shared memory, which the checkpointer sets when it gets to
// reading the settings: in the middle of a checkpoint that may be long after everybody else. Until
// then commits are acknowledged without any standby, whatever SSN walsenders and backends show.
func (s *Server) seeWait(ctx context.Context) error {
	return s.until(ctx, "commits do not wait for standbys yet", func() error {
		probe, err := s.dial(ctx, map[string]string{"synchronous_commit": "on", "statement_timeout": "0"})
		if err != nil {
			return err
		}
		brief, cancel := context.WithCancel(ctx)
		returned := make(chan error, 1)
		go func() {
			_, err := probe.Exec(brief, flush).ReadAll()
			returned <- err
		}()
		defer func() {
			cancel() // closes the connection, and has the server cancel the statement
			<-returned
			_ = probe.Conn().Close()
		}()
		for {
			select {
			case err := <-returned:
				returned <- nil
				return cmp.Or(err, errors.New("one was acknowledged at once"))
			case <-time.After(poll):
			}
			row, err := s.row(ctx, `SELECT count(*) FROM pg_stat_activity
				WHERE pid = $1::int AND wait_event = 'SyncRep'`, strconv.Itoa(int(probe.PID())))
			if err != nil {
				return err
			}
			if row[0] == "1" {
				s.noWait.Store(false)
				return nil
			}
		}
	})
}

// loaded returns nil when the postmaster has loaded y. It loads settings before it tells the others
// to; so if one of the others has them, so has the postmaster, and who is born from now on.
func (s *Server) loaded(ctx context.Context, y Sync) error {
	row, err := s.row(ctx, `SELECT current_setting($1)`, syncSSN)
	if err == nil && row[0] != y.String() {
		err = fmt.Errorf("a process has %q loaded, want %q", row[0], y)
	}
	return err
}

// Mark returns a Mark for [Sync] which no walsender can show already: above every priority that one
// shows, and above every place in the SSN that one may have loaded unseen.
func (s *Server) Mark(ctx context.Context) (int, error) {
	row, err := s.row(ctx, `SELECT greatest((SELECT max(sync_priority) FROM pg_stat_replication),
		array_length(string_to_array(current_setting($1), ','), 1),
		(SELECT max(array_length(string_to_array(setting, ','), 1)) FROM pg_file_settings WHERE name = $1), 1)`,
		syncSSN)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(row[0])
}

// Proven returns nil when every walsender has loaded y, which must have a Mark, and else who has
// not. A walsender that is frozen keeps what it has loaded, and releases commits by that when it
// goes on: a reload alone proves nothing. former are the names in SSNs that y replaces. A walsender
// whose name is in none of them releases nobody.
func (s *Server) Proven(ctx context.Context, y Sync, former ...string) error {
	if y.Mark == 0 {
		return errors.New("an SSN without a mark cannot be proven")
	}
	if err := s.loaded(ctx, y); err != nil {
		return err
	}
	senders, err := s.Senders(ctx)
	if err != nil {
		return err
	}
	for _, x := range senders {
		known := y.priority(x.Name) > 0 ||
			slices.ContainsFunc(former, func(n string) bool { return strings.EqualFold(n, x.Name) })
		switch {
		// Before the first reply the view shows 0 whatever was loaded.
		case known && x.Flushed == 0:
			return fmt.Errorf("walsender %d (%s) has had no reply yet", x.PID, x.Name)
		case x.Priority != y.priority(x.Name):
			return fmt.Errorf("walsender %d (%s) shows priority %d, not %d: it has not loaded the SSN",
				x.PID, x.Name, x.Priority, y.priority(x.Name))
		}
	}
	return nil
}

// Sender is a walsender of this server: a standby that is connected, or a program that copies.
type Sender struct {
	PID      int
	Name     string // application_name
	Address  string
	State    string // startup, catchup, streaming, backup, stopping
	Sent     core.LSN
	Written  core.LSN
	Flushed  core.LSN
	Replayed core.LSN
	Priority int    // in the SSN as the walsender has loaded it; 0: it is not in it
	Kind     string // async, potential, sync, quorum
}

// Waiting returns the commits that wait for standbys now, each by its process and the time at which
// its statement began: a commit that still waits later has the same text.
func (s *sessions) Waiting(ctx context.Context) (all []string, err error) {
	rows, err := s.query(ctx, `SELECT pid || ' ' || query_start FROM pg_stat_activity
		WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'`)
	for _, r := range rows {
		all = append(all, r[0])
	}
	return all, err
}

// Senders returns the walsenders of this server, in the order of their process numbers.
func (s *sessions) Senders(ctx context.Context) ([]Sender, error) {
	rows, err := s.query(ctx, `SELECT pid, application_name, coalesce(host(client_addr), ''), state,
		coalesce(sent_lsn, '0/0'), coalesce(write_lsn, '0/0'), coalesce(flush_lsn, '0/0'), coalesce(replay_lsn, '0/0'),
		sync_priority, sync_state FROM pg_stat_replication ORDER BY pid`)
	if err != nil {
		return nil, err
	}
	all := make([]Sender, 0, len(rows))
	for _, r := range rows {
		x := Sender{Name: r[1], Address: r[2], State: r[3], Kind: r[9]}
		var errs [6]error
		x.PID, errs[0] = strconv.Atoi(r[0])
		x.Sent, errs[1] = core.ParseLSN(r[4])
		x.Written, errs[2] = core.ParseLSN(r[5])
		x.Flushed, errs[3] = core.ParseLSN(r[6])
		x.Replayed, errs[4] = core.ParseLSN(r[7])
		x.Priority, errs[5] = strconv.Atoi(r[8])
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("pg_stat_replication: %w", err)
		}
		all = append(all, x)
	}
	return all, nil
}
