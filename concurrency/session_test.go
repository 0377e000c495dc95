package concurrency_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func begin(t testing.TB, c *v3.Client, o ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(c, o...)
	ok(t, "NewSession", err)
	return s
}

// TestARestartedProcessGoesOnLeading: a process that led with a lease of its own choice is
// killed; it is started again, brings the lease along and finds its key, which it keeps from then
// on. Nobody led in between.
func TestARestartedProcessGoesOnLeading(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	for name, resume := range map[string]bool{"Campaign": false, "ResumeElection": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grant, err := c.Grant(soon(t), 12)
			ok(t, "grant", err)
			doomed := dial(t, srv.Endpoint())
			first := concurrency.NewElection(begin(t, doomed, concurrency.WithLease(grant.ID)), "restart-"+name)
			ok(t, "Campaign", first.Campaign(soon(t), "before"))
			follower := concurrency.NewElection(begin(t, c), "restart-"+name)
			taken := async(func() error { return follower.Campaign(within(t, time.Minute), "another") })
			standing(t, c, "restart-"+name, 2)
			ok(t, "close", doomed.Close()) // as a killed process: nothing is revoked

			s := begin(t, c, concurrency.WithLease(grant.ID))
			var e *concurrency.Election
			if resume {
				e = concurrency.ResumeElection(s, "restart-"+name+"/", first.Key(), first.Rev())
				ok(t, "Proclaim", e.Proclaim(soon(t), "after"))
			} else {
				e = concurrency.NewElection(s, "restart-"+name)
				ok(t, "Campaign", e.Campaign(soon(t), "after"))
			}
			if e.Token() != first.Token() {
				t.Errorf("token %d, want %d: it is the same leadership", e.Token(), first.Token())
			}
			if err, came := in(14*time.Second, taken); came {
				t.Fatalf("another led: %v", err)
			}
			ok(t, "Check", s.Check())
			ok(t, "Resign", e.Resign(soon(t)))
			if err, came := in(time.Minute, taken); !came || err != nil {
				t.Errorf("the next: %v", err)
			}
		})
	}
}

// TestOrphanPutsTheClaimsBack: claims of a lease that was brought along are attached to a guard
// while the session lives, and on the lease again when it is orphaned.
func TestOrphanPutsTheClaimsBack(t *testing.T) {
	t.Parallel()
	c := dial(t, etcdtest.Start(t, etcdtest.Options{}).Endpoint())
	grant, err := c.Grant(soon(t), 30)
	ok(t, "grant", err)
	s := begin(t, c, concurrency.WithLease(grant.ID))
	m := concurrency.NewMutex(s, "orphan")
	ok(t, "Lock", m.Lock(soon(t)))
	attachedTo := func() v3.LeaseID {
		resp, err := c.Get(soon(t), m.Key())
		ok(t, "get", err)
		if len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != int64(m.Token()) {
			t.Fatalf("the key: %v", resp.Kvs)
		}
		return v3.LeaseID(resp.Kvs[0].Lease)
	}
	if attachedTo() == grant.ID {
		t.Error("the claim is attached to a lease of which nobody knows the raft term")
	}
	s.Orphan()
	if attachedTo() != grant.ID {
		t.Error("the claim is not attached to the session's lease")
	}
	if s.Check() == nil {
		t.Error("Check = nil after Orphan")
	}
	eventually(t, "the guard gone", time.Minute, func() bool {
		resp, err := c.Leases(soon(t))
		return err == nil && len(resp.Leases) == 1
	})
	// What another process could do now.
	again := begin(t, c, concurrency.WithLease(grant.ID))
	ok(t, "Lock", concurrency.NewMutex(again, "orphan").Lock(soon(t)))
	ok(t, "Close", again.Close())
	standing(t, c, "orphan", 0)
}

// TestARevokedLeaseThatWasBroughtEndsTheSessionFirst: Done, and only then the claims.
func TestARevokedLeaseThatWasBroughtEndsTheSessionFirst(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	grant, err := c.Grant(soon(t), 5)
	ok(t, "grant", err)
	s := begin(t, c, concurrency.WithLease(grant.ID))
	m := concurrency.NewMutex(s, "brought")
	ok(t, "Lock", m.Lock(soon(t)))
	told := toldFirst(t, c, m.Key(), s)
	_, err = c.Revoke(soon(t), grant.ID)
	ok(t, "revoke", err)
	if !told() {
		t.Error(toldLate)
	}
}

// TestALostSessionWinsNothing: Lock and Campaign of a session that was lost or closed.
func TestALostSessionWinsNothing(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	s := begin(t, c)
	ok(t, "Close", s.Close())
	for name, call := range map[string]func(context.Context) error{
		"Lock": concurrency.NewMutex(s, "lost").Lock, "TryLock": concurrency.NewMutex(s, "lost").TryLock,
		"Campaign": func(ctx context.Context) error { return concurrency.NewElection(s, "lost").Campaign(ctx, "v") },
	} {
		if err := call(soon(t)); !errors.Is(err, concurrency.ErrSessionExpired) {
			t.Errorf("%s = %v", name, err)
		}
	}
	if err := s.Check(); !errors.Is(err, concurrency.ErrSessionExpired) {
		t.Errorf("Check = %v", err)
	}
}

// TestAClientMadeOfParts: a namespace is kept to by every call; a cache is refused.
func TestAClientMadeOfParts(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	inside := dial(t, c.Endpoints()...)
	inside.KV, inside.Lease, inside.Watcher = namespace.NewKV(inside.KV, "space/"), namespace.NewLease(inside.Lease,
		"space/"), namespace.NewWatcher(inside.Watcher, "space/")
	s, other := begin(t, inside, concurrency.WithTTL(10)), begin(t, inside, concurrency.WithTTL(10))
	m, w := concurrency.NewMutex(s, "parts"), concurrency.NewMutex(other, "parts")
	ok(t, "Lock", m.Lock(soon(t)))
	if keys(t, c, "space/parts") != 1 || keys(t, c, "parts") != 0 {
		t.Error("the key is not in the namespace")
	}
	done := async(func() error { return w.Lock(soon(t)) })
	standing(t, c, "space/parts", 2)
	concurrency.WaitRenewals(t, s, 2)
	ok(t, "Check", s.Check())
	ok(t, "Unlock", m.Unlock(soon(t)))
	ok(t, "Lock", <-done)
	e := concurrency.NewElection(s, "parts-e")
	ok(t, "Campaign", e.Campaign(soon(t), "v"))
	if r := <-e.Observe(soon(t)); string(r.Kvs[0].Value) != "v" {
		t.Errorf("observed %v", r)
	}
	_, err := c.Delete(soon(t), "space/"+w.Key())
	ok(t, "delete", err)
	select {
	case <-other.Done():
	case <-time.After(time.Minute):
		t.Error("the holder was not told that its key was deleted")
	}

	cached := dial(t, c.Endpoints()...)
	// takes the original's options: ours are
	lkv, stop, err := leasing.NewKV(cached, "leasing/", concurrency.WithTTL(10))
	ok(t, "leasing", err)
	defer stop()
	cached.KV = lkv
	if _, err := concurrency.NewSession(cached); err == nil || !strings.Contains(err.Error(), "leasing") {
		t.Errorf("NewSession on a cache = %v", err)
	}
}

// TestEveryGoroutineEndsWithTheClient: sessions, waiters and observers that nobody ends.
func TestEveryGoroutineEndsWithTheClient(t *testing.T) {
	srv := concurrency.SharedServer(t)
	warm := dial(t, srv.Endpoint())
	ok(t, "put", func() error { _, err := warm.Put(soon(t), "x", "y"); return err }())
	was := runtime.NumGoroutine()
	c, err := v3.New(v3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
	ok(t, "New", err)
	for range 3 {
		s := begin(t, c)
		e := concurrency.NewElection(s, "leak")
		go func() {
			for range e.Observe(context.Background()) {
			}
		}()
		go func() { _ = e.Campaign(context.Background(), "v") }()
		go func() { _ = concurrency.NewMutex(s, "leak2").Lock(context.Background()) }()
	}
	standing(t, warm, "leak", 3)
	standing(t, warm, "leak2", 3)
	time.Sleep(300 * time.Millisecond)
	ok(t, "close", c.Close())
	if !before(time.Minute, func() bool { return runtime.NumGoroutine() <= was }) {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), was, buf[:runtime.Stack(buf, true)])
	}
}

// TestASessionIsClosedAndForgotten: what a closed session leaves in a client that lives on.
func TestASessionIsClosedAndForgotten(t *testing.T) {
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	warm := begin(t, c)
	ok(t, "Lock", concurrency.NewMutex(warm, "warm").Lock(soon(t)))
	time.Sleep(300 * time.Millisecond)
	was := runtime.NumGoroutine()
	for range 20 {
		s := begin(t, c)
		ok(t, "Lock", concurrency.NewMutex(s, "shut").Lock(soon(t)))
		ok(t, "Close", s.Close())
	}
	if !before(time.Minute, func() bool { return runtime.NumGoroutine() <= was+1 }) {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), was, buf[:runtime.Stack(buf, true)])
	}
	ok(t, "Check", warm.Check())
	standing(t, c, "shut", 0)
}

// TestOnePutAWaiter counts what stands and what happens under the bare prefix.
func TestOnePutAWaiter(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	events := c.Watch(soon(t), "count", v3.WithPrefix(), v3.WithCreatedNotify())
	<-events
	a, b := begin(t, c, concurrency.WithTTL(10)), begin(t, c, concurrency.WithTTL(10))
	m, w := concurrency.NewMutex(a, "count"), concurrency.NewMutex(b, "count")
	ok(t, "Lock", m.Lock(soon(t)))
	done := async(func() error { return w.Lock(soon(t)) })
	standing(t, c, "count", 2)
	concurrency.WaitRenewals(t, a, 2)
	concurrency.WaitRenewals(t, b, 1)
	ok(t, "Unlock", m.Unlock(soon(t)))
	ok(t, "Lock", <-done)
	ok(t, "Unlock", w.Unlock(soon(t)))
	puts, deletes := 0, 0
	for puts+deletes < 4 {
		r, more := <-events
		if !more {
			t.Fatal("the watch ended")
		}
		for _, e := range r.Events {
			if e.Type == v3.EventTypePut {
				puts++
			} else {
				deletes++
			}
		}
	}
	select {
	case r := <-events:
		t.Errorf("more events: %v", r.Events)
	case <-time.After(200 * time.Millisecond):
	}
	if puts != 2 || deletes != 2 {
		t.Errorf("%d puts and %d deletes of two holders", puts, deletes)
	}
}

// TestInOneLineWithTheOriginal: the next in line is the next, whoever made it.
func TestInOneLineWithTheOriginal(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	kits := []kit{ours, original, original, ours, ours, original}
	var ms []mutex
	var done []<-chan error
	for i, k := range kits {
		m := k.mutex(k.open(t, c), "mixed")
		ms = append(ms, m)
		done = append(done, async(func() error { return m.Lock(soon(t)) }))
		standing(t, c, "mixed", i+1)
	}
	for i := range kits {
		ok(t, "Lock", <-done[i])
		if i+1 < len(kits) {
			if err, came := in(100*time.Millisecond, done[i+1]); came {
				t.Fatalf("number %d has the lock of %d: %v", i+1, i, err)
			}
		}
		ok(t, "Unlock", ms[i].Unlock(soon(t)))
	}
}

// TestTheOriginalsErrorsAndTypes: a program may compare with either.
func TestTheOriginalsErrorsAndTypes(t *testing.T) {
	for _, pair := range [][2]error{{concurrency.ErrLocked, orig.ErrLocked}, {concurrency.ErrLockReleased,
		orig.ErrLockReleased},
		{concurrency.ErrSessionExpired, orig.ErrSessionExpired}, {concurrency.ErrElectionNoLeader,
			orig.ErrElectionNoLeader},
		{concurrency.ErrElectionNotLeader, orig.ErrElectionNotLeader}} {
		if pair[0] != pair[1] {
			t.Errorf("%v is not the original's", pair[0])
		}
	}
	var _ orig.SessionOption = concurrency.WithTTL(1)
	var _ func(orig.STM) error = func(concurrency.STM) error { return nil }
}
