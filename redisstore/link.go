package redisstore

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Limits of one try.
const (
	dialLimit = 2 * time.Second
	callLimit = 5 * time.Second
	// tooSoon: a call that was given up after less than this says nothing about its connection.
	tooSoon = 100 * time.Millisecond
)

// link is a client that can be replaced. A connection that fell silent looks like any other, and
// the idle ones beside it may be silent too. So after a call that was given up, the whole client is
// replaced. So it is when the server turns out to be the wrong one.
type link struct {
	dial clientMaker
	pool int

	mu      sync.Mutex
	client  *redis.Client
	old     map[*redis.Client]*time.Timer
	changed time.Time
	closed  bool

	directs map[*direct]bool // all (direct.go)
	free    []*direct        // those that nobody uses, the last used last
	dialing bool
	missed  time.Time // when none was free for the last time
}

func newLink(dial clientMaker, pool int) *link {
	return &link{dial: dial, pool: pool, client: dial(pool), old: map[*redis.Client]*time.Timer{}}
}

// get returns the present client.
func (k *link) get() *redis.Client {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.client
}

// leave replaces a client whose connections may be silent, unless another call has done so. Calls
// that are still under way on it get the time to end. It says whether it replaced the client.
func (k *link) leave(c *redis.Client) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.client != c || time.Since(k.changed) < tooSoon {
		return false
	}
	k.changed, k.client = time.Now(), k.dial(k.pool)
	k.dropFreeLocked()
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
func (s *server) leave(k *link, c *redis.Client) {
	if k.leave(c) {
		s.listener.reconnect()
	}
}

// clients returns a maker of clients. key is one of the store's.
func (c Config) clients(key string) clientMaker {
	o := redis.Options{
		Addr: c.Addrs[0], Username: c.Username, Password: c.Password, DB: c.DB, TLSConfig: c.TLS, Dialer: c.dial,
	}
	switch {
	case c.Cluster:
		return inCluster(c.Addrs, o, key).found(o)
	case c.Sentinel != "":
		return c.bySentinels().found(o)
	}
	return alone(o)
}

// alone makes clients of the server that the options name.
func alone(o redis.Options) clientMaker {
	return func(pool int) *redis.Client {
		o := o
		return redis.NewClient(own(&o, pool))
	}
}

// own sets what the store needs. The client's own repeats are off: it would repeat an Append, and
// the second answer would be that the record was there before.
func own(o *redis.Options, pool int) *redis.Options {
	o.MaxRetries, o.DialTimeout, o.DialerRetries, o.ReadTimeout, o.WriteTimeout = -1, dialLimit, 1, callLimit, callLimit
	o.ContextTimeoutEnabled, o.PoolSize, o.MinIdleConns, o.DisableIdentity = true, pool, 0, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}
