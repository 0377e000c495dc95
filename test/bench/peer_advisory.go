package main

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgreSQL's own session-level advisory locks, by hand: a connection for each holder and each
// waiter, no lease. When the process dies the server hears of it and the next one has the lock;
// when it hangs, or its host falls silent, never.
func init() {
	contenders = append(contenders, &Contender{Name: "advisory lock", Store: "postgres", Local: true, Dial: dialAdvisory})
}

type advisoryProcess struct{ pool *pgxpool.Pool }

func dialAdvisory(ctx context.Context, endpoints []string) (Process, error) {
	c, err := pgxpool.ParseConfig(endpoints[0])
	if err != nil {
		return nil, err
	}
	c.MaxConns = 24 // of the server's 100: a waiter takes one
	p, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	return &advisoryProcess{p}, p.Ping(ctx)
}

func (p *advisoryProcess) Close() { p.pool.Close() }

func (p *advisoryProcess) MinTTL() time.Duration { return 300 * time.Millisecond }

func (p *advisoryProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	return newPlain(ttl, p.take), nil
}

func (p *advisoryProcess) take(ctx context.Context, name string, _ time.Duration) (Held, error) {
	hash := fnv.New64a()
	hash.Write([]byte(name))
	h := &advisoryHeld{key: int64(hash.Sum64())}
	var err error
	if h.conn, err = p.pool.Acquire(ctx); err != nil {
		return nil, err
	}
	if _, err = h.conn.Exec(ctx, "SELECT pg_advisory_lock($1)", h.key); err != nil {
		h.conn.Release() // the pool drops a connection whose query was given up
		return nil, err
	}
	return h, nil
}

type advisoryHeld struct {
	conn *pgxpool.Conn
	key  int64
}

// Check knows of nothing but a connection that was seen to be closed.
func (h *advisoryHeld) Check() error {
	if h.conn.Conn().IsClosed() {
		return errors.New("the connection is closed")
	}
	return nil
}

func (h *advisoryHeld) Token() uint64 { return 0 }

func (h *advisoryHeld) Release(ctx context.Context) error {
	defer h.conn.Release()
	var held bool
	err := h.conn.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", h.key).Scan(&held)
	if err == nil && !held {
		err = errors.New("it was not locked any more")
	}
	return err
}
