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

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// wire is how the sessions of a client reach etcd: beside the client's balancer, which lets one
// frozen member swallow every n-th call. A client that was put together from parts is spoken to
// through these: its keys may be others than those on its connection (a namespace), or it has no
// connection (inside a server). The promises are the same as long as the parts do not answer from
// memory; a frozen member may cost more time.
//
// Errors are as the client has them. Every write must be safe to repeat.
type wire struct {
	client *v3.Client
	direct *etcdwire.Wire // nil: through the client's parts
	kv     v3.KV
	lease  v3.Lease
	term   func() uint64      // the newest raft term that any answer bore
	limit  *etcdwire.OpsLimit // how many keys may be looked at in one Txn
	seen   atomic.Uint64      // that term, unless direct has it
	warned sync.Once
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

// wires holds one wire for each client, shared by its sessions: connections and a watch stream.
var wires = struct {
	sync.Mutex
	of map[*v3.Client]*wire
}{of: map[*v3.Client]*wire{}}

// wireOf returns the wire for a client.
func wireOf(client *v3.Client) (*wire, error) {
	if madeBy(client.KV, "/leasing") {
		return nil, errors.New("concurrency: this client answers from a cache of its own (client/v3/leasing): " +
			"give NewSession the client below it")
	}
	if !genuine(client) {
		w := &wire{client: client, kv: client.KV, lease: client.Lease, limit: &etcdwire.OpsLimit{}}
		w.term = w.seen.Load
		return w, nil
	}
	if err := client.Ctx().Err(); err != nil {
		return nil, err
	}
	wires.Lock()
	defer wires.Unlock()
	if w := wires.of[client]; w != nil {
		return w, nil
	}
	w := &wire{client: client, direct: etcdwire.New(client, "")}
	w.term, w.limit = w.direct.Term, &w.direct.Limit
	w.kv = v3.NewKVFromKVClient(remote{w: w.direct}, client)
	w.lease = v3.NewLeaseFromLeaseClient(remote{w: w.direct}, client, 0)
	wires.of[client] = w
	context.AfterFunc(client.Ctx(), func() {
		wires.Lock()
		delete(wires.of, client)
		wires.Unlock()
		w.direct.Close()
	})
	return w, nil
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

// open learns what must be known before anything else: the cluster, the raft term.
func (w *wire) open(ctx context.Context) error {
	if w.direct == nil {
		if w.seen.Load() != 0 {
			return nil
		}
		// Any answer bears the term, and to ask for a lease that is not there needs no right.
		_, err := call(ctx, w, func(ctx context.Context) (*v3.LeaseTimeToLiveResponse, error) {
			return w.lease.TimeToLive(ctx, 1)
		})
		return err
	}
	version, err := w.direct.Open(ctx)
	if err != nil {
		return err
	}
	if warning := etcdwire.Warning(version); warning != "" {
		w.warned.Do(func() { w.client.GetLogger().Warn("concurrency: " + warning) })
	}
	return nil
}

// errSilent says that a request had its time. It is no context error: the caller's context has
// not ended.
var errSilent = errors.New("etcd: no answer in time")

// call makes one request. Where direct does not, it sets the time limit, and notes the raft term.
func call[R any](ctx context.Context, w *wire, request func(context.Context) (R, error)) (R, error) {
	if w.direct != nil {
		return request(ctx)
	}
	actx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	resp, err := request(actx)
	switch {
	case err == nil:
		etcdwire.Newest(&w.seen, headerOf(resp))
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		err = errSilent
	}
	return resp, err
}

func headerOf(resp any) *pb.ResponseHeader {
	switch resp := resp.(type) {
	case *v3.GetResponse:
		return resp.Header
	case *v3.TxnResponse:
		return resp.Header
	case *v3.LeaseGrantResponse:
		return resp.ResponseHeader
	case *v3.LeaseTimeToLiveResponse:
		return resp.ResponseHeader
	}
	return nil
}

func (w *wire) get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error) {
	return call(ctx, w, func(ctx context.Context) (*v3.GetResponse, error) { return w.kv.Get(ctx, key, opts...) })
}

// txn runs a Txn. Doubt says that it may have been carried out, or may be later, though it
// failed, or once more though it did not.
func (w *wire) txn(ctx context.Context, t txn) (resp *v3.TxnResponse, doubt bool, err error) {
	ctx = context.WithValue(ctx, doubtKey{}, &doubt)
	resp, err = call(ctx, w, func(ctx context.Context) (*v3.TxnResponse, error) {
		return w.kv.Txn(ctx).If(t.when...).Then(t.then...).Else(t.otherwise...).Commit()
	})
	if w.direct == nil {
		doubt = err != nil && !etcdwire.Definite(err) // the client never repeats a Txn
	}
	return resp, doubt, err
}

// grant makes a lease of which the raft term that it was granted in is known.
func (w *wire) grant(ctx context.Context, seconds int64) (*v3.LeaseGrantResponse, error) {
	grant := func() (*v3.LeaseGrantResponse, *pb.ResponseHeader, error) {
		resp, err := call(ctx, w, func(ctx context.Context) (*v3.LeaseGrantResponse, error) {
			return w.lease.Grant(ctx, seconds)
		})
		switch {
		case err != nil:
			return nil, nil, err
		case resp.Error != "":
			return nil, nil, fmt.Errorf("etcd: grant: %s", resp.Error)
		}
		return resp, resp.ResponseHeader, nil
	}
	resp, err := etcdwire.GrantInTerm(w.term, grant, func(resp *v3.LeaseGrantResponse) {
		w.later(func(ctx context.Context) { _ = w.revoke(ctx, resp.ID) })
	})
	if errors.Is(err, etcdwire.ErrMoved) {
		err = fmt.Errorf("etcd: grant: %w", err)
	}
	return resp, err
}

func (w *wire) revoke(ctx context.Context, id v3.LeaseID) error {
	var doubt bool
	ctx = context.WithValue(ctx, doubtKey{}, &doubt)
	_, err := call(ctx, w, func(ctx context.Context) (*v3.LeaseRevokeResponse, error) {
		return w.lease.Revoke(ctx, id)
	})
	if doubt && missing(err) {
		return nil // an earlier attempt's work
	}
	return err
}

// later does a clean-up that nobody waits for, for a limited time.
func (w *wire) later(do func(ctx context.Context)) {
	go func() {
		ctx, cancel := context.WithTimeout(w.client.Ctx(), 2*etcdwire.CallLimit)
		defer cancel()
		do(ctx)
	}()
}

// watch calls notify, which must not block, when it stands, after each event and whenever one
// may have been missed. Stood reports that it stood before; then look once more.
func (w *wire) watch(key, end string, puts bool, notify func()) (stop func(), stood func() bool) {
	if w.direct != nil {
		su := w.direct.Hub.Watch(etcdwire.Span{Key: key, End: end, Puts: puts}, notify)
		return su.Stop, su.Requested
	}
	ctx, cancel := context.WithCancel(v3.WithRequireLeader(w.client.Ctx()))
	opts := []v3.OpOption{v3.WithCreatedNotify()}
	if end != "" {
		opts = append(opts, v3.WithRange(end))
	}
	if !puts {
		opts = append(opts, v3.WithFilterPut())
	}
	go func() {
		for ctx.Err() == nil {
			wctx, stop := context.WithCancel(ctx)
			for resp := range w.client.Watcher.Watch(wctx, key, opts...) {
				if resp.Created || resp.Canceled || len(resp.Events) > 0 {
					notify()
				}
			}
			stop()
			_ = storeutil.Sleep(ctx, etcdwire.RetryPause)
		}
	}()
	return cancel, func() bool { return false }
}

func (w *wire) renewer() renewer {
	if w.direct != nil {
		return &keepalives{w: w.direct}
	}
	return asker{w}
}

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

// remote is what clientv3's KV and Lease need of a connection. Other methods are not called.
type remote struct {
	pb.KVClient
	pb.LeaseClient
	w *etcdwire.Wire
}

// doubtKey is where a call's context carries a *bool for the doubt about it (see
// etcdwire.Wire.Call), which the client's types have no room for.
type doubtKey struct{}

func (r remote) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	out := &pb.RangeResponse{}
	return out, r.call(ctx, "KV/Range", in, out, opts)
}

func (r remote) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	out := &pb.TxnResponse{}
	return out, r.call(ctx, "KV/Txn", in, out, opts)
}

func (r remote) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, opts ...grpc.CallOption,
) (*pb.LeaseGrantResponse, error) {
	out := &pb.LeaseGrantResponse{}
	return out, r.call(ctx, "Lease/LeaseGrant", in, out, opts)
}

func (r remote) LeaseRevoke(ctx context.Context, in *pb.LeaseRevokeRequest, opts ...grpc.CallOption,
) (*pb.LeaseRevokeResponse, error) {
	out := &pb.LeaseRevokeResponse{}
	return out, r.call(ctx, "Lease/LeaseRevoke", in, out, opts)
}

func (r remote) call(ctx context.Context, method string, in any, out interface{ GetHeader() *pb.ResponseHeader },
	opts []grpc.CallOption,
) error {
	doubt, err := r.w.Do(ctx, func(ctx context.Context, conn *grpc.ClientConn,
		more ...grpc.CallOption) (*pb.ResponseHeader, error) {
		err := conn.Invoke(ctx, "/etcdserverpb."+method, in, out, append(more, opts...)...)
		return out.GetHeader(), err
	})
	if d, ok := ctx.Value(doubtKey{}).(*bool); ok {
		*d = doubt
	}
	return err
}

// still compares a key's create and mod revision.
func still(key string, rev, mod int64) []v3.Cmp {
	return []v3.Cmp{v3.Compare(v3.CreateRevision(key), "=", rev), v3.Compare(v3.ModRevision(key), "=", mod)}
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

// final reports whether asking again would get the same answer.
func final(err error) bool {
	return err != nil && (etcdwire.Final(err) != nil || errors.Is(err, driver.ErrRefused) || errors.Is(err,
		rpctypes.ErrEmptyKey))
}

// missing reports whether err says that there is no such lease.
func missing(err error) bool { return errors.Is(etcdwire.Final(err), driver.ErrGone) }

// blame returns the end of ctx where that is why a call failed.
func blame(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !final(err) {
		return ctx.Err()
	}
	return err
}

// asker renews with single requests.
type asker struct{ *wire }

func (a asker) close() {}

func (a asker) renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdwire.Key,
) (p etcdwire.Proof, err error) {
	for _, id := range leases {
		ka, err := a.lease.KeepAliveOnce(ctx, id)
		if missing(err) {
			p.TTL = append(p.TTL, 0)
			continue
		}
		if err != nil {
			return p, err
		}
		etcdwire.Newest(&a.seen, ka.ResponseHeader)
		p.TTL = append(p.TTL, ka.TTL)
	}
	if key == "" {
		return p, nil
	}
	return p, a.prove(ctx, key, keys, &p)
}

// prove is etcdwire.Wire.Prove through a balancer: requests go out until one member has answered
// two.
func (a asker) prove(ctx context.Context, key string, keys []etcdwire.Key, p *etcdwire.Proof) error {
	if _, err := a.get(ctx, key, v3.WithCountOnly()); err != nil {
		return err
	}
	req := txn{when: []v3.Cmp{v3.Compare(v3.Version(key), "<", 0)}, then: []v3.Op{v3.OpDelete(key)}}
	for _, k := range keys {
		req.otherwise = append(req.otherwise, look(k))
	}
	by := map[uint64]*v3.TxnResponse{}
	for range 10 {
		resp, _, err := a.txn(ctx, req)
		if err != nil {
			return err
		}
		first := by[resp.Header.MemberId]
		by[resp.Header.MemberId] = resp
		if first == nil {
			continue
		}
		p.Term = max(first.Header.RaftTerm, resp.Header.RaftTerm)
		p.Keys = etcdwire.States(keys, (*pb.TxnResponse)(resp))
		return nil
	}
	return errors.New("etcd: no member answered twice")
}

// look asks how a key stands, as etcdwire.States reads it. A read would carry its value, or,
// where it asks for keys only, not tell the lease (etcd 3.7).
func look(k etcdwire.Key) v3.Op {
	when := []v3.Cmp{v3.Compare(v3.CreateRevision(k.Key), "=", k.Created), v3.Compare(v3.LeaseValue(k.Key), "=",
		k.Lease)}
	return v3.OpTxn(when, nil, []v3.Op{v3.OpGet(k.Key, v3.WithKeysOnly())})
}
