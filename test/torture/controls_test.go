//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// controlTerm wins once and acts for as long as its own truth says that it leads.
type controlTerm func(ctx context.Context, w *workerArgs, c *clientv3.Client, a *actor) error

// control stands in the way of others, again and again. It shows what the faults do to candidates
// that do without what this library does.
func (w *workerArgs) control(ctx context.Context, a *actor, term controlTerm) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: w.urls(), DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	for ctx.Err() == nil {
		if err := term(ctx, w, c, a); err != nil && ctx.Err() == nil {
			log.Printf("stood, and ended: %v", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// electionTerm leads by etcd's own package: until the session says that it is done.
func electionTerm(ctx context.Context, w *workerArgs, c *clientv3.Client, a *actor) error {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(w.ttl/time.Second)), concurrency.WithContext(ctx))
	if err != nil {
		return err
	}
	defer s.Close()
	e := concurrency.NewElection(s, w.name)
	if err := e.Campaign(ctx, w.id); err != nil {
		return err
	}
	err = a.lead(uint64(e.Rev()), func() bool {
		select {
		case <-s.Done():
			return false
		default:
			return ctx.Err() == nil
		}
	})
	limit, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(err, e.Resign(limit))
}

// keepaliveTerm leads by a lease and etcd's keepalive: the right lasts a ttl from each
// acknowledgement, compared with the clock at each act, as good as it gets without counting from
// before the call and without verifying.
func keepaliveTerm(ctx context.Context, w *workerArgs, c *clientv3.Client, a *actor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lease, err := c.Grant(ctx, int64(w.ttl/time.Second))
	if err != nil {
		return err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		c.Revoke(limit, lease.ID)
	}()
	alive, err := c.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	won, err := w.enter(ctx, c, lease.ID, alive)
	if err != nil {
		return err
	}
	var mu sync.Mutex // two goroutines of the actor ask
	deadline := boottime.Now() + w.ttl
	return a.lead(won, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for {
			select {
			case r, ok := <-alive:
				if !ok || r.TTL <= 0 {
					return false
				}
				deadline = max(deadline, boottime.Now()+time.Duration(r.TTL)*time.Second)
				continue
			default:
			}
			return ctx.Err() == nil && boottime.Now() < deadline
		}
	})
}

// enter puts a key under the lease and waits until all older ones are gone. It returns the key's
// create revision.
func (w *workerArgs) enter(ctx context.Context, c *clientv3.Client, lease clientv3.LeaseID,
	alive <-chan *clientv3.LeaseKeepAliveResponse) (uint64, error) {
	key := fmt.Sprintf("%s/%x", w.name, lease)
	put, err := c.Put(ctx, key, w.id, clientv3.WithLease(lease))
	if err != nil {
		return 0, err
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		attempt, cancel := context.WithTimeout(ctx, w.ttl/6)
		line, err := c.Get(attempt, w.name+"/", clientv3.WithFirstCreate()...)
		cancel()
		if err == nil && len(line.Kvs) == 1 && string(line.Kvs[0].Key) == key {
			tick.Stop()
			return uint64(put.Header.Revision), nil
		}
		select {
		case _, ok := <-alive:
			if !ok {
				return 0, errors.New("the lease ran out in the line")
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}
