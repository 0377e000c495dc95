// Package pgstore keeps leases and claims in PostgreSQL 12 or newer.
//
// Everything is a row in a schema of its own: leases with the time they end, claims in the order of
// their tokens, and for each name the revision of its line. Each verb of the port is one function
// in that schema and one round trip. The server's clock (clock_timestamp()) decides when a lease
// ends. A lease has ended only when a statement that saw it expired has removed its row: a lease
// whose renewal is under way is left alone.
//
// A waiter learns that it holds from a NOTIFY sent by the very commit that lets it hold. It also
// looks at the end of the lease in front of it, and every few seconds. Renewals have a connection
// of their own. All waiters of a process share one connection that listens.
//
// An old primary whose standby was promoted must not acknowledge anything. A synchronous standby
// makes sure of that: see docs/postgres.md.
package pgstore

// The order of locks, each taken before those below it:
//
//	lease.mu                                  also guards the lease's ownClaims and claimIDs
//	registry.mu, listener.mu, lineWatch.mu, hostOrder.mu
//	                                          nothing is locked while one of them is held
//
// No mutex is held during a call of the server. renewConn.turn is, and nothing else then.

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// The store's limits. Renewals are written to disk: below minTTL a slow disk would end leases.
const (
	minTTL     = 300 * time.Millisecond
	maxTTL     = 24 * time.Hour
	minVersion = 12
)

// Config is how Open reaches PostgreSQL. DSN is required.
type Config struct {
	// DSN is a URL or keywords as libpq takes them, with several hosts and target_session_attrs
	// too. It may set pool_max_conns as pgxpool takes it.
	DSN       string
	Password  string // if not empty, in place of the DSN's
	Prefix    string // the schema, default "primacy"
	NoMigrate bool   // never create or change the schema: refuse where it is missing or older
}

// Store is a [driver.Store] on PostgreSQL. It is also a [driver.Asker], [driver.Journal],
// [driver.LeaseViewer] and [driver.Admin].
type Store struct {
	*db
	caps     driver.Caps
	renewals *renewConn
	listener *listener
	own      *registry
	watch    *lineWatch
}

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Asker = (*Store)(nil)
)

// Open connects to PostgreSQL, and creates or migrates the schema where it must. It waits until ctx
// ends for a server that does not answer or is just starting. A server that refuses connections is
// an error at once. Both errors name the hosts. A refused login, a server too old, a schema that we
// may not create are a [driver.ErrRefused].
func Open(ctx context.Context, c Config) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil || c.DSN == "" {
		return nil, fmt.Errorf("postgres: the connection string cannot be used: %s"+
			"write postgres://USER@HOST:5432/DATABASE: %w", parseFault(err), driver.ErrRefused)
	}
	if c.Password != "" {
		cfg.ConnConfig.Password = c.Password
	}
	if !strings.Contains(c.DSN, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, 10)
	}
	schema, err := newSchema(c.Prefix)
	if err != nil {
		return nil, err
	}
	d := newDB(cfg, schema)
	conn, err := d.connectFirst(ctx)
	if err != nil {
		return nil, d.wrap(ctx, "open", err)
	}
	version, err := serverVersion(conn)
	if err == nil {
		err = schema.ready(ctx, conn, !c.NoMigrate)
	}
	var set settings
	var unread error
	if err == nil {
		set, unread = d.settings(ctx, conn)
		d.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	}
	if err != nil {
		discard(conn)
		return nil, d.wrap(ctx, "open", err)
	}
	var warnings []string
	if unread != nil {
		unread = d.wrap(ctx, "settings", unread)
		warnings = []string{"how the server keeps its data could not be found out: " + unread.Error()}
	} else {
		for _, f := range set.faults() {
			warnings = append(warnings, f[0]+": "+f[1])
		}
	}
	s := &Store{db: d, renewals: newRenewConn(d, conn), own: newRegistry(), watch: newLineWatch(d)}
	s.listener = newListener(d, s.own, s.watch)
	if said := s.listener.begin(ctx); said != "" {
		warnings = append(warnings, said)
	}
	s.caps = capsOf(version, s.listener.works(), warnings)
	if unread == nil {
		s.caps.BestEffort = set.bestEffort()
	}
	s.work.Go(s.listener.run)
	s.work.Go(s.sweep)
	return s, nil
}

func serverVersion(conn *pgx.Conn) (string, error) {
	text, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	end := strings.IndexFunc(text+".", func(r rune) bool { return r < '0' || r > '9' }) // "15.6", "18beta1"
	n, err := strconv.Atoi(text[:end])
	if err != nil || n < minVersion {
		return "", fmt.Errorf("the server is PostgreSQL %q, and %d is the oldest that will do: %w",
			text, minVersion, driver.ErrRefused)
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

// Caps implements [driver.Store]. Tokens are durable where the server writes what it acknowledges:
// Warnings says where it does not.
func (s *Store) Caps() driver.Caps { return s.caps }

// Close implements [driver.Store]. Leases live on in PostgreSQL until they run out.
func (s *Store) Close() error {
	leases, first := s.own.close()
	if !first {
		return nil
	}
	s.cancel()
	for _, l := range leases {
		l.stopTimers()
	}
	s.work.Wait()
	s.renewals.close()
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
	err := s.do(ctx, "grant", "SELECT {S}.grant_lease($1::text, $2::text, $3::bigint, $4::text)",
		[]any{l.id, owner, ttl.Microseconds(), s.listener.channel}, nil)
	if err != nil {
		return nil, err
	}
	if !s.own.add(l) {
		return nil, errClosed
	}
	return l, nil
}

// sweep removes now and then what nobody looks at any more. It does not matter which process does.
func (s *Store) sweep() {
	for wait := 20 * time.Second; ; wait = time.Minute {
		if storeutil.Sleep(s.ctx, wait+jitter(wait)) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, callLimit)
		_ = s.do(ctx, "sweep", "SELECT {S}.sweep()", nil, nil)
		cancel()
	}
}
