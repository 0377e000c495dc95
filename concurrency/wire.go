package concurrency

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// wire is how a session reaches etcd. Errors are as the client has them. Every write must be safe
// to repeat.
type wire interface {
	// open learns what must be known before anything else: the cluster, the raft term.
	open(ctx context.Context) error
	get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error)
	// txn runs a Txn. Doubt says that it may have been carried out, or may be later, though it
	// failed, or once more though it did not.
	txn(ctx context.Context, t txn) (resp *v3.TxnResponse, doubt bool, err error)
	// grant makes a lease. The answer's raft term may be later than the grant: see grantIn.
	grant(ctx context.Context, seconds int64) (*v3.LeaseGrantResponse, error)
	revoke(ctx context.Context, id v3.LeaseID) error
	// term is the newest raft term that any answer bore.
	term() uint64
	// watch calls notify, which must not block, when it stands, after each event and whenever one
	// may have been missed. Told reports that it stood before; then look once more.
	watch(key, end string, puts bool, notify func()) (stop func(), told func() bool)
	// renewer renews the leases of one session.
	renewer() renewer
	// limit is how many keys may be looked at in one Txn.
	limit() *etcdwire.OpsLimit
}

// renewer makes one renewal at a time. See etcdwire.Keepalives.
type renewer interface {
	renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdwire.Key) (etcdwire.Proof, error)
	close()
}

// txn is what to compare and what to do.
type txn struct {
	when            []v3.Cmp
	then, otherwise []v3.Op
}

// errWrapped refuses a client.
var errWrapped = errors.New("concurrency: this client answers from a cache of its own (client/v3/leasing): " +
	"give NewSession the client below it")

// wires holds one wire for each client, shared by its sessions: connections and a watch stream.
var wires = struct {
	sync.Mutex
	of map[*v3.Client]*direct
}{of: map[*v3.Client]*direct{}}

// wireOf returns the wire for a client. A client that was put together from parts is spoken to
// through its own methods: its keys may be others than those on its connection (a namespace), or
// it has no connection (inside a server).
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

// direct is the wire of a client as clientv3.New returns it: beside the client's balancer, which
// lets one frozen member swallow every n-th call.
type direct struct {
	client *v3.Client
	w      *etcdwire.Wire
	kv     v3.KV // speaks through w
	warned sync.Once
}

func newDirect(client *v3.Client) *direct {
	d := &direct{client: client, w: etcdwire.New(client, "")}
	d.kv = v3.NewKVFromKVClient(remote{w: d.w}, client)
	return d
}

func (d *direct) open(ctx context.Context) error {
	version, err := d.w.Open(ctx)
	if err != nil {
		return err
	}
	if warning := etcdwire.Warning(version); warning != "" {
		d.warned.Do(func() { d.client.GetLogger().Warn("concurrency: " + warning) })
	}
	return nil
}

func (d *direct) term() uint64              { return d.w.Term() }
func (d *direct) limit() *etcdwire.OpsLimit { return &d.w.Limit }

func (d *direct) get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error) {
	return d.kv.Get(ctx, key, opts...)
}

func (d *direct) txn(ctx context.Context, t txn) (*v3.TxnResponse, bool, error) {
	var doubt bool
	resp, err := d.kv.Txn(context.WithValue(ctx, doubtKey{},
		&doubt)).If(t.when...).Then(t.then...).Else(t.otherwise...).Commit()
	return resp, doubt, err
}

func (d *direct) grant(ctx context.Context, seconds int64) (resp *v3.LeaseGrantResponse, err error) {
	_, err = d.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (*pb.ResponseHeader, error) {
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
	doubt, err := d.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (*pb.ResponseHeader, error) {
		r, err := pb.NewLeaseClient(conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)}, opts...)
		return r.GetHeader(), err
	})
	if doubt && missing(err) {
		return nil // an earlier attempt's work
	}
	return v3.ContextError(ctx, err)
}

func (d *direct) watch(key, end string, puts bool, notify func()) (func(), func() bool) {
	su := d.w.Hub.Watch(etcdwire.Span{Key: key, End: end, Puts: puts}, notify)
	return su.Stop, su.Stands
}

func (d *direct) renewer() renewer { return &keepalives{w: d.w} }

type keepalives struct {
	w      *etcdwire.Wire
	stream etcdwire.Keepalives
}

func (k *keepalives) close() { k.stream.Close() }

func (k *keepalives) renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdwire.Key,
) (etcdwire.Proof, error) {
	ids := make([]int64, len(leases))
	for i, id := range leases {
		ids[i] = int64(id)
	}
	p, err := k.stream.Renew(ctx, k.w, ids, key, keys)
	return p, v3.ContextError(ctx, err)
}

// remote is what a clientv3.KV needs of a connection.
type remote struct {
	pb.KVClient // nothing else is called
	w           *etcdwire.Wire
}

// doubtKey is where a Txn's context carries a place for the doubt about it, which the client's
// types have no room for.
type doubtKey struct{}

func (r remote) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption,
) (resp *pb.RangeResponse, err error) {
	_, err = r.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn,
		more ...grpc.CallOption) (*pb.ResponseHeader, error) {
		resp, err = pb.NewKVClient(conn).Range(ctx, in, append(more, opts...)...)
		return resp.GetHeader(), err
	})
	return resp, err
}

func (r remote) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (resp *pb.TxnResponse, err error) {
	doubt, err := r.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn,
		more ...grpc.CallOption) (*pb.ResponseHeader, error) {
		resp, err = pb.NewKVClient(conn).Txn(ctx, in, append(more, opts...)...)
		return resp.GetHeader(), err
	})
	if d, ok := ctx.Value(doubtKey{}).(*bool); ok {
		*d = doubt
	}
	return resp, err
}

// grantIn grants a lease of which the raft term that it was granted in is known.
func grantIn(ctx context.Context, w wire, seconds int64, later func(func(context.Context)),
) (*v3.LeaseGrantResponse, error) {
	grant := func() (*v3.LeaseGrantResponse, *pb.ResponseHeader, error) {
		resp, err := w.grant(ctx, seconds)
		switch {
		case err != nil:
			return nil, nil, err
		case resp.Error != "":
			return nil, nil, fmt.Errorf("etcd: grant: %s", resp.Error)
		}
		return resp, resp.ResponseHeader, nil
	}
	resp, err := etcdwire.GrantInTerm(w.term, grant, func(resp *v3.LeaseGrantResponse) {
		later(func(ctx context.Context) { _ = w.revoke(ctx, resp.ID) })
	})
	if errors.Is(err, etcdwire.ErrMoved) {
		err = fmt.Errorf("etcd: grant: %w", err)
	}
	return resp, err
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
