//go:build linux

package main

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/client/v3/concurrency"
)

// standElection is etcd's concurrency.Election: it leads from Campaign's return until the session's
// Done. The token is Rev, the create revision of the leader's key.
func standElection(ctx context.Context, c *candidate) error {
	s, err := c.session(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	e := concurrency.NewElection(s.Session, c.name)
	if err := s.wait(ctx, func(ctx context.Context) error { return e.Campaign(ctx, c.id) }); err != nil {
		return fmt.Errorf("campaign: %w", err)
	}
	c.rec.lead(ctx, uint64(e.Rev()), s.alive)
	if !s.alive() {
		return nil
	}
	limited, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return e.Resign(limited)
}
