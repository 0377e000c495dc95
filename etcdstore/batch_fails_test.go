package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// TestSimulatedBatchWithABadOne: etcd refuses what goes together because of one. Only that one
// may fail.
func TestSimulatedBatchWithABadOne(t *testing.T) {
	for _, bad := range []error{rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCRequestTooLarge,
		rpctypes.ErrGRPCNoSpace} {
		t.Run(bad.Error(), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				s, g := gatedAt(t, c, 0, 0)
				l := granted(t, s, "a", time.Minute)
				open := jam(t, l, g, func(ctx context.Context, req any, do func(context.Context) error) error {
					if puts(req, s.lineDir("bad")+l.ID()) {
						return bad
					}
					return do(ctx)
				})
				all := claimingAll(t, l, "x", 9)
				guilty := claiming(ending(t, 20*time.Second), l, "bad")
				open()
				mustStand(t, all)
				f := <-guilty
				if f.err == nil || errors.Is(f.err, driver.ErrRefused) != (bad != rpctypes.ErrGRPCNoSpace) ||
					!strings.Contains(f.err.Error(), `"bad"`) {
					t.Errorf("seed 1: Claim = %v, want the error of %v by its name", f.err, bad)
				}
			})
		})
	}
}

// TestSimulatedBatchUnderADeadLease: the session has ended when claims and releases arrive
// together. The claims are told so, and the releases go through. Again where etcd knows the
// session's record and not its lease: it refuses all that goes together.
func TestSimulatedBatchUnderADeadLease(t *testing.T) {
	for _, record := range []bool{false, true} {
		t.Run(fmt.Sprint(record), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				s, g := gatedAt(t, c, 0, 0)
				l := granted(t, s, "a", time.Minute)
				p, q := claimed(t, l, "p"), claimed(t, l, "q")
				open := jam(t, l, g, func(ctx context.Context, req any, do func(context.Context) error) error {
					if record && (puts(req, s.lineDir("x0")+l.ID()) || puts(req, s.lineDir("x1")+l.ID())) {
						return rpctypes.ErrGRPCLeaseNotFound
					}
					return do(ctx)
				})
				all := claimingAll(t, l, "x", 2)
				released := make(chan error, 2)
				for _, p := range []driver.Place{p, q} {
					go func() { released <- l.Release(ending(t, 20*time.Second), p) }()
				}
				synctest.Wait()
				if !record {
					if err := c.Revoke(ending(t, 5*time.Second), l.attachment().lease); err != nil {
						t.Fatal(err)
					}
				}
				g.set(func() { g.before = nil })
				open()
				for range 2 {
					if err := <-released; err != nil {
						t.Errorf("seed 1: Release = %v beside claims of a dead lease", err)
					}
				}
				for _, f := range all {
					if got := <-f; !isGone(got.err) {
						t.Errorf("seed 1: Claim = %v, want ErrGone", got.err)
					}
				}
				if keys := append(c.Keys("primacy/p/"), c.Keys("primacy/q/")...); len(keys) > 0 {
					t.Errorf("seed 1: %d claims stand after their release", len(keys))
				}
			})
		})
	}
}

// TestSimulatedBatchUnderASmallLimit: a server that takes few operations in one Txn. Nothing is
// lost, and the limit is learnt.
func TestSimulatedBatchUnderASmallLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := etcdsim.Start(etcdsim.Options{Seed: 1, TxnOps: 16})
		t.Cleanup(func() {
			c.Close()
			synctest.Wait()
		})
		time.Sleep(5 * time.Second)
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		var last int64
		for _, x := range []string{"x", "y"} {
			open := jam(t, l, g, nil)
			before := g.calls.Load()
			all := claimingAll(t, l, x, 200)
			open()
			mustStand(t, all)
			last = g.calls.Load() - before
		}
		if last > 200/5 {
			t.Errorf("seed 1: 200 claims went in %d requests once the limit was known", last)
		}
	})
}

// TestSimulatedBatchAfterClose: who waits for others when the store is closed is told at once.
func TestSimulatedBatchAfterClose(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		gate := make(chan struct{})
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				<-gate
				return do(ctx)
			}
		})
		var jammed []<-chan told
		for i := range maxAlone {
			jammed = append(jammed, claiming(context.Background(), l, fmt.Sprintf("jam%d", i)))
		}
		x := claiming(context.Background(), l, "x")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if f := <-x; !errors.Is(f.err, etcdwire.ErrClosed) {
			t.Errorf("seed 1: Claim = %v, want %v", f.err, etcdwire.ErrClosed)
		}
		close(gate)
		for _, f := range jammed {
			if got := <-f; got.err == nil {
				t.Error("seed 1: Claim = nil on a store that was closed")
			}
		}
	})
}

// TestSimulatedBatchBehindSilence: all that is under way is not answered. Who comes a while later
// does not wait for it, and takes those along who do.
func TestSimulatedBatchBehindSilence(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		open := jam(t, l, g, nil)
		defer open()
		x := claiming(ending(t, 20*time.Second), l, "x")
		time.Sleep(2 * etcdwire.BlameAfter)
		begun := time.Now()
		y := claiming(ending(t, 20*time.Second), l, "y")
		mustStand(t, []<-chan told{x, y})
		if took := time.Since(begun); took > etcdwire.BlameAfter {
			t.Errorf("seed 1: they took %v behind requests that nobody answers", took)
		}
	})
}

// TestSimulatedBatchLeavesASilentMember: claims that travel in a batch have deadlines shorter
// than the limit of one attempt. The member that is silent until then is left, as it is where a
// claim goes alone.
func TestSimulatedBatchLeavesASilentMember(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			c := etcdsim.Start(etcdsim.Options{Seed: seed})
			t.Cleanup(func() { c.Heal(); c.Close(); synctest.Wait() })
			time.Sleep(5 * time.Second)
			at := another(c)
			s, _ := gatedAt(t, c, 0, at)
			l := granted(t, s, "a", time.Minute)
			l.batch.mu.Lock()
			l.batch.alone = maxAlone // all go by lanes
			l.batch.mu.Unlock()
			c.Freeze(at)
			failed := 0
			for ; failed < 5; failed++ {
				got := <-claiming(ending(t, 500*time.Millisecond), l, fmt.Sprint("x", failed))
				if got.err == nil {
					break
				}
				time.Sleep(2 * etcdwire.BlameAfter) // of those alone none lands here, and no lane is used before
			}
			if failed != 1 {
				t.Errorf("seed %d: %d claims failed at the silent member, want one", seed, failed)
			}
		})
	}
}

// TestSimulatedBatchWithAnAnswerOfAnotherKind: a server, or what stands before it, answers a
// batch with something else. It may have been done, so each claim of it is in doubt, and its
// release takes it away.
func TestSimulatedBatchWithAnAnswerOfAnotherKind(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		g := &gate{}
		garble := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			err := do(ctx, method, req, reply, cc, opts...)
			if r, ok := reply.(*pb.TxnResponse); ok && nested(req) > 1 {
				r.Responses = r.Responses[:1]
			}
			return err
		}
		s, err := New(ending(t, 20*time.Second), simClient(t, c, 0, c.Endpoints(),
			grpc.WithChainUnaryInterceptor(g.intercept, garble)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		l := granted(t, s, "a", time.Minute)
		open := jam(t, l, g, nil)
		all := claimingAll(t, l, "x", 3)
		open()
		for i, f := range all {
			if got := <-f; got.err == nil || driver.IsFinal(got.err) {
				t.Errorf("seed 1: Claim = %v, want an unknown etcdwire.Outcome", got.err)
			}
			name := fmt.Sprint("x", i)
			if len(c.Keys("primacy/"+name+"/")) != 1 {
				t.Fatal("seed 1: the claim did not enter")
			}
			l.seats.mu.Lock()
			id, doubt := l.seats.by[seatID{Name: name}].id, l.seats.by[seatID{Name: name}].doubt
			l.seats.mu.Unlock()
			if !doubt {
				t.Error("seed 1: no doubt")
			}
			if err := l.Release(ending(t, 5*time.Second), driver.Place{Name: name, ID: id}); err != nil {
				t.Error(err)
			}
			if len(c.Keys("primacy/"+name+"/")) != 0 {
				t.Errorf("seed 1: a ghost of %s stands", name)
			}
		}
	})
}
