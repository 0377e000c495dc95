package etcdstore

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Short forms of etcd's requests. They go to the raw clients: clientv3's KV has a balancer of its
// own, which does not know frozen members.
//
// A lock is taken and given back by a Txn of a few operations each, so these are made in few
// allocations. What protobuf has in several structs is allocated as one. A key that stands in a
// request more than once is given as the same bytes: nobody writes to them.

// keyText is a key. As bytes it is used as it is, and as a string it is copied.
type keyText interface{ ~string | ~[]byte }

func ifCreate[K keyText](key K, rev int64) *pb.Compare {
	all := &struct {
		pb.Compare
		target pb.Compare_CreateRevision
	}{Compare: pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_CREATE, Key: []byte(key)}}
	all.target.CreateRevision = rev
	all.TargetUnion = &all.target
	return &all.Compare
}

func ifMod[K keyText](key K, rev int64) *pb.Compare {
	all := &struct {
		pb.Compare
		target pb.Compare_ModRevision
	}{Compare: pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, Key: []byte(key)}}
	all.target.ModRevision = rev
	all.TargetUnion = &all.target
	return &all.Compare
}

// ifNone holds if no key begins with prefix.
func ifNone(prefix string) *pb.Compare { return ifEmpty(prefix, etcdwire.PrefixEnd(prefix)) }

// ifEmpty holds if there is no key in [from, end).
func ifEmpty(from, end string) *pb.Compare {
	c := ifCreate(from, 0)
	c.RangeEnd = []byte(end)
	return c
}

// ifNoneAfter holds if no key that begins with prefix was made after rev.
func ifNoneAfter(prefix string, rev int64) *pb.Compare {
	c := ifCreate(prefix, rev+1)
	c.Result, c.RangeEnd = pb.Compare_LESS, []byte(etcdwire.PrefixEnd(prefix))
	return c
}

// rangeOp is a read.
type rangeOp struct {
	op    pb.RequestOp
	union pb.RequestOp_RequestRange
	r     pb.RangeRequest
}

func (o *rangeOp) get() *pb.RequestOp {
	o.union.RequestRange = &o.r
	o.op.Request = &o.union
	return &o.op
}

func doGet(key string) *pb.RequestOp {
	o := &rangeOp{r: pb.RangeRequest{Key: []byte(key)}}
	return o.get()
}

// doFind reads a key without its value. etcd 3.7 leaves its lease out too.
func doFind(key string) *pb.RequestOp {
	o := &rangeOp{r: pb.RangeRequest{Key: []byte(key), KeysOnly: true}}
	return o.get()
}

// keyRange asks for all keys in [from, end), prefixRange for those that begin with prefix.
func keyRange(from, end string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end)}
}

func prefixRange(prefix string) *pb.RangeRequest { return keyRange(prefix, etcdwire.PrefixEnd(prefix)) }

// oldestFirst has the keys come in the order of their create revisions.
func oldestFirst(r *pb.RangeRequest) *pb.RangeRequest {
	r.SortOrder, r.SortTarget = pb.RangeRequest_ASCEND, pb.RangeRequest_CREATE
	return r
}

// keysPerTxn is how many keys are read or removed in one Txn: etcd allows 128 operations.
const keysPerTxn = 100

// keysOnly makes r return at most limit keys, without their values. Limit 0: all.
func keysOnly(r *pb.RangeRequest, limit int) *pb.RangeRequest {
	r.Limit, r.KeysOnly = int64(limit), true
	return r
}

func doRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// putOp is a put.
type putOp struct {
	op    pb.RequestOp
	union pb.RequestOp_RequestPut
	r     pb.PutRequest
}

func (o *putOp) get() *pb.RequestOp {
	o.union.RequestPut = &o.r
	o.op.Request = &o.union
	return &o.op
}

func doPut[K keyText](key K, value []byte, lease int64) *pb.RequestOp {
	o := &putOp{r: pb.PutRequest{Key: []byte(key), Value: value, Lease: lease}}
	return o.get()
}

// doReplace puts a key that stands and leaves it under its lease, whichever that is now.
func doReplace(key string, value []byte) *pb.RequestOp {
	o := &putOp{r: pb.PutRequest{Key: []byte(key), Value: value, IgnoreLease: true}}
	return o.get()
}

func doAttach(key string, lease int64) *pb.RequestOp {
	o := &putOp{r: pb.PutRequest{Key: []byte(key), Lease: lease, IgnoreValue: true}}
	return o.get()
}

// doTouch rewrites a key that stands as it is: whoever watches its puts is told.
func doTouch(key string) *pb.RequestOp {
	o := &putOp{r: pb.PutRequest{Key: []byte(key), IgnoreValue: true, IgnoreLease: true}}
	return o.get()
}

func doTxn(r *pb.TxnRequest) *pb.RequestOp { return new(txnOp).get(r) }

// txnOp is a Txn within a Txn.
type txnOp struct {
	op    pb.RequestOp
	union pb.RequestOp_RequestTxn
}

func (o *txnOp) get(r *pb.TxnRequest) *pb.RequestOp {
	o.union.RequestTxn = r
	o.op.Request = &o.union
	return &o.op
}

// removal deletes a key if it still has that create revision: a late one must not meet a later key.
func removal(key []byte, create int64) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, create)},
		Success: []*pb.RequestOp{doDelete(key)},
	}
}

// removals deletes keys, each if it is still the one that was read.
func removals(kvs []*mvccpb.KeyValue) (ops []*pb.RequestOp) {
	for _, kv := range kvs {
		ops = append(ops, doTxn(removal(kv.Key, kv.CreateRevision)))
	}
	return ops
}

func doDelete[K keyText](key K) *pb.RequestOp { return doDeleteRange(key, "") }

// doDeleteRange deletes all keys in [key, end), or where end is empty that one.
func doDeleteRange[K keyText](key K, end string) *pb.RequestOp {
	all := &struct {
		pb.RequestOp
		union pb.RequestOp_RequestDeleteRange
		r     pb.DeleteRangeRequest
	}{r: pb.DeleteRangeRequest{Key: []byte(key)}}
	if end != "" {
		all.r.RangeEnd = []byte(end)
	}
	all.union.RequestDeleteRange = &all.r
	all.Request = &all.union
	return &all.RequestOp
}

// youngest asks for the n youngest keys in [from, end) that were made before rev, the youngest
// first. Rev 0: the youngest of all.
func youngest(from, end string, n int, rev int64) *pb.RangeRequest {
	r := keysOnly(keyRange(from, end), n)
	r.SortOrder, r.SortTarget = pb.RangeRequest_DESCEND, pb.RangeRequest_CREATE
	if rev > 0 {
		r.MaxCreateRevision = rev - 1
	}
	return r
}

// kvsAt returns the keys that the i-th operation of a Txn has read, none if it was no read.
func kvsAt(r *pb.TxnResponse, i int) []*mvccpb.KeyValue {
	if i >= len(r.Responses) {
		return nil
	}
	return r.Responses[i].GetResponseRange().GetKvs()
}

// kvAt returns the first key that the i-th operation of a Txn has read, or nil.
func kvAt(r *pb.TxnResponse, i int) *mvccpb.KeyValue {
	if kvs := kvsAt(r, i); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
