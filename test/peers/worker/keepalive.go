//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// standKeepAlive is what is often written by hand on etcd's client: a key under a lease, put if it
// is absent, and leading while the channel of KeepAlive is open. The token is the key's create
// revision.
func standKeepAlive(ctx context.Context, c *candidate) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	limited, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	lease, err := client.Grant(limited, int64(c.ttl.Seconds()))
	if err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	defer revoke(client, lease.ID)
	life, end := context.WithCancel(context.Background())
	defer end()
	replies, err := client.KeepAlive(life, lease.ID)
	if err != nil {
		return fmt.Errorf("keepalive: %w", err)
	}
	lost := make(chan struct{})
	go func() {
		for range replies {
		}
		close(lost)
	}()
	token, err := claim(ctx, c, client, lease.ID, lost)
	if err != nil {
		return err
	}
	c.rec.lead(ctx, token, func() bool {
		select {
		case <-lost:
			return false
		default:
			return true
		}
	})
	return nil
}

var errLeaseLost = errors.New("lease lost while waiting")

// claim puts the key as soon as it is absent, and returns its create revision.
func claim(ctx context.Context, c *candidate, client *clientv3.Client, lease clientv3.LeaseID,
	lost <-chan struct{}) (uint64, error) {
	for {
		limited, cancel := context.WithTimeout(ctx, askLimit)
		got, err := client.Txn(limited).If(clientv3.Compare(clientv3.CreateRevision(c.name), "=", 0)).
			Then(clientv3.OpPut(c.name, c.id, clientv3.WithLease(lease))).Commit()
		cancel()
		if err != nil {
			// It may have been put: the lease is revoked, and with it the key.
			return 0, fmt.Errorf("claim: %w", err)
		}
		if got.Succeeded {
			return uint64(got.Header.Revision), nil
		}
		if err := gone(ctx, c, client, got.Header.Revision+1, lost); err != nil {
			return 0, err
		}
	}
}

// gone returns when the key has been deleted since the revision, or may have been.
func gone(ctx context.Context, c *candidate, client *clientv3.Client, since int64, lost <-chan struct{}) error {
	// A watch alone may be deaf for as long as its connection: look again after a TTL.
	limited, cancel := context.WithTimeout(ctx, c.ttl)
	defer cancel()
	watch := client.Watch(limited, c.name, clientv3.WithRev(since), clientv3.WithFilterPut())
	for {
		select {
		case <-lost:
			return errLeaseLost
		case <-ctx.Done():
			return ctx.Err()
		case got, ok := <-watch:
			if !ok || got.Err() != nil || len(got.Events) > 0 {
				return nil
			}
		}
	}
}

func revoke(client *clientv3.Client, lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_, _ = client.Revoke(ctx, lease) // it is gone, or it expires by itself
}
