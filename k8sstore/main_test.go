package k8sstore_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/k8stest"
	"github.com/primacy-go/primacy/k8sstore"
)

// outlives is the testing.TB of what is shared by tests: its cleanups run when all have ended.
type outlives struct {
	testing.TB
	dir  string
	done *[]func()
}

func (o outlives) Cleanup(f func()) { *o.done = append(*o.done, f) }
func (o outlives) TempDir() string {
	dir, err := os.MkdirTemp(o.dir, "")
	if err != nil {
		o.Fatal(err)
	}
	return dir
}
func (outlives) Failed() bool { return false }

var common struct {
	sync.Mutex
	srv  *k8stest.Server
	dir  string
	done []func()
}

// shared returns a server for tests that do nothing to it.
func shared(t *testing.T) *k8stest.Server {
	t.Helper()
	common.Lock()
	defer common.Unlock()
	if common.srv == nil {
		dir, err := os.MkdirTemp("", "k8sstore")
		if err != nil {
			t.Fatal(err)
		}
		common.dir = dir
		common.srv = k8stest.Start(outlives{t, dir, &common.done})
	}
	return common.srv
}

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(common.done) - 1; i >= 0; i-- {
		common.done[i]()
	}
	if common.dir != "" {
		os.RemoveAll(common.dir)
	}
	os.Exit(code)
}

// fixed is a token that does not rotate.
func fixed(token string) k8sstore.TokenSource {
	return func(context.Context, string) (string, error) { return token, nil }
}

// config reaches a server at addr as the user with the store's role.
func config(srv *k8stest.Server, addr string) k8sstore.Config {
	return k8sstore.Config{URL: "https://" + addr, Namespace: k8stest.Namespace, TLS: srv.TLS(),
		Token: fixed(k8stest.UserToken)}
}

// open opens a store, which the test or the suite closes.
func open(t testing.TB, c k8sstore.Config) *k8sstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := k8sstore.Open(ctx, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
