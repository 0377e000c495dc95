//go:build linux

package golden

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/registerstore"
)

// TestConcurrency holds the keys of the drop-in for etcd's package: they are that package's own.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	dump, b := etcdKeys(t, "http://"+s.Addr()), open(t, "concurrency")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var sessions []*concurrency.Session
	for range 2 {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + s.Addr()}})
		must(t, err)
		defer c.Close()
		session, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
		must(t, err)
		sessions = append(sessions, session)
	}
	e, m := concurrency.NewElection(sessions[0], "/elect"), concurrency.NewMutex(sessions[0], "/lock")
	must(t, e.Campaign(ctx, "value"))
	must(t, m.Lock(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { must(t, concurrency.NewElection(sessions[1], "/elect").Campaign(ctx, "second")) })
	b.is("a leader and one that waits, a lock", dump)
	must(t, e.Proclaim(ctx, "proclaimed"))
	b.is("proclaimed", dump)
	must(t, e.Resign(ctx))
	wg.Wait()
	must(t, m.Unlock(ctx))
	b.is("the second leads, no lock", dump)
	for _, session := range sessions {
		must(t, session.Close())
	}
	b.is("sessions closed", dump)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// register is a compare-and-swap register in memory.
type register struct {
	mu   sync.Mutex
	last int
	all  map[string]entry
}

type entry struct{ value, version string }

func (r *register) Get(_ context.Context, key string) ([]byte, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.all[key]
	return []byte(e.value), e.version, nil
}

func (r *register) Put(_ context.Context, key string, value []byte, version string) (string, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[key].version != version {
		return "", false, nil
	}
	r.last++
	r.all[key] = entry{string(value), fmt.Sprint(r.last)}
	return r.all[key].version, true, nil
}

func (r *register) Delete(_ context.Context, key, version string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[key].version == version {
		delete(r.all, key)
	}
	return nil
}

func (r *register) List(_ context.Context, prefix string) (keys []string, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.all {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func (r *register) dump() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for key, e := range r.all {
		all = append(all, key+" "+e.value)
	}
	return sorted(all)
}

// TestRegister holds the documents of the store over compare-and-swap.
func TestRegister(t *testing.T) {
	t.Parallel()
	r, b := &register{all: map[string]entry{}}, open(t, "register")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var sessions []*primacy.Session
	for _, id := range []string{"a", "b"} {
		store, err := registerstore.FromRegister(r, registerstore.Options{Prefix: "p-"})
		must(t, err)
		t.Cleanup(func() { store.Close() })
		s, err := primacy.NewSession(store, &primacy.Options{ID: id, TTL: 50 * time.Second})
		must(t, err)
		t.Cleanup(func() { s.Close(context.Background()) })
		sessions = append(sessions, s)
	}
	done, release := make(chan error, 2), make(chan struct{})
	work := func(context.Context, *primacy.Term) error { <-release; return nil }
	go func() { done <- sessions[0].Run(ctx, "billing/a b", work) }()
	b.is("a leader", r.dump)
	go func() { done <- sessions[1].Run(ctx, "billing/a b", work) }()
	b.is("a leader and one that waits", r.dump)
	lock, err := sessions[1].Mutex("lock", nil).Lock(ctx)
	must(t, err)
	read, err := sessions[1].RWMutex("catalog").RLock(ctx)
	must(t, err)
	slot, err := sessions[1].Semaphore("build", 3).Acquire(ctx)
	must(t, err)
	b.is("a lock, a reader, a slot", r.dump)
	for _, term := range []*primacy.Term{lock, read, slot} {
		must(t, term.Resign(ctx))
	}
	close(release)
	must(t, <-done)
	must(t, <-done)
	for _, s := range sessions {
		must(t, s.Close(ctx))
	}
	b.is("all have gone", r.dump)
}
