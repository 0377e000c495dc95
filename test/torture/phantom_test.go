//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/etcdtest"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// phantomTTL outlives a busy machine: the only lease that is to end is revoked.
const phantomTTL = 20 * time.Second

func newClient(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second,
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestPhantom takes the lease of a candidate that waits in the line, and half a second later the
// leader resigns. Whoever then says that it leads must stand first in the store.
func TestPhantom(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	etcd := etcdtest.Start(t, etcdtest.Options{})
	client := newClient(t, etcd.Endpoint())
	for i := range rounds(t, 3) {
		phantomRound(t, etcd, client, fmt.Sprintf("phantom/%d", i))
	}
	t.Run("positive control", func(t *testing.T) {
		if err := peerPhantom(t, client, "peer"); err == nil {
			t.Error("etcd's own package came through: the fault is too weak to prove anything")
		} else {
			t.Log(err)
		}
	})
}

func phantomRound(t *testing.T, etcd *etcdtest.Server, client *clientv3.Client, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	holder := openSession(t, primacy.Options{TTL: phantomTTL}, etcd.Endpoint()).Election(name)
	waiter := openSession(t, primacy.Options{TTL: phantomTTL}, etcd.Endpoint()).Election(name)
	term := campaign(t, holder, time.Minute)
	won := make(chan *primacy.Term, 1)
	go func() {
		if second, err := waiter.Campaign(ctx, nil); err == nil {
			won <- second
		}
	}()
	var lease int64
	eventually(t, time.Minute, "the waiter in the line", func() bool {
		st, err := waiter.State(ctx)
		if err != nil || len(st.Waiting) == 0 {
			return false
		}
		lease, err = strconv.ParseInt(st.Waiting[0].Lease, 16, 64)
		return err == nil
	})
	if _, err := client.Revoke(ctx, clientv3.LeaseID(lease)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if err := term.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case second := <-won:
		st, err := waiter.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if second.Check() == nil && (st.Leader == nil || st.Leader.Token != second.Token()) {
			t.Errorf("%s: a term under token %d, and in the store leads %+v", name, second.Token(), st.Leader)
		}
		if err := second.Resign(ctx); err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Errorf("%s: the waiter never won", name)
	}
}

// peerPhantom is the same with etcd's own package. The error says what went wrong.
func peerPhantom(t *testing.T, client *clientv3.Client, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var sessions []*concurrency.Session
	for range 2 {
		s, err := concurrency.NewSession(client, concurrency.WithTTL(int(phantomTTL/time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	holder, waiter := concurrency.NewElection(sessions[0], name), concurrency.NewElection(sessions[1], name)
	if err := holder.Campaign(ctx, ""); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- waiter.Campaign(ctx, "") }()
	keys := func() int64 {
		resp, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count
	}
	eventually(t, time.Minute, "the waiter in the line", func() bool { return keys() == 2 })
	if _, err := client.Revoke(ctx, sessions[1].Lease()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if err := holder.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err == nil && keys() == 0 {
		return errors.New("a phantom: Campaign returned nil, and nobody stands in the line")
	}
	return nil
}
