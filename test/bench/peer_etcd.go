package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcd's own package.
func init() {
	contenders = append(contenders, &Contender{Name: "etcd concurrency", Store: "etcd", Dial: dialEtcd})
}

var errSessionDone = errors.New("the session is over")

func dialEtcd(_ context.Context, endpoints []string) (Process, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	return &etcdProcess{c}, nil
}

type etcdProcess struct{ client *clientv3.Client }

func (p *etcdProcess) Close() { p.client.Close() }

// MinTTL is what a server with the default election timeout grants.
func (p *etcdProcess) MinTTL() time.Duration { return 2 * time.Second }

func (p *etcdProcess) Session(_ context.Context, ttl time.Duration) (Session, error) {
	s, err := concurrency.NewSession(p.client, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	return &etcdSession{s}, nil
}

type etcdSession struct{ s *concurrency.Session }

func (s *etcdSession) Close(context.Context) error { return s.s.Close() }

func (s *etcdSession) Revoke(ctx context.Context) error {
	_, err := s.s.Client().Revoke(ctx, s.s.Lease())
	return err
}

func (s *etcdSession) over() error {
	select {
	case <-s.s.Done():
		return errSessionDone
	default:
		return nil
	}
}

func (s *etcdSession) Campaign(ctx context.Context, name string) (Held, error) {
	e := concurrency.NewElection(s.s, "bench/"+name)
	if err := e.Campaign(ctx, "x"); err != nil {
		return nil, err
	}
	return &etcdTerm{s, e}, nil
}

type etcdTerm struct {
	s *etcdSession
	e *concurrency.Election
}

func (t *etcdTerm) Check() error                      { return t.s.over() }
func (t *etcdTerm) Token() uint64                     { return uint64(t.e.Rev()) }
func (t *etcdTerm) Release(ctx context.Context) error { return t.e.Resign(ctx) }

func (s *etcdSession) Lock(name string, _ LockOptions) Lock {
	return &etcdLock{s, concurrency.NewMutex(s.s, "bench/"+name)}
}

// etcdLock is also what is held: its token is the one that the package's documentation tells users
// to take.
type etcdLock struct {
	s *etcdSession
	m *concurrency.Mutex
}

func (l *etcdLock) Lock(ctx context.Context) (Held, error) {
	if err := l.m.Lock(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *etcdLock) Check() error                      { return l.s.over() }
func (l *etcdLock) Token() uint64                     { return uint64(l.m.Header().Revision) }
func (l *etcdLock) Release(ctx context.Context) error { return l.m.Unlock(ctx) }
