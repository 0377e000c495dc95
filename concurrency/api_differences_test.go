package concurrency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/concurrency"
)

// tap is a client's KV and Lease whose calls a test may delay, cut short or answer.
type tap struct {
	v3.KV
	v3.Lease
	after  func(ctx context.Context) // a Txn was answered
	before func(ctx context.Context) // a Txn goes out
	deny   atomic.Int64              // how many keepalives are answered with "no such lease"
}

type tapTxn struct {
	v3.Txn
	tap *tap
	ctx context.Context
}

func (k *tap) Close() error { return k.Lease.Close() }
func (k *tap) Txn(ctx context.Context) v3.Txn {
	return &tapTxn{k.KV.Txn(ctx), k, ctx}
}
func (t *tapTxn) If(c ...v3.Cmp) v3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t *tapTxn) Then(o ...v3.Op) v3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *tapTxn) Else(o ...v3.Op) v3.Txn { t.Txn = t.Txn.Else(o...); return t }
func (t *tapTxn) Commit() (*v3.TxnResponse, error) {
	if t.tap.before != nil {
		t.tap.before(t.ctx)
	}
	r, err := t.Txn.Commit()
	if t.tap.after != nil {
		t.tap.after(t.ctx)
	}
	return r, err
}

func (k *tap) KeepAliveOnce(ctx context.Context, id v3.LeaseID) (*v3.LeaseKeepAliveResponse, error) {
	if k.deny.Add(-1) >= 0 {
		return nil, rpctypes.ErrLeaseNotFound
	}
	return k.Lease.KeepAliveOnce(ctx, id)
}

func tapped(t testing.TB, endpoint string) (*v3.Client, *tap) {
	c := dial(t, endpoint)
	k := &tap{KV: c.KV, Lease: c.Lease}
	c.KV, c.Lease = k, k
	return c, k
}

// mark is in the context of the one call that a test is about.
type mark struct{}

func marked(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithValue(soon(t), mark{}, true))
}

// TestCampaignAgainLeavesNoGhost: a leader calls Campaign with a new value, and the context ends
// between the entry and the proclamation. It leads on, and can resign.
func TestCampaignAgainLeavesNoGhost(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c, k := tapped(t, srv.Endpoint())
	ctx, cancel := marked(t)
	k.after = func(ctx context.Context) {
		if ctx.Value(mark{}) != nil {
			cancel()
		}
	}
	s := begin(t, c, concurrency.WithTTL(60))
	e := concurrency.NewElection(s, "again")
	ok(t, "Campaign", e.Campaign(soon(t), "a"))
	key, token := e.Key(), e.Token()
	if err := e.Campaign(ctx, "b"); !errors.Is(err, context.Canceled) {
		t.Fatalf("Campaign with a context that ends = %v", err)
	}
	if e.Key() != key || e.Token() != token || token == 0 {
		t.Errorf("key %q, token %d, want %q, %d: it leads on", e.Key(), e.Token(), key, token)
	}
	ok(t, "Proclaim", e.Proclaim(soon(t), "c"))
	ok(t, "Check", s.Check())
	ok(t, "Campaign once more", e.Campaign(soon(t), "d"))
	ok(t, "Resign", e.Resign(soon(t)))
	standing(t, c, "again", 0)
	if e.Key() != "" || e.Token() != 0 {
		t.Errorf("after Resign: key %q, token %d", e.Key(), e.Token())
	}
	other := concurrency.NewElection(begin(t, dial(t, srv.Endpoint())), "again")
	ok(t, "another's Campaign", other.Campaign(soon(t), "x"))
}

// TestOneOfTwoLocksOfAMutexFails: of two goroutines that lock one Mutex one wins and the other's
// context ends. It is locked, and can be unlocked. And where both give up nothing is left.
func TestOneOfTwoLocksOfAMutexFails(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c, k := tapped(t, srv.Endpoint())
	var slow atomic.Bool     // whether the marked one's reads wait for the end of its context
	var reading atomic.Int64 // how many of them are under way
	k.before = func(ctx context.Context) {
		if ctx.Value(mark{}) == nil {
			return
		}
		if reading.Add(1); slow.Load() {
			reading.Add(-1)
			<-ctx.Done()
			reading.Add(1)
		}
	}
	k.after = func(ctx context.Context) {
		if ctx.Value(mark{}) != nil {
			reading.Add(-1)
		}
	}
	holder := concurrency.NewMutex(begin(t, dial(t, srv.Endpoint())), "twice")
	ok(t, "Lock", holder.Lock(soon(t)))
	m := concurrency.NewMutex(begin(t, c), "twice")
	ctx, cancel := marked(t)
	defer cancel()
	loser := async(func() error { return m.Lock(ctx) })
	standing(t, c, "twice", 2)
	winner := async(func() error { return m.Lock(soon(t)) })
	time.Sleep(200 * time.Millisecond) // both wait
	slow.Store(true)
	eventually(t, "what the loser reads has been read", time.Minute, func() bool { return reading.Load() == 0 })
	ok(t, "Unlock", holder.Unlock(soon(t)))
	ok(t, "the winner's Lock", <-winner)
	cancel()
	if err := <-loser; !errors.Is(err, context.Canceled) {
		t.Errorf("the loser's Lock = %v", err)
	}
	slow.Store(false)
	standing(t, c, "twice", 1)
	if m.Token() == 0 || !owns(t, c, m) {
		t.Errorf("token %d, key %q: it is locked", m.Token(), m.Key())
	}
	ok(t, "Unlock", m.Unlock(soon(t)))
	standing(t, c, "twice", 0)

	ok(t, "Lock", holder.Lock(soon(t)))
	ctx, cancel = context.WithCancel(soon(t))
	a := async(func() error { return m.Lock(ctx) })
	b := async(func() error { return m.Lock(ctx) })
	standing(t, c, "twice", 2)
	time.Sleep(200 * time.Millisecond)
	cancel()
	if ea, eb := <-a, <-b; ea == nil || eb == nil {
		t.Errorf("Lock = %v, %v", ea, eb)
	}
	standing(t, c, "twice", 1)
	if err := m.Unlock(soon(t)); err != concurrency.ErrLockReleased {
		t.Errorf("Unlock of what was not locked = %v", err)
	}
}

func owns(t testing.TB, c *v3.Client, m *concurrency.Mutex) bool {
	t.Helper()
	r, err := c.Txn(soon(t)).If(m.IsOwner()).Commit()
	ok(t, "Txn with IsOwner", err)
	return r.Succeeded
}

// TestCampaignOfAnEndedContext: the context of WithContext ends while its session waits, and its
// key expires. It does not win beside the true winner.
func TestCampaignOfAnEndedContext(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	first := concurrency.NewElection(begin(t, c), "ended")
	ok(t, "Campaign", first.Campaign(soon(t), "first"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	e := concurrency.NewElection(begin(t, c, concurrency.WithTTL(5), concurrency.WithContext(ctx)), "ended")
	lost := async(func() error { return e.Campaign(soon(t), "lost") })
	standing(t, c, "ended", 2)
	next := concurrency.NewElection(begin(t, c), "ended")
	won := async(func() error { return next.Campaign(soon(t), "next") })
	standing(t, c, "ended", 3)
	cancel()
	standing(t, c, "ended", 2)
	ok(t, "Resign", first.Resign(soon(t)))
	ok(t, "the next one's Campaign", <-won)
	if err := <-lost; !errors.Is(err, concurrency.ErrSessionExpired) {
		t.Errorf("Campaign whose key is gone = %v", err)
	}
	if e.Token() != 0 {
		t.Errorf("token %d, beside the leader's %d", e.Token(), next.Token())
	}
	if err := e.Campaign(soon(t), "again"); !errors.Is(err, concurrency.ErrSessionExpired) {
		t.Errorf("Campaign on a lease that is gone = %v", err)
	}
}

// TestNoTokenWhileWaiting: who waits holds nothing, has no token and owns nothing.
func TestNoTokenWhileWaiting(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	a, b := begin(t, c), begin(t, c)
	ea, eb := concurrency.NewElection(a, "line"), concurrency.NewElection(b, "line")
	ma, mb := concurrency.NewMutex(a, "lock"), concurrency.NewMutex(b, "lock")
	ok(t, "Campaign", ea.Campaign(soon(t), "a"))
	ok(t, "Lock", ma.Lock(soon(t)))
	led := async(func() error { return eb.Campaign(soon(t), "b") })
	locked := async(func() error { return mb.Lock(soon(t)) })
	standing(t, c, "line", 2)
	standing(t, c, "lock", 2)
	eventually(t, "their keys", time.Minute, func() bool { return eb.Key() != "" && len(mb.Key()) > 1 })
	ok(t, "a candidate's Proclaim", eb.Proclaim(soon(t), "b2"))
	if eb.Token() != 0 || mb.Token() != 0 || owns(t, c, mb) {
		t.Errorf("who waits has tokens %d and %d, or owns the lock", eb.Token(), mb.Token())
	}
	if !owns(t, c, ma) {
		t.Error("the holder does not own the lock")
	}
	before, beforeM := ea.Token(), ma.Token()
	ok(t, "Resign", ea.Resign(soon(t)))
	ok(t, "Unlock", ma.Unlock(soon(t)))
	ok(t, "Campaign", <-led)
	ok(t, "Lock", <-locked)
	if eb.Token() <= before || mb.Token() <= beforeM || !owns(t, c, mb) {
		t.Errorf("tokens %d after %d, %d after %d", eb.Token(), before, mb.Token(), beforeM)
	}
	if ea.Token() != 0 || ma.Token() != 0 || owns(t, c, ma) {
		t.Errorf("who gave up has tokens %d, %d", ea.Token(), ma.Token())
	}
	// A second object shares the session's one key, and loses it with the first.
	twin := concurrency.NewMutex(b, "lock")
	ok(t, "the twin's Lock", twin.Lock(soon(t)))
	ok(t, "Unlock", mb.Unlock(soon(t)))
	if twin.Token() != 0 || owns(t, c, twin) {
		t.Errorf("the twin of what was unlocked has token %d", twin.Token())
	}
}

// TestResumedButGone: an election is resumed with a key that is long gone. It has no token, and
// soon no key.
func TestResumedButGone(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	g, err := c.Grant(soon(t), 10)
	ok(t, "grant", err)
	s := begin(t, c, concurrency.WithLease(g.ID))
	e := concurrency.NewElection(s, "resumed")
	ok(t, "Campaign", e.Campaign(soon(t), "a"))
	key, rev := e.Key(), e.Rev()
	s.Orphan()

	again := begin(t, c, concurrency.WithLease(g.ID))
	r := concurrency.ResumeElection(again, "resumed/", key, rev)
	if r.Token() != 0 {
		t.Errorf("token %d before anything was asked", r.Token())
	}
	ok(t, "Proclaim", r.Proclaim(soon(t), "b"))
	if r.Token() != uint64(rev) || r.Key() != key {
		t.Errorf("token %d, key %q, want %d, %q", r.Token(), r.Key(), rev, key)
	}
	again.Orphan()

	_, err = c.Delete(soon(t), key)
	ok(t, "delete", err)
	other := concurrency.NewElection(begin(t, c), "resumed")
	ok(t, "another's Campaign", other.Campaign(soon(t), "x"))
	last := begin(t, c, concurrency.WithLease(g.ID))
	r = concurrency.ResumeElection(last, "resumed/", key, rev)
	eventually(t, "no key", time.Minute, func() bool { return r.Key() == "" })
	if r.Token() != 0 {
		t.Errorf("token %d while another leads with %d", r.Token(), other.Token())
	}
	if err := r.Proclaim(soon(t), "c"); err != concurrency.ErrElectionNotLeader {
		t.Errorf("Proclaim = %v", err)
	}
	ok(t, "Resign", r.Resign(soon(t)))
	standing(t, c, "resumed", 1)
}

// TestErrorsOfADeadLease: what etcd said of the lease and what it means are in one error.
func TestErrorsOfADeadLease(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	calls := map[string]func(s *concurrency.Session) error{
		"Lock":    func(s *concurrency.Session) error { return concurrency.NewMutex(s, "dead").Lock(soon(t)) },
		"TryLock": func(s *concurrency.Session) error { return concurrency.NewMutex(s, "dead").TryLock(soon(t)) },
		"Campaign": func(s *concurrency.Session) error {
			return concurrency.NewElection(s, "dead").Campaign(soon(t),
				"")
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			s := begin(t, c, concurrency.WithTTL(60))
			_, err := c.Revoke(soon(t), s.Lease())
			ok(t, "revoke", err)
			err = call(s)
			if !errors.Is(err, concurrency.ErrSessionExpired) || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				t.Errorf("the first = %v, want one that is both ErrSessionExpired and ErrLeaseNotFound", err)
			}
			if err := call(s); !errors.Is(err, concurrency.ErrSessionExpired) {
				t.Errorf("the second = %v", err)
			}
		})
	}
}

// TestWithLeaseAsksMoreThanOnce: an etcd that has just elected a leader says twice that there is
// no such lease.
func TestWithLeaseAsksMoreThanOnce(t *testing.T) {
	t.Parallel()
	c, k := tapped(t, concurrency.SharedServer(t).Endpoint())
	g, err := c.Grant(soon(t), 10)
	ok(t, "grant", err)
	k.deny.Store(2)
	s := begin(t, c, concurrency.WithLease(g.ID))
	ok(t, "Check", s.Check())
	ok(t, "Lock", concurrency.NewMutex(s, "asked").Lock(soon(t)))

	s.Orphan() // its renewals would be denied, too
	k.deny.Store(4)
	s = begin(t, c, concurrency.WithLease(g.ID))
	if err := s.Check(); !errors.Is(err, concurrency.ErrSessionExpired) {
		t.Errorf("Check of a session on a lease that is gone = %v", err)
	}
	if n := 4 - k.deny.Load(); n != 3 {
		t.Errorf("etcd was asked %d times, want 3", n)
	}
}

func TestAFailedCampaignKeepsTheLead(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	both(t, func(t *testing.T, k kit) string {
		pfx := "keep-" + k.name
		c, tap := tapped(t, srv.Endpoint())
		ctx, cancel := marked(t)
		tap.after = func(ctx context.Context) {
			if ctx.Value(mark{}) != nil {
				cancel()
			}
		}
		e := k.election(k.open(t, c), pfx)
		ok(t, "Campaign", e.Campaign(soon(t), "a"))
		if err := e.Campaign(ctx, "b"); err == nil {
			t.Fatal("Campaign with a context that ends = nil")
		}
		ok(t, "Resign", e.Resign(soon(t)))
		if keys(t, c, pfx) != 0 {
			return "Resign returned nil, and the key stands"
		}
		return ""
	})
}

func TestAnEndedContextWinsNothing(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	both(t, func(t *testing.T, k kit) string {
		pfx := "context-" + k.name
		first := k.election(k.open(t, c), pfx)
		ok(t, "Campaign", first.Campaign(soon(t), "first"))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		e := k.election(k.open(t, c, concurrency.WithTTL(5), concurrency.WithContext(ctx)), pfx)
		lost := async(func() error { return e.Campaign(soon(t), "lost") })
		standing(t, c, pfx, 2)
		next := k.election(k.open(t, c), pfx)
		won := async(func() error { return next.Campaign(soon(t), "next") })
		standing(t, c, pfx, 3)
		cancel()
		standing(t, c, pfx, 2)
		ok(t, "Resign", first.Resign(soon(t)))
		ok(t, "the next one's Campaign", <-won)
		if err := <-lost; err == nil {
			return "two were told that they lead"
		}
		return ""
	})
}
