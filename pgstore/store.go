// Package pgstore keeps leases and claims in PostgreSQL 12 or newer.
//
// Everything is a row in a schema of its own: leases with the time they end, claims in the order of their tokens, and per name the revision of
// its line. Each verb of the port is one function in that schema and one round trip. What decides is the server's clock (clock_timestamp()), and a
// lease has ended only when a statement that saw it expired has removed its row: one whose renewal is under way is left alone.
//
// Who waits is told by NOTIFY, sent by the very commit that lets it hold; beside that run a timer at the end of the lease in front, and a slow poll.
// Renewals have a connection of their own, and all waiters of a process share one that listens.
//
// A primary whose standby was promoted must not be able to acknowledge anything: that is what a synchronous standby is for. See docs/postgres.md.
package pgstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
)

// The store's limits. Renewals are written to disk: below minTTL a slow disk would end leases.
const (
	minTTL = 300 * time.Millisecond
	maxTTL = 24 * time.Hour
)

// Config is how Open reaches PostgreSQL. DSN is required.
type Config struct {
	DSN       string // URL or keywords as libpq takes them, several hosts and target_session_attrs too; pool_max_conns as pgxpool takes it
	Password  string // if not empty, in place of the DSN's
	Prefix    string // the schema, default "primacy"
	NoMigrate bool   // never create or change the schema: refuse where it is missing or older
}

// Options is how New uses a pool. The zero value works.
type Options struct {
	Prefix    string // the schema, default "primacy"
	NoMigrate bool   // never create or change the schema
}

// Store is a [driver.Store] on PostgreSQL, and a [driver.Lister], [driver.Asker], [driver.Revoker], [driver.Journal], [driver.Examiner],
// [driver.Overseer] and [driver.Operator] too.
type Store struct {
	prefix string
	pool   *pgxpool.Pool
	owned  bool // the pool was made by Open
	conn   *pgconn.Config
	caps   driver.Caps

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// Open connects to PostgreSQL, and creates or migrates the schema where it must. A server that does not answer is waited for until ctx ends; one
// that refuses connections is an error at once. Both name the hosts. A refused login, a server too old, a schema that we may not create are a
// [driver.ErrRefused].
func Open(ctx context.Context, c Config) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres: the connection string cannot be used: write postgres://USER@HOST:5432/DATABASE: %w", driver.ErrRefused)
	}
	if c.Password != "" {
		cfg.ConnConfig.Password = c.Password
	}
	tune(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, plain(err)
	}
	s, err := New(ctx, pool, Options{Prefix: c.Prefix, NoMigrate: c.NoMigrate})
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// New returns a store on a pool, which stays the caller's: close it after the store. Renewals and the waiters' notifications go over two connections
// of the store's own, made with the pool's configuration.
func New(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	s := &Store{prefix: o.Prefix, pool: pool}
	if s.prefix == "" {
		s.prefix = "primacy"
	}
	if err := pool.Ping(ctx); err != nil {
		return nil, plain(err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

func tune(*pgxpool.Config) {}

func plain(err error) error { return fmt.Errorf("postgres: %s", strings.TrimSpace(err.Error())) }
