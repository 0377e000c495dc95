package etcdfence_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t testing.TB, srv *etcdtest.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newStore(t testing.TB, srv *etcdtest.Server) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// lead wins name in a session of its own.
func lead(t testing.TB, s *etcdstore.Store, name string) *primacy.Term {
	t.Helper()
	session, err := primacy.NewSession(s, &primacy.Options{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx := soon(t) // cancelled after what is registered below
	t.Cleanup(func() { session.Close(ctx) })
	term, err := session.Election(name).Campaign(soon(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.Resign(ctx) }) // Close waits for the work, which is over
	return term
}

func value(t testing.TB, c *clientv3.Client, key string) string {
	t.Helper()
	resp, err := c.Get(soon(t), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}
