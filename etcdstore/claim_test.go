package etcdstore

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// simulated runs do in a bubble with a cluster that has a leader. One seed is enough: the gates
// below make what is bad luck elsewhere.
func simulated(t *testing.T, do func(t *testing.T, c *etcdsim.Cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := etcdsim.Start(etcdsim.Options{Seed: 1})
		t.Cleanup(func() {
			c.Heal()
			c.Close()
			synctest.Wait()
		})
		time.Sleep(5 * time.Second)
		do(t, c)
	})
}

// gatedAt returns a store behind a gate, which speaks to the cluster as the client of that
// number. It begins at member first.
func gatedAt(t *testing.T, c *etcdsim.Cluster, client, first int) (*Store, *gate) {
	t.Helper()
	g := &gate{}
	eps := c.Endpoints()
	s, err := New(ending(t, 20*time.Second), simClient(t, c, client, append(eps[first:], eps[:first]...),
		grpc.WithChainUnaryInterceptor(g.intercept)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, g
}

func simClient(t *testing.T, c *etcdsim.Cluster, client int, endpoints []string, opts ...grpc.DialOption,
) *clientv3.Client {
	t.Helper()
	cl, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialOptions: append(opts,
		c.Dialer(client))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// another returns a member that does not lead.
func another(c *etcdsim.Cluster) int { return (c.Leader() + 1) % 3 }

// changeLeader makes another member etcd's leader and waits until all know it.
func changeLeader(c *etcdsim.Cluster) {
	for !c.MoveLeader(another(c)) {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second)
}

// only returns the one key under prefix.
func only(t *testing.T, c *etcdsim.Cluster, prefix string) *mvccpb.KeyValue {
	t.Helper()
	keys := c.Keys(prefix)
	if len(keys) != 1 {
		t.Fatalf("seed 1: %d keys under %s, want one", len(keys), prefix)
	}
	return keys[0]
}

// settles says whether req moves claims to the lease that their session's record has.
func settles(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && len(txn.Success) > 0 && txn.Success[0].GetRequestTxn() != nil
}

// fails has those calls fail that match, until it is told otherwise. They do not reach etcd.
func (g *gate) fails(matches func(req any) bool) {
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			if matches(req) {
				return rpctypes.ErrGRPCRequestTooManyRequests
			}
			return do(ctx)
		}
	})
}

// captured keeps the first call that matches.
type captured struct {
	mu  sync.Mutex
	txn *pb.TxnRequest
}

// capture sees to it that the first Txn that puts key is kept.
func (g *gate) capture(key string) *captured {
	k := &captured{}
	g.set(func() {
		g.before = func(req any) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.txn == nil && puts(req, key) {
				k.txn = req.(*pb.TxnRequest)
			}
		}
	})
	return k
}

// arrive has the call carried out now, as a member does in which it lay until it woke up.
func (k *captured) arrive(t *testing.T, c *etcdsim.Cluster) {
	t.Helper()
	k.mu.Lock()
	txn := k.txn
	k.mu.Unlock()
	if txn == nil {
		t.Fatal("seed 1: no put was on its way")
	}
	if _, err := pb.NewKVClient(simClient(t, c, 9, c.Endpoints()).ActiveConnection()).Txn(ending(t, 10*time.Second),
		txn); err != nil {
		t.Fatal(err)
	}
}

// TestSimulatedMoveThatStopsHalfway: after a change of etcd's leader the session's record is on a
// new lease, and the claim does not follow because one request fails. No later renewal may be
// accepted before it has: the lease that it hangs on is renewed no more.
func TestSimulatedMoveThatStopsHalfway(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 10*time.Second)
		claimed(t, l, "x")
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		changeLeader(c)
		g.fails(settles)
		if err := l.Renew(ending(t, 2*time.Second)); err == nil {
			t.Error("seed 1: Renew = nil, though the claim could not be moved")
		}
		if only(t, c, "primacy/x/").Lease == only(t, c, l.recordKey).Lease {
			t.Fatal("seed 1: the claim has moved, so this test shows nothing")
		}
		g.set(func() { g.instead = nil })
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		if x, rec := only(t, c, "primacy/x/").Lease, only(t, c, l.recordKey).Lease; x != rec {
			t.Errorf("seed 1: a renewal was accepted, and the claim hangs on lease %x, the record on %x", x, rec)
		}
	})
}

// TestSimulatedMoveTakesAClaimOfUnknownOutcome: a claim stands and its session has not heard so
// when the session moves to another lease. The claim must move too: found later, it is taken for
// one that is renewed.
func TestSimulatedMoveTakesAClaimOfUnknownOutcome(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 10*time.Second)
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		x := driver.Claim{Name: "x", ID: "x1"}
		c.Hold(0, 0, false, true) // the answer does not come
		if _, err := l.Claim(ending(t, 500*time.Millisecond), x); err == nil {
			t.Fatal("seed 1: Claim = nil without an answer")
		}
		c.Hold(0, 0, false, false)
		stands, old := only(t, c, "primacy/x/"), only(t, c, l.recordKey).Lease
		changeLeader(c)
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		rec := only(t, c, l.recordKey).Lease
		if rec == old {
			t.Fatal("seed 1: the session has not moved, so this test shows nothing")
		}
		if at := only(t, c, "primacy/x/").Lease; at != rec {
			t.Errorf("seed 1: the claim hangs on lease %x, the record on %x", at, rec)
		}
		p, err := l.Claim(ending(t, 5*time.Second), x)
		if err != nil || p[0].Token != uint64(stands.CreateRevision) || !p[0].Held {
			t.Errorf("seed 1: Claim again = %+v, %v, want token %d held", p, err, stands.CreateRevision)
		}
	})
}

// TestSimulatedStragglerOfAClaimThatStood: a claim is sent to a member that is frozen, and then
// enters through another one. It is released. When the member wakes up and carries out what it
// was sent, nothing may stand.
func TestSimulatedStragglerOfAClaimThatStood(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		at := another(c)
		s, g := gatedAt(t, c, 0, at)
		l := granted(t, s, "a", time.Minute)
		other := claimed(t, l, "other")
		sent := g.capture(s.lineDir("x") + l.ID())
		c.Freeze(at)
		p := claimed(t, l, "x")
		if !p.Held {
			t.Fatalf("seed 1: Claim = %+v, want it held", p)
		}
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		c.Thaw(at)
		sent.arrive(t, c)
		if keys := c.Keys("primacy/x/"); len(keys) > 0 {
			t.Errorf("seed 1: after Release a ghost stands under token %d", keys[0].CreateRevision)
		}
		if err := l.Update(ending(t, 10*time.Second), other, []byte("still here")); err != nil {
			t.Errorf("seed 1: the session's other claim: %v", err)
		}
	})
}

// TestSimulatedRefusalAfterAnUnknownOutcome: the first attempt at a claim is carried out and its
// answer lost, the second is refused: somebody has just taken the right away. Who is told that a
// claim was refused does not release it, so none may stand, nor come later.
func TestSimulatedRefusalAfterAnUnknownOutcome(t *testing.T) {
	for _, executed := range []bool{true, false} {
		t.Run(strconv.FormatBool(executed), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				s, g := gatedAt(t, c, 0, 0)
				l := granted(t, s, "a", time.Minute)
				key := s.lineDir("x") + l.ID()
				sent := g.capture(key)
				tries := 0
				g.set(func() {
					g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
						if !puts(req, key) {
							return do(ctx)
						}
						if tries++; tries > 1 {
							return rpctypes.ErrGRPCPermissionDenied
						}
						return do(ctx)
					}
				})
				c.Hold(0, 0, !executed, true) // the request does not arrive, or the answer does not
				_, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: "x1"})
				if !errors.Is(err, driver.ErrRefused) || tries != 2 {
					t.Fatalf("seed 1: Claim = %v in %d attempts, want ErrRefused in the second", err, tries)
				}
				if !executed {
					sent.arrive(t, c)
				}
				if keys := c.Keys("primacy/x/"); len(keys) > 0 {
					t.Errorf("seed 1: executed %v: a claim that was refused stands under token %d", executed,
						keys[0].CreateRevision)
				}
			})
		})
	}
}

// TestSimulatedTriesAreTakenBack: of several claims in one call one is taken. Those with Try that
// had entered before it are taken out again, also where a first attempt at them may still be
// under way.
func TestSimulatedTriesAreTakenBack(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		at := another(c)
		other, _ := gatedAt(t, c, 1, 0)
		claimed(t, granted(t, other, "b", time.Minute), "taken")
		s, g := gatedAt(t, c, 0, at)
		l := granted(t, s, "a", time.Minute)
		sent := g.capture(s.lineDir("x") + l.ID())
		c.Freeze(at)
		_, err := l.Claim(ending(t, 15*time.Second), driver.Claim{Name: "x", ID: "x1", Try: true},
			driver.Claim{Name: "taken", ID: "y1", Try: true})
		if !errors.Is(err, driver.ErrTaken) {
			t.Fatalf("seed 1: Claim = %v, want ErrTaken", err)
		}
		c.Thaw(at)
		sent.arrive(t, c)
		if keys := c.Keys("primacy/x/"); len(keys) > 0 {
			t.Errorf("seed 1: after ErrTaken a claim of the same call stands under token %d", keys[0].CreateRevision)
		}
	})
}

// A release that is sent again, or comes late, meets a later claim under the same key. It does not
// take that one out of the line.
func TestSimulatedALateReleaseTakesNoLaterClaim(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l, ctx := granted(t, s, "late", time.Minute), ending(t, time.Minute)
		first := claimed(t, l, "x")
		if err := l.Release(ctx, first); err != nil {
			t.Fatal(err)
		}
		again, err := l.Claim(ctx, driver.Claim{Name: "x", ID: "x-2"})
		if err != nil {
			t.Fatal(err)
		}
		second := again[0]
		if l.keyOf(first) != l.keyOf(second) {
			t.Fatalf("other keys: %q, %q", l.keyOf(first), l.keyOf(second))
		}
		if err := l.Release(ctx, first); err != nil {
			t.Error(err)
		}
		lines, err := s.Lines(ctx, "x")
		if err != nil || len(lines) != 1 || lines[0].Holder == nil || lines[0].Holder.Token != second.Token {
			t.Errorf("after the second release of %v: %+v, %v; want the claim %v", first, lines, err, second)
		}
	})
}
