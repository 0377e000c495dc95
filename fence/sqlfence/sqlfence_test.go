package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/sqlfence"
)

func ExampleFence_Schema() {
	fmt.Println(sqlfence.Fence{}.Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS primacy_fence (
	// 	name   text PRIMARY KEY,           -- of the election
	// 	token  bigint NOT NULL,            -- the largest seen
	// 	origin text NOT NULL DEFAULT ''    -- of the token: another one is refused
	// )
}

// table answers like a table whose row has that stamp, and in which a larger token may be written.
func table(largest int64, origin string) func(string, []driver.NamedValue) ([]driver.Value, error) {
	return func(query string, args []driver.NamedValue) ([]driver.Value, error) {
		flag := func(ok bool) []driver.Value { return []driver.Value{map[bool]int64{true: 1}[ok]} }
		switch {
		case strings.Contains(query, "set_config"):
			return []driver.Value{"1000"}, nil
		case strings.Contains(query, "coalesce"):
			return []driver.Value{largest, origin}, nil
		case strings.Contains(query, "FOR SHARE"):
			return flag(args[1].Value == largest && args[2].Value == origin), nil
		case strings.Contains(query, "WITH raised"):
			if args[1].Value.(int64) < largest {
				return flag(false), nil
			}
			largest, origin = args[1].Value.(int64), args[2].Value.(string)
			return flag(true), nil
		}
		return nil, nil
	}
}

func TestWhatIsAskedOfTheDatabase(t *testing.T) {
	idle := sqlfence.Fence{Idle: time.Second}
	for what, c := range map[string]struct {
		f    sqlfence.Fence
		row  int64
		from string
		s    fence.Stamp
		want error
		log  string
	}{
		"the same leader again": {sqlfence.Fence{}, 7, "", fence.Stamp{Name: "x", Token: 7}, nil, "BEGIN; hold x 7 ; UPDATE; COMMIT"},
		"a new leader": {sqlfence.Fence{}, 5, "", fence.Stamp{Name: "x", Token: 7}, nil,
			"BEGIN; hold x 7 ; look x; raise x 7 ; COMMIT; BEGIN; hold x 7 ; UPDATE; COMMIT"},
		"the first of all": {idle, 0, "", fence.Stamp{Name: "x", Token: 7, Origin: "o"}, nil,
			"BEGIN; idle 1000; hold x 7 o; look x; raise x 7 o; COMMIT; BEGIN; idle 1000; hold x 7 o; UPDATE; COMMIT"},
		"a leader of the past": {sqlfence.Fence{}, 9, "", fence.Stamp{Name: "x", Token: 7}, fence.ErrStale, "BEGIN; hold x 7 ; look x; look x; ROLLBACK"},
		"another store's":      {sqlfence.Fence{}, 9, "a", fence.Stamp{Name: "x", Token: 10, Origin: "b"}, fence.ErrOrigin, "BEGIN; hold x 10 b; look x; look x; ROLLBACK"},
	} {
		f := &fake{answer: table(c.row, c.from)}
		err := c.f.Do(t.Context(), f.open(t), c.s, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "UPDATE")
			return err
		})
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || f.log() != c.log {
			t.Errorf("%s: %v\n%s, want %v\n%s", what, err, f.log(), c.want, c.log)
		}
		var stale *fence.StaleError
		if errors.As(err, &stale) && (stale.Token != 7 || stale.Largest != 9) {
			t.Errorf("%s: %+v, want both tokens", what, stale)
		}
	}
}

func TestAnErrorOfTheWorkRollsBack(t *testing.T) {
	f, mine := &fake{answer: table(1, "")}, errors.New("mine")
	err := sqlfence.Fence{}.Do(t.Context(), f.open(t), fence.Stamp{Name: "x", Token: 7}, func(*sql.Tx) error { return mine })
	// What it has read counts, so the raise was committed before.
	const want = "BEGIN; hold x 7 ; look x; raise x 7 ; COMMIT; BEGIN; hold x 7 ; ROLLBACK"
	if !errors.Is(err, mine) || f.log() != want {
		t.Errorf("Do = %v after %s, want %s", err, f.log(), want)
	}
}

func TestDoOfNothingRaises(t *testing.T) {
	f := &fake{answer: table(1, "")}
	db, s := f.open(t), fence.Stamp{Name: "x", Token: 7}
	first, again := sqlfence.Fence{}.Do(t.Context(), db, s, nil), sqlfence.Fence{}.Do(t.Context(), db, s, nil)
	const want = "BEGIN; hold x 7 ; look x; raise x 7 ; COMMIT; BEGIN; hold x 7 ; COMMIT"
	if first != nil || again != nil || f.log() != want {
		t.Errorf("Do = %v, %v after %s, want %s", first, again, f.log(), want)
	}
}

func TestADatabaseThatFailsLetsNobodyIn(t *testing.T) {
	broken := errors.New("connection reset")
	for _, step := range []string{"set_config", "FOR SHARE", "coalesce", "WITH raised"} {
		good := table(1, "")
		f := &fake{answer: func(query string, args []driver.NamedValue) ([]driver.Value, error) {
			if strings.Contains(query, step) {
				return nil, broken
			}
			return good(query, args)
		}}
		err := sqlfence.Fence{Idle: time.Minute}.Do(t.Context(), f.open(t), fence.Stamp{Name: "x", Token: 7}, func(*sql.Tx) error {
			t.Errorf("%s failed, and the work ran", step)
			return nil
		})
		if !errors.Is(err, broken) || errors.Is(err, fence.ErrStale) {
			t.Errorf("%s failed: %v", step, err)
		}
	}
	mad := &fake{answer: table(-3, "")}
	if err := (sqlfence.Fence{}).Do(t.Context(), mad.open(t), fence.Stamp{Name: "x", Token: 7}, nil); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("a negative token in the row: %v", err)
	}
}

func TestBadInputAsksNothing(t *testing.T) {
	ok := fence.Stamp{Name: "x", Token: 7}
	for what, c := range map[string]struct {
		f sqlfence.Fence
		s fence.Stamp
	}{
		"no stamp":            {sqlfence.Fence{}, fence.Stamp{}},
		"a token too large":   {sqlfence.Fence{}, fence.Stamp{Name: "x", Token: math.MaxInt64 + 1}},
		"a table to inject":   {sqlfence.Fence{Table: "f; DROP TABLE f"}, ok},
		"an empty schema":     {sqlfence.Fence{Table: ".f"}, ok},
		"no dialect":          {sqlfence.Fence{Dialect: 7}, ok},
		"idle below zero":     {sqlfence.Fence{Idle: -1}, ok},
		"idle below 1ms":      {sqlfence.Fence{Idle: time.Microsecond}, ok},
		"idle of a year":      {sqlfence.Fence{Idle: 365 * 24 * time.Hour}, ok},
		"idle on SQLite":      {sqlfence.Fence{Dialect: sqlfence.SQLite, Idle: time.Second}, ok},
		"a name that is none": {sqlfence.Fence{}, fence.Stamp{Name: "a\nb", Token: 1}},
	} {
		f := &fake{answer: table(1, "")}
		db := f.open(t)
		err := c.f.Do(t.Context(), db, c.s, func(*sql.Tx) error { return nil })
		if !errors.Is(err, primacy.ErrInvalid) || strings.Contains(err.Error(), "\n") || f.log() != "" {
			t.Errorf("%s: Do = %v after %q, want one line with ErrInvalid", what, err, f.log())
		}
		if err := c.f.Adopt(t.Context(), db, c.s); !errors.Is(err, primacy.ErrInvalid) {
			t.Errorf("%s: Adopt = %v", what, err)
		}
	}
	if err := (sqlfence.Fence{Table: "a b"}).EnsureTable(t.Context(), (&fake{}).open(t)); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("EnsureTable of a bad table = %v", err)
	}
	if err := sqlfence.RaisePgx(t.Context(), sqlfence.Fence{Dialect: sqlfence.SQLite}, &tx{}, ok); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("pgx on SQLite = %v", err)
	}
}

// tx is shaped like a pgx.Tx, whose QueryRow returns an interface.
type tx struct{ pgxRow } //nolint:unused // its Scan is what makes a tx a row

type pgxRow interface{ Scan(dest ...any) error }

func (t *tx) QueryRow(context.Context, string, ...any) pgxRow { return t }
func (t *tx) Commit(context.Context) error                    { return nil }
func (t *tx) Rollback(context.Context) error                  { return nil }
func (t *tx) Scan(dest ...any) error                          { *dest[0].(*int) = 1; return nil }

type pgxTx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgxRow
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// dbSimulatedNestedTx is called as pgx calls what a nested Begin returns.
type dbSimulatedNestedTx struct{ tx }

func TestASavepointIsRefused(t *testing.T) {
	var nested pgxTx = &dbSimulatedNestedTx{}
	err := sqlfence.RaisePgx(t.Context(), sqlfence.Fence{}, nested, fence.Stamp{Name: "x", Token: 7})
	if !errors.Is(err, primacy.ErrInvalid) || !strings.Contains(err.Error(), "savepoint") {
		t.Error(err)
	}
}

func TestPgxNeedsNoTypeArguments(t *testing.T) {
	var asInterface pgxTx = &tx{}
	if err := sqlfence.RaisePgx(t.Context(), sqlfence.Fence{}, asInterface, fence.Stamp{Name: "x", Token: 7}); err != nil {
		t.Error(err)
	}
}
