package etcdstore

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var _ driver.Exchanger = (*lease)(nil)

// Exchange implements [driver.Exchanger]. It is one Txn where the place stands, no put of it is in
// doubt and nothing is on the new seat; otherwise a release and a claim.
//
// A Txn that arrives late compares the old key, the new one and the session's mark: once either
// half was repeated it does nothing.
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
	for _, sl := range []*claimState{first, second} {
		if err := sl.lock(ctx); err != nil {
			return driver.Place{}, fmt.Errorf("etcd: %s: %w", verb("exchange", p.Name), err)
		}
		defer sl.unlock()
	}
	l.seats.renounce(from, p)
	token, inOneTxn := l.seats.exchangeable(from, to, p)
	if !inOneTxn || p.Record != nil { // only a release leaves p's record
		return l.oneByOne(ctx, from, to, p, c)
	}
	// Under claimIn, so that a Release of the new claim finds it from the beginning.
	entered, err := l.claimIn(ctx, to, c, func(ctx context.Context, to *claimState, c driver.Claim) (driver.Place,
		error) {
		return l.exchange(ctx, from, to, p, c, token)
	})
	if isGone(err) && !l.over() && l.seats.has(from, p) {
		// c's ID was spent before the Txn was sent, so p still stands. The caller takes ErrGone of
		// c to mean that p was given up.
		if err := l.releaseIn(ctx, from, p); err != nil {
			return driver.Place{}, err
		}
	}
	return entered, err
}

// checkExchange returns an ErrRefused where p cannot be exchanged for c.
func (l *lease) checkExchange(p driver.Place, c driver.Claim) error {
	l.seats.mu.Lock()
	if sl := l.seats.by[storeutil.SeatAt(p)]; sl != nil && sl.id == p.ID {
		p.Slots = sl.slots
	}
	l.seats.mu.Unlock()
	if err := driver.CheckExchange(p, c); err != nil {
		return fmt.Errorf("etcd: exchange: %w", err)
	}
	return checkClaims(c)
}

// oneByOne is Release and then Claim. The caller has both seats' turns.
func (l *lease) oneByOne(ctx context.Context, from, to *claimState, p driver.Place, c driver.Claim,
) (driver.Place, error) {
	if err := l.releaseIn(ctx, from, p); err != nil {
		return driver.Place{}, err
	}
	return l.claimIn(ctx, to, c, l.stand)
}

// exchange does the Txn until it fits what stands. Where it cannot, or etcd refuses it, it releases
// and then enters: the place is given up whatever becomes of the claim. The caller has both seats'
// turns.
func (l *lease) exchange(ctx context.Context, from, to *claimState, p driver.Place, c driver.Claim, token int64,
) (driver.Place, error) {
	for {
		at := l.ref()
		req := l.swap(from.key, token, to.key, c, at)
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
			l.seats.found(to, resp, 1)
			return l.entered(to, resp.Header.Revision, resp.Header.Revision, len(found(resp, 1)) == 0), nil
		case err == nil && l.remarked(resp, at):
			continue
		}
		if err := l.releaseIn(ctx, from, p); err != nil {
			return driver.Place{}, err
		}
		return l.stand(ctx, to, c)
	}
}

// swap is the Txn of an exchange. The old key goes first, so that the read does not find it before
// the new one.
func (l *lease) swap(from string, token int64, to string, c driver.Claim, at leaseRef) *pb.TxnRequest {
	return &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(l.key, at.mark), ifCreate(to, 0), ifCreate(from, token)},
		Success: []*pb.RequestOp{doDelete(from), neighbours(l.s.lineDir(c.Name)), doPut(to, c.Value, at.id)},
		Failure: []*pb.RequestOp{doGet(to), doGet(l.key)},
	}
}

// remarked reports whether the Txn failed only because the session's mark has changed, and takes
// the new mark over.
func (l *lease) remarked(resp *pb.TxnResponse, at leaseRef) bool {
	own, rec := one(resp, 0), one(resp, 1)
	if own != nil || rec == nil || rec.CreateRevision != l.born || rec.ModRevision == at.mark {
		return false
	}
	l.learn(rec.ModRevision, rec.Lease)
	return true
}
