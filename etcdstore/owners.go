package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
)

// owner is who made a lease, as its session's record says.
type owner struct {
	name  string
	note  string // what is odd about the record
	known bool   // there is one
}

// owners remembers sessions' records. They are written before the first claim and never change, so they are read once.
type owners struct {
	mu   sync.Mutex
	seen map[string]owner // by the lease's ID as keys have it
}

// ownersKept bounds the memory for leases that are long gone.
const ownersKept = 10000

// sessionOf returns the session's ID that a claim's key bears, where the claim is a session's.
func sessionOf(kv *mvccpb.KeyValue) string {
	_, session := parseClaim("", string(kv.Key))
	return session
}

// ownersOf returns the owners of the sessions that kvs are claims of. Unknown records are read as of rev, when the claims stood: read
// any later, a lease that has expired meanwhile would look like a stranger's.
func (s *Store) ownersOf(ctx context.Context, what string, kvs []*mvccpb.KeyValue, rev int64) (map[string]owner, error) {
	out := map[string]owner{}
	var miss []string
	s.owners.mu.Lock()
	for _, kv := range kvs {
		id := sessionOf(kv)
		if _, dup := out[id]; dup || id == "" {
			continue
		}
		o, ok := s.owners.seen[id]
		out[id] = o
		if !ok {
			miss = append(miss, id)
		}
	}
	s.owners.mu.Unlock()
	for len(miss) > 0 {
		n := min(chunk, len(miss))
		if err := s.readOwners(ctx, what, miss[:n], rev, out); err != nil {
			return nil, err
		}
		miss = miss[n:]
	}
	return out, nil
}

// readOwners reads records in one Txn and remembers them.
func (s *Store) readOwners(ctx context.Context, what string, ids []string, rev int64, out map[string]owner) error {
	req := &pb.TxnRequest{}
	for _, id := range ids {
		req.Success = append(req.Success, doRange(&pb.RangeRequest{Key: []byte(s.prefix + sessions + id), Revision: rev}))
	}
	resp, _, err := s.txn(ctx, what, req)
	if errors.Is(err, rpctypes.ErrCompacted) && rev != 0 {
		return s.readOwners(ctx, what, ids, 0, out)
	}
	if err != nil {
		return err
	}
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	if s.owners.seen == nil || len(s.owners.seen) > ownersKept {
		s.owners.seen = map[string]owner{}
	}
	for i, id := range ids {
		o := ownerOf(one(resp, i))
		out[id], s.owners.seen[id] = o, o
	}
	return nil
}

// ownerOf reads one record.
func ownerOf(kv *mvccpb.KeyValue) owner {
	if kv == nil {
		return owner{note: "entered by another program: its lease has no session record"}
	}
	var r record
	if json.Unmarshal(kv.Value, &r) != nil {
		return owner{known: true, note: "its session record cannot be read"}
	}
	return owner{known: true, name: r.Owner}
}

// Ask implements [driver.Asker]. The request is a key under the holder's own lease, so it goes with it.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	what := verb("ask", name)
	holder, slots, err := s.holding(ctx, what, name, r.Token, false)
	switch {
	case err != nil:
		return err
	case holder == nil:
		return placeGone("ask", name)
	case slots != 0:
		return refused(what, "that claim is shared, and only who holds a name alone can be asked")
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.deliver(ctx, what, name, holder, value)
}

// deliver puts a request, if the claim it is meant for still stands.
func (s *Store) deliver(ctx context.Context, what, name string, holder *mvccpb.KeyValue, value []byte) error {
	key, rec := string(holder.Key), s.prefix+sessions+sessionOf(holder)
	there := ifCreate(rec, 0)
	there.Result = pb.Compare_GREATER
	resp, _, err := s.txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, holder.CreateRevision), there},
		Success: []*pb.RequestOp{doPut(askKey(rec, name), value, holder.Lease)},
		Failure: []*pb.RequestOp{doRange(&pb.RangeRequest{Key: []byte(key), KeysOnly: true})},
	})
	if err != nil || resp.Succeeded {
		return err
	}
	if kv := one(resp, 0); kv == nil || kv.CreateRevision != holder.CreateRevision {
		return placeGone("ask", name)
	}
	return refused(what, "the holder is another program, which cannot be asked")
}
