package concurrency

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/internal/boottime"
)

// slowAnswer is a client whose first keepalive, or grant, is answered late by a clock that it
// moves. Each later renewal fails, so that none moves the deadline.
type slowAnswer struct {
	ahead  atomic.Int64 // how far the clock is
	sent   atomic.Int64 // on that clock: when the request had not left yet
	answer bool         // an answer has come; by one goroutine at a time
}

const slow = 10 * time.Second

func (a *slowAnswer) clock() time.Duration { return boottime.Now() + time.Duration(a.ahead.Load()) }

func (a *slowAnswer) asks() { a.sent.CompareAndSwap(0, int64(a.clock())) }

func (a *slowAnswer) client(t *testing.T, endpoint string, grants bool) *v3.Client {
	t.Helper()
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		if !strings.HasSuffix(method, "/LeaseGrant") {
			return do(ctx, method, req, reply, cc, opts...)
		}
		a.asks()
		err := do(ctx, method, req, reply, cc, opts...)
		a.ahead.Add(int64(slow))
		return err
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, do grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		if !strings.HasSuffix(method, "/LeaseKeepAlive") {
			return do(ctx, desc, cc, method, opts...)
		}
		if grants {
			return nil, status.Error(codes.Unavailable, "no renewal")
		}
		s, err := do(ctx, desc, cc, method, opts...)
		return &slowStream{s, a}, err
	}
	c, err := v3.New(v3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

type slowStream struct {
	grpc.ClientStream
	a *slowAnswer
}

func (s *slowStream) SendMsg(m any) error {
	if s.a.answer {
		return status.Error(codes.Unavailable, "no renewal")
	}
	s.a.asks()
	return s.ClientStream.SendMsg(m)
}

func (s *slowStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && !s.a.answer {
		s.a.answer = true
		s.a.ahead.Add(int64(slow))
	}
	return err
}

// etcd counts a lease from when it grants or renews it, which may be as early as when the request
// was sent. A session that counted from the answer would rely on its lease for longer than etcd
// keeps it.
func TestTheFirstDeadlineCountsFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	const ttl = 60
	for _, brought := range []bool{false, true} {
		name := map[bool]string{false: "granted", true: "brought"}[brought]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, endpoint := []SessionOption{WithTTL(ttl)}, SharedServer(t).Endpoint()
			if brought {
				lease, err := (&slowAnswer{}).client(t, endpoint, false).Grant(t.Context(), ttl)
				if err != nil {
					t.Fatal(err)
				}
				opts = append(opts, WithLease(lease.ID))
			}
			a := &slowAnswer{}
			s, err := newSession(a.client(t, endpoint, !brought), a.clock, opts)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Orphan()
			latest := time.Duration(a.sent.Load()) + ttl*time.Second*9/10
			if d := time.Duration(s.deadline.Load()); d > latest || d == 0 {
				t.Errorf("the deadline is %v later than a tenth of the ttl before the lease can end", d-latest)
			}
			if passed := time.Duration(a.ahead.Load()); passed < slow {
				t.Errorf("the answer came after %v: this test proves nothing", passed)
			}
		})
	}
}
