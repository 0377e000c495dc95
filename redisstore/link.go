package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/primacy-go/primacy/driver"
)

// Limits of one try.
const (
	dialLimit = 2 * time.Second
	callLimit = 5 * time.Second
	// A call that was given up after less than this says nothing about its connection.
	tooSoon = 100 * time.Millisecond
)

// link is a client that can be replaced: a connection that fell silent looks like any other, and so do those that lie idle beside it. So
// whoever gave up a call leaves all of them behind.
type link struct {
	dial func(pool int) redis.UniversalClient
	pool int

	mu      sync.Mutex
	client  redis.UniversalClient
	old     map[redis.UniversalClient]*time.Timer
	changed time.Time
	closed  bool
}

func newLink(dial func(pool int) redis.UniversalClient, pool int) *link {
	return &link{dial: dial, pool: pool, client: dial(pool), old: map[redis.UniversalClient]*time.Timer{}}
}

// get returns the client of the day.
func (k *link) get() redis.UniversalClient {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.client
}

// leave replaces a client whose connections may be silent. Calls of others that are still under way on it get the time to end.
func (k *link) leave(c redis.UniversalClient) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.client != c || time.Since(k.changed) < tooSoon {
		return
	}
	k.changed, k.client = time.Now(), k.dial(k.pool)
	k.old[c] = time.AfterFunc(2*callLimit, func() {
		c.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.old, c)
	})
}

func (k *link) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for c, t := range k.old {
		t.Stop()
		c.Close()
	}
	k.client.Close()
}

// client makes a client with a pool of that size, the default if 0.
func (c Config) client(pool int) redis.UniversalClient {
	switch {
	case c.Cluster:
		return redis.NewClusterClient(ours(&redis.ClusterOptions{Addrs: c.Addrs, Username: c.Username, Password: c.Password, TLSConfig: c.TLS}, pool))
	case c.Sentinel != "":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: c.Sentinel, SentinelAddrs: c.Addrs, Username: c.Username, Password: c.Password, DB: c.DB, TLSConfig: c.TLS,
			MaxRetries: -1, DialTimeout: dialLimit, DialerRetries: 1, ReadTimeout: callLimit, WriteTimeout: callLimit,
			ContextTimeoutEnabled: true, PoolSize: pool, DisableIdentity: true})
	}
	return redis.NewClient(own(&redis.Options{Addr: c.Addrs[0], Username: c.Username, Password: c.Password, DB: c.DB, TLSConfig: c.TLS}, pool))
}

// own sets what the store needs. The client's own repeats are off: it would repeat an Append, and be told that the record was there before.
func own(o *redis.Options, pool int) *redis.Options {
	o.MaxRetries, o.DialTimeout, o.DialerRetries, o.ReadTimeout, o.WriteTimeout = -1, dialLimit, 1, callLimit, callLimit
	o.ContextTimeoutEnabled, o.PoolSize, o.MinIdleConns, o.DisableIdentity = true, pool, 0, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}

// ours is own for a cluster.
func ours(o *redis.ClusterOptions, pool int) *redis.ClusterOptions {
	o.MaxRetries, o.DialTimeout, o.DialerRetries, o.ReadTimeout, o.WriteTimeout = -1, dialLimit, 1, callLimit, callLimit
	o.ContextTimeoutEnabled, o.PoolSize, o.MinIdleConns, o.DisableIdentity = true, pool, 0, true
	o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}

// like returns what makes clients with the options of a caller's.
func like(client redis.UniversalClient) (dial func(int) redis.UniversalClient, names string, err error) {
	switch c := client.(type) {
	case *redis.Client:
		o := *c.Options()
		return func(pool int) redis.UniversalClient { o := o; return redis.NewClient(own(&o, pool)) }, o.Addr, nil
	case *redis.ClusterClient:
		o := *c.Options()
		return func(pool int) redis.UniversalClient { o := o; return redis.NewClusterClient(ours(&o, pool)) }, strings.Join(o.Addrs, ", "), nil
	}
	return nil, "", fmt.Errorf("redis: a client of type %T: want *redis.Client or *redis.ClusterClient: %w", client, driver.ErrRefused)
}

// node returns the client of the very server that has key.
func node(ctx context.Context, c redis.UniversalClient, key string) (redis.UniversalClient, error) {
	if cl, ok := c.(*redis.ClusterClient); ok {
		return cl.MasterForKey(ctx, key)
	}
	return c, nil
}
