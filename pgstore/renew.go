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
	turn   chan struct{} // holds one while somebody uses what follows
	conn   *pgx.Conn
	dialed chan dialed // receives the connection that is being made; nil: none is
}

// dialed is the outcome of making a connection.
type dialed struct {
	conn *pgx.Conn
	err  error
}

func newRenewConn(d *db, conn *pgx.Conn) *renewConn {
	return &renewConn{db: d, turn: make(chan struct{}, 1), conn: conn}
}

// close takes the turn, and nobody gets it any more. The store's context has ended.
func (r *renewConn) close() {
	r.turn <- struct{}{}
	if r.dialed != nil {
		discard((<-r.dialed).conn)
	}
	discard(r.conn)
	r.conn, r.dialed = nil, nil
}

// run runs a statement that may be repeated, three times at most. An attempt without an answer
// within the limit gives the connection up, and the next one connects again.
func (r *renewConn) run(
	ctx context.Context, limit time.Duration, sql string, args []any, scan func(pgx.Rows) error,
) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ctx.Done(): // close has taken the turn, or will
		return errClosed
	}
	defer func() { <-r.turn }()
	for n := 1; ; n++ {
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := r.once(attempt, limit, sql, args, scan)
		cancel()
		var pe *pgconn.PgError
		if err == nil || errors.Is(err, errLocal) || errors.As(err, &pe) && final(pe) || n == 3 {
			return err
		}
		if pe == nil || readOnly(err) || r.conn == nil || r.conn.IsClosed() {
			discard(r.conn)
			r.conn = nil
		}
		if readOnly(err) {
			r.pool.Reset()
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

func (r *renewConn) once(
	ctx context.Context, limit time.Duration, sql string, args []any, scan func(pgx.Rows) error,
) error {
	if r.conn == nil || r.conn.IsClosed() {
		conn, err := r.dial(ctx, limit)
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == full { // perhaps one of the pool is idle
			return r.borrow(ctx, sql, args, scan)
		}
		if err != nil {
			return err
		}
		r.conn = conn
	}
	return r.ask(ctx, sql, args, scan)
}

// dial returns a new connection. It is made beside the call: an attempt that ends before, or a call
// of which the caller waits less than connecting takes, leaves it to the next one.
func (r *renewConn) dial(ctx context.Context, limit time.Duration) (*pgx.Conn, error) {
	if r.dialed == nil {
		made := make(chan dialed, 1)
		r.dialed = made
		go func() {
			ctx, cancel := context.WithTimeout(r.ctx, callLimit)
			defer cancel()
			conn, err := r.connect(ctx, limit/2)
			made <- dialed{conn, err}
		}()
	}
	select {
	case d := <-r.dialed:
		r.dialed = nil
		return d.conn, d.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *renewConn) borrow(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = query(ctx, conn.Conn(), sql, args, scan)
	r.resetIfSilent(ctx, err)
	return err
}

// ask runs the statement on our own connection, and notes whether the server has answered.
func (r *renewConn) ask(ctx context.Context, sql string, args []any, scan func(pgx.Rows) error) error {
	err := query(ctx, r.conn, sql, args, scan)
	key, _ := r.conn.PgConn().CustomData()[atHost].(string)
	if err == nil && r.order.answered(key) {
		r.pool.Reset() // its connections lead to the former primary
	} else if r.resetIfSilent(ctx, err) {
		r.order.unanswered(key)
	}
	return err
}

// resetIfSilent gives the pool's connections up where a statement was not answered in time: they
// lead to the same silent server.
func (r *renewConn) resetIfSilent(ctx context.Context, err error) bool {
	silent := err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
	if silent {
		r.pool.Reset()
	}
	return silent
}
