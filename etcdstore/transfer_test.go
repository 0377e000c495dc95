package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// TestSimulatedTransferInALongLine: more claims stand between than one Txn can remove. All of
// them hear that they are gone.
func TestSimulatedTransferInALongLine(t *testing.T) {
	const between = 250
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l, crowd := granted(t, s, "a", time.Minute), granted(t, s, "b", time.Minute)
		p := entered(t, l, "x", "", 0)
		for i := range between {
			entered(t, crowd, "x", fmt.Sprint(i), 0)
		}
		other, _ := gatedAt(t, c, 1, 1)
		successor := granted(t, other, "c", time.Minute)
		q := entered(t, successor, "x", "", 0)
		turn := held(t, successor, q)
		time.Sleep(time.Second)
		before, begun := g.calls.Load(), time.Now()
		if err := l.Transfer(ending(t, 10*time.Second), p, q.Token); err != nil {
			t.Fatal(err)
		}
		if n := g.calls.Load() - before; n != 4 {
			t.Errorf("seed 1: %d requests, want a read and three Txns", n)
		}
		if took := (<-turn).Sub(begun); took > handOver {
			t.Errorf("seed 1: the successor held %v after the transfer, want %v at most", took, handOver)
		}
		if at := only(t, c, "primacy/x/"); uint64(at.CreateRevision) != q.Token {
			t.Errorf("seed 1: token %d stands, want the successor's, %d", at.CreateRevision, q.Token)
		}
		told := map[string]bool{}
		for ctx := ending(t, 30*time.Second); len(told) < between; {
			news, err := crowd.News(ctx)
			if err != nil {
				t.Fatalf("seed 1: News = %v after %d of %d", err, len(told), between)
			}
			for _, n := range news {
				told[n.Place.Seat] = n.Gone
			}
		}
	})
}

// handing makes a holder behind a gate at a member, and a successor elsewhere.
func handing(t *testing.T, c *etcdsim.Cluster, at int) (l *lease, g *gate, successor driver.Place) {
	t.Helper()
	s, g := gatedAt(t, c, 0, at)
	other, _ := gatedAt(t, c, 1, (at+1)%3)
	l = granted(t, s, "a", 10*time.Second)
	p := entered(t, l, "x", "", 0)
	between := granted(t, other, "b", time.Minute)
	entered(t, between, "x", "", 0)
	successor = entered(t, granted(t, other, "c", time.Minute), "x", "", 0)
	if !p.Held || successor.Held {
		t.Fatalf("seed 1: places = %+v, %+v", p, successor)
	}
	return l, g, successor
}

// handed returns the holder's claim as handing made it.
func handed(l *lease) driver.Place {
	l.seats.mu.Lock()
	defer l.seats.mu.Unlock()
	return l.seats.by[seatID{Name: "x"}].placeLocked()
}

// TestSimulatedTransferWhoseAnswerIsLost: the transfer is done and its caller does not hear so.
// The session moves to another lease meanwhile, and the old one ends before the claims are moved.
// That must not be taken for the loss of a claim. Told again, it is done.
func TestSimulatedTransferWhoseAnswerIsLost(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprint(moves), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				l, g, successor := handing(t, c, 0)
				p := handed(l)
				if err := renewedOnce(t, l); err != nil {
					t.Fatal(err)
				}
				g.set(func() {
					g.after = func(req any) {
						if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 1 {
							c.Hold(0, 0, false, true)
						}
					}
					g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
						if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 1 &&
							txn.Success[0].GetRequestTxn() != nil {
							c.Hold(0, 0, false, true)
						}
						return do(ctx)
					}
				})
				err := l.Transfer(ending(t, 500*time.Millisecond), p, successor.Token)
				if err == nil || driver.IsFinal(err) {
					t.Fatalf("seed 1: Transfer = %v, want an unknown etcdwire.Outcome", err)
				}
				g.set(func() { g.after, g.instead = nil, nil })
				c.Hold(0, 0, false, false)
				if at := only(t, c, "primacy/x/"); uint64(at.CreateRevision) != successor.Token {
					t.Fatal("seed 1: the transfer was not done, so this test shows nothing")
				}
				if moves {
					changeLeader(c)
					old, ended := l.attachment().lease, false
					g.set(func() {
						g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
							txn, ok := req.(*pb.TxnRequest)
							if ok && len(txn.Success) == 1 && txn.Success[0].GetRequestTxn() != nil && !ended {
								ended = true
								if err := c.Revoke(ctx, old); err != nil {
									t.Error(err)
								}
							}
							return do(ctx)
						}
					})
					if err := renewedOnce(t, l); err != nil {
						t.Fatalf("seed 1: Renew = %v, want the session to live on", err)
					}
					if !ended || l.attachment().lease == old {
						t.Fatal("seed 1: no claim was moved, so this test shows nothing")
					}
					g.set(func() { g.instead = nil })
				}
				if err := l.Transfer(ending(t, 10*time.Second), p, successor.Token); err != nil {
					t.Errorf("seed 1: Transfer again = %v, want nil", err)
				}
				if _, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: p.ID}); !isGone(err) {
					t.Errorf("seed 1: Claim under the ID that was handed over = %v, want ErrGone", err)
				}
			})
		})
	}
}

// TestSimulatedStragglerOfAClaimThatWasHandedOver: a claim is sent to a member that is frozen,
// enters through another one, and is handed over. When the member wakes up and carries out what
// it was sent, only the successor may stand.
func TestSimulatedStragglerOfAClaimThatWasHandedOver(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		at := another(c)
		s, g := gatedAt(t, c, 0, at)
		l := granted(t, s, "a", time.Minute)
		other := claimed(t, l, "other")
		sent := g.capture(s.lineDir("x") + l.ID())
		c.Freeze(at)
		p := entered(t, l, "x", "", 0)
		c.Thaw(at)
		far, _ := gatedAt(t, c, 1, 0)
		successor := entered(t, granted(t, far, "b", time.Minute), "x", "", 0)
		if err := l.Transfer(ending(t, 10*time.Second), p, successor.Token); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if kv := only(t, c, "primacy/x/"); uint64(kv.CreateRevision) != successor.Token {
			t.Errorf("seed 1: token %d stands, want the successor's, %d", kv.CreateRevision, successor.Token)
		}
		if err := l.Update(ending(t, 10*time.Second), other, []byte("still here")); err != nil {
			t.Errorf("seed 1: the session's other claim: %v", err)
		}
		if again := claimed(t, l, "x"); again.Held {
			t.Errorf("seed 1: Claim after the transfer = %+v, want it behind the successor", etcdwire.RetryPause)
		}
	})
}

// TestSimulatedTransferAfterAMove: the holder's claim hangs on another lease than it entered
// under, and is handed over all the same.
func TestSimulatedTransferAfterAMove(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		l, _, successor := handing(t, c, 0)
		p := handed(l)
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		old := l.attachment().lease
		changeLeader(c)
		if err := renewedOnce(t, l); err != nil || l.attachment().lease == old {
			t.Fatalf("seed 1: Renew = %v, and the session moved: %v", err, l.attachment().lease != old)
		}
		if err := l.Transfer(ending(t, 10*time.Second), p, successor.Token); err != nil {
			t.Fatal(err)
		}
		if err := renewedOnce(t, l); err != nil {
			t.Errorf("seed 1: Renew after the transfer = %v", err)
		}
	})
}

// TestSimulatedTransferThatFailedIsWatched: a transfer does not reach etcd. The holder goes on,
// and is told when its claim is deleted by hand.
func TestSimulatedTransferThatFailedIsWatched(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		l, g, successor := handing(t, c, 0)
		p := handed(l)
		told := newsOf(t, l)
		time.Sleep(time.Second)
		g.fails(func(req any) bool {
			txn, ok := req.(*pb.TxnRequest)
			return ok && len(txn.Success) > 1 && len(txn.Compare) == 2
		})
		if err := l.Transfer(ending(t, 5*time.Second), p, successor.Token); err == nil || driver.IsFinal(err) {
			t.Fatalf("seed 1: Transfer = %v, want an unknown etcdwire.Outcome", err)
		}
		if err := c.Delete(ending(t, 10*time.Second), l.keyOf(p), int64(p.Token)); err != nil {
			t.Fatal(err)
		}
		if n := <-told; !n.Gone || n.Place.Token != p.Token {
			t.Errorf("seed 1: News = %+v, want the claim gone", n)
		}
		if err := l.Transfer(ending(t, 5*time.Second), p, successor.Token); !isGone(err) {
			t.Errorf("seed 1: Transfer of what is gone = %v, want ErrGone", err)
		}
	})
}

// TestSimulatedTransferToOneself is refused: a session does not hand over to itself.
func TestSimulatedTransferToOneself(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p, q := entered(t, l, "x", "", 0), entered(t, l, "x", "2", 0)
		if err := l.Transfer(ending(t, 10*time.Second), p, q.Token); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("seed 1: Transfer = %v, want ErrRefused", err)
		}
		if got := len(c.Keys("primacy/x/")); got != 2 {
			t.Errorf("seed 1: %d claims stand, want 2", got)
		}
	})
}

// hands says whether req hands a claim over.
func hands(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && len(txn.Compare) == 2 && len(txn.Success) == 2 && txn.Success[0].GetRequestTxn() != nil
}

// TestSimulatedTransferIsNoNews: the claim's end is pushed to the session long before the answer
// to the transfer comes.
func TestSimulatedTransferIsNoNews(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		l, g, successor := handing(t, c, 0)
		ctx := ending(t, 10*time.Second)
		quiet := make(chan struct{})
		go func() {
			defer close(quiet)
			if news, err := l.News(ctx); err == nil {
				t.Errorf("seed 1: News = %+v, want none", news)
			}
		}()
		time.Sleep(time.Second)
		g.set(func() {
			g.after = func(req any) {
				if hands(req) {
					time.Sleep(time.Second)
				}
			}
		})
		if err := l.Transfer(ending(t, 5*time.Second), handed(l), successor.Token); err != nil {
			t.Fatal(err)
		}
		<-quiet
	})
}

// TestSimulatedTransferThatFailsHidesNothing: the claim is deleted by hand while a transfer is
// under way, which then fails. The session looks again: the push has come already.
func TestSimulatedTransferThatFailsHidesNothing(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		l, g, successor := handing(t, c, 0)
		p := handed(l)
		told := newsOf(t, l)
		time.Sleep(time.Second)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if !hands(req) {
					return do(ctx)
				}
				if err := c.Delete(ctx, l.keyOf(p), int64(p.Token)); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				return rpctypes.ErrGRPCRequestTooManyRequests
			}
		})
		if err := l.Transfer(ending(t, 5*time.Second), p, successor.Token); err == nil || driver.IsFinal(err) {
			t.Fatalf("seed 1: Transfer = %v, want an unknown etcdwire.Outcome", err)
		}
		begun := time.Now()
		if n, took := <-told, time.Since(begun); !n.Gone || n.Place.Token != p.Token || took > handOver {
			t.Errorf("seed 1: News = %+v after %v, want the claim gone within %v", n, took, handOver)
		}
	})
}

// TestSimulatedTransferWhoseHeirLeaves: the successor goes after the holder has read the line. Then
// nobody is removed.
func TestSimulatedTransferWhoseHeirLeaves(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		l, g, successor := handing(t, c, 0)
		p := handed(l)
		g.set(func() {
			g.before = func(req any) {
				if !hands(req) {
					return
				}
				for _, kv := range c.Keys("primacy/x/") {
					if uint64(kv.CreateRevision) == successor.Token {
						if err := c.Delete(ending(t, 5*time.Second), string(kv.Key), kv.CreateRevision); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
		if err := l.Transfer(ending(t, 10*time.Second), p, successor.Token); !errors.Is(err, driver.ErrNoSuccessor) {
			t.Errorf("seed 1: Transfer = %v, want ErrNoSuccessor", err)
		}
		if keys := c.Keys("primacy/x/"); len(keys) != 2 || uint64(min(keys[0].CreateRevision,
			keys[1].CreateRevision)) != p.Token {
			t.Errorf("seed 1: %d claims stand, want the holder and the one between", len(keys))
		}
	})
}
