package etcdstore

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Short forms of etcd's requests. They go to the raw clients: clientv3's KV has a balancer of its
// own, which knows nothing of frozen members.

func ifCreate(key string, rev int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_CREATE, Key: []byte(key),
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev}}
}

func ifMod(key string, rev int64) *pb.Compare {
	return &pb.Compare{Result: pb.Compare_EQUAL, Target: pb.Compare_MOD, Key: []byte(key),
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev}}
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

func doGet(key string) *pb.RequestOp { return doRange(&pb.RangeRequest{Key: []byte(key)}) }

func doRange(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

func doPut(key string, value []byte, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value,
		Lease: lease}}}
}

// doReplace puts a key that stands and leaves it under its lease, whichever that is now.
func doReplace(key string, value []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value,
		IgnoreLease: true}}}
}

func doDelete(key string) *pb.RequestOp { return doDeleteRange(key, "") }

// doDeleteRange deletes all keys in [key, end), or where end is empty that one.
func doDeleteRange(key, end string) *pb.RequestOp {
	r := &pb.DeleteRangeRequest{Key: []byte(key)}
	if end != "" {
		r.RangeEnd = []byte(end)
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
}

// youngest asks for the n youngest keys in [from, end) that were made before rev, the youngest
// first. Rev 0: the youngest of all.
func youngest(from, end string, n int, rev int64) *pb.RangeRequest {
	r := &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), Limit: int64(n), KeysOnly: true,
		SortOrder: pb.RangeRequest_DESCEND, SortTarget: pb.RangeRequest_CREATE}
	if rev > 0 {
		r.MaxCreateRevision = rev - 1
	}
	return r
}

// found returns the keys that the i-th operation of a Txn read, none if it was no read.
func found(r *pb.TxnResponse, i int) []*mvccpb.KeyValue {
	if i >= len(r.Responses) {
		return nil
	}
	return r.Responses[i].GetResponseRange().GetKvs()
}

// one returns the only key that the i-th operation of a Txn read, or nil.
func one(r *pb.TxnResponse, i int) *mvccpb.KeyValue {
	if kvs := found(r, i); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
