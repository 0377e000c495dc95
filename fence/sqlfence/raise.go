package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
)

// statements are what a dialect says. Each returns exactly one row, since "no row" is another error
// in each driver.
type statements struct {
	hold  string // counts the row if it has this very stamp, and locks it against others
	look  string // the row's stamp
	raise string // writes the stamp if it may follow what is there, locks the row, and counts it
	adopt string // writes the stamp
}

func (f Fence) statements() statements {
	const upsert = `INSERT INTO TABLE AS f (name, token, origin) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET token = excluded.token, origin = excluded.origin`
	const follows = ` WHERE f.token = 0 OR f.token <= excluded.token AND (f.origin = '' OR f.origin = excluded.origin)`
	st := statements{
		look:  `SELECT coalesce(max(token), 0), coalesce(max(origin), '') FROM TABLE WHERE name = $1`,
		adopt: upsert,
	}
	if f.Dialect == SQLite {
		// An UPDATE, since only who has begun to write keeps the others out, whether it finds a row
		// or not.
		st.hold = `UPDATE TABLE SET token = token WHERE name = $1 AND token = $2 AND origin = $3 RETURNING 1`
		st.raise = upsert + follows + ` RETURNING 1`
	} else {
		// FOR SHARE: transactions of one leader run side by side, and all of them must have ended
		// before a larger token's UPDATE.
		st.hold = `WITH held AS (SELECT 1 FROM TABLE WHERE name = $1 AND token = $2 AND origin = $3 FOR SHARE) SELECT count(*) FROM held`
		st.raise = `WITH raised AS (` + upsert + follows + ` RETURNING 1) SELECT count(*) FROM raised`
	}
	for _, s := range []*string{&st.hold, &st.look, &st.raise, &st.adopt} {
		*s = strings.ReplaceAll(*s, "TABLE", f.table())
	}
	return st
}

// raise raises the fence in a transaction. Was says that it was raised under s before: then ending
// the transaction by a rollback does not take it back.
func (f Fence) raise(ctx context.Context, s fence.Stamp, ask query) (was bool, err error) {
	if err := f.check(s); err != nil {
		return false, err
	}
	was, raised, err := f.lock(ctx, s, ask)
	if err != nil {
		return false, fmt.Errorf("fence %q: raise: %w", s.Name, err)
	}
	if was || raised {
		return was, nil
	}
	last, err := f.look(ctx, s, ask)
	if err != nil {
		return false, fmt.Errorf("fence %q: raise: %w", s.Name, err)
	}
	if err := s.After(last); err != nil {
		return false, err
	}
	return false, fmt.Errorf("fence %q: raise: token %d was refused, but only %d is there: "+
		"is Raise the transaction's first statement?", s.Name, s.Token, last.Token)
}

// lock says whether the row had our stamp before (was) or has it since now (raised). Then it is
// locked.
func (f Fence) lock(ctx context.Context, s fence.Stamp, ask query) (was, raised bool, err error) {
	st := f.statements()
	holds := func(query string) (bool, error) {
		var n int
		err := ask(ctx, query, s.Name, int64(s.Token), s.Origin).Scan(&n)
		if f.Dialect == SQLite && errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return n > 0, err
	}
	if f.Idle > 0 {
		var now string
		const idle = `SELECT set_config('idle_in_transaction_session_timeout', $1, true)`
		if err := ask(ctx, idle, fmt.Sprint(f.Idle.Milliseconds())).Scan(&now); err != nil {
			return false, false, err
		}
	}
	if was, err = holds(st.hold); err != nil || was {
		return err == nil, false, err
	}
	// Many of a past leader may come here at once; were they to go for the row's lock they would
	// wait for each other.
	if last, err := f.look(ctx, s, ask); err != nil || s.After(last) != nil {
		return false, false, err
	}
	raised, err = holds(st.raise)
	return false, raised && err == nil, err
}

// look returns the stamp in the row, the zero Stamp if there is none.
func (f Fence) look(ctx context.Context, s fence.Stamp, ask query) (fence.Stamp, error) {
	var token int64
	last := fence.Stamp{Name: s.Name}
	if err := ask(ctx, f.statements().look, s.Name).Scan(&token, &last.Origin); err != nil {
		return fence.Stamp{}, err
	}
	if token < 0 {
		return fence.Stamp{}, invalid("the row of %q in %s has the token %d: an operator has to Adopt one", s.Name, f.table(), token)
	}
	last.Token = primacy.Token(token)
	return last, nil
}
