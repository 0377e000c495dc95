//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

func stamp(token primacy.Token) fence.Stamp { return fence.Stamp{Name: "x", Token: token} }

// begin begins a transaction that has raised the fence, rolled back with the test unless it has
// ended.
func begin(t *testing.T, db *sql.DB, f sqlfence.Fence, s fence.Stamp, level sql.IsolationLevel) (*sql.Tx, error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx, f.Raise(t.Context(), tx, s)
}

func nothing(*sql.Tx) error { return nil }

func TestPostgres(t *testing.T) {
	t.Parallel()
	url := startPostgres(t)
	db := withTables(t, "pgx", url, sqlfence.Fence{})
	each := func(name string, test func(t *testing.T, db *sql.DB, f sqlfence.Fence)) {
		f := sqlfence.Fence{Table: "fence_" + name}
		if err := f.EnsureTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { test(t, db, f) })
	}
	each("rules", rules)
	each("writers", manyWriters)
	each("rollbacks", rollbacks)
	each("first", firstInsert)
	each("wait", newerLeaderWaits)
	each("share", oneLeaderSideBySide)
	each("snapshots", oldSnapshots)
	each("idle", idleTransactionsEnd)
	each("savepoints", func(t *testing.T, db *sql.DB, f sqlfence.Fence) { savepoints(t, url, db, f) })
	each("stuck", func(t *testing.T, db *sql.DB, f sqlfence.Fence) { stuckStatements(t, url, db, f) })
	each("pgx", func(t *testing.T, _ *sql.DB, f sqlfence.Fence) { nativePgx(t, url, f) })
	t.Run("tables", func(t *testing.T) { manyTables(t, db, sqlfence.Fence{Table: "made_at_once"}) })
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	f := sqlfence.Fence{Dialect: sqlfence.SQLite}
	db := withTables(t, "sqlite", sqliteURL(t.TempDir()), f)
	t.Run("rules", func(t *testing.T) { rules(t, db, f) })
	t.Run("writers", func(t *testing.T) { manyWriters(t, db, f) })
	t.Run("rollbacks", func(t *testing.T) {
		f := sqlfence.Fence{Table: "fence_rollbacks", Dialect: sqlfence.SQLite}
		if err := f.EnsureTable(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		rollbacks(t, db, f)
	})
	t.Run("tables", func(t *testing.T) {
		manyTables(t, db,
			sqlfence.Fence{Table: "made_at_once", Dialect: sqlfence.SQLite})
	})
}

// rules: the same cases as in package fence, but decided by the database.
func rules(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	at := func(token primacy.Token, origin string) fence.Stamp {
		return fence.Stamp{Name: "r", Token: token, Origin: origin}
	}
	for _, c := range []struct {
		s    fence.Stamp
		want error
	}{
		{at(7, ""), nil}, {at(7, ""), nil}, {at(9, ""), nil}, {at(8, ""), fence.ErrStale}, {at(9, "a"), nil},
		{at(9, ""), fence.ErrOrigin},
		{at(10, "b"), fence.ErrOrigin}, {at(math.MaxInt64, "a"), nil}, {at(math.MaxInt64-1, "a"), fence.ErrStale},
		{at(math.MaxInt64+1, "a"), primacy.ErrInvalid},
	} {
		if err := f.Do(t.Context(), db, c.s, nothing); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v, want %v", c.s, err, c.want)
		}
	}
	if err := f.Adopt(t.Context(), db, at(3, "b")); err != nil {
		t.Fatal(err)
	}
	if err := f.Do(t.Context(), db, at(math.MaxInt64, "a"), nothing); !errors.Is(err, fence.ErrOrigin) {
		t.Errorf("after Adopt: %v, want ErrOrigin", err)
	}
	if err := f.Do(t.Context(), db, at(3, "b"), nothing); err != nil {
		t.Errorf("after Adopt: %v", err)
	}
	if err := f.Do(t.Context(), db, fence.Stamp{Name: "another", Token: 1}, nothing); err != nil {
		t.Errorf("another election: %v", err)
	}
	gone := sqlfence.Fence{Table: "not_there", Dialect: f.Dialect}
	if err := gone.Do(t.Context(), db, at(1, ""), nothing); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("no table: %v", err)
	}
}

// manyWriters: transactions under tokens of all sizes; no committed one reads a newer token than
// its own.
func manyWriters(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	var written, refused, turn atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 15 {
				token := 1 + turn.Add(1)/8 + rand.Int64N(3)
				err := f.Do(t.Context(), db, fence.Stamp{Name: "many", Token: primacy.Token(token)},
					func(tx *sql.Tx) error {
						var last int64
						if err := tx.QueryRowContext(t.Context(), `SELECT coalesce(max(CAST(v AS bigint)), 0) FROM v WHERE k = 'many'`).Scan(&last); err != nil {
							return err
						}
						if last > token {
							t.Errorf("a transaction under %d sees what %d has written", token, last)
						}
						_, err := tx.ExecContext(t.Context(), upsert, "many", strconv.FormatInt(token, 10))
						return err
					})
				switch {
				case err == nil:
					written.Add(1)
				case errors.Is(err, fence.ErrStale):
					refused.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if written.Load() < 5 || refused.Load() == 0 {
		t.Errorf("%d written, %d refused: the test shows nothing", written.Load(), refused.Load())
	}
}

// firstInsert: a row that is made by two leaders at once.
func firstInsert(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	newer, err := begin(t, db, f, stamp(9), sql.LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	older := make(chan error, 1)
	go func() { older <- f.Do(t.Context(), db, stamp(7), nothing) }()
	select {
	case err := <-older:
		t.Fatalf("the older one did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := newer.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-older; !errors.Is(err, fence.ErrStale) {
		t.Errorf("the older one = %v, want ErrStale", err)
	}
}

// newerLeaderWaits: between an older leader's Raise and its commit no newer one gets in, and then
// it reads what was committed.
func newerLeaderWaits(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	for i, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		old, next := primacy.Token(10*i+1), primacy.Token(10*i+2)
		if err := f.Do(t.Context(), db, stamp(old), nothing); err != nil {
			t.Fatal(err)
		}
		tx, err := begin(t, db, f, stamp(old), level) // shares the row
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := f.Do(short, db, stamp(next), nothing); err == nil {
			t.Errorf("%v: a newer leader got in beside a transaction of the older", level)
		}
		cancel()
		if _, err := tx.ExecContext(t.Context(), upsert, "wait", old.String()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		err = f.Do(t.Context(), db, stamp(next), func(tx *sql.Tx) (err error) {
			var v string
			if err = tx.QueryRowContext(t.Context(), `SELECT v FROM v WHERE k = 'wait'`).Scan(&v); v != old.String() {
				t.Errorf("%v: the newer leader reads %q", level, v)
			}
			return err
		})
		if err != nil {
			t.Errorf("%v: %v", level, err)
		}
	}
}

// oneLeaderSideBySide: transactions of one leader do not wait for each other.
func oneLeaderSideBySide(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	if err := f.Do(t.Context(), db, stamp(7), nothing); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := begin(t, db, f, stamp(7), sql.LevelDefault); err != nil { // all stay open
			t.Fatal(err)
		}
	}
}

// oldSnapshots: a transaction that has read before it raised is not let in with what it read.
func oldSnapshots(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	for i, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		old, next := primacy.Token(10*i+1), primacy.Token(10*i+2)
		if err := f.Do(t.Context(), db, stamp(old), nothing); err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM v`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if err := f.Do(t.Context(), db, stamp(next), nothing); err != nil {
			t.Fatal(err)
		}
		if err := f.Raise(t.Context(), tx, stamp(old)); err == nil {
			t.Errorf("%v: an old snapshot was let in", level)
		}
		tx.Rollback()
	}
}

// idleTransactionsEnd: a leader that is stopped inside a transaction does not keep its successor
// out, if Idle is set.
func idleTransactionsEnd(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	f.Idle = 3 * time.Second // between two statements a busy machine takes some of it
	tx, err := begin(t, db, f, stamp(7), sql.LevelDefault)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Do(t.Context(), db, stamp(9), nothing); err != nil { // waits for it
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), upsert, "idle", "late"); err == nil {
		err = tx.Commit()
		t.Errorf("the stopped transaction went on: commit %v", err)
	}
	var left string
	if err := db.QueryRowContext(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&left); err != nil || left != "0" {
		t.Errorf("after the transaction the session has the limit %q, %v", left, err)
	}
}

func nativePgx(t *testing.T, url string, f sqlfence.Fence) {
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	in := func(s fence.Stamp) error {
		return pgx.BeginFunc(t.Context(), c, func(tx pgx.Tx) error { return sqlfence.RaisePgx(t.Context(), f, tx, s) })
	}
	if err := errors.Join(in(stamp(7)), in(stamp(7)), in(stamp(9))); err != nil {
		t.Error(err)
	}
	var stale *fence.StaleError
	if err := in(stamp(8)); !errors.As(err, &stale) || stale.Token != 8 || stale.Largest != 9 {
		t.Errorf("stale: %v", err)
	}
}

// manyTables: processes that start together all make the table.
func manyTables(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := f.EnsureTable(t.Context(), db); err != nil && !strings.Contains(err.Error(), "locked") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
