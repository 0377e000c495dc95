package etcdstore

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
)

// The record that a place leaves is a put beside the deletion, in the same Txn under the same compares: it is there if this request removed the
// claim, and not otherwise, however often that is repeated. But it gives etcd more reasons to refuse the Txn: there is no space for a put, the user
// may not write there, its lease has ended, it is too large. The claim must go all the same, so then the same Txn goes again without the record. That
// is safe whatever became of the first: either may remove the claim, the other then finds nothing to do.

// note is a record that goes with the request that gives a place up. Nil: there is none.
type note struct {
	at  shelf
	key string
	put *pb.RequestOp
}

const (
	noteWait = time.Second      // for a lease for records, which as a rule is known; without one the record has none, nor do others wait then for a while
	noteOff  = 10 * time.Second // for which no release leaves a record, where etcd takes none
)

// noteOf returns the record that p leaves, nil if it has none, or one that cannot be kept.
func (l *lease) noteOf(ctx context.Context, p driver.Place) *note {
	s := l.s
	if p.Record == nil || wrongRecord(p.Journal, *p.Record) != "" || s.shelves.isOff() {
		return nil
	}
	limit := s.shelves.patience()
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n := &note{at: s.shelfOf(p.Journal), key: s.journalDir(p.Journal) + p.Record.Key}
	n.put = doPut(n.key, slices.Clone(p.Record.Value), s.shelfLease(wait, n.at))
	if limit >= patience && wait.Err() != nil && ctx.Err() == nil {
		s.shelves.hurry()
	}
	return n
}

// with returns req with the record, which comes last: the answers to all else stay where they are.
func (n *note) with(req *pb.TxnRequest) *pb.TxnRequest {
	if n == nil {
		return req
	}
	return &pb.TxnRequest{Compare: req.Compare, Success: append(slices.Clone(req.Success), n.put), Failure: req.Failure}
}

// shipNoted is ship for a request that leaves a record where its compares hold. Where the record may be why etcd refuses it, it goes again without.
func (s *Store) shipNoted(ctx context.Context, req *pb.TxnRequest, n *note) (*pb.TxnResponse, outcome) {
	if n == nil || s.shelves.isOff() {
		return s.ship(ctx, req)
	}
	resp, first := s.ship(ctx, n.with(req))
	if !blamesNote(first.err) {
		return resp, first
	}
	resp, out := s.ship(ctx, req)
	if out.doubt = out.doubt || first.doubt; out.err == nil {
		s.shelves.blame(n, first.err)
	}
	return resp, out
}

// blamesNote reports whether a record may be why etcd refused what it went with: where etcd has answered, and not that it is busy, or that
// who asks must log in anew. Of silence no record is to blame, and the request may still be carried out.
func blamesNote(err error) bool {
	st, answered := status.FromError(err)
	if err == nil || !answered {
		return false
	}
	switch known := rpctypes.Error(err); {
	case errors.Is(known, rpctypes.ErrInvalidAuthToken), errors.Is(known, rpctypes.ErrAuthOldRevision), errors.Is(known, rpctypes.ErrTooManyRequests):
		return false
	}
	return st.Code() != codes.Unavailable && st.Code() != codes.DeadlineExceeded && st.Code() != codes.Canceled
}

// blame notes why a record was not taken, and that it was the record's fault: without it the request went through.
func (k *shelves) blame(n *note, err error) {
	switch known := rpctypes.Error(err); {
	case isGone(classify(err)):
		k.forget(n.at)
	case errors.Is(known, rpctypes.ErrPermissionDenied), noSpace(err):
		k.turnOff()
	}
}

// turnOff has releases leave no records for a while: each would cost a second request, and those that travel together would go one by one.
func (k *shelves) turnOff() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.off = time.Now().Add(noteOff)
}

func (k *shelves) isOff() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Now().Before(k.off)
}

// patience returns how long a release waits for a lease for its record. Where one has waited in vain others do not: there are many leases, and releases of
// many places go in waves, each of which would wait anew.
func (k *shelves) patience() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.hasty) {
		return 0
	}
	return noteWait
}

func (k *shelves) hurry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hasty = time.Now().Add(shelfPause)
}

// unnote takes the records off parcels that travel together. It reports false where there were none.
func unnote(some []*parcel) (had bool) {
	for _, o := range some {
		if o.note != nil {
			o.note, o.req, had = nil, o.bare, true
		}
	}
	return had
}
