package etcdstore

import (
	"context"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var _ driver.Transferer = (*lease)(nil)

// Transfer implements [driver.Transferer]. It reads the line and then does one Txn. Nobody can
// enter between holder and successor meanwhile, for create revisions only grow. If there are more
// claims between than one Txn removes, it removes the first of them while the holder still holds.
func (l *lease) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	what := verb("transfer", p.Name)
	seat := l.seats.open(storeutil.SeatAt(p))
	defer l.seats.drop(seat)
	if err := seat.lock(ctx); err != nil {
		return fmt.Errorf("etcd: %s: %w", what, err)
	}
	defer seat.unlock()
	if !l.seats.has(seat, p) {
		return placeGone("transfer", p.Name)
	}
	p, err := l.seats.known(p)
	if err != nil {
		return err
	}
	if p.Slots != 0 {
		return refused(what, "the claim is shared: only who holds a name alone can hand it over")
	}
	was := l.seats.beginTransfer(seat)
	err = l.transfer(ctx, what, seat, p, successor)
	if err == nil {
		l.seats.spend(p.ID)
		l.clear(seat)
		return nil
	}
	// Whether the claim still stands is not known. From here on News tells its end again. It may
	// have ended while its end was no news, so News reads the key.
	l.seats.transferFailed(seat, was)
	l.newsbox.readSoon(seat.seatID)
	l.newsbox.watchSoon(seat.seatID, p.Token)
	return err
}

// transfer does Transfer. The caller has the seat's turn.
func (l *lease) transfer(ctx context.Context, what string, seat *seatState, p driver.Place, successor uint64) error {
	for {
		resp, err := l.readUpTo(ctx, what, p.Name, max(successor, p.Token))
		if err != nil {
			return err
		}
		between, err := l.between(what, seat, p, successor, resp.Kvs)
		if err != nil || between == nil { // nil and no error: an earlier attempt has done it
			return err
		}
		n := l.removedAtOnce()
		txn, err := l.thinAndHandOver(ctx, what, seat, p, between, n)
		switch {
		case etcdwire.TooMany(err) && n > 1:
			l.s.wire.Limit.Refused(n + handOverOps)
		case err != nil:
			return err
		case txn != nil && txn.Succeeded:
			return nil
		}
	}
}

// handOverOps is how many operations a Txn of handOver has at most besides removals, and how many
// compares each removal within it has.
const handOverOps = 5

// removedAtOnce returns how many claims thin removes in a Txn, and how many handOver is given.
func (l *lease) removedAtOnce() int { return min(keysPerTxn, max(1, l.s.wire.Limit.Ops()-handOverOps)) }

func (l *lease) thinAndHandOver(ctx context.Context, what string, seat *seatState, p driver.Place,
	between []*mvccpb.KeyValue, n int,
) (*pb.TxnResponse, error) {
	if err := l.thin(ctx, what, p, between, n); err != nil {
		return nil, err
	}
	return l.handOver(ctx, what, seat, p, between[max(0, len(between)-n):])
}

func (l *lease) readUpTo(ctx context.Context, what, name string, last uint64) (*pb.RangeResponse, error) {
	r := keysOnly(oldestFirst(prefixRange(l.s.lineDir(name))), 0)
	r.MaxCreateRevision = int64(min(last, 1<<63-1))
	return l.s.wire.Get(ctx, what, r)
}

// between returns the claims behind p's up to the successor's, which comes last, or why there can
// be no transfer. It returns none and no error if an earlier attempt, whose answer was lost, has
// done it. The caller has the seat's turn.
func (l *lease) between(what string, seat *seatState, p driver.Place, successor uint64, line []*mvccpb.KeyValue,
) ([]*mvccpb.KeyValue, error) {
	at := slices.IndexFunc(line, func(kv *mvccpb.KeyValue) bool { return uint64(kv.CreateRevision) == p.Token })
	waits := len(line) > 0 && uint64(line[len(line)-1].CreateRevision) == successor && successor > p.Token
	switch {
	case at < 0 && waits && len(line) == 1 && l.seats.isTransferInDoubt(seat):
		return nil, nil
	case at < 0:
		return nil, placeGone("transfer", p.Name)
	case at > 0:
		return nil, refused(what, "the claim waits itself")
	case !waits:
		return nil, fmt.Errorf("etcd: %s to token %d: %w", what, successor, driver.ErrNoSuccessor)
	}
	slots, session := parseClaim(l.s.lineDir(p.Name), string(line[len(line)-1].Key))
	if slots != 0 {
		return nil, fmt.Errorf("etcd: %s to token %d: its claim is shared: %w", what, successor, driver.ErrNoSuccessor)
	}
	if session == l.ID() {
		return nil, refused(what, "the successor's claim is of the same lease")
	}
	return line[1:], nil
}

// thin removes the first claims of line until most are left, and at most so many in each step. Each
// step is taken only while p and the successor's claim stand.
func (l *lease) thin(ctx context.Context, what string, p driver.Place, line []*mvccpb.KeyValue, most int) error {
	successor := line[len(line)-1]
	for len(line) > most {
		n := min(most, len(line)-most)
		_, _, err := l.s.wire.Txn(ctx, what, &pb.TxnRequest{
			Compare: []*pb.Compare{ifCreate(l.keyOf(p), int64(p.Token)), ifCreate(string(successor.Key),
				successor.CreateRevision)},
			Success: removals(line[:n]),
		})
		if err != nil {
			return err
		}
		line = line[n:]
	}
	return nil
}

// handOver is the Txn that removes p and all of line but the last, the successor's. Where a put of
// p is in doubt it also rewrites the session's record, as retract does. The caller has the seat's
// turn.
func (l *lease) handOver(ctx context.Context, what string, seat *seatState, p driver.Place, line []*mvccpb.KeyValue,
) (*pb.TxnResponse, error) {
	successor := line[len(line)-1]
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(l.keyOf(p), int64(p.Token)), ifCreate(string(successor.Key),
			successor.CreateRevision)},
		Success: append(removals(line[:len(line)-1]), doDelete(l.keyOf(p))),
	}
	l.seats.mu.Lock()
	doubt := seat.doubt
	l.seats.mu.Unlock()
	if doubt {
		req.Compare = append(req.Compare, ifCreate(l.recordKey, l.recordCreated))
		req.Success = append(req.Success, doReplace(l.recordKey, l.recordValue), doGet(l.recordKey))
		req.Failure = []*pb.RequestOp{doGet(l.recordKey)}
	}
	resp, out := l.s.journal.sendWithRecord(ctx, req, l.s.journal.journalRecordOf(ctx, p))
	err := l.s.wire.Explain(ctx, what, out)
	if out.Doubt || err != nil && !driver.IsFinal(err) {
		l.seats.mu.Lock()
		seat.transferInDoubt = true
		l.seats.mu.Unlock()
	}
	if doubt && etcdwire.NoSpace(err) {
		// It would be tried again for ever, while the claim blocks the name. A release lets the
		// next claim hold without the put (see retract).
		return nil, refused(what, "etcd is full, so the claim can only be released")
	}
	if err != nil || !doubt {
		return resp, err
	}
	at := 0
	if resp.Succeeded {
		at = len(req.Success) - 1
	}
	rec := kvAt(resp, at)
	if rec == nil || rec.CreateRevision != l.recordCreated {
		return nil, l.lost(what)
	}
	l.noteRecord(rec.ModRevision, rec.Lease)
	return resp, nil
}
