package etcdapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	lpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// client is etcd's own generated clients on one server.
type client struct {
	testing.TB
	addr string
	epb.ElectionClient
	lpb.LockClient
	pb.LeaseClient
}

func newClient(t testing.TB, addr string, c credentials.TransportCredentials, o ...grpc.DialOption) *client {
	t.Helper()
	if c == nil {
		c = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, append(o, grpc.WithTransportCredentials(c))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t, addr, epb.NewElectionClient(conn), lpb.NewLockClient(conn), pb.NewLeaseClient(conn)}
}

// serve starts a server on loopback, and returns its address.
func serve(t testing.TB, store driver.Store, o Options) (*Server, string) {
	t.Helper()
	s, err := New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, ln.Addr().String()
}

func ours(t testing.TB) (*client, *memstore.Store) {
	store := memstore.New(memstore.Options{})
	_, addr := serve(t, store, Options{})
	return newClient(t, addr, nil), store
}

func (c *client) ctx(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	c.Cleanup(cancel)
	return ctx
}

// grant makes a lease that is kept alive until the test ends.
func (c *client) grant(seconds int64) int64 {
	c.Helper()
	id := c.once(seconds)
	ctx, cancel := context.WithCancel(context.Background())
	c.Cleanup(cancel)
	stream, err := c.LeaseKeepAlive(ctx)
	if err != nil {
		c.Fatal(err)
	}
	go func() {
		for stream.Send(&pb.LeaseKeepAliveRequest{ID: id}) == nil {
			if a, err := stream.Recv(); err != nil || a.TTL == 0 {
				return
			}
			time.Sleep(300 * time.Millisecond)
		}
	}()
	return id
}

// once makes a lease that nobody keeps alive.
func (c *client) once(seconds int64) int64 {
	c.Helper()
	a, err := c.LeaseGrant(c.ctx(time.Minute), &pb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		c.Fatal(err)
	}
	return a.ID
}

func (c *client) beat(id int64) int64 {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.LeaseKeepAlive(ctx)
	if err == nil {
		err = stream.Send(&pb.LeaseKeepAliveRequest{ID: id})
	}
	if err != nil {
		c.Fatal(err)
	}
	a, err := stream.Recv()
	if err != nil || a.ID != id {
		c.Fatalf("keepalive of %x: %v, %v", id, a, err)
	}
	return a.TTL
}

func (c *client) try(lease int64, name, value string, limit time.Duration) (*epb.LeaderKey, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a, err := c.Campaign(ctx, &epb.CampaignRequest{Name: []byte(name), Lease: lease, Value: []byte(value)})
	return a.GetLeader(), err
}

func (c *client) win(lease int64, name, value string) *epb.LeaderKey {
	c.Helper()
	k, err := c.try(lease, name, value, time.Minute)
	if err != nil {
		c.Fatal(err)
	}
	return k
}

func (c *client) proclaim(k *epb.LeaderKey, value string) error {
	_, err := c.Proclaim(c.ctx(time.Minute), &epb.ProclaimRequest{Leader: k, Value: []byte(value)})
	return err
}

func (c *client) resign(k *epb.LeaderKey) error {
	_, err := c.Resign(c.ctx(time.Minute), &epb.ResignRequest{Leader: k})
	return err
}

func (c *client) leader(name string) string {
	a, err := c.Leader(c.ctx(time.Minute), &epb.LeaderRequest{Name: []byte(name)})
	if err != nil {
		return told(err)
	}
	return string(a.Kv.Value)
}

func (c *client) lock(lease int64, name string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a, err := c.Lock(ctx, &lpb.LockRequest{Name: []byte(name), Lease: lease})
	return string(a.GetKey()), err
}

func (c *client) unlock(key string) error {
	_, err := c.Unlock(c.ctx(time.Minute), &lpb.UnlockRequest{Key: []byte(key)})
	return err
}

func told(err error) string {
	if err == nil {
		return "ok"
	}
	s := status.Convert(err)
	if s.Code() == codes.DeadlineExceeded {
		return "DeadlineExceeded" // whose text is the client's own
	}
	return s.Code().String() + ": " + s.Message()
}

// TestNobodyElseIsServedWithoutTLSAndAToken holds what may be listened on.
func TestNobodyElseIsServedWithoutTLSAndAToken(t *testing.T) {
	for _, o := range []Options{{}, {Token: "x"}, {TLS: &tls.Config{}}} {
		s, err := New(memstore.New(memstore.Options{}), o)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Serve(ln); err == nil || !strings.Contains(err.Error(), "needs TLS and a token") {
			t.Errorf("tls %v, token %q: %v", o.TLS != nil, o.Token, err)
		}
		if _, err := net.Dial("tcp", ln.Addr().String()); err == nil {
			t.Error("the listener is still open")
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func hex(lease int64) string { return fmt.Sprintf("%x", lease) }

// FuzzKey holds that a key is taken apart as it was made, and that no other one does harm.
func FuzzKey(f *testing.F) {
	f.Add("n", int64(7), []byte("n/7"))
	f.Add("a/b", int64(-1), []byte("/"))
	f.Add("etcd-7@", int64(0), []byte("n/ffffffffffffffff"))
	f.Fuzz(func(t *testing.T, name string, lease int64, any []byte) {
		if n, l, ok := split(key(name, lease)); !ok || n != name || l != lease {
			t.Errorf("%q, %x: %q, %x, %v", name, lease, n, l, ok)
		}
		split(any)
		if got := leaseOf(primacy.Entry{ID: owner(lease, name)}); got != lease {
			t.Errorf("%x: %x", lease, got)
		}
		leaseOf(primacy.Entry{ID: name, Lease: string(any)})
	})
}
