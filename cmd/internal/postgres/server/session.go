package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
)

// ErrNotUp says that the server does not run, or takes no SQL yet. A standby takes SQL once it is
// consistent.
var ErrNotUp = errors.New("PostgreSQL takes no SQL")

// sessions are the superuser's connections, over the Unix socket. Two are kept: one may hang in a
// probe while another is needed.
type sessions struct {
	config   *pgconn.Config
	idle     chan *pgconn.PgConn
	altering chan struct{} // holds one while an ALTER SYSTEM of ours is under way
}

// newSessions connects to nothing yet. A session reads only: the agent must write no row and take
// no row lock, because on a new primary these wait for standbys which may wait for the agent. What
// it commits nevertheless waits for no standby.
func newSessions(dir, port, user string) (*sessions, error) {
	c, err := libpq.Parse(libpq.String(map[string]string{"host": dir, "port": port, "user": user, "dbname": "postgres",
		"sslmode": "disable", "connect_timeout": "5", "passfile": os.DevNull}))
	if err != nil {
		return nil, unfit("connection to %s: %w", dir, err)
	}
	c.RuntimeParams = map[string]string{
		"application_name":                    "primacy",
		"client_encoding":                     "UTF8",
		"default_transaction_read_only":       "on",
		"idle_in_transaction_session_timeout": "10s",
		"lock_timeout":                        "5s",
		"search_path":                         "pg_catalog",
		"statement_timeout":                   "30s",
		"synchronous_commit":                  "local",
	}
	return &sessions{config: c, idle: make(chan *pgconn.PgConn, 2), altering: make(chan struct{}, 1)}, nil
}

// dial opens a connection with these parameters in place of the usual ones.
func (s *sessions) dial(ctx context.Context, parameters map[string]string) (*pgconn.PgConn, error) {
	c := s.config.Copy()
	maps.Copy(c.RuntimeParams, parameters)
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err == nil {
		return conn, nil
	}
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "57P03": // cannot_connect_now
		return nil, fmt.Errorf("%w: %s", ErrNotUp, pgErr.Message)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: it does not run", ErrNotUp)
	}
	return nil, err
}

// query runs one statement and returns its rows as text, NULL as "". It runs the statement again
// where a kept connection turns out to be dead, so a statement must bear that.
func (s *sessions) query(ctx context.Context, sql string, args ...string) ([][]string, error) {
	for {
		select {
		case c := <-s.idle:
			rows, err := run(ctx, c, sql, args)
			if c.IsClosed() && ctx.Err() == nil {
				continue
			}
			s.keep(c)
			return rows, err
		default:
		}
		c, err := s.dial(ctx, nil)
		if err != nil {
			return nil, err
		}
		rows, err := run(ctx, c, sql, args)
		s.keep(c)
		return rows, err
	}
}

// alterSystem executes an ALTER SYSTEM that changes nothing: it begins when each that is under way
// has ended. One of ours waits at most, also for callers that gave up: PostgreSQL does not cancel
// who waits for that lock, so each try would take one more of the server's connections.
func (s *sessions) alterSystem(ctx context.Context) error {
	waits := errors.New("another one is under way: see wait_event 'AutoFile' in pg_stat_activity")
	select {
	case s.altering <- struct{}{}:
	case <-ctx.Done():
		return waits
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.altering }()
		// hot_standby stands on the command line: nobody misses it here.
		_, err := s.query(context.WithoutCancel(ctx), "ALTER SYSTEM RESET hot_standby")
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return waits
	}
}

// row is query for a statement that returns one row.
func (s *sessions) row(ctx context.Context, sql string, args ...string) ([]string, error) {
	rows, err := s.query(ctx, sql, args...)
	if err == nil && len(rows) != 1 {
		err = fmt.Errorf("%d rows from: %s", len(rows), sql)
	}
	if err != nil {
		return nil, err
	}
	return rows[0], nil
}

// once runs one statement by the simple protocol over a connection of its own.
func (s *sessions) once(ctx context.Context, parameters map[string]string, sql string) ([][]string, error) {
	c, err := s.dial(ctx, parameters)
	if err != nil {
		return nil, err
	}
	defer func() {
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = c.Close(brief)
	}()
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	return text(results[len(results)-1].Rows), nil
}

func run(ctx context.Context, c *pgconn.PgConn, sql string, args []string) ([][]string, error) {
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	r := c.ExecParams(ctx, sql, values, nil, nil, nil).Read()
	if r.Err != nil {
		return nil, r.Err
	}
	return text(r.Rows), nil
}

func text(rows [][][]byte) [][]string {
	all := make([][]string, len(rows))
	for i, row := range rows {
		for _, v := range row {
			all[i] = append(all[i], string(v))
		}
	}
	return all
}

// keep puts a connection back, or closes it where there are enough.
func (s *sessions) keep(c *pgconn.PgConn) {
	if c.IsClosed() {
		return
	}
	select {
	case s.idle <- c:
	default:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	}
}

// drop closes the connections that are kept.
func (s *sessions) drop() {
	for {
		select {
		case c := <-s.idle:
			_ = c.Conn().Close() // without a farewell: the server may be frozen
		default:
			return
		}
	}
}
