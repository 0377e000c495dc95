package concurrency

import (
	"context"
	"errors"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// through is the wire of a client put together from parts, through its own methods. Its promises
// are the same as long as the parts do not answer from memory; a frozen member may cost more
// time, for the client's balancer knows nothing of it.
type through struct {
	client *v3.Client
	seen   atomic.Uint64 // raft term
	ops    etcdwire.OpsLimit
}

func newThrough(client *v3.Client) *through { return &through{client: client} }

// open asks for a lease that there is not: any answer bears the raft term, and nothing is needed
// to be allowed to ask.
func (t *through) open(ctx context.Context) error {
	if t.seen.Load() != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	resp, err := t.client.Lease.TimeToLive(ctx, 1)
	if err == nil {
		etcdwire.Newest(&t.seen, resp.ResponseHeader)
	}
	return err
}

func (t *through) term() uint64              { return t.seen.Load() }
func (t *through) limit() *etcdwire.OpsLimit { return &t.ops }

func (t *through) get(ctx context.Context, key string, opts ...v3.OpOption) (*v3.GetResponse, error) {
	actx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	resp, err := t.client.KV.Get(actx, key, opts...)
	if err != nil {
		return nil, blamed(ctx, err)
	}
	etcdwire.Newest(&t.seen, resp.Header)
	return resp, nil
}

func (t *through) txn(ctx context.Context, x txn) (*v3.TxnResponse, bool, error) {
	actx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	resp, err := t.client.KV.Txn(actx).If(x.when...).Then(x.then...).Else(x.otherwise...).Commit()
	if err != nil {
		return nil, !etcdwire.Definite(err), blamed(ctx, err)
	}
	etcdwire.Newest(&t.seen, resp.Header)
	return resp, false, nil // the client never repeats a Txn
}

func (t *through) grant(ctx context.Context, seconds int64) (*v3.LeaseGrantResponse, error) {
	actx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	resp, err := t.client.Lease.Grant(actx, seconds)
	if err != nil {
		return nil, blamed(ctx, err)
	}
	etcdwire.Newest(&t.seen, resp.ResponseHeader)
	return resp, nil
}

func (t *through) revoke(ctx context.Context, id v3.LeaseID) error {
	actx, cancel := context.WithTimeout(ctx, etcdwire.CallLimit)
	defer cancel()
	_, err := t.client.Lease.Revoke(actx, id)
	return blamed(ctx, err)
}

// errSilent says that a request had its time. It is no context error: the caller's context has
// not ended.
var errSilent = errors.New("etcd: no answer in time")

// blamed returns err, or errSilent where it is the end of our own limit.
func blamed(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return errSilent
	}
	return err
}

// watch keeps a watch open until it is stopped.
func (t *through) watch(key, end string, puts bool, notify func()) (func(), func() bool) {
	ctx, cancel := context.WithCancel(v3.WithRequireLeader(t.client.Ctx()))
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
			for resp := range t.client.Watcher.Watch(wctx, key, opts...) {
				if resp.Created || resp.Canceled || len(resp.Events) > 0 {
					notify()
				}
			}
			stop()
			etcdwire.Sleep(ctx, etcdwire.Again)
		}
	}()
	return cancel, func() bool { return false }
}

func (t *through) renewer() renewer { return (*asker)(t) }

// asker renews with single requests.
type asker through

func (a *asker) close() {}

func (a *asker) renew(ctx context.Context, leases []v3.LeaseID, key string, keys []etcdwire.Key,
) (p etcdwire.Proof, err error) {
	t := (*through)(a)
	for _, id := range leases {
		ka, err := t.client.Lease.KeepAliveOnce(ctx, id)
		if missing(err) {
			p.TTL = append(p.TTL, 0)
			continue
		}
		if err != nil {
			return p, err
		}
		etcdwire.Newest(&t.seen, ka.ResponseHeader)
		p.TTL = append(p.TTL, ka.TTL)
	}
	if key == "" {
		return p, nil
	}
	return p, t.prove(ctx, key, keys, &p)
}

// prove is etcdwire.Wire.Prove through a balancer: requests go out until one member has answered
// two.
func (t *through) prove(ctx context.Context, key string, keys []etcdwire.Key, p *etcdwire.Proof) error {
	if _, err := t.get(ctx, key, v3.WithCountOnly()); err != nil {
		return err
	}
	req := txn{when: []v3.Cmp{v3.Compare(v3.Version(key), "<", 0)}, then: []v3.Op{v3.OpDelete(key)}}
	for _, k := range keys {
		req.otherwise = append(req.otherwise, look(k))
	}
	by := map[uint64]*v3.TxnResponse{}
	for range 10 {
		resp, _, err := t.txn(ctx, req)
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
