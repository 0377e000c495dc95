package etcdstore

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Release implements [driver.Lease]. Where one place fails, the others are still tried.
func (l *lease) Release(ctx context.Context, places ...driver.Place) error {
	if len(places) == 1 {
		return l.release(ctx, places[0])
	}
	errs := make([]error, len(places))
	inParallel(len(places), func(i int) (stop bool) {
		errs[i] = l.release(ctx, places[i])
		return false
	})
	return errors.Join(errs...)
}

// release gives one place up.
func (l *lease) release(ctx context.Context, p driver.Place) error {
	sl := l.seats.open(storeutil.SeatAt(p))
	defer l.seats.drop(sl)
	l.seats.renounce(sl, p)
	if err := sl.lock(ctx); err != nil {
		return fmt.Errorf("etcd: %s: %w", verb("release", p.Name), err)
	}
	defer sl.unlock()
	return l.releaseIn(ctx, sl, p)
}

// releaseIn is release. The caller has the seat's turn.
func (l *lease) releaseIn(ctx context.Context, sl *claimState, p driver.Place) error {
	switch {
	case l.seats.has(sl, p):
		return l.retract(ctx, sl, l.s.journal.recordOf(ctx, p))
	case p.Token != 0:
		return l.remove(ctx, p.Name, l.keyOf(p), int64(p.Token), l.s.journal.recordOf(ctx, p))
	}
	// No claim of this ID stands, and no put of it is under way: only then is an ID forgotten.
	return nil
}

// retract takes the seat's claim out of the line, for good. The caller has the turn.
//
// Where a put of it is in doubt, to delete the key is not enough: the put may sit in a frozen
// member and be carried out long after. So the session's record is rewritten in the same Txn. That
// changes its mod revision, which each put compares: every put under way fails from then on.
func (l *lease) retract(ctx context.Context, sl *claimState, n *releaseRecord) error {
	l.seats.mu.Lock()
	sl.leaving = true
	token, doubt := int64(sl.token), sl.doubt
	l.seats.mu.Unlock()
	var err error
	switch {
	case doubt:
		if err = l.fence(ctx, sl, token, n); etcdwire.NoSpace(err) {
			// A full etcd refuses fence's put, but not a delete. So the key that stands is deleted
			// now, and the next claim can hold. This one stays in doubt until a fence succeeds.
			if rerr := l.removeFound(ctx, sl); rerr != nil {
				err = rerr
			}
		}
	case token != 0:
		err = l.remove(ctx, sl.Name, sl.key, token, n)
	}
	if err == nil {
		l.clear(sl)
	}
	return err
}

// remove deletes a claim's key if it still has that create revision, and then leaves the record n.
func (l *lease) remove(ctx context.Context, name, key string, create int64, n *releaseRecord) error {
	_, _, err := l.batch.send(ctx, "release", name, &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, create)},
		Success: []*pb.RequestOp{doDelete(key)},
	}, n)
	return err
}

// removeFound deletes the key of the seat's claim if it stands, by its present create revision: a
// late delete must not meet a later claim. The caller has the turn.
func (l *lease) removeFound(ctx context.Context, sl *claimState) error {
	resp, err := l.s.wire.Get(ctx, verb("release", sl.Name), keysOf(within(sl.key, ""), 0))
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	return l.remove(ctx, sl.Name, sl.key, resp.Kvs[0].CreateRevision, nil)
}

// fence retracts a claim of which a put is in doubt: it rewrites the session's record and deletes
// the key. It repeats the Txn until its compares fit what stands. The caller has the turn.
func (l *lease) fence(ctx context.Context, sl *claimState, create int64, n *releaseRecord) error {
	for {
		leaves := n
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(l.key, l.born), ifCreate(sl.key, create)},
			Success: []*pb.RequestOp{doReplace(l.key, l.record)},
			Failure: []*pb.RequestOp{doGet(sl.key), doGet(l.key)},
		}
		if create != 0 {
			req.Success = append(req.Success, doDelete(sl.key))
		} else {
			leaves = nil // it removes nothing
		}
		req.Success = append(req.Success, doGet(l.key)) // a move may have come before: it tells the lease too
		resp, out := l.s.journal.sendWithRecord(ctx, req, leaves)
		err := l.s.wire.Explain(ctx, verb("release", sl.Name), out)
		if isGone(err) {
			return nil // the lease is gone, and with it every claim that stands or may come
		}
		if err != nil {
			return err
		}
		if resp.Succeeded {
			rec := one(resp, len(req.Success)-1)
			l.learn(rec.ModRevision, rec.Lease)
			return nil
		}
		own, rec := one(resp, 0), one(resp, 1)
		if rec == nil || rec.CreateRevision != l.born {
			// Without the record no put can enter: only what stands now is to be removed.
			_ = l.lost("release")
			if own == nil {
				return nil
			}
			return l.remove(ctx, sl.Name, sl.key, own.CreateRevision, n)
		}
		create = 0
		if own != nil {
			create = own.CreateRevision
		}
	}
}

// clear forgets the claim, which does not stand and cannot come. The caller has the seat's turn.
func (l *lease) clear(sl *claimState) {
	l.seats.mu.Lock()
	su, token := sl.sub, sl.token
	sl.claimFields = claimFields{}
	l.seats.mu.Unlock()
	su.Stop()
	l.newsbox.released(sl.seatID, token)
}

// Update implements [driver.Lease]. Each put compares the key's mod revision too: otherwise an
// earlier Update whose outcome is unknown could be carried out later, and bring its value back.
func (l *lease) Update(ctx context.Context, p driver.Place, value []byte) error {
	what := verb("update", p.Name)
	p, err := l.seats.known(p)
	if err != nil {
		return err
	}
	key, mod := l.keyOf(p), l.seats.modOf(p, 0)
	for {
		resp, _, err := l.s.wire.Txn(ctx, what, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(key, int64(p.Token)), ifMod(key, mod)},
			Success: []*pb.RequestOp{doReplace(key, value)},
			Failure: []*pb.RequestOp{doFind(key)},
		})
		if err != nil {
			return err
		}
		if resp.Succeeded {
			l.seats.modOf(p, resp.Header.Revision)
			return nil
		}
		own := one(resp, 0)
		if own == nil || uint64(own.CreateRevision) != p.Token {
			return placeGone("update", p.Name)
		}
		mod = own.ModRevision
	}
}
