//go:build linux

package fencetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// What an origin shows of an etcd that lost its disk, and what not: with the same flags the first
// leader afterwards has the very stamp of the first one before; with a new --initial-cluster-token
// its origin is another.
func TestWhatAnOriginShows(t *testing.T) {
	t.Parallel()
	data, token := filepath.Join(t.TempDir(), "data"), "before"
	srv := etcdtest.Start(t, etcdtest.Options{DataDir: func(int) string { return data },
		Wrap: func(_ int, cmd []string) []string { return append(cmd, "--initial-cluster-token", token) }})
	before := firstStamp(t, srv)
	again := func() fence.Stamp {
		srv.Kill()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		srv.Restart()
		return firstStamp(t, srv)
	}
	if same := again(); same != before {
		t.Errorf("the same flags: %+v after %+v; more is to be seen than documented", same, before)
	}
	token = "after"
	next := again()
	if err := next.After(before); next.Token > before.Token || err == nil || next.Origin == before.Origin {
		t.Errorf("a new token: %+v after %+v: %v, want another origin", next, before, err)
	}
}

// firstStamp returns the stamp of one who leads.
func firstStamp(t *testing.T, srv *etcdtest.Server) fence.Stamp {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{srv.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	session, err := primacy.NewSession(store, &primacy.Options{TTL: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	term, err := session.Election("x").Campaign(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := fence.Of(term).From(store)
	_ = term.Resign(ctx)
	_ = session.Close(ctx)
	return s
}
