package etcdwire

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// ErrMoved says that etcd's leader changed once more during a grant.
var ErrMoved = errors.New("etcd changed its leader again meanwhile")

// GrantInTerm grants a lease of which the raft term of the grant is known: the one in its answer.
//
// Terms never fall from one log entry to the next. So the term of the grant's entry is at least
// every term that an answer bore before the call. If the grant's answer bears one of those two, the
// newest and that of the grant before, GrantInTerm takes it for the grant's. Otherwise the answer
// may have left only after a later term had begun, so GrantInTerm drops the lease and grants
// another one.
//
// The newest alone would not do. Where etcd was put back to a backup, or begun anew, its terms
// begin anew too, and no grant would bear that one.
//
// An answer may bear an older term than its entry (see Wire.Prove). If so, the lease was granted in
// a later term than its caller believes. That is safe: the next renewal finds the later term, and
// the caller moves its claims once more.
func GrantInTerm[R any](term func() uint64, grant func() (R, *pb.ResponseHeader, error), drop func(R),
) (r R, err error) {
	last := term()
	for range 3 {
		newest := term()
		r, header, err := grant()
		if err != nil {
			return r, err
		}
		if t := header.GetRaftTerm(); t == newest || t == last {
			return r, nil
		}
		last = header.GetRaftTerm()
		drop(r)
	}
	return r, ErrMoved
}

// Grant grants a lease, under an ID that etcd chooses where id is 0. It is tried as Call does: an
// attempt that is repeated may leave an empty lease behind, which expires.
func (w *Wire) Grant(ctx context.Context, what string, id, seconds int64) (*pb.LeaseGrantResponse, error) {
	resp, o := ask(ctx, w, leaseOf, pb.LeaseClient.LeaseGrant, &pb.LeaseGrantRequest{ID: id, TTL: seconds})
	return resp, w.Explain(ctx, what, o)
}

// GrantInTerm is the function of that name on this Wire.
func (w *Wire) GrantInTerm(ctx context.Context, what string, seconds int64) (*pb.LeaseGrantResponse, error) {
	grant := func() (*pb.LeaseGrantResponse, *pb.ResponseHeader, error) {
		r, err := w.Grant(ctx, what, 0, seconds)
		return r, r.GetHeader(), err
	}
	resp, err := GrantInTerm(w.Term, grant, func(r *pb.LeaseGrantResponse) {
		w.Background(func(ctx context.Context) { _ = w.Revoke(ctx, what, r.ID) })
	})
	if errors.Is(err, ErrMoved) {
		err = fmt.Errorf("etcd: %s: %w", what, err)
	}
	return resp, err
}

// Revoke ends a lease. One that is gone already is no error.
func (w *Wire) Revoke(ctx context.Context, what string, id int64) error {
	_, o := ask(ctx, w, leaseOf, pb.LeaseClient.LeaseRevoke, &pb.LeaseRevokeRequest{ID: id})
	if err := w.Explain(ctx, what, o); !errors.Is(err, driver.ErrGone) {
		return err
	}
	return nil
}

// Leases returns the IDs of all leases that the current member knows. It may not have heard of the
// latest grants yet. The one attempt takes at most limit. With tens of thousands of leases the
// answer may take longer, so where it fails the member is not to blame.
func (w *Wire) Leases(ctx context.Context, limit time.Duration) (all map[int64]bool, err error) {
	_, err = w.AttemptAt(ctx, limit, func(ctx context.Context, conn MemberConn) error {
		resp, err := leaseOf(conn.Conn).LeaseLeases(ctx, &pb.LeaseLeasesRequest{}, bigAnswers)
		if err == nil {
			err = w.Same(resp.GetHeader())
		}
		if err != nil {
			return err
		}
		all = make(map[int64]bool, len(resp.Leases))
		for _, l := range resp.Leases {
			all[l.ID] = true
		}
		return nil
	}, func(error) bool { return true })
	return all, err
}

// TimeToLive asks etcd's leader, whose clock expires leases, how long one lives on, in whole
// seconds, and for its ttl. [driver.ErrGone] if there is none.
func (w *Wire) TimeToLive(ctx context.Context, what string, id int64) (left, ttl time.Duration, err error) {
	resp, o := ask(ctx, w, leaseOf, pb.LeaseClient.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: id})
	switch {
	case o.Err != nil:
		return 0, 0, w.Explain(ctx, what, o)
	case resp.TTL < 0:
		return 0, 0, driver.ErrGone
	}
	return time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second, nil
}
