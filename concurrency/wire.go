package concurrency

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	v3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/etcdstore"
)

// wire is how a session reaches etcd. Errors are as the client has them. Every write must be safe to repeat.
type wire interface {
	// open learns what must be known before anything else: the cluster, the raft term.
	open(ctx context.Context) error
	get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error)
	// txn runs a Txn. Doubt says that it may have been carried out, or may be later, though it failed, or once more though it did not.
	txn(ctx context.Context, t txn) (resp *v3.TxnResponse, doubt bool, err error)
	// grant makes a lease. The answer's raft term may be later than the grant: see grantIn.
	grant(ctx context.Context, seconds int64) (*v3.LeaseGrantResponse, error)
	revoke(ctx context.Context, id v3.LeaseID) error
	// term is the newest raft term that any answer bore.
	term() uint64
	// watch calls notify, which must not block, when it stands, after each event and whenever one may have been missed. Told
	// reports that it stood before; then look once more.
	watch(key, end string, puts bool, notify func()) (stop func(), told func() bool)
	// renewer renews the leases of one session.
	renewer() renewer
	// ops is how many keys may be looked at in one Txn. Fewer halves that, where etcd has refused n of them, and says whether less will do.
	ops() int
	fewer(n int) bool
}

// bound is how many operations the cluster allows in a Txn, as far as we know: 128, unless it was started with another --max-txn-ops.
type bound struct{ n atomic.Int64 }

func (b *bound) ops() int {
	if n := b.n.Load(); n > 0 {
		return int(n)
	}
	return chunk
}

func (b *bound) fewer(n int) bool {
	for {
		was := b.n.Load()
		switch {
		case n <= 1:
			return false
		case was > 0 && was < int64(n):
			return true // known since
		case b.n.CompareAndSwap(was, int64(n/2)):
			return true
		}
	}
}

// crowded reports whether err says that a Txn had more operations than the cluster allows.
func crowded(err error) bool { return errors.Is(err, rpctypes.ErrTooManyOps) }

// inParts does something with claims, as many at once as one Txn takes.
func inParts(w wire, claims []*claim, do func(part []*claim) error) error {
	for len(claims) > 0 {
		part := claims[:min(w.ops(), len(claims))]
		err := do(part)
		if crowded(err) && w.fewer(len(part)) {
			continue
		}
		if err != nil {
			return err
		}
		claims = claims[len(part):]
	}
	return nil
}

// renewer makes one renewal at a time. See etcdstore.Beat.
type renewer interface {
	renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdstore.Key) (etcdstore.Proof, error)
	close()
}

// txn is what to compare and what to do.
type txn struct {
	when            []v3.Cmp
	then, otherwise []v3.Op
}

// errWrapped refuses a client.
var errWrapped = errors.New("concurrency: this client answers from a cache of its own (client/v3/leasing): give NewSession the client below it")

// wires holds one wire for each client, shared by its sessions: connections and a watch stream.
var wires = struct {
	sync.Mutex
	of map[*v3.Client]*direct
}{of: map[*v3.Client]*direct{}}

// wireOf returns the wire for a client. A client that was put together from parts is spoken to through its own methods: its keys
// may be others than those on its connection (a namespace), or it has no connection (inside a server).
func wireOf(client *v3.Client) (wire, error) {
	if madeBy(client.KV, "/leasing") {
		return nil, errWrapped
	}
	if !genuine(client) {
		return newThrough(client), nil
	}
	if err := client.Ctx().Err(); err != nil {
		return nil, err
	}
	wires.Lock()
	defer wires.Unlock()
	if d := wires.of[client]; d != nil {
		return d, nil
	}
	d := newDirect(client)
	wires.of[client] = d
	context.AfterFunc(client.Ctx(), func() {
		wires.Lock()
		delete(wires.of, client)
		wires.Unlock()
		d.w.Close()
	})
	return d, nil
}

// genuine reports whether the client's methods are the client's own, on connections of its own.
func genuine(client *v3.Client) bool {
	home := reflect.TypeFor[v3.Client]().PkgPath()
	for _, part := range []any{client.KV, client.Lease, client.Watcher} {
		t := reflect.TypeOf(part)
		if t == nil || t.Kind() != reflect.Pointer || t.Elem().PkgPath() != home {
			return false
		}
	}
	return len(client.Endpoints()) > 0 && client.ActiveConnection() != nil
}

// madeBy reports whether part is of a package whose path ends so.
func madeBy(part any, path string) bool {
	t := reflect.TypeOf(part)
	return t != nil && t.Kind() == reflect.Pointer && t.Elem().PkgPath() == reflect.TypeFor[v3.Client]().PkgPath()+path
}

// direct is the wire of a client as clientv3.New returns it: beside the client's balancer, which lets one frozen member swallow
// every n-th call.
type direct struct {
	bound
	client *v3.Client
	w      *etcdstore.Wire
	kv     v3.KV // speaks through w
	warned sync.Once
}

func newDirect(client *v3.Client) *direct {
	d := &direct{client: client, w: etcdstore.NewWire(client)}
	d.kv = v3.NewKVFromKVClient(remote{w: d.w}, client)
	return d
}

func (d *direct) open(ctx context.Context) error {
	warning, err := d.w.Open(ctx)
	if warning != "" {
		d.warned.Do(func() { d.client.GetLogger().Warn("concurrency: " + warning) })
	}
	return err
}

func (d *direct) term() uint64 { return d.w.Term() }

func (d *direct) get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error) {
	return d.kv.Get(ctx, key, opts...)
}

func (d *direct) txn(ctx context.Context, t txn) (*v3.TxnResponse, bool, error) {
	var doubt bool
	resp, err := d.kv.Txn(context.WithValue(ctx, doubtKey{}, &doubt)).If(t.when...).Then(t.then...).Else(t.otherwise...).Commit()
	return resp, doubt, err
}

func (d *direct) grant(ctx context.Context, seconds int64) (resp *v3.LeaseGrantResponse, err error) {
	_, err = d.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (*pb.ResponseHeader, error) {
		r, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, opts...)
		if err != nil {
			return nil, err
		}
		resp = &v3.LeaseGrantResponse{ResponseHeader: r.Header, ID: v3.LeaseID(r.ID), TTL: r.TTL, Error: r.Error}
		return r.Header, nil
	})
	return resp, v3.ContextError(ctx, err)
}

func (d *direct) revoke(ctx context.Context, id v3.LeaseID) error {
	doubt, err := d.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (*pb.ResponseHeader, error) {
		r, err := pb.NewLeaseClient(conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)}, opts...)
		return r.GetHeader(), err
	})
	if doubt && missing(err) {
		return nil // an earlier attempt's work
	}
	return v3.ContextError(ctx, err)
}

func (d *direct) watch(key, end string, puts bool, notify func()) (func(), func() bool) {
	return d.w.Watch(key, end, puts, notify)
}

func (d *direct) renewer() renewer { return beats{d.w.Beat()} }

type beats struct{ *etcdstore.Beat }

func (b beats) close() { b.Close() }

func (b beats) renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdstore.Key) (etcdstore.Proof, error) {
	ids := make([]int64, len(leases))
	for i, id := range leases {
		ids[i] = int64(id)
	}
	p, err := b.Renew(ctx, ids, key, keys)
	return p, v3.ContextError(ctx, err)
}

// remote is what a clientv3.KV needs of a connection.
type remote struct {
	pb.KVClient // nothing else is called
	w           *etcdstore.Wire
}

// doubtKey is where a Txn's context carries a place for the doubt about it, which the client's types have no room for.
type doubtKey struct{}

func (r remote) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (resp *pb.RangeResponse, err error) {
	_, err = r.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn, more ...grpc.CallOption) (*pb.ResponseHeader, error) {
		resp, err = pb.NewKVClient(conn).Range(ctx, in, append(more, opts...)...)
		return resp.GetHeader(), err
	})
	return resp, err
}

func (r remote) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	doubt, err := r.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn, more ...grpc.CallOption) (*pb.ResponseHeader, error) {
		resp, err = pb.NewKVClient(conn).Txn(ctx, in, append(more, opts...)...)
		return resp.GetHeader(), err
	})
	if d, ok := ctx.Value(doubtKey{}).(*bool); ok {
		*d = doubt
	}
	return resp, err
}

// grantIn grants a lease and tells the raft term it was granted in. Terms never fall from one log entry to the next, so the grant's is at
// least the newest known before the call; where the answer bears that very term, it is taken.
func grantIn(ctx context.Context, w wire, seconds int64, later func(func(context.Context))) (*v3.LeaseGrantResponse, error) {
	for range 3 {
		before := w.term()
		resp, err := w.grant(ctx, seconds)
		if err != nil {
			return nil, err
		}
		if resp.Error != "" {
			return nil, fmt.Errorf("etcd: grant: %s", resp.Error)
		}
		if resp.ResponseHeader.GetRaftTerm() == before {
			return resp, nil
		}
		later(func(ctx context.Context) { _ = w.revoke(ctx, resp.ID) })
	}
	return nil, errors.New("etcd: grant: etcd changes its leader again and again")
}

// one returns the only key that the i-th operation of a Txn read, or nil.
func one(resp *v3.TxnResponse, i int) *mvccpb.KeyValue {
	if i >= len(resp.Responses) {
		return nil
	}
	if kvs := resp.Responses[i].GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
