package etcdstore

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// A lease is trusted only in the raft term it was granted in.
//
// When etcd's leader is paused, another one is elected and the lease is renewed there. As it wakes up, the old one still
// has the lease's old expiry. It may revoke the lease in the instant before it learns that it was deposed, and its
// revocation, passed on to the new leader, is carried out: seconds before the end of a renewal that was verified (seen in
// 2 of 10 pauses with etcd 3.7.3). A leader can do this only to leases that it knew while it led. So once the raft term
// has changed, everything is moved to a lease granted in the new term, and only then a renewal counts. Keys keep their
// create revisions in that, so tokens and the order of the line stay as they are.

// errMoved says that etcd's leader changed once more during a move.
var errMoved = errors.New("etcd changed its leader again meanwhile")

// anchor is what claims of a session hang on. It changes with a move, and is guarded by lease.mu.
type anchor struct {
	id      int64   // the etcd lease that the record and the claims are attached to
	term    uint64  // the raft term it was granted in, or an older one
	mark    int64   // the record's mod revision: a claim enters only if it is this one (see retract)
	old     []int64 // leases that some keys may still hang on
	settled bool    // no key hangs on an old one
}

// grantIn grants an etcd lease and tells the raft term it was granted in. Terms never fall from one log entry to the next, so
// the grant's is at least the newest term known before the call; where the answer bears that very term, it is taken. An answer may bear an
// older one than its entry (see prove): then the next renewal finds another term, and moves once more. It never takes a later one.
func (s *Store) grantIn(ctx context.Context, what string, seconds int64) (*pb.LeaseGrantResponse, error) {
	for range 3 {
		before := s.term.Load()
		var resp *pb.LeaseGrantResponse
		// Repeated at another member it may leave an empty lease behind, which nobody renews.
		_, err := s.call(ctx, what, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
			if resp, err = pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, opts...); err != nil {
				return err
			}
			return s.same(resp.Header)
		})
		if err != nil {
			return nil, err
		}
		if resp.Header.RaftTerm == before {
			return resp, nil
		}
		s.later(func(ctx context.Context) { _ = s.revoke(ctx, what, resp.ID) })
	}
	return nil, fmt.Errorf("etcd: %s: %w", what, errMoved)
}

// revoke ends an etcd lease.
func (s *Store) revoke(ctx context.Context, what string, id int64) error {
	_, err := s.call(ctx, what, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
		resp, err := pb.NewLeaseClient(conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id}, opts...)
		if err != nil {
			return err
		}
		return s.same(resp.Header)
	})
	if isGone(err) {
		return nil
	}
	return err
}

// anchored returns the anchor as it is now.
func (l *lease) anchored() anchor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// learn takes over a newer state of the record: its mod revision, and the lease it is attached to, which differs if a move
// was carried out though its answer was lost. The next renewal then moves everything once more.
func (l *lease) learn(mod, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mod <= l.at.mark {
		return
	}
	l.at.mark = mod
	if l.at.id != id {
		l.at.old, l.at.id, l.at.term, l.at.settled = append(l.at.old, l.at.id), id, 0, false
	}
}

// move attaches the session to a lease granted in the present raft term. Only Renew calls it, one at a time.
func (l *lease) move(ctx context.Context, term uint64) error {
	if l.anchored().term != term {
		if err := l.moveRecord(ctx); err != nil {
			return err
		}
	}
	return l.settle(ctx)
}

// moveRecord grants a lease and attaches the record to it. That moves its mark, so that no put of a claim to the old lease
// that is still under way can enter any more, nor a Txn of an earlier move.
func (l *lease) moveRecord(ctx context.Context) error {
	resp, err := l.s.grantIn(ctx, "renew", int64(l.base.Seconds()))
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		l.s.later(func(ctx context.Context) { _ = l.s.revoke(ctx, "renew", resp.ID) })
		return l.goneErr("renew")
	}
	l.at.old = append(l.at.old, resp.ID) // until it is known to be the one, for Close to revoke
	l.mu.Unlock()
	for {
		now := l.anchored()
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(l.key, l.born), ifMod(l.key, now.mark)},
			Success: []*pb.RequestOp{doPut(l.key, l.record, resp.ID)},
			Failure: []*pb.RequestOp{doGet(l.key)},
		}
		if l.heart != nil { // it must not end with the old lease; nor must it come back where it was deleted
			req.Compare = append(req.Compare, ifCreate(l.heart.key, l.born))
			req.Success = append(req.Success, doPut(l.heart.key, nil, resp.ID))
			req.Failure = append(req.Failure, doGet(l.heart.key))
		}
		txn, _, err := l.s.txn(ctx, "renew", req)
		if err != nil {
			return err
		}
		if txn.Succeeded {
			l.mu.Lock()
			l.at.old = append(l.at.old, l.at.id)
			l.at.id, l.at.term, l.at.mark, l.at.settled = resp.ID, resp.Header.RaftTerm, txn.Header.Revision, false
			l.mu.Unlock()
			return nil
		}
		rec := one(txn, 0)
		if rec == nil || rec.CreateRevision != l.born || l.heart != nil && one(txn, 1) == nil {
			return errRecord
		}
		l.learn(rec.ModRevision, rec.Lease)
	}
}

// settle attaches every claim to the lease that the record has.
func (l *lease) settle(ctx context.Context) error {
	for {
		now := l.anchored()
		if now.settled {
			return nil
		}
		l.mu.Lock()
		var slots []*slot
		for _, sl := range l.slots {
			if sl.id != "" {
				slots = append(slots, sl)
			}
		}
		l.mu.Unlock()
		done, err := l.settleAll(ctx, now, slots)
		if err != nil {
			return err
		}
		if !done {
			continue // the record has changed meanwhile
		}
		l.mu.Lock()
		// Requests may hang on the old leases still; those end by themselves.
		l.at.old, l.at.settled = nil, l.at.id == now.id
		l.mu.Unlock()
	}
}

// settleAll moves claims in as few Txns as the server allows. It reports false if the record has changed.
func (l *lease) settleAll(ctx context.Context, now anchor, slots []*slot) (bool, error) {
	most := max(1, l.reads(chunk+2)-2) // room for the operations within, as learnMost leaves it
	done, err := l.inChunks(len(slots), most, func(from, to int) (bool, error) { return l.settleSome(ctx, now, slots[from:to]) })
	return done == len(slots), err
}

// settleSome moves some claims in one Txn, each where its key stands. It reports false if the record has changed.
func (l *lease) settleSome(ctx context.Context, now anchor, slots []*slot) (bool, error) {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(l.key, l.born), ifMod(l.key, now.mark)},
		Failure: []*pb.RequestOp{doGet(l.key)},
	}
	tokens := make([]uint64, len(slots))
	l.mu.Lock()
	for i, sl := range slots {
		tokens[i] = sl.token
		there := ifCreate(sl.key, int64(sl.token))
		if sl.token == 0 {
			there.Result = pb.Compare_GREATER // a put whose outcome is unknown: whatever stands
		}
		put := &pb.PutRequest{Key: []byte(sl.key), Lease: now.id, IgnoreValue: true}
		req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{
			Compare: []*pb.Compare{there},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}},
		}}})
	}
	l.mu.Unlock()
	resp, _, err := l.s.txn(ctx, "renew", req)
	if err != nil {
		return false, err
	}
	if !resp.Succeeded {
		rec := one(resp, 0)
		if rec == nil || rec.CreateRevision != l.born {
			return false, errRecord
		}
		l.learn(rec.ModRevision, rec.Lease)
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, sl := range slots {
		// A claim that should stand and does not may have gone with its old lease, in part of a move. To renew the others
		// would be to renew it too.
		if !resp.Responses[i].GetResponseTxn().GetSucceeded() && tokens[i] != 0 && sl.token == tokens[i] && !sl.leaving && !sl.handing {
			return false, errRecord
		}
	}
	return true, nil
}
