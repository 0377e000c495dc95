package etcdstore

import (
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedAskOfAClaimThatMoves: after the read of the claim, and before the request is put,
// etcd's leader changes, the session moves, and the lease that the claim was on ends. The term goes
// on, and hears of the request. Where the claim ends instead, Ask says so.
func TestSimulatedAskOfAClaimThatMoves(t *testing.T) {
	for _, ends := range []bool{false, true} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			s, _ := gatedAt(t, c, 0, 0)
			asker, g := gatedAt(t, c, 1, 0)
			l := granted(t, s, "a", 10*time.Second)
			p := claimed(t, l, "x")
			if err := renewedOnce(t, l); err != nil {
				t.Fatal(err)
			}
			was := l.attachment().lease
			var once sync.Once
			asks := askKey(l.recordKey, "x")
			g.set(func() {
				g.before = func(req any) {
					if !puts(req, asks) {
						return
					}
					once.Do(func() {
						if !ends {
							changeLeader(c)
							if err := renewedOnce(t, l); err != nil {
								t.Error(err)
							}
						}
						if err := c.Revoke(ending(t, 10*time.Second), was); err != nil {
							t.Error(err)
						}
					})
				}
			})
			err := asker.Ask(ending(t, time.Minute), "x", driver.Request{Token: p.Token, By: "me"})
			if ends {
				if !isGone(err) {
					t.Errorf("seed 1: Ask = %v of a claim that has ended, want ErrGone", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("seed 1: Ask = %v, though the term goes on", err)
			}
			if kv := only(t, c, asks); kv.Lease != l.attachment().lease {
				t.Errorf("seed 1: the request is on lease %x, the claim on %x", kv.Lease, l.attachment().lease)
			}
		})
	}
}

// TestSimulatedAskWhereEtcdKeepsSayingThatThereIsNoLease: the claim stands on it all the same. Ask
// does not ask for ever, and does not say that the claim is gone.
func TestSimulatedAskWhereEtcdKeepsSayingThatThereIsNoLease(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		asker, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "a", 10*time.Second)
		p := claimed(t, l, "x")
		asks := askKey(l.recordKey, "x")
		g.set(func() {
			g.before = func(req any) {
				if txn, ok := req.(*pb.TxnRequest); ok && puts(req, asks) {
					txn.Success[0].GetRequestPut().Lease = 1 // which nobody granted
				}
			}
		})
		before := g.calls.Load()
		err := asker.Ask(ending(t, time.Minute), "x", driver.Request{Token: p.Token, By: "me"})
		if n := g.calls.Load() - before; err == nil || driver.IsFinal(err) || n != 4 {
			t.Errorf("seed 1: Ask = %v after %d requests, want an unknown outcome after two tries", err, n)
		}
	})
}
