//go:build linux

package torture

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdTaker takes mutexes by etcd's own package. It shows what the faults do to locks that do
// without what this library does: whether the lock is still held is asked of its session, as its
// documentation has it.
func (w *workerArgs) etcdTaker(ctx context.Context) (taker, func(), error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: w.urls(), DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second})
	if err != nil {
		return nil, nil, err
	}
	e := &etcdLocks{ctx: ctx, c: c, ttl: w.ttl}
	return e.take, func() { c.Close() }, nil
}

// etcdLocks has a session at a time, which all its locks share.
type etcdLocks struct {
	ctx context.Context
	c   *clientv3.Client
	ttl time.Duration

	mu   sync.Mutex
	s    *concurrency.Session
	busy map[string]*sync.Mutex // one lock of a session is one holder's: goroutines must not share it
}

func (e *etcdLocks) session(name string) (*concurrency.Session, *sync.Mutex, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.s != nil {
		select {
		case <-e.s.Done():
			e.s = nil
		default:
		}
	}
	if e.s == nil {
		s, err := concurrency.NewSession(e.c, concurrency.WithTTL(int(e.ttl/time.Second)),
			concurrency.WithContext(e.ctx))
		if err != nil {
			return nil, nil, err
		}
		e.s, e.busy = s, map[string]*sync.Mutex{}
	}
	if e.busy[name] == nil {
		e.busy[name] = &sync.Mutex{}
	}
	return e.s, e.busy[name], nil
}

func (e *etcdLocks) take(ctx context.Context, c lockCall) (*possession, error) {
	s, busy, err := e.session(c.name)
	if err != nil {
		return nil, err
	}
	busy.Lock()
	m := concurrency.NewMutex(s, c.name)
	if c.try {
		err = m.TryLock(ctx)
	} else {
		err = m.Lock(ctx)
	}
	if err != nil {
		busy.Unlock()
		return nil, err
	}
	own, err := e.c.Get(ctx, m.Key()) // its number in the line: the header of Lock's answer tells of a later one
	if err == nil && len(own.Kvs) == 0 {
		err = errors.New("gone when it was held")
	}
	free := func(ctx context.Context) error { defer busy.Unlock(); return m.Unlock(ctx) }
	if err != nil {
		return nil, errors.Join(err, free(ctx))
	}
	return &possession{uint64(own.Kvs[0].CreateRevision), func() error {
		select {
		case <-s.Done():
			return errors.New("the session is done")
		default:
			return nil
		}
	}, func() time.Duration { return 0 }, free}, nil
}
