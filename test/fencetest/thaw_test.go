//go:build linux

package fencetest

import (
	"context"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/httpfence"
	"github.com/primacy-go/primacy/fence/sqlfence"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

const election = "fencetest/ledger"

// values is the HTTP resource: /fenced behind a fence, /control without.
type values struct {
	mu sync.Mutex
	v  map[string]string
}

func (s *values) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPut {
		s.v[r.URL.Path] = string(text)
	}
	_, _ = io.WriteString(w, s.v[r.URL.Path])
}

// startAll starts every server.
func startAll(t *testing.T) places {
	t.Helper()
	p := places{Postgres: startPostgres(t), Redis: startRedis(t), Dir: t.TempDir()}
	p.Etcd = etcdtest.Start(t, etcdtest.Options{}).Endpoint()
	for _, db := range []struct {
		driver, url string
		f           sqlfence.Fence
	}{{"pgx", p.Postgres, sqlfence.Fence{}}, {"sqlite", sqliteURL(p.Dir), sqlfence.Fence{Dialect: sqlfence.SQLite}}} {
		withTables(t, db.driver, db.url, db.f)
	}
	memory, err := httpfence.Dir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	store := &values{v: map[string]string{}}
	mux := http.NewServeMux()
	mux.Handle("/fenced", (&httpfence.Fence{Name: election, Memory: memory}).Wrap(store))
	mux.Handle("/control", store)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	p.HTTP = srv.URL
	return p
}

// withTables opens a database, closed with the test, and makes the table of values and of fences.
func withTables(t *testing.T, driver, url string, f sqlfence.Fence) *sql.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a server that hangs shows its log then
	defer cancel()
	db, err := sql.Open(driver, url)
	if err == nil {
		t.Cleanup(func() { db.Close() })
		_, err = db.ExecContext(ctx, `CREATE TABLE v (k text PRIMARY KEY, v text NOT NULL)`)
	}
	if err == nil {
		err = f.EnsureTable(ctx, db)
	}
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// A leader asks Check, is stopped, and is thawed when its successor has written: every fence
// refuses what it writes then, and every control, the same resource without a fence, takes it.
func TestAThawedLeaderIsRefusedByEveryFence(t *testing.T) {
	t.Parallel()
	p := startAll(t)
	old := startLeader(t, p)
	oldToken := old.checked(t)
	successor := startLeader(t, p)
	old.stop(t)
	old.write(t) // it will read this when it is thawed, and write at once
	newToken := successor.checked(t)
	successor.write(t)
	for _, o := range successor.wrote(t) {
		if o.Err != "" || o.Control != "" {
			t.Errorf("%s: the successor's write: %q, control %q", o.Resource, o.Err, o.Control)
		}
	}
	old.thaw(t)
	told := old.wrote(t)
	if len(told) != 8 || newToken <= oldToken {
		t.Fatalf("%d resources, tokens %d and %d", len(told), oldToken, newToken)
	}
	for _, o := range told {
		if !o.Stale || o.Token != oldToken || o.Largest != newToken {
			t.Errorf("%s: the late write = %q (%d, %d), want ErrStale with %d and %d", o.Resource, o.Err, o.Token,
				o.Largest, oldToken, newToken)
		}
		if o.Control != "" {
			t.Errorf("%s: the late write without a fence = %q: the control shows nothing", o.Resource, o.Control)
		}
		t.Logf("%-14s %s", o.Resource, o.Err)
	}
	whatStands(t, p, oldToken, newToken)
}

// whatStands reads every resource: behind the fence the successor's value, without one the late
// one.
func whatStands(t *testing.T, p places, oldToken, newToken primacy.Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, err := dialAll(p, reader{newToken}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		fenced, control, err := r.read(ctx)
		if err != nil || fenced != newToken.String() || control != oldToken.String() {
			t.Errorf("%s: fenced %q, control %q, %v; want %d and %d", r.name, fenced, control, err, newToken, oldToken)
		}
	}
}

// reader stands for a term where nothing is written.
type reader struct{ token primacy.Token }

func (reader) Name() string           { return election }
func (r reader) Token() primacy.Token { return r.token }
func (reader) Check() error           { return nil }

var _ fence.Term = reader{}
