package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
)

// FenceSQL returns the query that fences a transaction, for any driver. $1 is the name (text), $2
// the token (bigint). If it returns one row, the term lives, and nobody else comes to hold the name
// before the transaction ends. If it returns none, the term is over: roll back. It must be the
// transaction's first statement. The role needs SELECT on the tables and UPDATE on claims. FenceSQL
// returns "" for a prefix that cannot be a schema.
//
// While the transaction runs, renewals and updates of the value go on, and releases and take-overs
// wait. So keep it short: as long as it runs, a dead holder keeps the name.
func FenceSQL(prefix string) string {
	c, err := newSchema(prefix)
	if err != nil {
		return ""
	}
	// KEY SHARE conflicts with the removal of the claim, and not with a new value of it.
	return c.fill.Replace(`SELECT 1 FROM {S}.claims c WHERE c.name = $1::text AND c.token = $2::bigint AND c.held
		AND EXISTS (SELECT FROM {S}.leases l WHERE l.id = c.lease AND l.expires > clock_timestamp())
		FOR KEY SHARE OF c`)
}

// Tx is what Fence needs of a transaction, as pgx.Tx has it.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Fence runs [FenceSQL] in a transaction of pgx, for the schema of that name (empty: "primacy").
// [driver.ErrGone] says that the term is over: then roll the transaction back.
func Fence(ctx context.Context, tx Tx, prefix, name string, token uint64) error {
	sql := FenceSQL(prefix)
	if sql == "" {
		return fmt.Errorf("postgres: fence: the prefix %q is not the name of a schema: %w", prefix, driver.ErrRefused)
	}
	var one int
	err := tx.QueryRow(ctx, sql, name, int64(token)).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("postgres: fence: %s is not held under token %d: %w", name, token, driver.ErrGone)
	}
	return err
}
