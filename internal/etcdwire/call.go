package etcdwire

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
)

// Request is one call on one connection.
type Request func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error

// Call does fn at the current member. While that fails and ctx lives, it does fn at each other
// member, and then once more at the one that failed first, on a new connection. Doubt says that
// some attempt may have been carried out, or may be later, whatever err says.
func (w *Wire) Call(ctx context.Context, verb string, fn Request) (doubt bool, err error) {
	o := w.try(ctx, fn)
	return o.Doubt, w.Explain(ctx, verb, o)
}

// Explain returns the error of a call in words for people. Ctx is the caller's.
func (w *Wire) Explain(ctx context.Context, verb string, o Outcome) error {
	switch {
	case o.Err == nil:
		return nil
	case o.At.member == nil:
		return fmt.Errorf("etcd: %s: %w", verb, o.Err)
	case o.untrusted:
		return fmt.Errorf("etcd %s: %s: %w: %w: %s", w.Members.Endpoints(), verb, driver.ErrRefused, ErrTLS,
			TLSReason(o.Err))
	}
	return Wrap(ctx, o.At.Host(), verb, o.Err)
}

// Outcome is how a call ended.
type Outcome struct {
	At        MemberConn // the last member asked; none if there was none to ask
	Doubt     bool       // see Call
	untrusted bool       // no member's certificate was accepted, or none accepted ours
	Err       error      // of the last attempt, as it came
}

// try is Call without the words for people.
func (w *Wire) try(ctx context.Context, fn Request) (o Outcome) {
	var unsure atomic.Bool
	// The client's interceptor repeats calls by itself; this hook sees every single one.
	watch := grpc.OnFinish(func(err error) {
		if err != nil && !Definite(err) {
			unsure.Store(true)
		}
	})
	defer func() { o.Doubt = unsure.Load() }()
	bad, tries := 0, 0 // attempts that ended in a TLS error, and all
	for left := 0; ; left-- {
		tries++
		conn, err := w.AttemptAt(ctx, CallLimit, func(ctx context.Context, conn MemberConn) error {
			return fn(ctx, conn.Conn, watch, bigAnswers)
		}, nil)
		if err == nil || conn.member == nil {
			return Outcome{At: conn, Err: err}
		}
		if tries == 1 { // not before, for to count the members copies the client's endpoints
			left = w.Members.size() + 1 // the last one: where one member alone was restarted
		}
		if TLSReason(err) != "" {
			bad++
		}
		if ctx.Err() == nil && elsewhere(err) && left > 1 {
			continue
		}
		// Untrusted only if every attempt ended in a TLS error: then nothing can have been done.
		return Outcome{At: conn, untrusted: bad == tries && bad >= w.Members.size(), Err: err}
	}
}

// blame reports whether err, after so much time, is the member's fault.
func (w *Wire) blame(ctx context.Context, err error, took time.Duration) bool {
	if w.ctx.Err() != nil || ctx.Err() == context.Canceled {
		return false
	}
	if ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded {
		return took >= BlameAfter
	}
	return elsewhere(err)
}

// bigAnswers lifts gRPC's limit of 4 MiB on an answer: a long line with large values has more.
var bigAnswers = grpc.MaxCallRecvMsgSize(1<<31 - 1)

// Txn runs one Txn, which may be repeated; for doubt see Call. What names it in an error.
func (w *Wire) Txn(ctx context.Context, what string, req *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	resp, o := w.Send(ctx, req)
	return resp, o.Doubt, w.Explain(ctx, what, o)
}

// ask makes one request, as Call does, by a method of one of etcd's clients.
func ask[C, Q any, R interface{ GetHeader() *pb.ResponseHeader }](ctx context.Context, w *Wire,
	client func(*grpc.ClientConn) C, method func(C, context.Context, Q, ...grpc.CallOption) (R, error), req Q,
) (resp R, o Outcome) {
	o = w.try(ctx, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
		if resp, err = method(client(conn), ctx, req, opts...); err != nil {
			return err
		}
		return w.Same(resp.GetHeader())
	})
	return resp, o
}

// The constructors take another type in client 3.6 than in 3.7.
func kvOf(conn *grpc.ClientConn) pb.KVClient       { return pb.NewKVClient(conn) }
func leaseOf(conn *grpc.ClientConn) pb.LeaseClient { return pb.NewLeaseClient(conn) }

// Send runs one Txn without explaining its error.
func (w *Wire) Send(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, Outcome) {
	return ask(ctx, w, kvOf, pb.KVClient.Txn, req)
}

// Get runs one linearizable read. What names it in an error.
func (w *Wire) Get(ctx context.Context, what string, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, o := ask(ctx, w, kvOf, pb.KVClient.Range, req)
	return resp, w.Explain(ctx, what, o)
}

// Do makes any request to etcd, as Call does, for callers with words of their own (concurrency): it
// returns the error as it came.
func (w *Wire) Do(ctx context.Context, do func(context.Context, *grpc.ClientConn,
	...grpc.CallOption) (*pb.ResponseHeader, error),
) (doubt bool, err error) {
	o := w.try(ctx, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		h, err := do(ctx, conn, opts...)
		if err != nil {
			return err
		}
		return w.Same(h)
	})
	return o.Doubt, o.Err
}

// AttemptAt does something at the current member under a limit. If the member is to blame for the
// error, and innocent does not say otherwise, all calls leave it. AttemptAt returns do's error as
// it came; ErrClosed, or why the member could not be dialled, where do was not called.
func (w *Wire) AttemptAt(ctx context.Context, limit time.Duration, do func(ctx context.Context, conn MemberConn) error,
	innocent func(error) bool,
) (conn MemberConn, err error) {
	if conn, err = w.Members.Current(); err != nil {
		return conn, err
	}
	actx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(conn.life, cancel)()
	start := time.Now() // on the clock that ctx runs on, which stands still while the machine is suspended
	err = do(actx, conn)
	if err != nil && actx.Err() == context.Canceled && ctx.Err() == nil && w.ctx.Err() == nil {
		err = status.Error(codes.DeadlineExceeded, "the member is silent") // as if the limit were over
	}
	switch {
	case err == nil:
		w.Members.alive(conn)
	case innocent == nil || !innocent(err):
		if w.blame(ctx, err, time.Since(start)) {
			w.Members.FailOver(conn)
		}
	}
	return conn, err
}
