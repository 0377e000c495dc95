package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// prefixedAt returns a store with those options, on a simulated cluster.
func prefixedAt(t *testing.T, c *etcdsim.Cluster, client int, o Options) (*Store, *gate) {
	t.Helper()
	g := &gate{}
	s, err := New(ending(t, 20*time.Second), simClient(t, c, client, c.Endpoints(),
		grpc.WithChainUnaryInterceptor(g.intercept)), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, g
}

// TestSimulatedWatchSparesAnotherPrefix: a store's prefix is another one's and one of its names.
// Who waits for that name stands behind a claim of the inner store, whose heartbeat it would look
// for in the wrong place: the holder lives, and must not be ended.
func TestSimulatedWatchSparesAnotherPrefix(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		outer, _ := prefixedAt(t, c, 0, Options{Prefix: "primacy/"})
		inner, _ := prefixedAt(t, c, 1, Options{Prefix: "primacy/billing/"})
		inner2, _ := prefixedAt(t, c, 2, Options{Prefix: "primacy/billing/"})
		holder := granted(t, inner, "holder", time.Second)
		k := keep(t, holder)
		claimed(t, holder, "job")
		w := granted(t, outer, "outer", time.Minute)
		q := claimed(t, w, "billing") // right behind the holder's claim, as this store sees it
		next := granted(t, inner2, "next", time.Minute)
		p := claimed(t, next, "job")
		at := held(t, next, p)
		wctx, stop := context.WithCancel(context.Background())
		defer stop()
		go func() { _, _ = drivertest.Await(wctx, w, q) }()
		time.Sleep(5 * time.Second)
		if len(at) > 0 {
			won, last := <-at, k.stop()
			if trusted := last.Add(holder.ttl * 9 / 10); won.Before(trusted) {
				t.Errorf("seed 1: the next in line holds %v before the holder's deadline; Renew now: %v",
					trusted.Sub(won), holder.Renew(ending(t, time.Second)))
			}
			return
		}
		k.stop()
		<-at
	})
}

// TestSimulatedWatchGoesOnWhileClaimsAreLeft: more claims are waited for than one Txn ends, and
// the dead session's lease cannot be revoked.
func TestSimulatedWatchGoesOnWhileClaimsAreLeft(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, g := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		waiter := granted(t, b, "b", time.Minute)
		var at []<-chan time.Time
		for i := range 60 {
			name := fmt.Sprintf("x%d", i)
			claimed(t, holder, name)
			at = append(at, held(t, waiter, claimed(t, waiter, name)))
		}
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if _, ok := req.(*pb.LeaseRevokeRequest); ok {
					return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
				}
				return do(ctx)
			}
		})
		time.Sleep(2 * time.Second)
		last := k.stop()
		var worst time.Duration
		for i := range at {
			worst = max(worst, (<-at[i]).Sub(last))
		}
		if worst > 2*short { // a new watch would take another silence
			t.Errorf("seed 1: the last waiter held %v after the last heartbeat", worst)
		}
	})
}

// TestSimulatedTwoOfFiveFrozen: two members of five are frozen, the one that a session speaks to
// and the one that it asks beside it.
func TestSimulatedTwoOfFiveFrozen(t *testing.T) {
	for _, ttl := range []time.Duration{short, time.Second, 1900 * time.Millisecond} {
		t.Run(ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := etcdsim.Start(etcdsim.Options{Seed: 1, Members: 5})
				t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
				time.Sleep(5 * time.Second)
				x := (c.Leader() + 1) % 5
				y := (x + 1) % 5
				s, _ := gatedAt(t, c, 0, x)
				l := granted(t, s, "a", ttl)
				claimed(t, l, "n")
				k := keep(t, l)
				time.Sleep(2 * time.Second)
				c.Freeze(x)
				c.Freeze(y)
				time.Sleep(10 * time.Second)
				k.stop()
				t.Logf("ttl %v: worst gap between accepted renewals: %v", ttl, time.Duration(k.gap.Load()))
				if gap := time.Duration(k.gap.Load()); gap > ttl*9/10 {
					t.Errorf("seed 1: ttl %v: no renewal was accepted for %v", ttl, gap)
				}
			})
		})
	}
}

// TestSimulatedTriesAfterACrash: nobody waits behind a holder that falls silent, and somebody
// tries again and again.
func TestSimulatedTriesAfterACrash(t *testing.T) {
	t.Parallel()
	for _, o := range []struct {
		hb  bool
		ttl time.Duration
	}{{false, short}, {true, 5 * time.Second}, {false, 5 * time.Second}, {true, 30 * time.Second}, {false,
		30 * time.Second}} {
		t.Run(fmt.Sprint(o), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				a, _ := prefixedAt(t, c, 0, Options{Heartbeat: o.hb})
				b, _ := prefixedAt(t, c, 1, Options{Heartbeat: o.hb})
				holder := granted(t, a, "a", o.ttl)
				k := keep(t, holder)
				claimed(t, holder, "x")
				time.Sleep(2 * o.ttl)
				last := k.stop()
				w := granted(t, b, "b", 250*time.Second/4)
				for i := 0; ; i++ {
					_, err := w.Claim(ending(t, 5*time.Second), driver.Claim{Name: "x", ID: fmt.Sprint(i), Try: true})
					if err == nil {
						break
					}
					if !errors.Is(err, driver.ErrTaken) {
						t.Fatal(err)
					}
					_ = w.Renew(ending(t, time.Second))
					time.Sleep(50 * time.Millisecond)
				}
				t.Logf("heartbeat option %v, ttl %v: TryLock succeeded %v after the last renewal", o.hb, o.ttl,
					time.Since(last))
				if time.Since(last) > 2*o.ttl+2*time.Second {
					t.Errorf("seed 1: ttl %v: Try succeeded only after %v", o.ttl, time.Since(last))
				}
			})
		})
	}
}

// TestSimulatedMuteMemberIsLeft: the member that a session asks first is frozen, and another one
// answers its heartbeats. Everybody moves on before a longer call to the frozen one would have
// found out.
func TestSimulatedMuteMemberIsLeft(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a := another(c)
		s, _ := gatedAt(t, c, 0, a)
		l := granted(t, s, "a", short)
		k := keep(t, l)
		time.Sleep(2 * time.Second)
		l.heartbeat.mu.Lock()
		l.heartbeat.underWay = true // no other call blames it
		l.heartbeat.mu.Unlock()
		member, err := s.wire.Members.Current()
		if err != nil {
			t.Fatal(err)
		}
		c.Freeze(a)
		time.Sleep(time.Second)
		if !s.wire.Members.FailedOver(member) {
			t.Error("seed 1: after a second of silence the member is still the one to ask")
		}
		c.Thaw(a)
		k.stop()
	})
}
