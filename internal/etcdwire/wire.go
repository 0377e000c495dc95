// Package etcdwire is how etcdstore and concurrency reach etcd: its members, one watch stream, and
// renewals that etcd's log proves. Calls go to one member, which is left when it is silent. (Two
// kinds of calls go to others too: heartbeats and Examine of etcdstore.) The package knows where
// the keys of claims lie, for its watches. It decides nothing about leadership.
//
// Read wire.go, members.go (which member is asked), call.go (how a call is tried again), errors.go
// (what an error proves), limit.go and wait.go; then lease.go and renew.go (proofs), or hub.go,
// stream.go and prefixwatch.go (watches).
//
// # Locks
//
// The hub's lock (Hub.Lock) comes first: listeners and subscribers are called under it. The locks
// of Members, Keepalives and Wire guard their own fields. No other lock of ours is taken under
// them, and no listener is called. But a keepalive stream is opened under that of Keepalives, which
// may take a login at another member.
package etcdwire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
)

// ErrClosed answers calls on a Wire, and so on a store, that was closed.
var ErrClosed = errors.New("the store was closed")

// Wire is the connections to one cluster. It is safe for concurrent use. Call Open before anything
// else.
type Wire struct {
	Hub    *Hub
	Limit  OpsLimit
	client *clientv3.Client

	Members Members

	opening chan struct{}   // a mutex that a context can interrupt (see Acquire)
	version string          // of the member that answered Open; "": not opened yet
	cluster uint64          // etcd's ID of the cluster
	term    atomic.Uint64   // the newest raft term seen
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex // guards closed; work does not grow once that is set
	closed bool
	work   sync.WaitGroup // all goroutines that Go has begun
}

// New returns a Wire that uses client's endpoints, credentials and dial options, on connections of
// its own. It does no I/O. Where many keys below prefix are watched, one watch of the whole prefix
// may replace their watches; with an empty prefix it never does.
func New(client *clientv3.Client, prefix string) *Wire {
	w := &Wire{client: client, Members: Members{client: client}, opening: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.Members.ctx = w.ctx
	w.Hub = newHub(w, prefix)
	w.Members.moved = w.Hub.rouse // its stream may be at the member that was left
	return w
}

// Open learns which cluster it is and returns the version of the member that answered. Later calls
// return the same.
func (w *Wire) Open(ctx context.Context) (version string, err error) {
	if err := Acquire(ctx, w.opening); err != nil {
		return "", err
	}
	defer func() { <-w.opening }()
	if w.version != "" {
		return w.version, nil
	}
	var resp *pb.StatusResponse
	_, err = w.Call(ctx, "status", func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}, opts...)
		return err
	})
	if errors.Is(err, driver.ErrRefused) {
		return "", err
	}
	if err != nil {
		return "", fmt.Errorf("no member of %s answers: %w", w.Members.Endpoints(), err)
	}
	w.version, w.cluster = resp.Version, resp.Header.ClusterId
	w.term.Store(resp.Header.RaftTerm)
	return w.version, nil
}

// Close ends streams, connections and calls, and waits for what Go has begun.
func (w *Wire) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	w.Members.close()
	w.work.Wait()
}

// Client is the client that New was called with.
func (w *Wire) Client() *clientv3.Client { return w.client }

// Context ends with Close.
func (w *Wire) Context() context.Context { return w.ctx }

// Cluster is etcd's ID of the cluster.
func (w *Wire) Cluster() uint64 { return w.cluster }

// Term returns the newest raft term that any answer bore.
func (w *Wire) Term() uint64 { return w.term.Load() }

// Same notes an answer's raft term. It returns an error for an answer of another cluster than the
// one that was opened. Then endpoints were mixed up, or the cluster was restored from a backup, and
// each of the two clusters could have a leader.
func (w *Wire) Same(h *pb.ResponseHeader) error {
	if h.GetClusterId() != w.cluster {
		return fmt.Errorf("answers for cluster %x, but the store was opened on cluster %x: mend the endpoints, "+
			"or start again after a restore", h.GetClusterId(), w.cluster)
	}
	Newest(&w.term, h)
	return nil
}

// Newest raises term to the raft term of an answer, unless that is an older one.
func Newest(term *atomic.Uint64, h *pb.ResponseHeader) {
	for t := h.GetRaftTerm(); ; {
		known := term.Load()
		if t <= known || term.CompareAndSwap(known, t) {
			return
		}
	}
}

// Go runs do in a goroutine that Close waits for, unless the Wire is closed already.
func (w *Wire) Go(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.work.Go(do)
	}
}

// Background runs do in a goroutine that Close waits for. Do has a limit of its own, whatever
// becomes of the caller's context.
func (w *Wire) Background(do func(ctx context.Context)) {
	w.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, 2*CallLimit)
		defer cancel()
		do(ctx)
	})
}

// Pause waits for a signal, at most for d. It returns an error if ctx or the Wire ends first.
func (w *Wire) Pause(ctx context.Context, signal <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-signal:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.ctx.Done():
		return ErrClosed
	}
	return nil
}
