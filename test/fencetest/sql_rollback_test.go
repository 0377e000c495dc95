//go:build linux

package fencetest

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

// rollbacks: what a new leader has read in a Do that was rolled back is not changed by a leader of
// the past afterwards, so the new one may build on it.
func rollbacks(t *testing.T, db *sql.DB, f sqlfence.Fence) {
	set := func(v string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), upsert, "rolled back", v)
			return err
		}
	}
	if err := f.Do(t.Context(), db, stamp(5), set("100")); err != nil {
		t.Fatal(err)
	}
	nothingToDo, read := errors.New("nothing to do"), ""
	err := f.Do(t.Context(), db, stamp(6), func(tx *sql.Tx) error {
		err := tx.QueryRowContext(t.Context(), `SELECT v FROM v WHERE k = 'rolled back'`).Scan(&read)
		return errors.Join(err, nothingToDo)
	})
	if !errors.Is(err, nothingToDo) || read != "100" {
		t.Fatalf("the new leader reads %q, %v", read, err)
	}
	if err := f.Do(t.Context(), db, stamp(5), set("30")); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a leader of the past, after the new one has read: %v, want ErrStale", err)
	}
	if err := errors.Join(f.Do(t.Context(), db, stamp(7), nil), f.Do(t.Context(), db, stamp(7), nil)); err != nil {
		t.Fatal(err)
	}
	if err := f.Do(t.Context(), db, stamp(6), nil); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after a Do that only raises: %v, want ErrStale", err)
	}
}
