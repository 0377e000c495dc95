// Package redisstore keeps leases and claims in Redis: one server, a primary with replicas, or one
// slot of a cluster.
//
// All keys of a store have one hash tag, "{primacy}:", so they are in one slot. Each verb is one
// script and one step, and one renewal covers all claims of a session. Several prefixes divide the
// load of a cluster.
//
//	{p}:server       hash the counter of tokens and revisions, and which history this is
//	                 (guard.go)
//	{p}:lease:<id>   hash  owner, ttl, expiry (ms of the server), channel; for each seat its claim
//	{p}:line:<name>  zset  claims by token: "<lease> <slots> <token> <seat> <claim ID>"
//	{p}:meta:<name>  hash  the line's revision, up to which token claims hold, and the values
//	{p}:names        zset  names in whose line somebody stands
//	{p}:spent:<id>   zset  claim IDs of a lease that may not enter any more
//	{p}:asks:<id>    zset  requests to a lease
//	{p}:jk:<name>, {p}:j:<name>, {p}:journals  the records of journals
//
// A lease lives as long as the server's TIME, read inside each script, is before its expiry. A
// key's own time to live only cleans up. A line whose claims are all gone has no key, and keys that
// nobody touches vanish by themselves after three days.
//
// Redis may lose what it has acknowledged: a restart or a failover may forget writes. guard.go says
// how that is noticed, and why it makes no two leaders. Caps and docs/redis.md say what remains
// possible.
package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/primacy-go/primacy/driver"
)

// The store's limits. Redis forgets whose replica it was after repl-backlog-ttl, an hour, and
// guard.go needs to know that for a ttl.
const (
	minTTL = 100 * time.Millisecond
	maxTTL = 30 * time.Minute
)

// Config is how Open reaches Redis. Addrs are required.
type Config struct {
	Addrs    []string    // host:port of the server; of some nodes of a cluster; of all sentinels
	Username string      // empty: the default user
	Password string      //
	DB       int         // database number; 0 on a cluster
	TLS      *tls.Config // nil: plain TCP
	Prefix   string      // "primacy" if empty; all keys begin with "{prefix}:"
	Cluster  bool        // the servers are a cluster
	Sentinel string      // the name of the primary, as the sentinels at Addrs know it; empty: no sentinels

	SentinelUsername string // of the sentinels, which have users of their own
	SentinelPassword string

	// Replicas, if not 0, is the number of replicas. A lease, a renewal and a claim count only once
	// so many replicas have acknowledged them (WAIT). Without it, a primary that lives on in its
	// own part of a network, beside the replica promoted in another, keeps its sessions alive
	// there, and there are two leaders. With it the sessions of such a primary end. They also end
	// while a replica is away.
	Replicas int

	dial dialer // in tests, what connects
}

// Store is a [driver.Store] on Redis, with every optional port.
type Store struct {
	*server
	caps driver.Caps
}

var (
	_ driver.Store       = (*Store)(nil)
	_ driver.Asker       = (*Store)(nil)
	_ driver.Journal     = (*Store)(nil)
	_ driver.LeaseViewer = (*Store)(nil)
	_ driver.Admin       = (*Store)(nil)
)

// errClosed answers calls on a Store that was closed.
var errClosed = errors.New("redis: the store was closed")

// Open connects to Redis and returns a store. It waits until ctx ends for a server that does not
// answer. A server that refuses connections is an error at once. Errors name the servers and never
// a password. [driver.ErrRefused] says that the login was refused, or that the server is too old,
// is a replica, or is not what Config says.
func Open(ctx context.Context, c Config) (*Store, error) {
	if len(c.Addrs) == 0 {
		return nil, fmt.Errorf("redis: no addresses: %w", driver.ErrRefused)
	}
	names := strings.Join(c.Addrs, ", ")
	if c.Cluster && (c.Sentinel != "" || c.DB != 0) {
		return nil, fmt.Errorf("redis %s: a cluster has no sentinels and no database but 0: %w",
			names, driver.ErrRefused)
	}
	if !c.Cluster && c.Sentinel == "" && len(c.Addrs) > 1 {
		return nil, fmt.Errorf("redis %s: %d addresses: several are a cluster or sentinels: %w",
			names, len(c.Addrs), driver.ErrRefused)
	}
	if c.Replicas < 0 {
		return nil, fmt.Errorf("redis %s: %d replicas: %w", names, c.Replicas, driver.ErrRefused)
	}
	base, err := baseOf(c.Prefix)
	if err != nil {
		return nil, fmt.Errorf("redis %s: %w", names, err)
	}
	s := &Store{server: newServer(base, names, c.Cluster, c.Replicas, c.clients(base+"server"))}
	if err := s.identify(ctx, c.Cluster || c.Sentinel != ""); err != nil {
		s.Close()
		return nil, err
	}
	if c.Sentinel != "" {
		s.listenToSentinels(c)
	}
	return s, nil
}

// baseOf returns what all keys of a store begin with.
func baseOf(prefix string) (string, error) {
	if prefix == "" {
		prefix = "primacy"
	}
	if strings.ContainsAny(prefix, "{}") {
		return "", fmt.Errorf("the prefix %q must not have braces, which mark the slot: %w", prefix, driver.ErrRefused)
	}
	return "{" + prefix + "}:", nil
}

// clientMaker makes clients with a pool of that size, the default if 0.
type clientMaker func(pool int) *redis.Client

// Caps implements [driver.Store].
func (s *Store) Caps() driver.Caps { return s.caps }

// Close ends the store's connections. Leases stay until they end.
func (s *Store) Close() error {
	s.server.close()
	return nil
}

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > maxTTL {
		return nil, fmt.Errorf("redis: ttl %v is not between 0 and %v: %w", ttl, maxTTL, driver.ErrRefused)
	}
	ttl = max((ttl+time.Millisecond-1)/time.Millisecond*time.Millisecond, minTTL)
	l := newLease(s, ttl)
	got, err := s.run(ctx, s.calls, grantScript, true, l.id, owner, ttl.Milliseconds(), s.listener.channel)
	if err == nil && got.str(0) != "OK" {
		err = s.unexpected("grant", got)
	}
	if err != nil {
		return nil, err
	}
	l.epoch = got.str(1)
	s.listener.add(l)
	return l, nil
}
