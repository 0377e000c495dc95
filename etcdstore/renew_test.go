package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// TestSimulatedMoveOfMoreThanOneRenewalCan: etcd's leader has changed, and no renewal has the time
// to move all claims of the session. Each must go on where the one before had to stop.
func TestSimulatedMoveOfMoreThanOneRenewalCan(t *testing.T) {
	underLimit(t, 7, func(t *testing.T, c *etcdsim.Cluster, s *Store, g *gate, l *lease) {
		changeLeader(c)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if settles(req) {
					time.Sleep(150 * time.Millisecond) // eight such for 40 claims
				}
				return do(ctx)
			}
		})
		var err error
		for range 8 {
			if err = l.Renew(ending(t, 600*time.Millisecond)); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil {
			t.Fatalf("seed 1: no renewal was accepted: %v", err)
		}
		for _, kv := range c.Keys("primacy/x") {
			if kv.Lease != l.attachment().lease {
				t.Errorf("seed 1: %s is on lease %x, renewed is %x", kv.Key, kv.Lease, l.attachment().lease)
			}
		}
	})
}

// TestSimulatedMoveThatFailsBlamesNoMember: a request of a move is refused, for which the member
// that the renewal began at is not to blame. Calls and watches stay there.
func TestSimulatedMoveThatFailsBlamesNoMember(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", 10*time.Second)
		claimed(t, l, "x")
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		changeLeader(c)
		at, err := s.wire.Members.Current()
		if err != nil {
			t.Fatal(err)
		}
		g.fails(settles)
		err = l.Renew(ending(t, 2*time.Second))
		if err == nil || strings.Count(err.Error(), "renew") != 1 {
			t.Errorf("seed 1: Renew = %q, want one reason", err)
		}
		if s.wire.Members.FailedOver(at) {
			t.Error("seed 1: all calls have left the member")
		}
		// And where the time is over: the error is no context's, for the caller's has not ended.
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if settles(req) {
					<-ctx.Done()
					return ctx.Err()
				}
				return do(ctx)
			}
		})
		err = l.Renew(ending(t, 20*time.Second))
		if err == nil || errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "the next call goes on") {
			t.Errorf("seed 1: Renew = %v, want it to say that the next call goes on", err)
		}
	})
}

// TestSimulatedMoveWithoutAClaimThatWasRemoved: somebody removes one claim while etcd's leader
// changes, and the session has not heard of that when it moves. It loses that claim and no other.
func TestSimulatedMoveWithoutAClaimThatWasRemoved(t *testing.T) {
	for _, others := range []int{0, 3} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			s, _ := gatedAt(t, c, 0, 0)
			l := granted(t, s, "a", 10*time.Second)
			p := claimed(t, l, "x")
			for i := range others {
				claimed(t, l, fmt.Sprint("y", i))
			}
			if err := renewedOnce(t, l); err != nil {
				t.Fatal(err)
			}
			changeLeader(c)
			if err := c.Delete(ending(t, 10*time.Second), l.keyOf(p), int64(p.Token)); err != nil {
				t.Fatal(err)
			}
			if err := renewedOnce(t, l); err != nil {
				t.Fatalf("seed 1: beside %d others: Renew = %v, though one claim alone was removed", others, err)
			}
			kvs := c.Keys("primacy/y")
			for _, kv := range kvs {
				if kv.Lease != l.attachment().lease {
					t.Errorf("seed 1: %s is on lease %x, renewed is %x", kv.Key, kv.Lease, l.attachment().lease)
				}
			}
			news, err := l.News(ending(t, 10*time.Second))
			if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.Token != p.Token || len(kvs) != others {
				t.Errorf("seed 1: News = %+v, %v, want the end of token %d; %d others stand", news, err, p.Token,
					len(kvs))
			}
			changeLeader(c)
			if err := renewedOnce(t, l); err != nil {
				t.Errorf("seed 1: Renew after the next change of leader = %v", err)
			}
		})
	}
}

// TestSimulatedMoveOfAHeartbeatThatSomebodyWrote: the heartbeat's key is not the one that Grant
// made, and never will be. The base's renewal ends the session, and does not ask again and again.
func TestSimulatedMoveOfAHeartbeatThatSomebodyWrote(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Second)
		key := l.heartbeat.key
		if err := c.Delete(ending(t, 10*time.Second), key, only(t, c, key).CreateRevision); err != nil {
			t.Fatal(err)
		}
		kv := pb.NewKVClient(simClient(t, c, 9, c.Endpoints()).ActiveConnection())
		if _, err := kv.Put(ending(t, 10*time.Second), &pb.PutRequest{Key: []byte(key)}); err != nil {
			t.Fatal(err)
		}
		changeLeader(c)
		before := g.calls.Load()
		var err error
		for range 5 { // the leader may be found to have changed only now
			if err = l.renewBase(ending(t, 5*time.Second)); isGone(err) {
				break
			}
		}
		if n := g.calls.Load() - before; !isGone(err) || n > 100 {
			t.Errorf("seed 1: renewBase = %v after %d calls, want the session to be lost", err, n)
		}
	})
}

// TestSimulatedClaimsWithATry: a claim of several is refused. No try that entered before it stays.
func TestSimulatedClaimsWithATry(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l, other := granted(t, s, "a", time.Minute), granted(t, s, "b", time.Minute)
		entered(t, other, "x", "", 2)
		_, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "y", ID: "y1", Try: true},
			driver.Claim{Name: "x", ID: "x1", Slots: 3})
		if !errors.Is(err, driver.ErrRefused) || len(c.Keys("primacy/y/")) != 0 || len(c.Keys("primacy/x/")) != 1 {
			t.Errorf("seed 1: Claim = %v, and %d tries stand, want ErrRefused and none", err, len(c.Keys("primacy/y/")))
		}
	})
}

// answeredStream calls answered when a message has come.
type answeredStream struct {
	grpc.ClientStream
	answered func()
}

func (s *answeredStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.answered()
	}
	return err
}

// A proof shows that the leader had a majority when it was asked for. One that is asked for before
// the keepalive is answered says nothing of that answer: a leader that was deposed between the two
// may have given it.
func TestTheProofIsAskedForAfterTheKeepalive(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	var renewing, answered atomic.Bool
	var early, late atomic.Int64
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil || !strings.HasSuffix(method, "/LeaseKeepAlive") {
			return s, err
		}
		return &answeredStream{s, func() { answered.Store(true) }}, nil
	}
	s, g, _ := gated(t, srv.Addr(), srv.Addr(), grpc.WithChainStreamInterceptor(stream))
	g.set(func() {
		g.before = func(req any) {
			read, isRead := req.(*pb.RangeRequest)
			_, isTxn := req.(*pb.TxnRequest)
			switch {
			case !renewing.Load() || !isTxn && !(isRead && read.CountOnly):
			case answered.Load():
				late.Add(1)
			default:
				early.Add(1)
			}
		}
	})
	l := granted(t, s, "a", time.Minute)
	for range 3 {
		answered.Store(false)
		early.Store(0)
		late.Store(0)
		renewing.Store(true)
		err := l.Renew(ending(t, time.Minute))
		renewing.Store(false)
		if err != nil {
			t.Fatal(err)
		}
		if early.Load() != 0 || late.Load() != 3 {
			t.Errorf("%d requests of the proof before the keepalive was answered and %d after, want 0 and 3",
				early.Load(), late.Load())
		}
	}
}
