package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// renewConn is the connection of the renewals. Nobody else can take it, whatever the pools are busy
// with.
type renewConn struct {
	*db
	turn chan struct{} // holds one while somebody uses conn
	conn *pgx.Conn
}

func newRenewConn(d *db, conn *pgx.Conn) *renewConn {
	return &renewConn{db: d, turn: make(chan struct{}, 1), conn: conn}
}

func (r *renewConn) close() {
	r.turn <- struct{}{}
	discard(r.conn)
	r.conn = nil
}

// run runs a statement that may be repeated, three times at most. An attempt without an answer
// within the limit gives the connection up, and the next one connects again: to the next host where
// there are several.
func (r *renewConn) run(
	ctx context.Context, limit time.Duration, sql string, args []any, scan func(pgx.Rows) error,
) error {
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
			r.pool.Reset() // the pool's connections lead to the same silent server
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		case <-r.ctx.Done():
			return err
		}
	}
}

func (r *renewConn) once(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	if r.conn == nil || r.conn.IsClosed() {
		conn, err := r.connect(ctx)
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "53300" { // too many connections: perhaps one of the pool is idle
			return r.borrow(ctx, sql, args, scan)
		}
		if err != nil {
			return err
		}
		r.conn = conn
	}
	return query(ctx, r.conn, sql, args, scan)
}

func (r *renewConn) borrow(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return query(ctx, conn.Conn(), sql, args, scan)
}
