//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

func native(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.PgConn().Conn().Close() }) // whatever it is in the middle of
	return c
}

// savepoints: pgx's nested transaction is refused, the one around it is not. The control says why:
// a savepoint that is rolled back takes the lock along, and the transaction around it writes after
// a newer leader.
func savepoints(t *testing.T, url string, db *sql.DB, f sqlfence.Fence) {
	tx, err := native(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nested, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlfence.RaisePgx(t.Context(), f, nested, stamp(7)); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("a nested pgx.Tx = %v, want ErrInvalid", err)
	}
	if err := errors.Join(nested.Rollback(t.Context()), sqlfence.RaisePgx(t.Context(), f, tx, stamp(7)),
		tx.Commit(t.Context())); err != nil {
		t.Error(err)
	}
	plain, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Rollback()
	_, err = plain.ExecContext(t.Context(), "SAVEPOINT a")
	if err == nil {
		err = f.Raise(t.Context(), plain, stamp(7))
	}
	if err == nil {
		_, err = plain.ExecContext(t.Context(), "ROLLBACK TO a")
	}
	if err == nil {
		err = f.Do(t.Context(), db, stamp(9), nothing)
	}
	if err != nil {
		t.Errorf("the control: %v; what is documented about savepoints is not so", err)
	}
}

// stuckStatements: what Idle does not end, and what does.
func stuckStatements(t *testing.T, url string, db *sql.DB, f sqlfence.Fence) {
	f.Idle = 3 * time.Second // which a busy machine does not reach between two statements
	for i, stop := range []func(c *pgx.Conn, tx pgx.Tx) error{
		func(_ *pgx.Conn, tx pgx.Tx) error { // rows half read
			rows, err := tx.Query(t.Context(), "SELECT repeat('x', 10000) FROM generate_series(1, 20000)")
			if err == nil && !rows.Next() {
				err = rows.Err()
			}
			return err
		},
		func(c *pgx.Conn, _ pgx.Tx) error { // COPY that does not go on
			in, out := io.Pipe()
			t.Cleanup(func() { out.Close() })
			go c.PgConn().CopyFrom(context.Background(), in, "COPY v FROM STDIN")
			_, err := fmt.Fprint(out, "a\tb\n")
			return err
		},
	} {
		c := native(t, url)
		tx, err := c.Begin(t.Context())
		if err == nil {
			err = sqlfence.RaisePgx(t.Context(), f, tx, stamp(primacy.Token(10*i+1)))
		}
		if err == nil {
			err = stop(c, tx)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- f.Do(t.Context(), db, stamp(primacy.Token(10*i+2)), nothing) }()
		select {
		case err := <-got:
			t.Errorf("%d: Idle ended it (%v): the documentation says less than is so", i, err)
			continue
		case <-time.After(2 * f.Idle):
		}
		const end = `SELECT count(pg_terminate_backend(b)) FROM pg_stat_activity, unnest(pg_blocking_pids(pid)) b`
		var n int
		if err := db.QueryRowContext(t.Context(), end).Scan(&n); err != nil || n != 1 {
			t.Fatalf("%d: %d sessions ended, %v", i, n, err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Errorf("%d: the successor: %v", i, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d: the successor still waits", i)
		}
	}
}
