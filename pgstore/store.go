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
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
)

// The store's limits. Renewals are written to disk: below minTTL a slow disk would end leases.
const (
	minTTL     = 300 * time.Millisecond
	maxTTL     = 24 * time.Hour
	minVersion = 12
)

// Config is how Open reaches PostgreSQL. DSN is required.
type Config struct {
	DSN       string // URL or keywords as libpq takes them, several hosts and target_session_attrs too; pool_max_conns as pgxpool takes it
	Password  string // if not empty, in place of the DSN's
	Prefix    string // the schema, default "primacy"
	NoMigrate bool   // never create or change the schema: refuse where it is missing or older
}

// Options is how New uses a pool's configuration. The zero value works.
type Options struct {
	Prefix    string // the schema, default "primacy"
	NoMigrate bool   // never create or change the schema
}

// Store is a [driver.Store] on PostgreSQL, and a [driver.Lister], [driver.Asker], [driver.Revoker], [driver.Journal], [driver.Examiner],
// [driver.Overseer] and [driver.Operator] too.
type Store struct {
	schema *schema
	cfg    *pgxpool.Config
	hosts  string
	pool   *pgxpool.Pool
	caps   driver.Caps
	renews *solo
	ear    *ear
	watch  *watch

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	stands map[uint64]*stand // claims of this process, by token
	leases map[string]*lease
	early  early
}

var (
	_ driver.Store  = (*Store)(nil)
	_ driver.Lister = (*Store)(nil)
	_ driver.Asker  = (*Store)(nil)
)

// Open connects to PostgreSQL, and creates or migrates the schema where it must. A server that does not answer is waited for until ctx ends, also
// one that starts just now; one that refuses connections is an error at once. Both name the hosts. A refused login, a server too old, a schema
// that we may not create are a [driver.ErrRefused].
func Open(ctx context.Context, c Config) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil || c.DSN == "" {
		return nil, fmt.Errorf("postgres: the connection string cannot be used: %swrite postgres://USER@HOST:5432/DATABASE: %w", unfit(err), driver.ErrRefused)
	}
	if c.Password != "" {
		cfg.ConnConfig.Password = c.Password
	}
	if !strings.Contains(c.DSN, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, 10)
	}
	return open(ctx, cfg, Options{Prefix: c.Prefix, NoMigrate: c.NoMigrate})
}

// New returns a store that connects as the pool does. Of the pool only its configuration is used: an application that has taken all its
// connections must not end leases. Its errors are Open's.
func New(ctx context.Context, pool *pgxpool.Pool, o Options) (*Store, error) {
	return open(ctx, pool.Config(), o)
}

func open(ctx context.Context, cfg *pgxpool.Config, o Options) (*Store, error) {
	c, err := newSchema(o.Prefix)
	if err != nil {
		return nil, err
	}
	tune(cfg)
	s := &Store{schema: c, cfg: cfg, hosts: hostsOf(&cfg.ConnConfig.Config), stands: map[uint64]*stand{}, leases: map[string]*lease{}}
	conn, err := s.first(ctx)
	if err != nil {
		return nil, s.wrap(ctx, "open", err)
	}
	version, err := serverVersion(conn)
	if err == nil {
		err = c.ready(ctx, conn, !o.NoMigrate)
	}
	if err != nil {
		discard(conn)
		return nil, s.wrap(ctx, "open", err)
	}
	bestEffort, warnings := s.weak(ctx, conn)
	if s.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		discard(conn)
		return nil, s.wrap(ctx, "open", err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.renews, s.ear, s.watch = newSolo(s, conn), newEar(s), newWatch(s)
	if said := s.ear.begin(ctx); said != "" {
		warnings = append(warnings, said)
	}
	s.caps = capsOf(version, s.ear.works(), warnings)
	s.caps.BestEffort = bestEffort
	s.work.Go(s.ear.run)
	s.work.Go(s.sweep)
	return s, nil
}

// first connects, and waits for a server that is starting or full, or does not answer.
func (s *Store) first(ctx context.Context) (*pgx.Conn, error) {
	for {
		conn, err := s.connect(ctx)
		var pe *pgconn.PgError
		switch {
		case err == nil || ctx.Err() != nil:
			return conn, err
		case errors.As(err, &pe):
			if pe.Code != "57P03" && pe.Code != "53300" {
				return nil, err
			}
		case !timeout(err):
			return nil, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func serverVersion(conn *pgx.Conn) (string, error) {
	text, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	end := strings.IndexFunc(text+".", func(r rune) bool { return r < '0' || r > '9' }) // "15.6", "18beta1"
	n, err := strconv.Atoi(text[:end])
	if err != nil || n < minVersion {
		return "", fmt.Errorf("the server is PostgreSQL %q, and %d is the oldest that will do: %w", text, minVersion, driver.ErrRefused)
	}
	return text, nil
}

func capsOf(version string, push bool, warnings []string) driver.Caps {
	return driver.Caps{
		Store:         "PostgreSQL " + version,
		FIFO:          true,
		Token:         driver.TokenDurable,
		Push:          push,
		SharedRenewal: true,
		Shared:        true,
		AtomicBatch:   true,
		Linearizable:  true,
		MinTTL:        minTTL,
		MaxTTL:        maxTTL,
		Warnings:      warnings,
	}
}

// Caps implements [driver.Store]. Tokens are durable where the server writes what it acknowledges: Warnings says where it does not.
func (s *Store) Caps() driver.Caps { return s.caps }

// Close implements [driver.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	leases := s.leases
	s.leases = map[string]*lease{}
	s.mu.Unlock()
	if was {
		return nil
	}
	s.cancel()
	for _, l := range leases {
		l.stop()
	}
	s.work.Wait()
	s.renews.close()
	// The pool waits for calls under way, which may hang: their contexts end them.
	go s.pool.Close()
	return nil
}

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > maxTTL {
		return nil, fmt.Errorf("postgres: ttl %v is not between 0 and %v: %w", ttl, maxTTL, driver.ErrRefused)
	}
	if !utf8.ValidString(owner) || strings.ContainsRune(owner, 0) {
		return nil, fmt.Errorf("postgres: the owner %q is not UTF-8 without zero bytes: %w", owner, driver.ErrRefused)
	}
	ttl = max(ttl, minTTL)
	ttl = (ttl + time.Microsecond - 1).Truncate(time.Microsecond)
	l := newLease(s, rand.Text(), owner, ttl)
	err := s.do(ctx, "grant", "SELECT {S}.grant_lease($1::text, $2::text, $3::bigint, $4::text)", []any{l.id, owner, ttl.Microseconds(), s.ear.channel}, nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	s.leases[l.id] = l
	return l, nil
}

// sweep removes now and then what nobody looks at any more. Which process does it does not matter.
func (s *Store) sweep() {
	for wait := 20 * time.Second; ; wait = time.Minute {
		select {
		case <-time.After(wait + jitter(wait)):
		case <-s.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, callLimit)
		_ = s.do(ctx, "sweep", "SELECT {S}.sweep()", nil, nil)
		cancel()
	}
}
