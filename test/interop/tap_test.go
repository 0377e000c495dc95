//go:build linux

package interop

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/internal/boottime"
)

// tap notes what one client sends to etcd and hears of its watches.
type tap struct {
	mu   sync.Mutex
	seen []message
}

// message is one request, or one answer with watch events.
type message struct {
	at   time.Duration // boot clock
	what string        // the method, "watch create" and the like; "event" for each watch event
}

func (t *tap) note(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = append(t.seen, message{boottime.Now(), what})
}

// between returns what was noted from one instant until another, each as "WHAT@TIME", the time
// since from.
func (t *tap) between(from, to time.Duration) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	for _, m := range t.seen {
		if m.at >= from && m.at < to {
			all = append(all, fmt.Sprintf("%s@%v", m.what, (m.at-from).Round(10*time.Microsecond)))
		}
	}
	return all
}

// options has a client tapped.
func (t *tap) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(t.unary), grpc.WithChainStreamInterceptor(t.stream)}
}

func (t *tap) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	t.note(path.Base(method))
	return do(ctx, method, req, reply, cc, opts...)
}

func (t *tap) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &tapped{s, t}, nil
}

// tapped is a stream that is listened to.
type tapped struct {
	grpc.ClientStream
	t *tap
}

func (s *tapped) SendMsg(m any) error {
	switch m := m.(type) {
	case *pb.WatchRequest:
		switch m.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			s.t.note("watch create")
		case *pb.WatchRequest_CancelRequest:
			s.t.note("watch cancel")
		default:
			s.t.note("watch progress")
		}
	default:
		s.t.note("keepalive")
	}
	return s.ClientStream.SendMsg(m)
}

func (s *tapped) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.WatchResponse); ok && err == nil {
		for range r.Events {
			s.t.note("event")
		}
	}
	return err
}
