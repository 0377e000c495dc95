package etcdstore

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// renewal keeps the lease alive.
type renewal struct {
	*session
	seats      *seats
	keepalives etcdwire.Keepalives // one renewal of the etcd lease at a time
	heartbeat  *heartbeat          // nil: the ttl is kept by the etcd lease alone
	haveRead   func(...seatID)     // newsbox.readSoon
}

// Renew implements [driver.Lease]. It does not try again where an attempt fails: the caller counts
// the ttl from before its call, so another attempt is worth more as a new call. (A heartbeat goes
// to a second member too, and a move calls as Wire.Call does.)
func (r *renewal) Renew(ctx context.Context) error {
	if r.over() {
		return r.goneErr("renew")
	}
	if r.heartbeat != nil {
		return r.renewHeartbeat(ctx)
	}
	return r.renewBase(ctx)
}

// renewBase renews the etcd lease: one keepalive and one proof at one member, and then what a move
// needs, if one is due.
func (r *renewal) renewBase(ctx context.Context) error {
	// For callers without a limit: half of the ttl leaves time for another attempt.
	limit := min(r.base/2, etcdwire.CallLimit)
	// Where the lease has ended, the member is not to blame, nor for what a move met with.
	innocent := func(err error) bool {
		return r.over() || errors.Is(err, errRecord) || errors.Is(err, errUnknown) || errors.As(err, new(moveError))
	}
	member, err := r.s.wire.AttemptAt(ctx, limit, r.renew, innocent)
	if err == nil {
		return nil
	}
	r.keepalives.Drop()
	var moving moveError
	switch {
	case member == (etcdwire.MemberConn{}):
		return fmt.Errorf("etcd: renew: %w", err)
	case r.over():
		return r.goneErr("renew") // another verb found out first, and ended the stream
	case errors.Is(err, errRecord):
		return r.lost("renew")
	case errors.As(err, &moving) && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return errors.New("etcd: renew: the claims were not all moved to another lease in time: the next call goes on")
	case errors.As(err, &moving):
		return moving.error
	}
	return etcdwire.Wrap(ctx, member.Host(), "renew", err)
}

var (
	errRecord  = errors.New("the session's record is gone")
	errUnknown = errors.New("etcd's leader does not know the lease, but the session's record is there")
)

// moveError is why a move did not end. Its requests have left the members that failed them, which
// need not be the one that the renewal began at: that one must not be blamed for them.
type moveError struct{ error }

func (e moveError) Unwrap() error { return e.error }

// renew is a keepalive, and then a proof on the same connection that the leader which answered it
// had a majority afterwards (see etcdwire.Wire.Prove). The proof reads the record too.
func (r *renewal) renew(ctx context.Context, member etcdwire.MemberConn) error {
	att := r.attachment()
	ka, err := r.keepalives.Send(ctx, r.s.wire, member, att.lease)
	if err != nil {
		return err
	}
	if r.s.unverified {
		if ka.TTL <= 0 {
			return errRecord
		}
		return nil
	}
	read, term, err := r.s.wire.Prove(ctx, member, r.recordKey, doGet(r.recordKey))
	if err != nil {
		return err
	}
	rec := kvAt(read, 0)
	switch {
	case !r.stands(rec, att) || rec.Lease == 0:
		return errRecord
	case rec.Lease != att.lease:
		// An earlier move was carried out and its answer lost, or another program moved the record.
		// Nobody knows in which raft term its lease was granted: move grants another one.
		r.noteRecord(rec.ModRevision, rec.Lease)
		return r.move(ctx, term)
	case term != att.raftTerm:
		return r.move(ctx, term) // it grants a lease, which serves as the keepalive
	case ka.TTL <= 0:
		return errUnknown
	case !att.claimsMoved:
		return r.move(ctx, term)
	}
	return nil
}

// move attaches the session to a lease granted in the present raft term. One call is under way at a
// time: Renew's or, with a heartbeat, renewBaseSoon's.
//
// A lease is trusted only in the raft term that it was granted in. Otherwise this happens (seen in
// 2 of 10 pauses with etcd 3.7.3):
//
//  1. etcd's leader is paused. Another one is elected, and the lease is renewed and verified there.
//  2. The old leader wakes up with the old expiry, and asks for the lease's revocation before it
//     learns that it was deposed.
//  3. That request is passed on to the new leader and carried out, seconds before the renewal ends.
//
// A leader can do so only to leases that it knew while it led. So when the raft term has changed,
// everything moves to a lease granted in the new term before a renewal counts. Keys keep their
// create revisions, and so the tokens and the order of the line.
func (r *renewal) move(ctx context.Context, term uint64) error {
	if r.attachment().raftTerm != term {
		if err := r.moveRecord(ctx); err != nil {
			return moveError{err}
		}
	}
	if err := r.moveClaims(ctx); err != nil {
		return moveError{err}
	}
	return nil
}

// moveRecord grants a lease and attaches the record to it. That changes the record's mod revision:
// no put of a claim to the old lease can enter any more, nor a Txn of an earlier move succeed.
func (r *renewal) moveRecord(ctx context.Context) error {
	resp, err := r.s.wire.GrantInTerm(ctx, "renew", int64(r.base.Seconds()))
	if err != nil {
		return err
	}
	r.mu.Lock()
	if r.closing {
		r.mu.Unlock()
		r.s.wire.Background(func(ctx context.Context) { _ = r.s.wire.Revoke(ctx, "renew", resp.ID) })
		return r.goneErr("renew")
	}
	// For Close to revoke, also if the answer of the Txn below is lost.
	r.attached.oldLeases = append(r.attached.oldLeases, resp.ID)
	r.mu.Unlock()
	for {
		att := r.attachment()
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(r.recordKey, r.recordCreated), ifMod(r.recordKey, att.recordMod)},
			Success: []*pb.RequestOp{doPut(r.recordKey, r.recordValue, resp.ID)},
			Failure: []*pb.RequestOp{doGet(r.recordKey)},
		}
		if r.heartbeat != nil { // it must not end with the old lease; nor must it come back where it was deleted
			req.Compare = append(req.Compare, ifCreate(r.heartbeat.key, r.recordCreated))
			req.Success = append(req.Success, doPut(r.heartbeat.key, nil, resp.ID))
			req.Failure = append(req.Failure, doGet(r.heartbeat.key))
		}
		txn, _, err := r.s.wire.Txn(ctx, "renew", req)
		if err != nil {
			return err
		}
		if txn.Succeeded {
			// A claim may have noted a newer record meanwhile. Then this mod revision is an old
			// one: the next Txn that compares it fails, and reads the newer.
			r.mu.Lock()
			r.attached = attachment{lease: resp.ID, raftTerm: resp.Header.RaftTerm, recordMod: txn.Header.Revision,
				oldLeases: append(r.attached.oldLeases, r.attached.lease)}
			r.mu.Unlock()
			return nil
		}
		rec := kvAt(txn, 0)
		if !r.stands(rec, att) || r.heartbeat != nil && !r.made(kvAt(txn, 1)) {
			return errRecord
		}
		r.noteRecord(rec.ModRevision, rec.Lease)
	}
}

// made reports whether the heartbeat that was read is the one that Grant made.
func (r *renewal) made(kv *mvccpb.KeyValue) bool {
	return kv != nil && kv.CreateRevision == r.recordCreated
}

// moveClaims attaches every claim to the lease that the record has. Each claim that was moved is
// noted: where a call has no time for all, the next one goes on with the others. Otherwise a
// session with so many claims would never be renewed again.
func (r *renewal) moveClaims(ctx context.Context) error {
	for {
		att := r.attachment()
		if att.claimsMoved {
			return nil
		}
		claims := r.seats.notOn(att.lease)
		done, err := r.s.wire.Limit.InChunks(len(claims), func(from, to int) (bool, error) {
			return r.moveSomeClaims(ctx, att, claims[from:to])
		})
		if err != nil {
			return err
		}
		if done < len(claims) {
			continue // the record has changed meanwhile
		}
		r.mu.Lock()
		// With another lease a claim has read a record that was moved again (noteRecord): the next
		// round moves to that one. With another mod revision alone all is done: a put under the old
		// one fails, and one under the new one goes to this lease.
		if r.attached.lease == att.lease {
			r.attached.oldLeases, r.attached.claimsMoved = nil, true // requests (Ask) on the old leases end with those
		}
		r.mu.Unlock()
	}
}

// moveSomeClaims moves some claims in one Txn, each where its key stands. It reports false if the
// record has changed.
func (r *renewal) moveSomeClaims(ctx context.Context, att attachment, some []*seatState) (bool, error) {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(r.recordKey, r.recordCreated), ifMod(r.recordKey, att.recordMod)},
		Failure: []*pb.RequestOp{doGet(r.recordKey)},
	}
	tokens := make([]uint64, len(some))
	r.seats.mu.Lock()
	for i, seat := range some {
		tokens[i] = seat.token
		there := ifCreate(seat.key, int64(seat.token))
		if seat.token == 0 {
			there.Result = pb.Compare_GREATER // a put is in doubt: whatever stands under the key is its
		}
		req.Success = append(req.Success, doTxn(&pb.TxnRequest{
			Compare: []*pb.Compare{there},
			Success: []*pb.RequestOp{doAttach(seat.key, att.lease)},
		}))
	}
	r.seats.mu.Unlock()
	resp, _, err := r.s.wire.Txn(ctx, "renew", req)
	if err != nil {
		return false, err
	}
	if !resp.Succeeded {
		rec := kvAt(resp, 0)
		if !r.stands(rec, att) {
			return false, errRecord
		}
		r.noteRecord(rec.ModRevision, rec.Lease)
		return false, nil
	}
	missing := r.seats.noteMoved(some, tokens, att.lease, resp)
	for _, p := range missing {
		if err := r.passOver(ctx, p.seat, p.token, att); err != nil {
			return false, err
		}
	}
	return true, nil
}

// passOver has News look for a claim that the move did not find, if somebody has removed that claim
// alone: a transfer, or an operator. But it may have ended with the etcd lease that it was on,
// before the move. To renew a session means to renew all its claims, so then the renewal fails for
// good (errRecord). A lease that still stands has ended none of its claims. It is asked for by a
// put, which etcd refuses if the lease has ended: that goes through the log, as the end does. The
// key that is put goes with the old lease.
func (r *renewal) passOver(ctx context.Context, seat *seatState, token uint64, att attachment) error {
	r.seats.mu.Lock()
	on := seat.lease
	r.seats.mu.Unlock()
	if on == 0 {
		return errRecord
	}
	resp, _, err := r.s.wire.Txn(ctx, "renew", &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(r.recordKey, r.recordCreated)},
		Success: []*pb.RequestOp{doPut(witnessKey(r.recordKey), nil, on)},
	})
	switch {
	case isGone(err), err == nil && !resp.Succeeded:
		return errRecord
	case err != nil:
		return err
	}
	r.seats.mu.Lock()
	if seat.token == token {
		seat.lease = att.lease // so the next move does not ask for a lease that has ended since
	}
	r.seats.mu.Unlock()
	r.haveRead(seat.seatID)
	return nil
}
