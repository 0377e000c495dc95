package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// What etcd does as it fills up: its applier carries a Txn out and answers then that there is no
// space.

// TestSimulatedClaimAsEtcdFillsUp: the claim is released by its ID, and Release says that nothing
// is left.
func TestSimulatedClaimAsEtcdFillsUp(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		c.Fill(true, func(txn *pb.TxnRequest) bool { return puts(txn, s.lineDir("x")+l.ID()) })
		_, err := l.Claim(ending(t, 5*time.Second), driver.Claim{Name: "x", ID: "x-1"})
		if err == nil || driver.IsFinal(err) {
			t.Fatalf("seed 1: Claim = %v, want an unknown etcdwire.Outcome", err)
		}
		c.Fill(false, nil)
		if err := l.Release(ending(t, 5*time.Second), driver.Place{Name: "x", ID: "x-1"}); err != nil {
			t.Fatal(err)
		}
		if keys := c.Keys("primacy/x/"); len(keys) > 0 {
			t.Errorf("seed 1: after Release = nil a ghost stands at %s", keys[0].Key)
		}
	})
}

// TestSimulatedBatchAsEtcdFillsUp: several that went together were done, and are sent again in
// halves. Each finds its own key, and knows it.
func TestSimulatedBatchAsEtcdFillsUp(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		first := map[string]int64{}
		c.Fill(true, func(txn *pb.TxnRequest) bool { return nested(txn) == 4 })
		open := jam(t, l, g, func(ctx context.Context, req any, do func(context.Context) error) error {
			err := do(ctx)
			if etcdwire.NoSpace(err) && len(first) == 0 {
				for _, kv := range c.Keys("primacy/x") {
					first[string(kv.Key)] = kv.CreateRevision
				}
			}
			return err
		})
		all := claimingAll(t, l, "x", 4)
		open()
		for _, p := range mustStand(t, all) {
			if at := first[s.lineDir(p.Name)+l.ID()]; at != int64(p.Token) {
				t.Errorf("seed 1: %s entered at %d, and stands under %d: removed by ourselves, behind whoever came meanwhile", p.Name, at, p.Token)
			}
		}
	})
}

// TestSimulatedADoubtfulLeaderResignsWhileEtcdIsFull: the first answer to its claim was lost, and
// now etcd takes no put. Its key goes at once and the next one holds; that it is given up for
// good is told once the fence went through.
func TestSimulatedADoubtfulLeaderResignsWhileEtcdIsFull(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		other, _ := gatedAt(t, c, 1, 0)
		l := granted(t, s, "a", time.Minute)
		sent := g.capture(s.lineDir("x") + l.ID())
		c.Hold(0, 0, false, true) // the first answer is lost
		p := claimed(t, l, "x")
		c.Hold(0, 0, false, false)
		next := granted(t, other, "b", time.Minute)
		q := claimed(t, next, "x")
		g.set(func() { g.before = nil })
		c.Fill(false, func(txn *pb.TxnRequest) bool { return puts(txn, l.recordKey) })
		if err := l.Release(ending(t, 5*time.Second), p); !etcdwire.NoSpace(err) || driver.IsFinal(err) {
			t.Errorf("seed 1: Release = %v, want etcd's error: a put of the claim may be under way", err)
		}
		if _, err := drivertest.Await(ending(t, 5*time.Second), next, q); err != nil {
			t.Fatalf("seed 1: nobody can follow while etcd is full: %v", err)
		}
		sent.arrive(t, c) // what was under way enters, behind
		if n := len(tokensOf(c)); n != 2 {
			t.Fatalf("seed 1: %d claims stand, want the straggler's too", n)
		}
		c.Fill(false, nil)
		if err := l.Release(ending(t, 5*time.Second), p); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if got := tokensOf(c); len(got) != 1 || got[0] != q.Token {
			t.Errorf("seed 1: tokens %v, want that of the next alone", got)
		}
	})
}

// TestSimulatedADoubtfulLeaderHandsOverWhileEtcdIsFull: the first answer to its claim was lost, so
// a hand-over takes a put, which etcd refuses. Transfer says so once and for all, and a release
// lets the next one hold. Late: etcd has carried the hand-over out.
func TestSimulatedADoubtfulLeaderHandsOverWhileEtcdIsFull(t *testing.T) {
	for _, late := range []bool{false, true} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			s, _ := gatedAt(t, c, 0, 0)
			other, _ := gatedAt(t, c, 1, 0)
			l := granted(t, s, "a", time.Minute)
			c.Hold(0, 0, false, true) // the first answer is lost
			p := claimed(t, l, "x")
			c.Hold(0, 0, false, false)
			next := granted(t, other, "b", time.Minute)
			q := claimed(t, next, "x")
			c.Fill(late, func(txn *pb.TxnRequest) bool { return puts(txn, l.recordKey) })
			if err := l.Transfer(ending(t, 5*time.Second), p, q.Token); !errors.Is(err, driver.ErrRefused) {
				t.Errorf("seed 1: late %v: Transfer = %v, want ErrRefused: it would be tried again for ever", late, err)
			}
			if err := l.Release(ending(t, 5*time.Second), p); !etcdwire.NoSpace(err) {
				t.Errorf("seed 1: late %v: Release = %v, want etcd's error: a put may be under way", late, err)
			}
			if _, err := drivertest.Await(ending(t, 5*time.Second), next, q); err != nil {
				t.Errorf("seed 1: late %v: nobody can follow while etcd is full: %v", late, err)
			}
			c.Fill(false, nil)
			if err := l.Release(ending(t, 5*time.Second), p); err != nil {
				t.Error(err)
			}
			if got := tokensOf(c); len(got) != 1 || got[0] != q.Token {
				t.Errorf("seed 1: late %v: tokens %v, want that of the next alone", late, got)
			}
		})
	}
}
