package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

// fake is a database that knows no SQL: it answers each statement with what the test says, and
// notes what it was asked. What the statements mean is tested against real databases, in
// test/fencetest.
type fake struct {
	mu     sync.Mutex
	asked  []string
	answer func(query string, args []driver.NamedValue) ([]driver.Value, error)
}

// note writes down what was asked: its first word and arguments.
func (f *fake) note(query string, args []driver.NamedValue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := strings.Fields(query)[0]
	switch {
	case strings.Contains(query, "FOR SHARE"):
		line = "hold"
	case strings.Contains(query, "WITH raised"):
		line = "raise"
	case strings.Contains(query, "coalesce"):
		line = "look"
	case strings.Contains(query, "set_config"):
		line = "idle"
	}
	for _, a := range args {
		line += fmt.Sprintf(" %v", a.Value)
	}
	f.asked = append(f.asked, line)
}

func (f *fake) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.asked, "; ")
}

// open returns the database behind database/sql.
func (f *fake) open(t *testing.T) *sql.DB {
	db := sql.OpenDB(f)
	t.Cleanup(func() { db.Close() })
	return db
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return conn{f}, nil }
func (f *fake) Driver() driver.Driver                        { return nil }

type conn struct{ f *fake }

func (c conn) Prepare(string) (driver.Stmt, error) { return nil, fmt.Errorf("not prepared") }
func (c conn) Close() error                        { return nil }
func (c conn) Begin() (driver.Tx, error)           { c.f.note("BEGIN", nil); return c, nil }
func (c conn) Commit() error                       { c.f.note("COMMIT", nil); return nil }
func (c conn) Rollback() error                     { c.f.note("ROLLBACK", nil); return nil }

func (c conn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.f.note(query, args)
	_, err := c.f.answer(query, args)
	return driver.RowsAffected(1), err
}

func (c conn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.f.note(query, args)
	values, err := c.f.answer(query, args)
	return &rows{values: values}, err
}

// rows is one row, or none.
type rows struct{ values []driver.Value }

func (r *rows) Columns() []string { return make([]string, len(r.values)) }
func (r *rows) Close() error      { return nil }

func (r *rows) Next(to []driver.Value) error {
	if len(r.values) == 0 {
		return io.EOF
	}
	copy(to, r.values)
	r.values = nil
	return nil
}
