package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"cirello.io/pglock"
	_ "github.com/lib/pq" // the driver that pglock asks for
)

// cirello.io/pglock: a row that its holder changes with each heartbeat; who waits looks again after
// a whole lease. So its lease is short where none ends, or a waiter would not be seen to get it at
// all.
func init() {
	contenders = append(contenders, &Contender{Name: "pglock", Store: "postgres", Local: true, Lease: time.Second, Dial: dialPglock})
}

const pglockTable = "bench_pglock"

type pglockProcess struct{ db *sql.DB }

func dialPglock(ctx context.Context, endpoints []string) (Process, error) {
	db, err := sql.Open("postgres", endpoints[0])
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(24) // of the server's 100
	db.SetMaxIdleConns(24)
	c, err := pglock.New(db, pglock.WithCustomTable(pglockTable))
	if err == nil {
		err = createTable(ctx, db, c)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	return &pglockProcess{db}, nil
}

// createTable makes the library's table, which it does not do twice at once without an error.
func createTable(ctx context.Context, db *sql.DB, c *pglock.Client) error {
	one, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer one.Close()
	if _, err := one.ExecContext(ctx, "SELECT pg_advisory_lock(4711)"); err != nil {
		return err
	}
	defer one.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(4711)")
	return c.TryCreateTable()
}

func (p *pglockProcess) Close() { p.db.Close() }

func (p *pglockProcess) MinTTL() time.Duration { return 300 * time.Millisecond }

func (p *pglockProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	c, err := pglock.New(p.db, pglock.WithCustomTable(pglockTable), pglock.WithLeaseDuration(ttl), pglock.WithHeartbeatFrequency(ttl/4))
	if err != nil {
		return nil, err
	}
	return newPlain(ttl, func(ctx context.Context, name string, _ time.Duration) (Held, error) {
		l, err := c.AcquireContext(ctx, name, pglock.WithCustomHeartbeatContext(context.WithoutCancel(ctx)))
		if err != nil {
			return nil, err
		}
		return pglockHeld{l}, nil
	}), nil
}

// pglockHeld has no token: the record's number changes with each heartbeat.
type pglockHeld struct{ l *pglock.Lock }

func (h pglockHeld) Check() error {
	if h.l.IsReleased() {
		return errors.New("it was lost")
	}
	return nil
}

func (h pglockHeld) Token() uint64 { return 0 }

func (h pglockHeld) Release(context.Context) error { return h.l.Close() }
