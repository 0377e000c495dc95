package etcdsim

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// state is what a member has applied of the log. The same log gives the same state on each.
type state struct {
	rev       int64
	compacted int64
	keys      map[string][]*mvccpb.KeyValue // every version, oldest first; one with version 0 is a deletion
	leases    map[int64]*granted
	events    []*mvccpb.Event // all, for watches from the past
	fresh     []*mvccpb.Event // of the entry that is applied just now
}

// granted is a lease as the log knows it: without its expiry.
type granted struct {
	ttl  int64
	keys map[string]bool
}

func newState() *state {
	return &state{rev: 1, keys: map[string][]*mvccpb.KeyValue{}, leases: map[int64]*granted{}}
}

// apply carries out one entry and returns the answer to whoever proposed it.
func (s *state) apply(req any) (resp any, err error) {
	s.fresh = nil
	switch r := req.(type) {
	case *pb.PutRequest:
		if err = s.checkPut(r); err == nil {
			resp = s.put(r, s.rev+1)
		}
	case *pb.DeleteRangeRequest:
		resp = s.remove(r, s.rev+1)
	case *pb.TxnRequest:
		resp, err = s.txn(r)
	case *pb.LeaseGrantRequest:
		resp, err = s.grant(r)
	case *pb.LeaseRevokeRequest:
		resp, err = s.revoke(r)
	case *pb.CompactionRequest:
		resp, err = s.compact(r)
	}
	if len(s.fresh) > 0 {
		s.rev++
		s.events = append(s.events, s.fresh...)
	}
	return resp, err
}

// at returns the version of a key that stood at rev, nil if none did.
func (s *state) at(key string, rev int64) *mvccpb.KeyValue {
	versions := s.keys[key]
	for i := len(versions) - 1; i >= 0; i-- {
		if kv := versions[i]; kv.ModRevision <= rev {
			if kv.Version == 0 {
				return nil
			}
			return kv
		}
	}
	return nil
}

// latest is later than every revision: reads inside a Txn see what stands before them in its list.
const latest = int64(1) << 62

// within reports whether key is in the range as requests name it: one key, or [from, end), or
// from "from" on.
func within(key string, from, end []byte) bool {
	switch {
	case len(end) == 0:
		return key == string(from)
	case len(end) == 1 && end[0] == 0:
		return key >= string(from)
	}
	return key >= string(from) && key < string(end)
}

// scan returns what stood in a range at rev, in order of the keys.
func (s *state) scan(from, end []byte, rev int64) []*mvccpb.KeyValue {
	if len(end) == 0 {
		if kv := s.at(string(from), rev); kv != nil {
			return []*mvccpb.KeyValue{kv}
		}
		return nil
	}
	var out []*mvccpb.KeyValue
	for key := range s.keys {
		if within(key, from, end) {
			if kv := s.at(key, rev); kv != nil {
				out = append(out, kv)
			}
		}
	}
	slices.SortFunc(out, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return out
}

func (s *state) checkRange(r *pb.RangeRequest) error {
	switch {
	case r.Revision > s.rev:
		return rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

// read answers a Range that checkRange let pass.
func (s *state) read(r *pb.RangeRequest) *pb.RangeResponse {
	rev := r.Revision
	if rev <= 0 {
		rev = latest
	}
	all := s.scan(r.Key, r.RangeEnd, rev)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: s.rev}, Count: int64(len(all))}
	if r.CountOnly {
		return resp
	}
	all = slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool {
		return r.MinModRevision > 0 && kv.ModRevision < r.MinModRevision || r.MaxModRevision > 0 &&
			kv.ModRevision > r.MaxModRevision ||
			r.MinCreateRevision > 0 && kv.CreateRevision < r.MinCreateRevision || r.MaxCreateRevision > 0 &&
			kv.CreateRevision > r.MaxCreateRevision
	})
	sortAs(all, r)
	if r.Limit > 0 && int64(len(all)) > r.Limit {
		all, resp.More = all[:r.Limit], true
	}
	for _, kv := range all {
		if r.KeysOnly { // as etcd 3.7 does it, the lease is left out too
			kv = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
				Version: kv.Version}
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp
}

func sortAs(all []*mvccpb.KeyValue, r *pb.RangeRequest) {
	by := map[pb.RangeRequest_SortTarget]func(a, b *mvccpb.KeyValue) int{
		pb.RangeRequest_KEY:     func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) },
		pb.RangeRequest_VERSION: func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) },
		pb.RangeRequest_CREATE: func(a, b *mvccpb.KeyValue) int {
			return cmp.Compare(a.CreateRevision,
				b.CreateRevision)
		},
		pb.RangeRequest_MOD:   func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) },
		pb.RangeRequest_VALUE: func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) },
	}[r.SortTarget]
	if r.SortOrder == pb.RangeRequest_DESCEND {
		slices.SortStableFunc(all, func(a, b *mvccpb.KeyValue) int { return by(b, a) })
	} else if r.SortOrder == pb.RangeRequest_ASCEND || r.SortTarget != pb.RangeRequest_KEY {
		slices.SortStableFunc(all, by)
	}
}

func (s *state) checkPut(r *pb.PutRequest) error {
	if (r.IgnoreValue || r.IgnoreLease) && s.at(string(r.Key), latest) == nil {
		return rpctypes.ErrGRPCKeyNotFound
	}
	if r.Lease != 0 && s.leases[r.Lease] == nil {
		return rpctypes.ErrGRPCLeaseNotFound
	}
	return nil
}

func (s *state) put(r *pb.PutRequest, rev int64) *pb.PutResponse {
	key := string(r.Key)
	kv := &mvccpb.KeyValue{Key: r.Key, Value: r.Value, Lease: r.Lease, CreateRevision: rev, ModRevision: rev,
		Version: 1}
	if old := s.at(key, latest); old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if r.IgnoreValue {
			kv.Value = old.Value
		}
		if r.IgnoreLease {
			kv.Lease = old.Lease
		}
		if l := s.leases[old.Lease]; l != nil {
			delete(l.keys, key)
		}
	}
	if l := s.leases[kv.Lease]; l != nil {
		l.keys[key] = true
	}
	s.keys[key] = append(s.keys[key], kv)
	s.fresh = append(s.fresh, &mvccpb.Event{Type: eventPut, Kv: kv})
	return &pb.PutResponse{Header: &pb.ResponseHeader{Revision: rev}}
}

func (s *state) remove(r *pb.DeleteRangeRequest, rev int64) *pb.DeleteRangeResponse {
	gone := s.scan(r.Key, r.RangeEnd, latest)
	for _, kv := range gone {
		s.erase(kv, rev)
	}
	if len(gone) == 0 {
		rev = s.rev
	}
	return &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{Revision: rev}, Deleted: int64(len(gone))}
}

func (s *state) erase(kv *mvccpb.KeyValue, rev int64) {
	key := string(kv.Key)
	if l := s.leases[kv.Lease]; l != nil {
		delete(l.keys, key)
	}
	dead := &mvccpb.KeyValue{Key: kv.Key, ModRevision: rev}
	s.keys[key] = append(s.keys[key], dead)
	s.fresh = append(s.fresh, &mvccpb.Event{Type: eventDelete, Kv: dead})
}

// The names of these differ between versions of etcd's API.
const (
	eventPut    = mvccpb.Event_EventType(0)
	eventDelete = mvccpb.Event_EventType(1)
)

// grant and revoke are what the log says of leases; when one runs out is the leader's business.
func (s *state) grant(r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if s.leases[r.ID] != nil {
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	s.leases[r.ID] = &granted{ttl: max(r.TTL, leastTTL), keys: map[string]bool{}}
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{Revision: s.rev}, ID: r.ID, TTL: max(r.TTL, leastTTL)}, nil
}

func (s *state) revoke(r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	l := s.leases[r.ID]
	if l == nil {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	rev := s.rev + 1
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		s.erase(s.at(key, latest), rev)
	}
	delete(s.leases, r.ID)
	return &pb.LeaseRevokeResponse{Header: &pb.ResponseHeader{Revision: rev}}, nil
}

// compact forgets what was replaced before a revision.
func (s *state) compact(r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	switch {
	case r.Revision > s.rev:
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision <= s.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	s.compacted = r.Revision
	for key, versions := range s.keys {
		last := -1 // the version that stands at the compacted revision is kept
		for i, kv := range versions {
			if kv.ModRevision <= r.Revision {
				last = i
			}
		}
		if last >= 0 && versions[last].Version == 0 {
			last++
		}
		if s.keys[key] = versions[max(last, 0):]; len(s.keys[key]) == 0 {
			delete(s.keys, key)
		}
	}
	s.events = slices.DeleteFunc(s.events, func(e *mvccpb.Event) bool { return e.Kv.ModRevision <= r.Revision })
	return &pb.CompactionResponse{Header: &pb.ResponseHeader{Revision: s.rev}}, nil
}

// standing returns the keys that begin with prefix, with their values, for tests that look at
// what is left.
func (s *state) standing(prefix string) []*mvccpb.KeyValue {
	all := s.scan([]byte{0}, []byte{0}, latest)
	return slices.DeleteFunc(all, func(kv *mvccpb.KeyValue) bool { return !strings.HasPrefix(string(kv.Key), prefix) })
}
