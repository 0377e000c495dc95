//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// standMutex is etcd's concurrency.Mutex: it leads from Lock's return until the session's Done. The
// token is the create revision of its key. The mutex does not give it away, and Header().Revision
// is another number after a wait, so it is read.
func standMutex(ctx context.Context, c *candidate) error {
	s, err := c.session(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	m := concurrency.NewMutex(s.Session, c.name)
	if err := s.wait(ctx, m.Lock); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	token, err := createRevision(s, m.Key())
	if err != nil {
		return err
	}
	c.rec.lead(ctx, token, s.alive)
	if !s.alive() {
		return nil
	}
	limited, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return m.Unlock(limited)
}

func createRevision(s *session, key string) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	got, err := s.Client().Get(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("read the mutex's key: %w", err)
	}
	if len(got.Kvs) == 0 {
		return 0, errors.New("the mutex's key is gone")
	}
	return uint64(got.Kvs[0].CreateRevision), nil
}
