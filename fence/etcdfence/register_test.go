package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/fence"
	"github.com/primacy-go/primacy/fence/etcdfence"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func ExampleRaise() {
	var client *clientv3.Client // of the cluster that holds the data
	var term *primacy.Term      // of an election that is kept elsewhere
	ctx := context.Background()
	run := func() error {
		guard, err := etcdfence.Raise(ctx, client, "ledger/fence", fence.Of(term)) // before the first read
		if err != nil {
			return err
		}
		_, err = guard.Txn(ctx).Then(clientv3.OpPut("ledger/total", "17")).Commit()
		return err
	}
	_ = run
}

func TestTheRegister(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t, etcdtest.Options{}))
	at := func(token primacy.Token) fence.Stamp { return fence.Stamp{Name: "x", Token: token, Origin: "etcd/a"} }
	raise := func(s fence.Stamp) *etcdfence.Guard {
		t.Helper()
		g, err := etcdfence.Raise(soon(t), c, "f", s)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	put := func(g *etcdfence.Guard, v string) error {
		_, err := g.Txn(soon(t)).Then(clientv3.OpPut("k", v)).Commit()
		return err
	}
	seven := raise(at(7))
	if err := put(seven, "by 7"); err != nil {
		t.Fatal(err)
	}
	nine := raise(at(9))
	var stale *fence.StaleError
	if err := put(seven, "late"); !errors.As(err, &stale) || stale.Token != 7 || stale.Largest != 9 {
		t.Errorf("after the raise, before a write: %v, want a StaleError with 7 and 9", err)
	}
	again := raise(at(9)) // another goroutine of the same term
	if err := errors.Join(put(nine, "by 9"), put(again, "by 9 again")); err != nil {
		t.Error(err)
	}
	if _, err := etcdfence.Raise(soon(t), c, "f", at(8)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("Raise of a smaller token = %v", err)
	}
	restored := fence.Stamp{Name: "x", Token: 20, Origin: "etcd/b"}
	if _, err := etcdfence.Raise(soon(t), c, "f", restored); !errors.Is(err, fence.ErrOrigin) {
		t.Errorf("Raise of another origin = %v", err)
	}
	if _, err := c.Delete(soon(t), "f"); err != nil {
		t.Fatal(err)
	}
	if err := put(nine, "lost"); !errors.Is(err, fence.ErrNotRaised) {
		t.Errorf("with the fence removed: %v, want ErrNotRaised", err)
	}
	huge := raise(at(math.MaxUint64))
	if err := etcdfence.Adopt(soon(t), c, "f", restored); err != nil {
		t.Fatal(err)
	}
	if err := put(huge, "of the old cluster"); !errors.Is(err, fence.ErrOrigin) {
		t.Errorf("after Adopt: %v, want ErrOrigin", err)
	}
	if err := put(raise(restored), "end"); err != nil || value(t, c, "k") != "end" {
		t.Errorf("k = %q, %v", value(t, c, "k"), err)
	}
}

// A stamp that an operator wrote by hand is spelt as he likes: the leader raises over it, and is
// not locked out.
func TestAStampThatIsSpeltOtherwise(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t, etcdtest.Options{}))
	for _, text := range []string{`{"name": "x", "token": "9"}`, `{"token":"9","name":"x","origin":""}`} {
		if _, err := c.Put(soon(t), "f", text); err != nil {
			t.Fatal(err)
		}
		g, err := etcdfence.Raise(soon(t), c, "f", fence.Stamp{Name: "x", Token: 9})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Txn(soon(t)).Then(clientv3.OpPut("k", "v")).Commit(); err != nil {
			t.Errorf("over %s: %v", text, err)
		}
		if _, err := etcdfence.Raise(soon(t), c, "f", fence.Stamp{Name: "x", Token: 8}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("over %s, token 8: %v", text, err)
		}
	}
}

// What the guard costs: one operation of the server's limit.
func TestAGuardedTxnHasRoomForOneOperationLess(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t, etcdtest.Options{}))
	g, err := etcdfence.Raise(soon(t), c, "f", fence.Stamp{Name: "x", Token: 9})
	if err != nil {
		t.Fatal(err)
	}
	var ops []clientv3.Op
	for i := range 128 {
		ops = append(ops, clientv3.OpPut(fmt.Sprint("k", i), "v"))
	}
	if _, err := g.Txn(soon(t)).Then(ops[:127]...).Commit(); err != nil {
		t.Errorf("127 operations: %v", err)
	}
	if _, err := g.Txn(soon(t)).Then(ops...).Commit(); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("128 operations: %v, want etcd's own error", err)
	}
}

func TestManyRaises(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t, etcdtest.Options{}))
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := etcdfence.Raise(soon(t), c, "f", fence.Stamp{Name: "x", Token: primacy.Token(1 + i%8)})
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := value(t, c, "f"); got != `{"name":"x","token":"8"}` {
		t.Errorf("f = %s", got)
	}
}

func TestBadRegisters(t *testing.T) {
	t.Parallel()
	c := newClient(t, etcdtest.Start(t, etcdtest.Options{}))
	ok := fence.Stamp{Name: "x", Token: 1}
	for i, garbage := range []string{"", "7", "{", `{"name":"x","token":"0"}`, `{"token":"9"}`} {
		key := fmt.Sprint("f", i)
		if _, err := c.Put(soon(t), key, garbage); err != nil {
			t.Fatal(err)
		}
		if _, err := etcdfence.Raise(soon(t), c, key, ok); err == nil || !strings.Contains(err.Error(), "holds no stamp") {
			t.Errorf("Raise over %q = %v", garbage, err)
		}
		if value(t, c, key) != garbage {
			t.Errorf("%q was overwritten", garbage)
		}
	}
	if _, err := etcdfence.Raise(soon(t), c, "", ok); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
	if _, err := etcdfence.Raise(soon(t), c, "g", fence.Stamp{Name: "x"}); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("no token: %v", err)
	}
	if _, err := etcdfence.Raise(soon(t), c, "g", ok); err != nil {
		t.Fatal(err)
	}
	if _, err := etcdfence.Raise(soon(t), c, "g", fence.Stamp{Name: "y", Token: 9}); !errors.Is(err, primacy.ErrInvalid) {
		t.Errorf("another election's register: %v, want ErrInvalid", err)
	}
}
