package etcdstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// gate stands between a store and the network: it counts calls, and can hold, follow or replace
// single ones. So an interleaving that takes a slow member and bad luck happens every time.
type gate struct {
	calls atomic.Int64

	mu            sync.Mutex
	before, after func(req any)
	instead       func(ctx context.Context, req any, do func(context.Context) error) error
}

func (g *gate) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

func (g *gate) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	do grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	g.calls.Add(1)
	g.mu.Lock()
	before, after, instead := g.before, g.after, g.instead
	g.mu.Unlock()
	if before != nil {
		before(req)
	}
	call := func(ctx context.Context) error { return do(ctx, method, req, reply, cc, opts...) }
	var err error
	if instead != nil {
		err = instead(ctx, req, call)
	} else {
		err = call(ctx)
	}
	if after != nil {
		after(req)
	}
	return err
}

// gated returns a store behind a gate, and a client of etcd's own that talks to the server
// directly. The store's client is dialed with opts too.
func gated(t *testing.T, addr, direct string, opts ...grpc.DialOption) (*Store, *gate, *clientv3.Client) {
	t.Helper()
	g := &gate{}
	client := func(addr string, opts ...grpc.DialOption) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop(), DialOptions: opts})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	opts = append(opts, grpc.WithChainUnaryInterceptor(g.intercept))
	s, err := New(ending(t, time.Minute), client(addr, opts...), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, g, client(direct)
}

func ending(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func granted(t *testing.T, s *Store, owner string, ttl time.Duration) *lease {
	t.Helper()
	l, err := s.Grant(ending(t, time.Minute), owner, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return l.(*lease)
}

func claimed(t *testing.T, l *lease, name string) driver.Place {
	t.Helper()
	p, err := l.Claim(ending(t, time.Minute), driver.Claim{Name: name, ID: name + "-1"})
	if err != nil {
		t.Fatal(err)
	}
	return p[0]
}

// puts says whether req is a Txn that puts key, or has one within that does.
func puts(req any, key string) bool {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range txn.Success {
		if p := op.GetRequestPut(); p != nil && string(p.Key) == key || op.GetRequestTxn() != nil &&
			puts(op.GetRequestTxn(), key) {
			return true
		}
	}
	return false
}

// renewedOnce renews until it is accepted, as a session does.
func renewedOnce(t *testing.T, l *lease) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := l.Renew(ending(t, 2*time.Second)); err == nil || errors.Is(err, driver.ErrGone) {
			return err
		}
	}
	return errors.New("not renewed within 20 s")
}

// Release of a claim in doubt, while a move's answer is on its way, once paired the new mark with
// the old lease. The next claim then entered under a lease that nobody renewed any more, while
// Renew went on saying yes.
func TestAClaimEntersTheLeaseThatIsRenewedWhateverIsReleasedDuringAMove(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, g, plain := gated(t, srv.Addr(), srv.Addr())
	l := granted(t, s, "a", 30*time.Second)
	srv.Stop()
	if _, err := l.Claim(ending(t, 300*time.Millisecond), driver.Claim{Name: "f", ID: "f1"}); err == nil {
		t.Fatal("a frozen server answered")
	}
	srv.Cont()
	srv.Kill()
	srv.Restart() // in a new raft term

	moved, moveOn := make(chan struct{}), make(chan struct{})
	entering, enterNow := make(chan struct{}), make(chan struct{})
	var once1, once2 atomic.Bool // the first alone waits
	g.set(func() {
		g.after = func(req any) {
			if puts(req, l.recordKey) && once1.CompareAndSwap(false, true) {
				close(moved)
				<-moveOn
			}
		}
		g.before = func(req any) {
			if puts(req, s.lineDir("x")+l.ID()) && once2.CompareAndSwap(false, true) {
				close(entering)
				<-enterNow
			}
		}
	})
	renewed := make(chan error, 1)
	go func() { renewed <- renewedOnce(t, l) }()
	<-moved
	if err := l.Release(ending(t, time.Minute), driver.Place{Name: "f", ID: "f1"}); err != nil {
		t.Fatal(err)
	}
	entered := make(chan error, 1)
	go func() {
		_, err := l.Claim(ending(t, time.Minute), driver.Claim{Name: "x", ID: "x1"})
		entered <- err
	}()
	<-entering
	close(moveOn)
	if err := <-renewed; err != nil {
		t.Fatal(err)
	}
	close(enterNow)
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	if err := renewedOnce(t, l); err != nil {
		t.Fatal(err)
	}
	kv, err := plain.Get(ending(t, time.Minute), s.lineDir("x")+l.ID())
	if err != nil || len(kv.Kvs) != 1 {
		t.Fatalf("the claim: %d keys, %v", len(kv.Kvs), err)
	}
	if att := l.attachment(); kv.Kvs[0].Lease != att.lease {
		t.Errorf("the claim hangs on lease %x, renewed is %x", kv.Kvs[0].Lease, att.lease)
	}
}

// News once tried again without a pause while the store was down: thousands of calls a second, a
// connection each.
func TestNewsPausesWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, g, _ := gated(t, srv.Addr(), srv.Addr())
	l := granted(t, s, "a", time.Minute)
	srv.Kill()
	before := g.calls.Load()
	_, _ = l.News(ending(t, 3*time.Second))
	if calls := g.calls.Load() - before; calls > 100 {
		t.Errorf("%d calls in 3 s on a store that is down", calls)
	}
}

// A waiter that joins a watch which stands already once missed what had happened since its last
// look.
func TestAWaiterThatJoinsAStandingWatchMissesNothing(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, g, plain := gated(t, srv.Addr(), srv.Addr())
	first, second := granted(t, s, "a", time.Minute), granted(t, s, "b", time.Minute)
	claimed(t, first, "n")
	p := claimed(t, second, "n")
	told := make(chan struct{})
	go func() {
		_, _ = first.News(ending(t, 2*time.Minute))
		close(told)
	}()
	ctx, cancel := context.WithCancel(ending(t, 2*time.Minute))
	ended := make(chan struct{})
	go func() {
		_, _ = second.News(ctx)
		close(ended)
	}()
	watched := func(l *lease) bool {
		answered := s.wire.Hub.Answered() // etcd's answer tells too: it must not come late
		l.seats.mu.Lock()
		sub := l.seats.by[seatID{Name: "n"}].sub
		l.seats.mu.Unlock()
		return answered && sub != nil && sub.Requested()
	}
	for end := time.Now().Add(time.Minute); !watched(first) ||
		!watched(second); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the claims are not watched")
		}
	}
	cancel()
	<-ended // one call of News at a time
	second.seats.mu.Lock()
	second.seats.by[seatID{Name: "n"}].aheadRev = 0 // what its entry has shown is not known any more: it looks
	second.seats.mu.Unlock()
	var once atomic.Bool
	g.set(func() {
		g.after = func(req any) {
			txn, ok := req.(*pb.TxnRequest)
			if ok && len(txn.Success) == 2 &&
				string(txn.Success[0].GetRequestRange().GetKey()) == s.lineDir("n")+second.ID() &&
				once.CompareAndSwap(false, true) { // between the look and the watch
				_, _ = plain.Delete(context.Background(), s.lineDir("n")+first.ID())
				<-told
			}
		}
	})
	begun := time.Now()
	if _, err := drivertest.Await(ending(t, time.Minute), second, p); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("woken after %v, by the slow poll", took)
	}
}

// A TLS fault after an attempt of unknown outcome was once told as a refusal, and the put
// forgotten that came later.
func TestAFaultAfterAnUnknownOutcomeLeavesNoGhost(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	slow := etcdtest.NewProxy(t, srv.Addr())
	s, g, plain := gated(t, slow.Addr(), srv.Addr())
	l := granted(t, s, "a", time.Minute)
	tries := 0
	slow.Hold(etcdtest.Up)
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			if !puts(req, s.lineDir("x")+l.ID()) {
				return do(ctx)
			}
			if tries++; tries > 1 {
				return status.Error(codes.Unavailable,
					`connection error: desc = "transport: authentication handshake failed: tls: internal error"`)
			}
			ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
			defer cancel()
			go func() { // the request is on its way, and that its sender gives it up will never arrive
				for !slow.Holds(etcdtest.Up, []byte("straggler")) && ctx.Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
				slow.Seal()
			}()
			return do(ctx)
		}
	})
	_, err := l.Claim(ending(t, 5*time.Second), driver.Claim{Name: "x", ID: "x1", Value: []byte("straggler")})
	if err == nil || errors.Is(err, driver.ErrRefused) {
		t.Errorf("Claim = %v, want an unknown etcdwire.Outcome", err)
	}
	slow.Heal() // now it arrives
	g.set(func() { g.instead = nil })
	if err := l.Release(ending(t, time.Minute), driver.Place{Name: "x", ID: "x1"}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if kv, err := plain.Get(ending(t, time.Minute), s.lineDir("x")+l.ID()); err != nil || len(kv.Kvs) != 0 {
			t.Fatalf("after Release: %d keys, %v", len(kv.Kvs), err)
		}
	}
}

// Close once ended the lease it knew while a renewal moved the claims to another.
func TestCloseDuringAMoveLeavesNoClaim(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, g, _ := gated(t, srv.Addr(), srv.Addr())
	l := granted(t, s, "a", 30*time.Second)
	claimed(t, l, "x")
	srv.Kill()
	srv.Restart()
	revoking, revokeNow := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	g.set(func() {
		g.before = func(req any) {
			if _, ok := req.(*pb.LeaseRevokeRequest); ok && once.CompareAndSwap(false, true) {
				close(revoking)
				<-revokeNow
			}
		}
	})
	closed := make(chan error, 1)
	go func() { closed <- l.Close(ending(t, time.Minute)) }()
	<-revoking
	for range 10 {
		_ = l.Renew(ending(t, time.Second))
	}
	close(revokeNow)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if line, err := s.Line(ending(t, time.Minute), "x"); err != nil || line.Holder != nil {
		t.Errorf("after Close: %+v, %v", line.Holder, err)
	}
}
