package etcdsim

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// mostOps is how many operations etcd takes in one Txn by default: the longest of its lists, and
// that of any Txn within it.
const mostOps = 128

func checkOps(t *pb.TxnRequest, most int) error {
	most -= max(len(t.Compare), len(t.Success), len(t.Failure))
	if most < 0 {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, list := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range list {
			if in := op.GetRequestTxn(); in != nil {
				if err := checkOps(in, most); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkOnce refuses a Txn that puts a key twice, or puts and deletes it, wherever in it that may
// be. Of a Txn within, one branch may put what the other does.
func checkOnce(t *pb.TxnRequest) error {
	for _, list := range [][]*pb.RequestOp{t.Success, t.Failure} {
		if _, _, ok := written(list); !ok {
			return rpctypes.ErrGRPCDuplicateKey
		}
	}
	return nil
}

// written returns what the operations put and delete, and false if they do what etcd does not take.
func written(list []*pb.RequestOp) (puts map[string]bool, dels []*pb.DeleteRangeRequest, ok bool) {
	puts = map[string]bool{}
	add := func(key string, safe map[string]bool) bool {
		twice := puts[key] && !safe[key]
		puts[key] = true
		return !twice && !slices.ContainsFunc(dels, func(d *pb.DeleteRangeRequest) bool {
			return within(key, d.Key,
				d.RangeEnd)
		})
	}
	for _, op := range list {
		if d := op.GetRequestDeleteRange(); d != nil {
			dels = append(dels, d)
		}
	}
	for _, op := range list {
		in := op.GetRequestTxn()
		if in == nil {
			continue
		}
		then, delThen, ok1 := written(in.Success)
		other, delElse, ok2 := written(in.Failure)
		if !ok1 || !ok2 {
			return nil, nil, false
		}
		for key := range then {
			if !add(key, nil) {
				return nil, nil, false
			}
		}
		for key := range other {
			if !add(key, then) {
				return nil, nil, false
			}
		}
		dels = append(append(dels, delThen...), delElse...)
	}
	for _, op := range list {
		if put := op.GetRequestPut(); put != nil && !add(string(put.Key), nil) {
			return nil, nil, false
		}
	}
	return puts, dels, true
}

// path is which branch each Txn takes: decided for the whole tree before anything is written.
type path struct {
	ok    bool
	inner map[int]*path // by the index of a Txn among the operations
}

func (s *state) decide(t *pb.TxnRequest) *path {
	p := &path{ok: true, inner: map[int]*path{}}
	for _, c := range t.Compare {
		p.ok = p.ok && s.holds(c)
	}
	for i, op := range branch(t, p.ok) {
		if in := op.GetRequestTxn(); in != nil {
			p.inner[i] = s.decide(in)
		}
	}
	return p
}

func branch(t *pb.TxnRequest, ok bool) []*pb.RequestOp {
	if ok {
		return t.Success
	}
	return t.Failure
}

// holds says whether a compare is true of all keys in its range. A key that is not there counts
// as one with zeros.
func (s *state) holds(c *pb.Compare) bool {
	kvs := s.scan(c.Key, c.RangeEnd, latest)
	if len(kvs) == 0 {
		return c.Target != pb.Compare_VALUE && compare(c, &mvccpb.KeyValue{})
	}
	for _, kv := range kvs {
		if !compare(c, kv) {
			return false
		}
	}
	return true
}

func compare(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var is int
	switch c.Target {
	case pb.Compare_VALUE:
		is = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		is = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		is = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		is = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		is = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return is == 0
	case pb.Compare_NOT_EQUAL:
		return is != 0
	case pb.Compare_GREATER:
		return is > 0
	}
	return is < 0
}

// txn runs a Txn as a whole, or returns an error and has done nothing.
func (s *state) txn(t *pb.TxnRequest) (*pb.TxnResponse, error) {
	p := s.decide(t)
	if err := s.checkTxn(t, p); err != nil {
		return nil, err
	}
	resp := s.run(t, p, s.rev+1)
	resp.Header.Revision = s.rev
	if !readOnly(t) && len(s.fresh) > 0 { // for a read that still has what the entry before it wrote
		resp.Header.Revision++
	}
	return resp, nil
}

func (s *state) checkTxn(t *pb.TxnRequest, p *path) error {
	for i, op := range branch(t, p.ok) {
		var err error
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = s.checkRange(r.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = s.checkPut(r.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = s.checkTxn(r.RequestTxn, p.inner[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *state) run(t *pb.TxnRequest, p *path, rev int64) *pb.TxnResponse {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: p.ok}
	for i, op := range branch(t, p.ok) {
		out := &pb.ResponseOp{}
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: s.read(r.RequestRange)}
		case *pb.RequestOp_RequestPut:
			out.Response = &pb.ResponseOp_ResponsePut{ResponsePut: s.put(r.RequestPut, rev)}
		case *pb.RequestOp_RequestDeleteRange:
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: s.remove(r.RequestDeleteRange, rev)}
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: s.run(r.RequestTxn, p.inner[i], rev)}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

// readOnly reports whether a Txn has nothing but reads, whichever way it goes: then it is a
// linearizable read. Any other goes through the log, also one that has another Txn within,
// whatever that does.
func readOnly(t *pb.TxnRequest) bool {
	for _, op := range append(append([]*pb.RequestOp(nil), t.Success...), t.Failure...) {
		if op.GetRequestRange() == nil {
			return false
		}
	}
	return true
}
