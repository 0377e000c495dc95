package concurrency_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/primacy-go/primacy/concurrency"
)

// kit is one of the two packages: ours, and the original as the control that shows that a
// scenario bites.
type kit struct {
	name     string
	session  func(*v3.Client, ...concurrency.SessionOption) (session, error)
	election func(session, string) election
	mutex    func(session, string) mutex
}

type session interface {
	Lease() v3.LeaseID
	Done() <-chan struct{}
	Close() error
	Orphan()
}

type election interface {
	Campaign(ctx context.Context, val string) error
	Proclaim(ctx context.Context, val string) error
	Resign(ctx context.Context) error
	Leader(ctx context.Context) (*v3.GetResponse, error)
	Key() string
	Rev() int64
}

type mutex interface {
	Lock(ctx context.Context) error
	TryLock(ctx context.Context) error
	Unlock(ctx context.Context) error
	IsOwner() v3.Cmp
	Key() string
}

var ours = kit{"ours",
	func(c *v3.Client, o ...concurrency.SessionOption) (session, error) {
		return concurrency.NewSession(c, o...)
	},
	func(s session, pfx string) election { return concurrency.NewElection(s.(*concurrency.Session), pfx) },
	func(s session, pfx string) mutex { return concurrency.NewMutex(s.(*concurrency.Session), pfx) },
}

var original = kit{"original",
	func(c *v3.Client, o ...concurrency.SessionOption) (session, error) { return orig.NewSession(c, o...) },
	func(s session, pfx string) election { return orig.NewElection(s.(*orig.Session), pfx) },
	func(s session, pfx string) mutex { return orig.NewMutex(s.(*orig.Session), pfx) },
}

// limit returns how long to wait for what ours does and the original does not. Ours may be slow on
// a busy machine; of the original nothing is expected.
func (k kit) limit() time.Duration {
	if k.name == "ours" {
		return time.Minute
	}
	return 3 * time.Second
}

// shows waits for what the original does and ours does not, and reports whether it came. Ours has a
// second to do it in.
func (k kit) shows(fault func() bool) bool {
	if k.name == "ours" {
		return before(time.Second, fault)
	}
	return before(20*time.Second, fault)
}

// both plays a scenario with each package. It returns the fault that it saw, or "": ours must
// show none, and the original must, or the scenario proves nothing.
func both(t *testing.T, scenario func(t *testing.T, k kit) (fault string)) {
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		if fault := scenario(t, ours); fault != "" {
			t.Error(fault)
		}
	})
	t.Run("original", func(t *testing.T) {
		t.Parallel()
		fault := scenario(t, original)
		if fault == "" {
			t.Error("the original does not show the fault: this test proves nothing")
		}
		t.Log("as expected: ", fault)
	})
}

func dial(t testing.TB, endpoints ...string) *v3.Client {
	t.Helper()
	return dialWith(t, endpoints)
}

func dialWith(t testing.TB, endpoints []string, o ...grpc.DialOption) *v3.Client {
	t.Helper()
	c, err := v3.New(v3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
		DialOptions: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// dialSeeing returns a client, and where the first of what see makes of the messages arrives that
// etcd sends on streams.
func dialSeeing[T any](t testing.TB, see func(grpc.ClientStream, any) (T, bool), endpoints ...string,
) (*v3.Client, <-chan T) {
	t.Helper()
	seen := make(chan T, 1)
	tell := func(s grpc.ClientStream, m any) {
		if x, ok := see(s, m); ok {
			select {
			case seen <- x:
			default:
			}
		}
	}
	return dialWith(t, endpoints, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc,
		c *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, c, method, o...)
		return seeing{s, tell}, err
	})), seen
}

type seeing struct {
	grpc.ClientStream
	tell func(grpc.ClientStream, any)
}

func (s seeing) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.tell(s.ClientStream, m)
	}
	return err
}

// watches sees that etcd has begun a watch.
func watches(_ grpc.ClientStream, m any) (struct{}, bool) {
	r, ok := m.(*pb.WatchResponse)
	return struct{}{}, ok && r.Created
}

// renewals sees that etcd has renewed a lease, and by which member (host:port).
func renewals(s grpc.ClientStream, m any) (string, bool) {
	r, ok := m.(*pb.LeaseKeepAliveResponse)
	if !ok || r.TTL <= 0 {
		return "", false
	}
	p, ok := peer.FromContext(s.Context())
	if !ok {
		return "", false
	}
	return p.Addr.String(), true
}

// await waits for what must come, however busy the machine is.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case x := <-c:
		return x
	case <-time.After(time.Minute):
		t.Fatalf("%s: not within a minute", what)
		panic("unreachable")
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func soon(t testing.TB) context.Context { return within(t, time.Minute) }

func (k kit) open(t testing.TB, c *v3.Client, o ...concurrency.SessionOption) session {
	t.Helper()
	s, err := k.session(c, o...)
	if err != nil {
		t.Fatalf("NewSession: %v", err)
	}
	return s
}

func ok(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// async runs do and returns where its result arrives.
func async(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// in waits for a result.
func in(d time.Duration, done <-chan error) (err error, came bool) {
	select {
	case err := <-done:
		return err, true
	case <-time.After(d):
		return nil, false
	}
}

// standing waits until n keys stand under a prefix.
func standing(t testing.TB, c *v3.Client, pfx string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d keys under %s", n, pfx), time.Minute, func() bool { return keys(t, c, pfx) == n })
}

func keys(t testing.TB, c *v3.Client, pfx string) int {
	t.Helper()
	resp, err := c.Get(soon(t), pfx+"/", v3.WithPrefix(), v3.WithCountOnly())
	ok(t, "count", err)
	return int(resp.Count)
}

func eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	if !before(limit, ok) {
		t.Fatalf("%s: not within %v", what, limit)
	}
}

func before(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
