package etcdstore

import (
	"context"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Revoke implements [driver.Store]. An ID that no session of this prefix has is a session that is gone: etcd leases of other programs
// are not touched. After an unknown outcome it can be repeated.
//
// A session is named after its first etcd lease, and hangs on another one after a move. Its record tells which. Whatever of it is still
// on its way to etcd compares the record, to enter as well as to move: so it is over for good once the record is gone, and not before.
func (s *Store) Revoke(ctx context.Context, session string) error {
	what := "revoke lease " + strconv.Quote(session)
	first, err := strconv.ParseInt(session, 16, 64)
	if err != nil || first <= 0 || hex(first) != session {
		return refused(what, "that is no lease's ID: give it as Lease.ID returns it, in lower-case hex")
	}
	for ended := int64(0); ; {
		resp, err := s.get(ctx, what, &pb.RangeRequest{Key: []byte(s.sessionKey(first))})
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
		rec := resp.Kvs[0]
		if rec.ModRevision == ended {
			rec.Lease = 0 // etcd does not know the lease that it shows, and will never end it
		}
		if rec.Lease != first {
			// Before the lease: without the record a repeated call would not know that there is more.
			if done, err := s.sweep(ctx, what, session, rec); err != nil || !done {
				if err != nil {
					return err
				}
				continue
			}
		}
		if rec.Lease != 0 {
			if err := s.revoke(ctx, what, rec.Lease); err != nil {
				return err
			}
			ended = rec.ModRevision
		}
		// Again: a move that came between has saved the record onto a newer lease.
	}
}

// sweep deletes the claims of a session that are not on the lease that its record is on: a move was not finished. Where the record is on
// none, it goes with them. It reports false if the record has changed meanwhile: then there may be more.
func (s *Store) sweep(ctx context.Context, what, session string, rec *mvccpb.KeyValue) (bool, error) {
	since := func(from, end string) *pb.RequestOp {
		return doRange(&pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), KeysOnly: true, MinCreateRevision: rec.CreateRevision})
	}
	resp, _, err := s.txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		since(s.prefix, s.prefix+noLine), since(s.prefix+pastNoLine, prefixEnd(s.prefix))}})
	if err != nil {
		return false, fmt.Errorf("%w (its claims are looked for under %q)", err, s.prefix)
	}
	var left []*mvccpb.KeyValue
	for _, kv := range append(found(resp, 0), found(resp, 1)...) {
		if (kv.Lease != rec.Lease || rec.Lease == 0) && s.isClaimOf(string(kv.Key), session) {
			left = append(left, kv)
		}
	}
	done, err := inChunks(len(left), chunk, func(from, to int) (bool, error) { return s.sweepSome(ctx, what, rec, left[from:to]) })
	if err != nil || done < len(left) {
		return false, err
	}
	if rec.Lease != 0 {
		return true, nil
	}
	return s.sweepSome(ctx, what, rec, []*mvccpb.KeyValue{rec})
}

// isClaimOf reports whether a key is laid out as a claim of that session.
func (s *Store) isClaimOf(key, session string) bool {
	whose, _ := parseStem(key)
	return s.isClaim(key) && whose == session
}

// sweepSome deletes keys in one Txn, each if it is the one that was seen.
func (s *Store) sweepSome(ctx context.Context, what string, rec *mvccpb.KeyValue, keys []*mvccpb.KeyValue) (bool, error) {
	req := &pb.TxnRequest{Compare: []*pb.Compare{ifMod(string(rec.Key), rec.ModRevision)}}
	for _, kv := range keys {
		req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(string(kv.Key), kv.CreateRevision)},
			Success: []*pb.RequestOp{doDelete(string(kv.Key))},
		}}})
	}
	resp, _, err := s.txn(ctx, what, req)
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}
