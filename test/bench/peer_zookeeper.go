package main

import (
	"context"
	"errors"
	"io"
	"log"
	"time"

	"github.com/go-zookeeper/zk"
)

// go-zookeeper's Lock: an ephemeral sequential node and a watch on the one in front. Its calls obey
// no context: one that is given up ends with the connection.
func init() {
	contenders = append(contenders, &Contender{Name: "go-zookeeper", Store: "zookeeper", Local: true, Dial: dialZooKeeper})
}

type zooKeeperProcess struct{ servers []string }

// dialZooKeeper does not connect yet: a session is a connection.
func dialZooKeeper(_ context.Context, endpoints []string) (Process, error) {
	return &zooKeeperProcess{endpoints}, nil
}

func (p *zooKeeperProcess) Close() {}

func (p *zooKeeperProcess) MinTTL() time.Duration { return time.Second } // two ticks

func (p *zooKeeperProcess) Session(ctx context.Context, ttl time.Duration) (Session, error) {
	c, events, err := zk.Connect(p.servers, ttl, zk.WithLogger(log.New(io.Discard, "", 0)))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return &zooKeeperSession{c}, nil
			}
		case <-ctx.Done():
			c.Close()
			return nil, context.Cause(ctx)
		}
	}
}

type zooKeeperSession struct{ c *zk.Conn }

func (s *zooKeeperSession) Close(context.Context) error { s.c.Close(); return nil }

func (s *zooKeeperSession) Revoke(context.Context) error {
	return errors.New("a session cannot be ended from outside")
}

func (s *zooKeeperSession) Lock(name string, _ LockOptions) Lock {
	return &zooKeeperLock{s.c, zk.NewLock(s.c, "/bench/"+name, zk.WorldACL(zk.PermAll))}
}

func (s *zooKeeperSession) Campaign(ctx context.Context, name string) (Held, error) {
	return s.Lock(name, LockOptions{}).Lock(ctx)
}

// zooKeeperLock is also what is held.
type zooKeeperLock struct {
	c *zk.Conn
	l *zk.Lock
}

func (l *zooKeeperLock) Lock(ctx context.Context) (Held, error) {
	done := make(chan error, 1)
	go func() { done <- l.l.Lock() }()
	select {
	case err := <-done:
		return l, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Check is what its user can see: the library tells a holder nothing.
func (l *zooKeeperLock) Check() error {
	if l.c.State() != zk.StateHasSession {
		return errors.New("no session")
	}
	return nil
}

func (l *zooKeeperLock) Token() uint64 { return 0 }

func (l *zooKeeperLock) Release(context.Context) error { return l.l.Unlock() }
