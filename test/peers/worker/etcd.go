//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	dialLimit  = 2 * time.Second
	openLimit  = 3 * time.Second
	askLimit   = time.Second
	closeLimit = time.Second
	// The least that gRPC takes, and a connection that does not answer is found dead soon after.
	pingEvery = 10 * time.Second
	pingLimit = 2 * time.Second
)

// client returns a client of all endpoints. Each campaign has its own: Campaign and Lock clean up
// under the client's context without a limit, and only closing the client ends that when etcd does
// not answer.
func (c *candidate) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: c.endpoints, DialTimeout: dialLimit,
		DialKeepAliveTime: pingEvery, DialKeepAliveTimeout: pingLimit})
}

// session is etcd's session on a client of its own.
type session struct {
	*concurrency.Session
	client *clientv3.Client
	cancel context.CancelFunc
}

// session opens one, within a limit that NewSession itself has not.
func (c *candidate) session(ctx context.Context) (*session, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	// The session lives as long as this context, so the limit must be taken away again.
	life, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(openLimit, cancel)
	keep := context.AfterFunc(ctx, cancel)
	s, err := concurrency.NewSession(client, concurrency.WithTTL(int(c.ttl.Seconds())), concurrency.WithContext(life))
	if err != nil {
		cancel()
		client.Close()
		return nil, fmt.Errorf("new session: %w", err)
	}
	late.Stop()
	keep()
	return &session{s, client, cancel}, nil
}

// alive is etcd's documented way to know that what a session holds is still held.
func (s *session) alive() bool {
	select {
	case <-s.Done():
		return false
	default:
		return true
	}
}

// wait runs a call that waits in line until it returns, the session is lost or ctx ends. It does
// not wait for the call's own clean-up longer than a limit.
func (s *session) wait(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-s.Done():
	case <-ctx.Done():
	}
	cancel()
	select {
	case <-done: // even if it won at the same time: the session is gone
	case <-time.After(closeLimit):
		s.client.Close()
		<-done
	}
	return fmt.Errorf("session lost in the line")
}

// close ends the session and revokes its lease.
func (s *session) close() {
	late := time.AfterFunc(closeLimit, s.cancel)
	defer late.Stop()
	_ = s.Close() // it is lost, or it expires by itself
	s.cancel()
	_ = s.client.Close()
}
