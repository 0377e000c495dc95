package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// frail is the KV of a client put together from parts: its Txns may be refused before they are
// sent, or lose their answer.
type frail struct {
	v3.KV
	cut  atomic.Bool  // no Txn goes out
	n    atomic.Int64 // Txns
	lose atomic.Int64 // the number of the Txn whose answer is lost
	hold atomic.Pointer[held]
}

// held is an answer to a put that is on its way.
type held struct{ done, release chan struct{} }

type frailTxn struct {
	v3.Txn
	k    *frail
	puts bool
}

func (k *frail) Txn(ctx context.Context) v3.Txn { return &frailTxn{Txn: k.KV.Txn(ctx), k: k} }
func (t *frailTxn) If(c ...v3.Cmp) v3.Txn       { t.Txn = t.Txn.If(c...); return t }
func (t *frailTxn) Then(o ...v3.Op) v3.Txn {
	t.puts = slices.ContainsFunc(o, v3.Op.IsPut)
	t.Txn = t.Txn.Then(o...)
	return t
}

func (t *frailTxn) Else(o ...v3.Op) v3.Txn { t.Txn = t.Txn.Else(o...); return t }
func (t *frailTxn) Commit() (*v3.TxnResponse, error) {
	n := t.k.n.Add(1)
	if t.k.cut.Load() {
		return nil, errors.New("cut")
	}
	r, err := t.Txn.Commit()
	if t.puts {
		if h := t.k.hold.Swap(nil); h != nil {
			close(h.done)
			<-h.release
		}
	}
	if n == t.k.lose.Load() {
		return nil, errors.New("lost")
	}
	return r, err
}

func frailClient(t testing.TB, endpoint string) (*v3.Client, *frail) {
	c := dial(t, endpoint)
	k := &frail{KV: c.KV}
	c.KV = k
	return c, k
}

// TestADeletedKeyThatIsEnteredAnewEndsTheSession: the holder's key is deleted, and before that is
// noticed its session locks once more. The new key is not the old claim: the first Mutex holds
// nothing, and must not be told that it does.
func TestADeletedKeyThatIsEnteredAnewEndsTheSession(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	a, b := begin(t, c), begin(t, dial(t, srv.Endpoint()))
	m1, m2, mb := concurrency.NewMutex(a, "anew"), concurrency.NewMutex(a, "anew"), concurrency.NewMutex(b, "anew")
	ok(t, "Lock", mb.Lock(soon(t))) // b's connections stand
	ok(t, "Unlock", mb.Unlock(soon(t)))
	ok(t, "Lock", m1.Lock(soon(t)))
	got := async(func() error { return mb.Lock(soon(t)) })
	standing(t, c, "anew", 2)
	_, err := c.Delete(soon(t), m1.Key())
	ok(t, "delete", err)
	late := async(func() error { return m2.Lock(soon(t)) })
	ok(t, "the next", <-got)
	err, came := in(time.Minute, late)
	if !came || !errors.Is(err, concurrency.ErrSessionExpired) {
		t.Errorf("Lock of a session that lost its key: %v", err)
	}
	if a.Check() == nil {
		t.Error("Check = nil: two hold, the first Mutex and another session's")
	}
	standing(t, c, "anew", 1)
	ok(t, "Unlock", mb.Unlock(soon(t)))
}

// TestAStaleProclaimLeavesTheClaimAlone: an election that was resumed with a key of the past does
// not throw the present claim out of what the session looks after.
func TestAStaleProclaimLeavesTheClaimAlone(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	s := begin(t, c, concurrency.WithTTL(10))
	e := concurrency.NewElection(s, "stale")
	ok(t, "Campaign", e.Campaign(soon(t), "a"))
	key, rev := e.Key(), e.Rev()
	ok(t, "Resign", e.Resign(soon(t)))
	ok(t, "Campaign", e.Campaign(soon(t), "b"))
	stale := concurrency.ResumeElection(s, "stale/", key, rev)
	if err := stale.Proclaim(soon(t), "c"); !errors.Is(err, concurrency.ErrElectionNotLeader) {
		t.Fatalf("Proclaim of a leader of the past: %v", err)
	}
	concurrency.WaitRenewals(t, s, 2)
	_, err := c.Delete(soon(t), e.Key())
	ok(t, "delete", err)
	other := concurrency.NewElection(begin(t, dial(t, srv.Endpoint())), "stale")
	ok(t, "Campaign", other.Campaign(soon(t), "x"))
	if !before(time.Minute, func() bool { return s.Check() != nil }) {
		t.Errorf("two lead: Check is nil a minute after the key went; tokens %d and %d", e.Token(), other.Token())
	}
}

// TestALateResignOfAnEarlierSessionHurtsNoLaterOne: Resign fails, the session is orphaned, and
// another one with the same lease takes the key up. The first one's deletion, tried on in the
// background, does not end what the second one leads with.
func TestALateResignOfAnEarlierSessionHurtsNoLaterOne(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	grant, err := c.Grant(soon(t), 20)
	ok(t, "grant", err)
	c1, k := frailClient(t, srv.Endpoint())
	s1 := begin(t, c1, concurrency.WithLease(grant.ID))
	e1 := concurrency.NewElection(s1, "late")
	ok(t, "Campaign", e1.Campaign(soon(t), "a"))
	k.cut.Store(true)
	if err := e1.Resign(within(t, 2*time.Second)); err == nil {
		t.Fatal("Resign = nil without etcd")
	}
	s1.Orphan()
	s2 := begin(t, c, concurrency.WithLease(grant.ID))
	e2 := concurrency.NewElection(s2, "late")
	ok(t, "Campaign", e2.Campaign(soon(t), "b"))
	tried := k.n.Load()
	k.cut.Store(false)
	eventually(t, "the late deletion", time.Minute, func() bool { return k.n.Load() > tried })
	time.Sleep(time.Second)
	if n := keys(t, c, "late"); n != 1 {
		t.Errorf("%d keys stand, want the later session's", n)
	}
	ok(t, "Check", s2.Check())
	ok(t, "Resign", e2.Resign(soon(t)))
	standing(t, c, "late", 0)
}

// TestALostReplyLeavesARestartedLeadersKey: the first put of a process that was started again has
// no answer, for its key stood. It is not taken for what the put has made.
func TestALostReplyLeavesARestartedLeadersKey(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	grant, err := c.Grant(soon(t), 20)
	ok(t, "grant", err)
	s1 := begin(t, c, concurrency.WithLease(grant.ID))
	ok(t, "Campaign", concurrency.NewElection(s1, "restarted").Campaign(soon(t), "a"))
	s1.Orphan()
	c2, k := frailClient(t, srv.Endpoint())
	s2 := begin(t, c2, concurrency.WithLease(grant.ID))
	e2 := concurrency.NewElection(s2, "restarted")
	time.Sleep(200 * time.Millisecond)
	k.lose.Store(k.n.Load() + 1)
	if err := e2.Campaign(soon(t), "a"); err == nil {
		t.Fatal("Campaign = nil, and its answer was lost")
	}
	time.Sleep(3 * time.Second)
	if n := keys(t, c, "restarted"); n != 1 {
		t.Fatalf("%d keys stand, want the one that the process led with before", n)
	}
	ok(t, "Check", s2.Check())
	ok(t, "Campaign", e2.Campaign(soon(t), "a"))
}

// TestACancelledContextIsObeyedAfterALostReply: who gives up does not wait for the clean-up.
func TestACancelledContextIsObeyedAfterALostReply(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	proxy := etcdtest.NewProxy(t, srv.Addr())
	m := concurrency.NewMutex(begin(t, dial(t, proxy.Addr())), "obeyed")
	ok(t, "Lock", m.Lock(soon(t)))
	ok(t, "Unlock", m.Unlock(soon(t)))
	proxy.Hold(etcdtest.Down)
	ctx := within(t, time.Second)
	err := m.Lock(ctx)
	end, _ := ctx.Deadline()
	if late := time.Since(end); late > 1500*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock returned %v after its context had ended: %v", late, err)
	}
	proxy.Heal()
	ok(t, "Lock", m.Lock(soon(t)))
}

// TestALockThatFindsAKeyBeingUnlockedWaits: one Mutex enters and finds its session's key; before
// it hears of it, another Mutex of the session unlocks, and is answered. What was found is gone.
func TestALockThatFindsAKeyBeingUnlockedWaits(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c, k := frailClient(t, srv.Endpoint())
	a := begin(t, c)
	m1, m2 := concurrency.NewMutex(a, "found"), concurrency.NewMutex(a, "found")
	mb := concurrency.NewMutex(begin(t, dial(t, srv.Endpoint())), "found")
	ok(t, "Lock", m1.Lock(soon(t)))
	got := async(func() error { return mb.Lock(soon(t)) })
	standing(t, c, "found", 2)
	h := &held{make(chan struct{}), make(chan struct{})}
	k.hold.Store(h)
	second := async(func() error { return m2.Lock(soon(t)) })
	<-h.done
	ok(t, "Unlock", m1.Unlock(soon(t)))
	ok(t, "the next", <-got)
	close(h.release)
	if err, came := in(time.Second, second); came {
		t.Errorf("Lock returned %v, and another session holds the lock", err)
	}
	ok(t, "Check", a.Check())
	ok(t, "Unlock", mb.Unlock(soon(t)))
	if err, came := in(time.Minute, second); !came || err != nil {
		t.Errorf("Lock after the other's Unlock: %v", err)
	}
}

// lockMany takes n locks on one session.
func lockMany(t *testing.T, s *concurrency.Session, pfx string, n int) {
	t.Helper()
	var wg sync.WaitGroup
	next := atomic.Int64{}
	ctx := within(t, time.Minute)
	for range 20 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := concurrency.NewMutex(s, fmt.Sprintf("%s/%d", pfx, i)).Lock(ctx); err != nil {
					t.Errorf("Lock %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestManyLocksWithAShortTTL: a renewal costs the same whatever the number of claims, and a claim
// that is deleted is noticed all the same.
func TestManyLocksWithAShortTTL(t *testing.T) {
	t.Parallel()
	const locks = 1000
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	var txns atomic.Int64
	count := func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		o ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/Txn") {
			txns.Add(1)
		}
		return call(ctx, method, in, out, conn, o...)
	}
	counted, err := v3.New(v3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)}})
	ok(t, "client", err)
	t.Cleanup(func() { counted.Close() })
	s := begin(t, counted, concurrency.WithTTL(15))
	lockMany(t, s, "many", locks)
	if txns.Load() < locks {
		t.Fatalf("%d Txns for %d locks: they are not counted", txns.Load(), locks)
	}
	// The Txns of the cheapest of some renewals: beside others the new claims are looked at, or
	// attempts have failed.
	least := int64(locks)
	for range 4 {
		was := txns.Load()
		concurrency.WaitRenewals(t, s, 1)
		least = min(least, txns.Load()-was)
	}
	if least > 4 { // 10 if it looked at all of them
		t.Errorf("a renewal took %d Txns with %d locks", least, locks)
	}
	first, err := c.Get(soon(t), "many/", v3.WithFirstCreate()...)
	ok(t, "get", err)
	_, err = c.Delete(soon(t), string(first.Kvs[0].Key))
	ok(t, "delete", err)
	eventually(t, "the end of the session, of which a claim was deleted", time.Minute,
		func() bool { return s.Check() != nil })
}

// TestManyLocksAreMovedWhenEtcdsLeaderChanges: all of them are attached to a lease granted since,
// also those that the renewal did not look at.
func TestManyLocksAreMovedWhenEtcdsLeaderChanges(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	c := dial(t, cluster.Endpoints()...)
	s := begin(t, c, concurrency.WithTTL(30))
	lockMany(t, s, "moved", 400)
	lead := cluster.WaitLeader()
	for _, m := range cluster.Members {
		if m != lead {
			cluster.MoveLeader(m)
			break
		}
	}
	eventually(t, "all claims on another lease", time.Minute, func() bool {
		resp, err := c.Get(soon(t), "moved/", v3.WithPrefix())
		ok(t, "get", err)
		for _, kv := range resp.Kvs {
			if v3.LeaseID(kv.Lease) == s.Lease() {
				return false
			}
		}
		return len(resp.Kvs) == 400
	})
	ok(t, "Check", s.Check())
}

// TestASmallLimitOfOperationsEndsNoSession: etcd was started with fewer operations to a Txn than
// the session has locks. With a lease that was brought along they are moved, too.
func TestASmallLimitOfOperationsEndsNoSession(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Args: []string{"--max-txn-ops=32"}})
	c := dial(t, srv.Endpoint())
	s := begin(t, c, concurrency.WithTTL(15))
	lockMany(t, s, "ops", 120)
	concurrency.WaitRenewals(t, s, 2)
	first, err := c.Get(soon(t), "ops/", v3.WithFirstCreate()...)
	ok(t, "get", err)
	_, err = c.Delete(soon(t), string(first.Kvs[0].Key))
	ok(t, "delete", err)
	eventually(t, "the end of the session, of which a claim was deleted", time.Minute,
		func() bool { return s.Check() != nil })

	grant, err := c.Grant(soon(t), 20)
	ok(t, "grant", err)
	b := begin(t, c, concurrency.WithLease(grant.ID))
	lockMany(t, b, "opsb", 60)
	b.Orphan() // puts them back
	resp, err := c.Get(soon(t), "opsb/", v3.WithPrefix())
	ok(t, "get", err)
	for _, kv := range resp.Kvs {
		if v3.LeaseID(kv.Lease) != grant.ID {
			t.Fatalf("%s is attached to another lease than the session's", kv.Key)
		}
	}
	if len(resp.Kvs) != 60 {
		t.Errorf("%d locks stand, want 60", len(resp.Kvs))
	}
}

// TestTheNewerSessionOfALeaseWins: two living sessions of one lease are one candidate, and have one
// key. The one that took it up last leads with it, and the other is told, whether it is attached to
// the lease itself or on a guard.
func TestTheNewerSessionOfALeaseWins(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	older := begin(t, dial(t, srv.Endpoint()), concurrency.WithTTL(10))
	ok(t, "Campaign", concurrency.NewElection(older, "newer").Campaign(soon(t), "0"))
	for i := range 2 {
		s := begin(t, dial(t, srv.Endpoint()), concurrency.WithLease(older.Lease()))
		e := concurrency.NewElection(s, "newer")
		ok(t, "Campaign", e.Campaign(soon(t), fmt.Sprint(i+1)))
		if !before(time.Minute, func() bool { return older.Check() != nil }) {
			t.Fatalf("session %d: Check is nil, and another one leads with its key", i)
		}
		concurrency.WaitRenewals(t, s, 2)
		standing(t, c, "newer", 1)
		older = s
	}
}
