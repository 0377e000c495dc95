package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/driver"
)

// solo is the connection of the renewals: nobody else can take it, whatever the pools are busy with.
type solo struct {
	s    *Store
	turn chan struct{} // holds one while somebody uses conn
	conn *pgx.Conn
}

func newSolo(s *Store, conn *pgx.Conn) *solo {
	return &solo{s: s, turn: make(chan struct{}, 1), conn: conn}
}

func (r *solo) close() {
	r.turn <- struct{}{}
	discard(r.conn)
	r.conn = nil
}

// do runs a statement that may be repeated, three times at most. An attempt without an answer within the limit gives the connection up and is made
// again: on the next host where there are several.
func (r *solo) do(ctx context.Context, limit time.Duration, sql string, args []any, scan func(pgx.Rows) error) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	for n := 1; ; n++ {
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := r.once(attempt, sql, args, scan)
		late := attempt.Err() != nil
		cancel()
		var pe *pgconn.PgError
		if err == nil || errors.Is(err, errLocal) || errors.As(err, &pe) && final(pe) || n == 3 {
			return err
		}
		if pe == nil || readOnly(err) || r.conn == nil || r.conn.IsClosed() {
			discard(r.conn)
			r.conn = nil
		}
		if late || readOnly(err) {
			r.s.pool.Reset() // what is silent here is silent there
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		case <-r.s.ctx.Done():
			return err
		}
	}
}

func (r *solo) once(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	if r.conn == nil || r.conn.IsClosed() {
		conn, err := r.s.connect(ctx)
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "53300" { // too many connections: perhaps one of ours is idle
			return r.borrow(ctx, sql, args, scan)
		}
		if err != nil {
			return err
		}
		r.conn = conn
	}
	return query(ctx, r.conn, sql, args, scan)
}

func (r *solo) borrow(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := r.s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return query(ctx, conn.Conn(), sql, args, scan)
}

// Renew implements [driver.Lease]. Nil: the primary has the new end on its disk, and on its synchronous standby's where it has one, without
// which no other server can have become primary.
func (l *lease) Renew(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.ended() {
		return driver.ErrGone
	}
	var lives bool
	var claims, asked int64
	var sum string
	limit := min(max(l.ttl/4, 500*time.Millisecond), 3*time.Second)
	err := l.s.renews.do(ctx, limit, l.s.schema.fill.Replace("SELECT * FROM {S}.renew($1::text)"), []any{l.id}, func(rows pgx.Rows) error {
		return rows.Scan(&lives, &claims, &sum, &asked)
	})
	if err != nil {
		return l.s.wrap(ctx, "renew", err)
	}
	if !lives {
		l.end()
		return fmt.Errorf("postgres %s: renew: the lease has ended: %w", l.s.hosts, driver.ErrGone)
	}
	l.compare(fmt.Sprint(claims, " ", sum), asked)
	return nil
}
