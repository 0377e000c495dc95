package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
)

// clients are the candidates that this server keeps alive for others: a session for each id, so
// that each stands in the line, and is shown, handed over to and drained, as itself. Two
// connections of one id share its session, whose campaigns for one name wait for each other.
type clients struct {
	store     driver.Store
	base      primacy.Options
	onSession func(*primacy.Session) // is called with each new session; may be nil

	mu   sync.Mutex
	byID map[string]*client
	last int
	shut bool
	wg   sync.WaitGroup
}

type client struct {
	session *primacy.Session
	ttl     time.Duration
	users   int
}

var (
	errOtherTTL = errors.New("another ttl")
	errStopping = fmt.Errorf("this server is stopping: %w", primacy.ErrClosed)
)

func newClients(st driver.Store, base primacy.Options) *clients {
	return &clients{store: st, base: base, byID: map[string]*client{}}
}

// touch takes the lock that every client needs.
func (c *clients) touch() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// number returns an id for a client that has none.
func (c *clients) number() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	tail := fmt.Sprintf(".%d", c.last)
	return c.base.ID[:min(len(c.base.ID), primacy.MaxName-len(tail))] + tail
}

// enter returns the session of an id, and what gives it back; with the last one it is closed.
func (c *clients) enter(id string, ttl time.Duration) (*primacy.Session, func(), error) {
	if ttl == 0 {
		ttl = c.base.TTL
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return nil, nil, errStopping
	}
	cl := c.byID[id]
	if cl != nil && cl.ttl != ttl {
		return nil, nil, fmt.Errorf("%w: candidate %s has a ttl of %v here, not %v", errOtherTTL, id, cl.ttl, ttl)
	}
	if cl == nil {
		o := c.base
		o.ID, o.TTL = id, ttl
		s, err := primacy.NewSession(c.store, &o)
		if err != nil {
			return nil, nil, err
		}
		cl = &client{session: s, ttl: ttl}
		if c.onSession != nil {
			c.onSession(s)
		}
		c.byID[id] = cl
	}
	cl.users++
	c.wg.Add(1)
	return cl.session, sync.OnceFunc(func() { c.leave(id, cl) }), nil
}

func (c *clients) leave(id string, cl *client) {
	c.mu.Lock()
	cl.users--
	last := cl.users == 0
	if last {
		delete(c.byID, id)
	}
	c.mu.Unlock()
	go func() {
		defer c.wg.Done()
		if last {
			closeSession(cl.session)
		}
	}()
}

// closeSession ends its lease. If the store does not answer it runs out by itself.
func closeSession(s *primacy.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = s.Close(ctx)
}

// close waits until all have left, at most until ctx ends.
func (c *clients) close(ctx context.Context) {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
	all := make(chan struct{})
	go func() { c.wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
	}
}
