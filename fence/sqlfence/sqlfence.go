// Package sqlfence fences what a leader writes to a SQL database: a row is checked and locked
// inside the leader's own transaction.
//
//	ledger := sqlfence.Fence{Dialect: sqlfence.PostgreSQL}
//	err := ledger.EnsureTable(ctx, db) // once, at deploy time
//
//	err = ledger.Do(ctx, db, fence.Of(term), func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts …")
//		return err
//	})
//
// Do raises the fence in a transaction of its own where this term has not done so yet, and commits
// it; then it begins, raises, runs the function and commits. Whoever has a transaction already
// calls [Fence.Raise] as its first statement; with pgx, [RaisePgx]. This package imports no driver.
//
// Only a raise that was committed counts. A transaction that is rolled back, as read-only ones
// usually are, takes it along, and an older leader's write may then land on what was read there. So
// begin a term with a Do (nil raises and does nothing else) or, with pgx, with a transaction that
// calls RaisePgx and commits. After that it does not matter how the transactions of the term end.
//
// A transaction that has raised the fence under a token commits only if no larger token was there
// before it, and no transaction under a larger token gets past its own Raise until this one has
// ended. So committed transactions are in the order of their tokens, and each leader reads all that
// older ones have committed, under every isolation level. Transactions of one leader run side by
// side on PostgreSQL: they share the row's lock. The first ones of a new leader take turns, and on
// SQLite all writers do.
//
// Raise must be the transaction's first statement. Under READ COMMITTED what was read before it may
// be old by the time the fence is raised; under REPEATABLE READ and SERIALIZABLE the database ends
// such a transaction with a serialization failure (40001), to be repeated as ever. A savepoint that
// is rolled back takes the fence along: raise before the first one.
//
// A leader that is stopped inside a transaction holds the row's lock, and its successor's Raise
// waits: see [Fence.Idle]. One that goes on after its term, with transactions that overlap without
// end, holds its successor up as well: let them end with the term's context. An asynchronous
// replica that is promoted may have lost the row's newest state, with the newest data. Tokens above
// 2^63-1 do not fit a bigint and are refused. MySQL is not offered: it is not tested here. More:
// docs/fencing.md.
package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// Dialect is whose SQL is spoken.
type Dialect int

// The dialects.
const (
	PostgreSQL Dialect = iota // and what speaks its SQL and has its row locks
	SQLite                    // 3.35 or newer
)

// Fence is a table of fences, a row for each election. The zero value works, on PostgreSQL.
type Fence struct {
	Dialect Dialect
	Table   string // "primacy_fence" if empty; "schema.table" works
	// Idle is how long a transaction that has raised the fence may do nothing before PostgreSQL
	// ends it, as idle_in_transaction_session_timeout for this one transaction. About the lease's
	// TTL: without it a leader that was stopped inside a transaction keeps its successor waiting
	// for as long as its connection stands. It does not end a transaction in the middle of a
	// statement (COPY, rows half read). 0: as the database is set.
	Idle time.Duration
}

// Schema returns the statement that makes the table if it is not there, for those who make tables
// with a tool of their own.
func (f Fence) Schema() string {
	number := "bigint"
	if f.Dialect == SQLite {
		number = "integer"
	}
	return "CREATE TABLE IF NOT EXISTS " + f.table() + " (\n" +
		"\tname   text PRIMARY KEY,           -- of the election\n" +
		"\ttoken  " + number + " NOT NULL,            -- the largest seen\n" +
		"\torigin text NOT NULL DEFAULT ''    -- of the token: another one is refused\n" +
		")"
}

// EnsureTable makes the table if it is not there.
func (f Fence) EnsureTable(ctx context.Context, db *sql.DB) error {
	if err := f.valid(); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, f.Schema())
	if err != nil && ctx.Err() == nil {
		// Of two who make it at once PostgreSQL tells one that it exists, in spite of IF NOT
		// EXISTS.
		_, err = db.ExecContext(ctx, f.Schema())
	}
	if err != nil {
		return fmt.Errorf("make the table %s: %w", f.table(), err)
	}
	return nil
}

// Do runs do in a transaction that has raised the fence, and commits it. Where do returns an error,
// it is rolled back and the error returned; what do has read is good all the same, since the first
// Do of a term has raised the fence in a transaction of its own before. A nil do only raises.
//
// A *fence.StaleError or a *fence.OriginError says that nothing was written. An error of the commit
// itself means, as ever, that the outcome is unknown. When ctx ends before the commit the
// transaction is rolled back.
func (f Fence) Do(ctx context.Context, db *sql.DB, s fence.Stamp, do func(tx *sql.Tx) error) error {
	if err := f.check(s); err != nil {
		return err
	}
	for {
		again, err := f.doOnce(ctx, db, s, do)
		if !again {
			return err
		}
	}
}

// doOnce runs do in a transaction if the fence was raised under s before. Otherwise it raises the
// fence, commits that alone, and returns true.
func (f Fence) doOnce(ctx context.Context, db *sql.DB, s fence.Stamp, do func(tx *sql.Tx) error,
) (again bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // no-op after a commit
	was, err := f.raise(ctx, s, asking(tx))
	switch {
	case err != nil:
		return false, err
	case !was:
		if err := tx.Commit(); err != nil {
			return false, fmt.Errorf("fence %q: raise: %w", s.Name, err)
		}
		return do != nil, nil
	case do != nil:
		if err := do(tx); err != nil {
			return false, err
		}
	}
	return false, tx.Commit()
}

// asking returns what asks the database in tx.
func asking(tx *sql.Tx) query {
	return func(ctx context.Context, query string, args ...any) row {
		return tx.QueryRowContext(ctx, query, args...)
	}
}

// Raise makes the fence refuse smaller tokens, and locks its row until tx ends. Call it first in
// the transaction, before it reads anything and before any SAVEPOINT: a savepoint that is rolled
// back takes the lock along. On any error roll back: on a *fence.StaleError or *fence.OriginError
// because the leader is one of the past, on others because the fence is not locked. It waits for
// transactions under other tokens that hold the row, until ctx ends.
//
// If tx is rolled back the fence is as it was before: do not build on what tx has read, unless the
// term has raised the fence in a transaction that was committed, as [Fence.Do] does.
func (f Fence) Raise(ctx context.Context, tx *sql.Tx, s fence.Stamp) error {
	_, err := f.raise(ctx, s, asking(tx))
	return err
}

// PgxTx is a pgx.Tx. A pool or a connection is none, on purpose: without a transaction the lock
// would be gone with the statement.
type PgxTx[R interface{ Scan(dest ...any) error }] interface {
	QueryRow(ctx context.Context, sql string, args ...any) R
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// RaisePgx is [Fence.Raise] for a pgx.Tx: it too counts only if tx is committed. It returns a
// primacy.ErrInvalid for one that another pgx.Tx's Begin returned, which is a savepoint.
func RaisePgx[R interface{ Scan(dest ...any) error }](ctx context.Context, f Fence, tx PgxTx[R], s fence.Stamp) error {
	if f.Dialect != PostgreSQL {
		return invalid("pgx speaks PostgreSQL's SQL only")
	}
	if strings.HasSuffix(fmt.Sprintf("%T", tx), "NestedTx") { // pgx exports no other sign of it
		return invalid("this pgx.Tx is a savepoint inside another: raise the fence in the outer one, as its first statement")
	}
	_, err := f.raise(ctx, s, func(ctx context.Context, query string, args ...any) row {
		return tx.QueryRow(ctx, query, args...)
	})
	return err
}

// Adopt makes s count, whatever the fence knew. It is for an operator, after the store of the
// election was restored or replaced, who has made sure that no leader of the old store runs.
func (f Fence) Adopt(ctx context.Context, db *sql.DB, s fence.Stamp) error {
	if err := f.check(s); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, f.statements().adopt, s.Name, int64(s.Token), s.Origin)
	if err != nil {
		return fmt.Errorf("fence %q: adopt: %w", s.Name, err)
	}
	return nil
}

// row is a *sql.Row or a pgx.Row.
type row interface{ Scan(dest ...any) error }

type query func(ctx context.Context, query string, args ...any) row

// identifier is a table, with a schema or without. It goes into statements as it is.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (f Fence) table() string {
	if f.Table == "" {
		return "primacy_fence"
	}
	return f.Table
}

func (f Fence) valid() error {
	switch {
	case !identifier.MatchString(f.table()):
		return invalid("the table %q: use letters, digits and _, with a schema before a dot if need be", f.Table)
	case f.Dialect != PostgreSQL && f.Dialect != SQLite:
		return invalid("dialect %d: use PostgreSQL or SQLite", f.Dialect)
	case f.Idle < 0 || f.Idle > 0 && f.Idle < time.Millisecond || f.Idle.Milliseconds() > math.MaxInt32:
		return invalid("idle %v: use 1ms to %v", f.Idle, math.MaxInt32*time.Millisecond)
	case f.Idle != 0 && f.Dialect != PostgreSQL:
		return invalid("only PostgreSQL ends idle transactions: leave Idle out")
	}
	return nil
}

func (f Fence) check(s fence.Stamp) error {
	if err := f.valid(); err != nil {
		return err
	}
	if err := s.Valid(); err != nil {
		return err
	}
	if s.Token > math.MaxInt64 {
		return invalid("the token %d of %q does not fit a column of 64 bits with a sign: SQL can be fenced up to %d", s.Token, s.Name, math.MaxInt64)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("sqlfence: %w: %s", primacy.ErrInvalid, fmt.Sprintf(format, args...))
}
