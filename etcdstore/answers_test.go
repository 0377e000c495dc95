package etcdstore

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedClaimOfManyThatIsRefusedAndUnknown: etcd refuses one of two claims, and does not
// answer for the other. Claim must not say that all is decided: the other may stand.
func TestSimulatedClaimOfManyThatIsRefusedAndUnknown(t *testing.T) {
	for _, refused := range []string{"x", "y"} { // the first or the last of the call
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			s, g := gatedAt(t, c, 0, 0)
			l := granted(t, s, "a", time.Minute)
			lost := map[string]string{"x": "y", "y": "x"}[refused]
			sent := make(chan struct{})
			g.set(func() {
				g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
					switch {
					case puts(req, s.lineDir(lost)+l.ID()):
						close(sent)
						<-ctx.Done()
						return ctx.Err()
					case puts(req, s.lineDir(refused)+l.ID()):
						<-sent
						return rpctypes.ErrGRPCPermissionDenied
					}
					return do(ctx)
				}
			})
			_, err := l.Claim(ending(t, 500*time.Millisecond), driver.Claim{Name: "x", ID: "1"},
				driver.Claim{Name: "y", ID: "2"})
			if err == nil || driver.IsFinal(err) {
				t.Errorf("seed 1: Claim = %v, want an unknown outcome: that of %s", err, lost)
			}
		})
	}
}

// TestSimulatedCloseAfterHalfAMove: the session's record has moved to a new lease, and its claim
// has not yet. Close ends both leases, or the name would have a holder until the old one runs out.
func TestSimulatedCloseAfterHalfAMove(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 5*time.Minute)
		claimed(t, l, "x")
		changeLeader(c)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if settles(req) {
					<-ctx.Done() // the claim does not follow
					return ctx.Err()
				}
				return do(ctx)
			}
		})
		old := only(t, c, s.lineDir("x")).Lease
		for l.attachment().lease == old {
			_ = l.Renew(ending(t, 2*time.Second))
		}
		if kv := only(t, c, s.lineDir("x")); kv.Lease != old {
			t.Fatalf("seed 1: the claim has moved to lease %x", kv.Lease)
		}
		if err := l.Close(ending(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if keys := c.Keys("primacy/"); len(keys) > 0 {
			t.Errorf("seed 1: after Close %s stands", keys[0].Key)
		}
	})
}

// TestSimulatedOwnersThatWereCompacted: between the read of a line and that of the sessions'
// records, etcd forgets the revision of the first. The line is told all the same.
func TestSimulatedOwnersThatWereCompacted(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		claimed(t, l, "x")
		reader, g := gatedAt(t, c, 1, 0)
		compacted := 0
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				txn, _ := req.(*pb.TxnRequest)
				if slices.ContainsFunc(txn.GetSuccess(),
					func(o *pb.RequestOp) bool { return o.GetRequestRange().GetRevision() != 0 }) {
					compacted++
					return rpctypes.ErrGRPCCompacted
				}
				return do(ctx)
			}
		})
		ln, err := reader.Line(ending(t, 10*time.Second), "x")
		if err != nil || ln.Holder == nil || ln.Holder.Owner != "a" || compacted != 1 {
			t.Errorf("seed 1: Line = %+v, %v after %d compactions, want its holder a", ln, err, compacted)
		}
	})
}

// A member that does not answer a login is left soon: with one of three frozen, every third stream
// would hang in its login otherwise. The tries get longer, for etcd takes its time to compare a
// password.
func TestALoginIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const method = "/etcdserverpb.Auth/Authenticate"
		begun, tries := time.Now(), 0
		login := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			if tries++; tries == 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		err := logins(ending(t, time.Minute), method, nil, nil, nil, login)
		if took := time.Since(begun); err != nil || tries != 3 || took > 1500*time.Millisecond {
			t.Errorf("after %d tries and %v: %v; want the third, 0.5 s and 1 s after two that hung", tries, took, err)
		}
	})
}

// TestSimulatedLateLook: the answer to an older look comes after that to a newer one. It brings no
// claim back that went in between: nobody would tell of its end once more.
func TestSimulatedLateLook(t *testing.T) {
	_, l := fakeHub()
	wt := awaitOn(l, "a", "b")
	wt.startListening()
	before := wt.ahead
	wt.noteLook(standing{rev: 150, stands: true, ahead: before[:1]})
	wt.noteLook(standing{rev: 140, stands: true, ahead: before})
	if wt.asOf != 150 || len(wt.ahead) != 1 {
		t.Errorf("an older answer counts: as of %d, behind %v", wt.asOf, wt.ahead)
	}
}

// TestSimulatedLineThatEndedBeforeACompaction: while an observer was away the last claim of a line
// went, and etcd has forgotten the revision that he saw last. Next tells him so, not only once
// somebody enters.
func TestSimulatedLineThatEndedBeforeACompaction(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		seen, err := s.Line(ending(t, 10*time.Second), "x")
		if err != nil || seen.Holder == nil {
			t.Fatal(seen, err)
		}
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		now, err := s.Line(ending(t, 10*time.Second), "x")
		if err == nil {
			err = c.Compact(ending(t, 10*time.Second), int64(now.Revision))
		}
		if err != nil {
			t.Fatal(err)
		}
		if ln, err := s.Next(ending(t, time.Minute), "x", seen.Revision); err != nil || ln.Holder != nil {
			t.Errorf("seed 1: Next = %+v, %v, want the line that has ended", ln, err)
		}
	})
}

// TestSimulatedRequestIsToldOnce: the delete of a request that was told may fail, and the key is
// read again. A later request under the same key is told.
func TestSimulatedRequestIsToldOnce(t *testing.T) {
	_, l := fakeHub()
	seat := l.seats.open(seatID{Name: "x"})
	seat.id, seat.token = "1", 7
	value, err := json.Marshal(driver.Request{Token: 7, By: "op"})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		mod  int64
		told bool
	}{{9, true}, {9, false}, {10, true}, {10, false}} {
		kv := &mvccpb.KeyValue{Key: []byte(askKey(l.recordKey, "x")), Value: value, ModRevision: c.mod}
		if _, told := l.newsbox.request(kv); told != c.told {
			t.Errorf("%d: the request of revision %d was told: %v", i, c.mod, told)
		}
	}
}
