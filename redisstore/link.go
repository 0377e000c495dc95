package redisstore

import (
	"fmt"
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
// whoever gave up a call leaves all of them behind. So does who finds out that the server is the wrong one.
type link struct {
	dial func(pool int) redis.UniversalClient
	pool int

	mu      sync.Mutex
	client  redis.UniversalClient
	old     map[redis.UniversalClient]*time.Timer
	changed time.Time
	closed  bool

	directs map[*direct]bool // see direct.go: all
	free    []*direct        // those that nobody uses, the last used last
	dialing bool
	missed  time.Time // when none was free for the last time
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

// leave replaces a client whose connections may be silent, unless another call has done so. Calls of others that are still under way on it get the time to
// end.
func (k *link) leave(c redis.UniversalClient) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.client != c || time.Since(k.changed) < tooSoon {
		return false
	}
	k.changed, k.client = time.Now(), k.dial(k.pool)
	k.chill()
	k.old[c] = time.AfterFunc(2*callLimit, func() {
		c.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.old, c)
	})
	return true
}

func (k *link) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for d := range k.directs {
		d.close()
	}
	for c, t := range k.old {
		t.Stop()
		c.Close()
	}
	k.client.Close()
}

// leave leaves a client whose server is not the right one any more, and the pushes of that one.
func (s *server) leave(k *link, c redis.UniversalClient) {
	if k.leave(c) {
		s.listener.reconnect()
	}
}

// clients returns what makes clients, with a pool of that size, the default if 0. key is one of the store's.
func (c Config) clients(key string) func(pool int) redis.UniversalClient {
	o := redis.Options{Addr: c.Addrs[0], Username: c.Username, Password: c.Password, DB: c.DB, TLSConfig: c.TLS}
	switch {
	case c.Cluster:
		return inCluster(c.Addrs, o, key, nil).found(o)
	case c.Sentinel != "":
		return c.bySentinels().found(o)
	}
	return alone(o)
}

// alone makes clients of the server that the options name.
func alone(o redis.Options) func(pool int) redis.UniversalClient {
	return func(pool int) redis.UniversalClient {
		o := o
		return redis.NewClient(own(&o, pool))
	}
}

// own sets what the store needs. The client's own repeats are off: it would repeat an Append, and be told that the record was there before.
func own(o *redis.Options, pool int) *redis.Options {
	o.MaxRetries, o.DialTimeout, o.DialerRetries, o.ReadTimeout, o.WriteTimeout = -1, dialLimit, 1, callLimit, callLimit
	o.ContextTimeoutEnabled, o.PoolSize, o.MinIdleConns, o.DisableIdentity = true, pool, 0, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}

// like returns what makes clients with the options of a caller's.
func like(client redis.UniversalClient, key string) (dial func(int) redis.UniversalClient, names []string, err error) {
	switch c := client.(type) {
	case *redis.Client:
		return alone(*c.Options()), []string{c.Options().Addr}, nil
	case *redis.ClusterClient:
		o := ofCluster(c.Options())
		return inCluster(c.Options().Addrs, o, key, c.Options().ClusterSlots).found(o), c.Options().Addrs, nil
	}
	return nil, nil, fmt.Errorf("redis: a client of type %T: want *redis.Client or *redis.ClusterClient: %w", client, driver.ErrRefused)
}
