package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// carry sends parcels, at most so many at once, and has their callers know the answers.
func (l *lease) carry(t *trip, all []*parcel, most int) {
	for len(all) > 0 {
		n := l.fit(all, most)
		some := l.present(all[:n])
		all = all[n:]
		if len(some) == 0 {
			continue
		}
		resp, out := l.shipAll(t.ctx, some)
		if out.err == nil {
			if out.err = unpack(resp, some); out.err != nil {
				out.doubt = true
			}
		}
		for _, o := range some {
			o.doubt = o.doubt || out.doubt
		}
		if out.err != nil && len(some) > 1 && (ofOne(out.err) || blamesNote(out.err) && noted(some)) {
			if noSpace(out.err) && unnote(some) {
				l.s.shelves.turnOff()
				l.carry(t, some, len(some)) // what leaves no record only deletes
				continue
			}
			if tooMany(out.err) {
				l.learnMost(len(some))
			}
			l.carry(t, some, (len(some)+1)/2)
			continue
		}
		for _, o := range some {
			o.out = out
			close(o.done)
		}
	}
}

// shipAll sends parcels at once.
func (l *lease) shipAll(ctx context.Context, some []*parcel) (*pb.TxnResponse, outcome) {
	if len(some) == 1 {
		return l.s.shipNoted(ctx, some[0].bare, some[0].note)
	}
	if l.s.shelves.isOff() {
		unnote(some)
	}
	return l.s.ship(ctx, pack(some))
}

// noted reports whether any of the parcels leaves a record.
func noted(some []*parcel) bool {
	return slices.ContainsFunc(some, func(o *parcel) bool { return o.note != nil })
}

// fit returns how many of the first parcels the server takes at once.
func (l *lease) fit(all []*parcel, most int) int {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	wide := 0
	for n, o := range all {
		wide = max(wide, width(o.req))
		if n > 0 && (n == most || n+1+wide > l.pool.allowed()) {
			return n
		}
	}
	return len(all)
}

// present returns those parcels whose callers have not given up.
func (l *lease) present(all []*parcel) []*parcel {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	var some []*parcel
	for _, o := range all {
		if !o.left {
			some = append(some, o)
		}
	}
	return some
}

// learnMost notes that the server has refused so many parcels at once.
func (l *lease) learnMost(n int) {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.most = min(l.pool.allowed(), n/2+2)
}

// pack returns one request for all parcels.
func pack(some []*parcel) *pb.TxnRequest {
	if len(some) == 1 {
		return some[0].req
	}
	req := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(some))}
	for i, o := range some {
		req.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: o.req}}
	}
	return req
}

// unpack gives each parcel its answer. Those within a Txn's have no revision of their own in their header.
func unpack(resp *pb.TxnResponse, some []*parcel) error {
	if len(some) == 1 {
		some[0].resp = resp
		return nil
	}
	if len(resp.Responses) != len(some) {
		return fmt.Errorf("%d answers to %d operations", len(resp.Responses), len(some))
	}
	for i, o := range some {
		if o.resp = resp.Responses[i].GetResponseTxn(); o.resp == nil {
			return fmt.Errorf("no answer to operation %d of %d", i, len(some))
		}
		o.resp.Header = resp.Header
	}
	return nil
}

// ofOne reports whether one of several operations may be to blame for an error that all of them have had: its key may be forbidden, its
// value too large, its lease gone; and where etcd is full it takes no put, but it does take what only deletes.
func ofOne(err error) bool {
	known := rpctypes.Error(err)
	for _, e := range []error{rpctypes.ErrPermissionDenied, rpctypes.ErrRequestTooLarge, rpctypes.ErrLeaseNotFound, rpctypes.ErrNoSpace, rpctypes.ErrTooManyOps} {
		if errors.Is(known, e) {
			return true
		}
	}
	c := status.Code(err)
	return c == codes.PermissionDenied || c == codes.ResourceExhausted && classify(err) != nil
}

// tooMany reports whether etcd allows fewer operations in one Txn.
func tooMany(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyOps) }

// inChunks calls do for 0 to n-1, most of them at once, and for half as many where etcd says that these are too many for one Txn. It ends where
// do fails, or says that it is of no use to go on, and returns how many are done.
func inChunks(n, most int, do func(from, to int) (goOn bool, err error)) (done int, err error) {
	for done < n {
		to := min(n, done+most)
		goOn, err := do(done, to)
		if to-done > 1 && tooMany(err) {
			most = (to - done) / 2
			continue
		}
		if err != nil || !goOn {
			return done, err
		}
		done = to
	}
	return done, nil
}

// inChunks is inChunks for Txns of the lease, which remembers what the server refuses.
func (l *lease) inChunks(n, most int, do func(from, to int) (goOn bool, err error)) (done int, err error) {
	return inChunks(n, most, func(from, to int) (bool, error) {
		goOn, err := do(from, to)
		if to-from > 1 && tooMany(err) {
			l.learnMost(to - from)
		}
		return goOn, err
	})
}
