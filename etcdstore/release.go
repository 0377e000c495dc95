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

func (l *lease) release(ctx context.Context, p driver.Place) error {
	seat := l.seats.open(storeutil.SeatAt(p))
	defer l.seats.drop(seat)
	l.seats.markGivenUp(seat, p)
	if err := seat.lock(ctx); err != nil {
		return fmt.Errorf("etcd: %s: %w", verb("release", p.Name), err)
	}
	defer seat.unlock()
	return l.releaseIn(ctx, seat, p)
}

// releaseIn is release. The caller has the seat's turn.
func (l *lease) releaseIn(ctx context.Context, seat *seatState, p driver.Place) error {
	switch {
	case l.seats.has(seat, p):
		return l.retract(ctx, seat, l.s.journal.journalRecordOf(ctx, p))
	case p.Token != 0:
		return l.remove(ctx, p.Name, l.keyOf(p), int64(p.Token), l.s.journal.journalRecordOf(ctx, p))
	}
	// The lease knows no claim of this ID. It forgets a claim only once that does not stand and no
	// put of it is under way, so nothing is to be done.
	return nil
}

// retract takes the seat's claim out of the line, for good. The caller has the turn.
//
// Where a put of it is in doubt, to delete the key is not enough: the put may sit in a frozen
// member and be carried out long after. So the session's record is rewritten in the same Txn. That
// changes its mod revision, which each put compares: every put under way fails from then on.
func (l *lease) retract(ctx context.Context, seat *seatState, jr *journalRecord) error {
	l.seats.mu.Lock()
	seat.leaving = true
	token, doubt := int64(seat.token), seat.doubt
	l.seats.mu.Unlock()
	var err error
	switch {
	case doubt:
		if err = l.retractInDoubt(ctx, seat, token, jr); etcdwire.NoSpace(err) {
			// A full etcd refuses the put of the record, but not a delete. So the key that stands
			// is deleted now, and the next claim can hold. This one stays in doubt.
			if rerr := l.removeFound(ctx, seat); rerr != nil {
				err = rerr
			}
		}
	case token != 0:
		err = l.remove(ctx, seat.Name, seat.key, token, jr)
	}
	if err == nil {
		l.clear(seat)
	}
	return err
}

// remove deletes a claim's key if it still has that create revision, and then leaves the journal
// record.
func (l *lease) remove(ctx context.Context, name, key string, create int64, jr *journalRecord) error {
	_, _, err := l.batch.send(ctx, "release", name, removal([]byte(key), create), jr)
	return err
}

// removeFound deletes the key of the seat's claim if it stands, by its present create revision: a
// late delete must not meet a later claim. The caller has the turn.
func (l *lease) removeFound(ctx context.Context, seat *seatState) error {
	resp, err := l.s.wire.Get(ctx, verb("release", seat.Name), keysOnly(keyRange(seat.key, ""), 0))
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	return l.remove(ctx, seat.Name, seat.key, resp.Kvs[0].CreateRevision, nil)
}

// retractInDoubt rewrites the session's record and deletes the claim's key, if it stands. It
// repeats the Txn until its compares fit what stands. The caller has the turn.
func (l *lease) retractInDoubt(ctx context.Context, seat *seatState, create int64, jr *journalRecord) error {
	for {
		leaves := jr // what this Txn puts into the journal
		req := &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(l.recordKey, l.recordCreated), ifCreate(seat.key, create)},
			Success: []*pb.RequestOp{doReplace(l.recordKey, l.recordValue)},
			Failure: []*pb.RequestOp{doGet(seat.key), doGet(l.recordKey)},
		}
		if create != 0 {
			req.Success = append(req.Success, doDelete(seat.key))
		} else {
			leaves = nil // it removes nothing
		}
		req.Success = append(req.Success, doGet(l.recordKey)) // a move may have come before: it tells the lease too
		resp, out := l.s.journal.sendWithRecord(ctx, req, leaves)
		err := l.s.wire.Explain(ctx, verb("release", seat.Name), out)
		if isGone(err) {
			// The session's lease has ended, and no claim of it stands or may come. (That of a
			// journal record is no reason: sendWithRecord then sends the Txn without the record.)
			return nil
		}
		if err != nil {
			return err
		}
		if resp.Succeeded {
			rec := kvAt(resp, len(req.Success)-1)
			l.noteRecord(rec.ModRevision, rec.Lease)
			return nil
		}
		own, rec := kvAt(resp, 0), kvAt(resp, 1)
		if rec == nil || rec.CreateRevision != l.recordCreated {
			// Without the record no put can enter: only what stands now is to be removed.
			_ = l.lost("release")
			if own == nil {
				return nil
			}
			return l.remove(ctx, seat.Name, seat.key, own.CreateRevision, jr)
		}
		create = 0
		if own != nil {
			create = own.CreateRevision
		}
	}
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
		own := kvAt(resp, 0)
		if own == nil || uint64(own.CreateRevision) != p.Token {
			return placeGone("update", p.Name)
		}
		mod = own.ModRevision
	}
}
