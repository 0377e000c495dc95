package etcdfence_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/etcdfence"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func TestATxnAppliesOnlyWhileTheClaimStands(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c, s := newClient(t, srv), newStore(t, srv)
	first := lead(t, s, "a/b")
	old, err := etcdfence.Bind(soon(t), c, s, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Txn(soon(t)).Then(clientv3.OpPut("k", "first")).Commit(); err != nil {
		t.Fatal(err)
	}
	if err := first.Resign(soon(t)); err != nil {
		t.Fatal(err)
	}
	write := func() error {
		_, err := old.Txn(soon(t)).Then(clientv3.OpPut("k", "late")).Commit()
		return err
	}
	var stale *fence.StaleError
	if err := write(); !errors.As(err, &stale) || stale.Token != first.Token() || stale.Largest != 0 {
		t.Errorf("with nobody after it: %v, want a StaleError", err)
	}
	second := lead(t, newStore(t, srv), "a/b")
	if err := write(); !errors.As(err, &stale) || stale.Token != first.Token() || stale.Largest != second.Token() {
		t.Errorf("with a successor: %v, want a StaleError with %d and %d", err, first.Token(), second.Token())
	}
	if got := value(t, c, "k"); got != "first" {
		t.Errorf("k = %q", got)
	}
	if _, err := etcdfence.Bind(soon(t), c, s, first); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Bind of a term that is over = %v, want ErrStale", err)
	}
}

// The response is what etcd would have said to the caller's own Txn.
func TestTheCallersOwnTxnIsUnchanged(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c, s := newClient(t, srv), newStore(t, srv)
	g, err := etcdfence.Bind(soon(t), c, s, lead(t, s, "x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []func() clientv3.Txn{func() clientv3.Txn { return c.Txn(soon(t)) }, func() clientv3.Txn { return g.Txn(soon(t)) }} {
		if _, err := c.Put(soon(t), "k", "1"); err != nil {
			t.Fatal(err)
		}
		resp, err := begin().If(clientv3.Compare(clientv3.Value("k"), "=", "1"), clientv3.Compare(clientv3.Version("none"), "=", 0)).
			Then(clientv3.OpGet("k"), clientv3.OpPut("k", "2"), clientv3.OpDelete("none")).Else(clientv3.OpGet("none")).Commit()
		if err != nil || !resp.Succeeded || len(resp.Responses) != 3 || string(resp.Responses[0].GetResponseRange().Kvs[0].Value) != "1" || resp.Header.GetRevision() == 0 {
			t.Errorf("own compares hold: %+v, %v", resp, err)
		}
		resp, err = begin().If(clientv3.Compare(clientv3.Value("k"), "=", "1")).Then(clientv3.OpPut("k", "3")).Else(clientv3.OpGet("k")).Commit()
		if err != nil || resp.Succeeded || len(resp.Responses) != 1 || string(resp.Responses[0].GetResponseRange().Kvs[0].Value) != "2" {
			t.Errorf("own compares fail: %+v, %v", resp, err)
		}
		if resp, err = begin().Commit(); err != nil || !resp.Succeeded || len(resp.Responses) != 0 {
			t.Errorf("empty: %+v, %v", resp, err)
		}
		if _, err = begin().Then(clientv3.OpPut("k", "4"), clientv3.OpPut("k", "5")).Commit(); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("the same key twice: %v, want etcd's own error", err)
		}
	}
}

// What changes while a term lasts is no concern of the compare: the lease (a move after a change of
// etcd's leader), the value.
func TestAClaimThatMovesKeepsItsGuard(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c, s := newClient(t, srv), newStore(t, srv)
	term := lead(t, s, "x")
	g, err := etcdfence.Bind(soon(t), c, s, term)
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.ClaimKey(soon(t), "x", uint64(term.Token()))
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Grant(soon(t), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(soon(t), key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(other.ID)); err != nil {
		t.Fatal(err)
	}
	if err := term.Proclaim(soon(t), []byte("another value")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Txn(soon(t)).Then(clientv3.OpPut("k", "v")).Commit(); err != nil {
		t.Errorf("after a move: %v", err)
	}
	// The same key again is not the same claim.
	if _, err := c.Delete(soon(t), key); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(soon(t), key, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Txn(soon(t)).Then(clientv3.OpPut("k", "late")).Commit(); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a new claim under the same key: %v, want ErrStale", err)
	}
}

// static is a term that says what it is told.
type static struct{ s fence.Stamp }

func (s static) Name() string         { return s.s.Name }
func (s static) Token() primacy.Token { return s.s.Token }
func (s static) Check() error         { return nil }

func TestOnlyTheHolderOfThisClusterBinds(t *testing.T) {
	t.Parallel()
	srv, elsewhere := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{})
	c, s := newClient(t, srv), newStore(t, srv)
	term := lead(t, s, "x")
	l, err := s.Grant(soon(t), "waiter", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	places, err := l.Claim(soon(t), driver.Claim{Name: "x", ID: "w"})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		kv   clientv3.KV
		t    fence.Term
		want error
	}{
		"a claim that waits":   {c, static{fence.Stamp{Name: "x", Token: primacy.Token(places[0].Token)}}, fence.ErrStale},
		"a token never given":  {c, static{fence.Stamp{Name: "x", Token: 1 << 63}}, fence.ErrStale},
		"another election's":   {c, static{fence.Stamp{Name: "y", Token: term.Token()}}, fence.ErrStale},
		"no token":             {c, static{fence.Stamp{Name: "x"}}, primacy.ErrInvalid},
		"another cluster":      {newClient(t, elsewhere), term, fence.ErrOrigin},
		"a client that cannot": {namespace.NewKV(c, "ns/"), term, fence.ErrStale},
	} {
		if _, err := etcdfence.Bind(soon(t), c.kv, s, c.t); !errors.Is(err, c.want) {
			t.Errorf("%s: Bind = %v, want %v", what, err, c.want)
		}
	}
	var other *fence.OriginError
	if _, err := etcdfence.Bind(soon(t), newClient(t, elsewhere), s, term); !errors.As(err, &other) || other.Origin == other.Known || other.Origin != s.Origin() {
		t.Errorf("another cluster: %+v", other)
	}
}

// Many goroutines count up while their leaders change: each acknowledged step is there, and none
// after its claim was gone.
func TestManyTxnsWhileLeadersChange(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c := newClient(t, srv)
	var acked, refused atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		s := newStore(t, srv)
		term := lead(t, s, "x")
		g, err := etcdfence.Bind(soon(t), c, s, term)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wg.Go(func() {
				for !count(t, g, c, &acked) {
				}
				refused.Add(1)
			})
		}
		time.Sleep(30 * time.Millisecond) // real work in between, of any amount
		if err := term.Resign(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if got := value(t, c, "n"); got != strconv.FormatInt(acked.Load(), 10) || refused.Load() != 16 || acked.Load() == 0 {
		t.Errorf("n = %s after %d acknowledged steps; %d of 16 were refused in the end", got, acked.Load(), refused.Load())
	}
}

// count adds one, and reports true once the guard is stale.
func count(t *testing.T, g *etcdfence.Guard, c *clientv3.Client, acked *atomic.Int64) bool {
	resp, err := c.Get(soon(t), "n")
	if err != nil {
		t.Error(err)
		return true
	}
	n, mod := 0, int64(0)
	if len(resp.Kvs) > 0 {
		n, _ = strconv.Atoi(string(resp.Kvs[0].Value))
		mod = resp.Kvs[0].ModRevision
	}
	done, err := g.Txn(soon(t)).If(clientv3.Compare(clientv3.ModRevision("n"), "=", mod)).Then(clientv3.OpPut("n", strconv.Itoa(n+1))).Commit()
	switch {
	case errors.Is(err, fence.ErrStale):
		return true
	case err != nil:
		t.Error(err)
		return true
	case done.Succeeded:
		acked.Add(1)
	}
	return false
}

var _ etcdfence.Store = (*etcdstore.Store)(nil)

// A lock's tokens are of another scale than its claim's create revision; Bind knows both.
func TestALockIsBoundByItsClaim(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c, s := newClient(t, srv), newStore(t, srv)
	session, err := primacy.NewSession(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	var guard *etcdfence.Guard
	err = session.Mutex("m", nil).Do(soon(t), func(ctx context.Context, term *primacy.Term) error {
		if term.Token() == term.ClaimToken() {
			t.Errorf("the token of a lock is its claim's: %d", term.Token())
		}
		guard, err = etcdfence.Bind(ctx, c, s, term)
		if err == nil {
			_, err = guard.Txn(ctx).Then(clientv3.OpPut("k", "held")).Commit()
		}
		return err
	})
	if err != nil || value(t, c, "k") != "held" {
		t.Fatalf("while held: %v, k = %q", err, value(t, c, "k"))
	}
	if _, err := guard.Txn(soon(t)).Then(clientv3.OpPut("k", "late")).Commit(); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after it was given back: %v, want ErrStale", err)
	}
	if err := session.Close(soon(t)); err != nil {
		t.Error(err)
	}
}
