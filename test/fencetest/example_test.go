package fencetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	_ "modernc.org/sqlite" // any driver of database/sql

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

// A ledger in SQLite that only the leader of the day can write.
func Example_sqlite() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection to :memory: has a database of its own

	ledger := sqlfence.Fence{Dialect: sqlfence.SQLite}
	if err := ledger.EnsureTable(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	_, _ = db.ExecContext(ctx, "CREATE TABLE entries (text TEXT)")
	add := func(s fence.Stamp, text string) error {
		return ledger.Do(ctx, db, s, func(tx *sql.Tx) error { // begins, raises the fence, and commits
			_, err := tx.ExecContext(ctx, "INSERT INTO entries VALUES (?)", text)
			return err
		})
	}

	old := fence.Stamp{Name: "ledger", Token: 7} // in a program: fence.Of(term)
	successor := fence.Stamp{Name: "ledger", Token: 9}
	fmt.Println(add(old, "by the first leader"))
	fmt.Println(add(successor, "by the second"))
	err = add(old, "by the first, thawed")
	fmt.Println(errors.Is(err, fence.ErrStale), err)

	var n int
	_ = db.QueryRowContext(ctx, "SELECT count(*) FROM entries").Scan(&n)
	fmt.Println(n, "entries")
	// Output:
	// <nil>
	// <nil>
	// true fence "ledger": token 7 is stale: a newer leader has been here, under token 9
	// 2 entries
}
