package etcdstore

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var _ driver.Exchanger = (*lease)(nil)

// Exchange implements [driver.Exchanger]. It is one Txn where the place stands and has no Record,
// no put of it is in doubt and nothing is on the new seat; otherwise a release and a claim.
//
// After an unknown outcome p is given up (its ID is spent) but may stand, and a put of c is in
// doubt. The caller's Release of p and Claim of c settle both. The Txn, if it arrives late, does
// nothing once either was called: it compares the old key, the new one, and the mod revision of the
// session's record.
func (l *lease) Exchange(ctx context.Context, p driver.Place, c driver.Claim) (driver.Place, error) {
	if err := l.checkExchange(p, c); err != nil {
		return driver.Place{}, err
	}
	from, to := l.seats.open(storeutil.SeatAt(p)), l.seats.open(storeutil.SeatOf(c))
	defer l.seats.drop(from)
	defer l.seats.drop(to)
	first, second := from, to
	if from.Seat > to.Seat {
		first, second = to, from // two that go opposite ways would each wait for the other's turn
	}
	for _, seat := range []*seatState{first, second} {
		if err := seat.lock(ctx); err != nil {
			return driver.Place{}, fmt.Errorf("etcd: %s: %w", verb("exchange", p.Name), err)
		}
		defer seat.unlock()
	}
	l.seats.markGivenUp(from, p)
	token, inOneTxn := l.seats.exchangeable(from, to, p)
	if !inOneTxn || p.Record != nil { // only a release leaves p's record
		return l.oneByOne(ctx, from, to, p, c)
	}
	// Under claimIn, so that a Release of the new claim finds it from the beginning.
	entered, err := l.claimIn(ctx, to, c, func(ctx context.Context, to *seatState, c driver.Claim) (driver.Place,
		error) {
		return l.exchange(ctx, from, to, p, c, token)
	})
	if isGone(err) && !l.over() && l.seats.has(from, p) {
		// claimIn found that c's ID is spent, and sent nothing: p still stands. But Exchange
		// promises with ErrGone that p was given up.
		if err := l.releaseIn(ctx, from, p); err != nil {
			return driver.Place{}, err
		}
	}
	return entered, err
}

func (l *lease) checkExchange(p driver.Place, c driver.Claim) error {
	l.seats.mu.Lock()
	if seat := l.seats.by[storeutil.SeatAt(p)]; seat != nil && seat.id == p.ID {
		p.Slots = seat.slots
	}
	l.seats.mu.Unlock()
	if err := driver.CheckExchange(p, c); err != nil {
		return fmt.Errorf("etcd: exchange: %w", err)
	}
	return checkClaims(c)
}

// oneByOne is Release and then Claim. The caller has both seats' turns.
func (l *lease) oneByOne(ctx context.Context, from, to *seatState, p driver.Place, c driver.Claim,
) (driver.Place, error) {
	if err := l.releaseIn(ctx, from, p); err != nil {
		return driver.Place{}, err
	}
	return l.claimIn(ctx, to, c, l.enterOrFind)
}

// exchange tries the Txn until its compares fit what stands. Where they cannot, or etcd refuses it,
// it releases and then enters: the place is given up whatever becomes of the claim. The caller has
// both seats' turns.
func (l *lease) exchange(ctx context.Context, from, to *seatState, p driver.Place, c driver.Claim, token int64,
) (driver.Place, error) {
	for {
		att := l.attachment()
		req := l.swap(from.key, token, to.key, c, att)
		resp, doubt, err := l.batch.send(ctx, "exchange", c.Name, req, nil)
		if doubt {
			l.seats.doubt(to)
		}
		switch {
		case isGone(err):
			l.end()
			return driver.Place{}, err
		case err != nil && !driver.IsFinal(err):
			return driver.Place{}, err
		case err == nil && resp.Succeeded:
			l.clear(from)
			l.seats.noteAhead(to, resp, 1)
			rev := resp.Header.Revision
			entered := l.entered(to, rev, rev, att.lease, len(kvsAt(resp, 1)) == 0)
			return l.unlessMoved(ctx, to, c, entered, att)
		case err == nil && l.recordChanged(resp, att):
			continue
		}
		// etcd refused the Txn for good, or one of the two keys is not as the Txn expects.
		if err := l.releaseIn(ctx, from, p); err != nil {
			return driver.Place{}, err
		}
		return l.enterOrFind(ctx, to, c)
	}
}

// swap is the Txn of an exchange. The old key goes first, so that the read does not find it before
// the new one.
func (l *lease) swap(from string, token int64, to string, c driver.Claim, att attachment) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(l.recordKey, att.recordMod), ifCreate(to, 0), ifCreate(from, token)},
		Success: []*pb.RequestOp{doDelete(from), readAhead(l.s.lineDir(c.Name)), doPut(to, c.Value, att.lease)},
		Failure: []*pb.RequestOp{doGet(to), doGet(l.recordKey)},
	}
}

// recordChanged reports whether the Txn failed only because the session's record has changed, and
// notes that.
func (l *lease) recordChanged(resp *pb.TxnResponse, att attachment) bool {
	own, rec := kvAt(resp, 0), kvAt(resp, 1)
	if own != nil || !l.stands(rec, att) || rec.ModRevision == att.recordMod {
		return false
	}
	l.noteRecord(rec.ModRevision, rec.Lease)
	return true
}
