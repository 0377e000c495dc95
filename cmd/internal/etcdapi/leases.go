package etcdapi

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// leases answers etcdserverpb.Lease.
type leases struct {
	s *Server
	pb.UnsafeLeaseServer
}

// maxSeconds is etcd's own limit of a ttl.
const maxSeconds = 9_000_000_000

func (ls *leases) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxSeconds {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	l, err := ls.s.grant(ctx, r.ID, time.Duration(min(max(r.TTL, 0), 1000))*time.Second)
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	return &pb.LeaseGrantResponse{Header: ls.s.header(0), ID: l.id, TTL: seconds(l.keepAlive(ctx))}, nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

func (ls *leases) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	l, err := ls.s.lease(r.ID)
	if err != nil {
		return nil, err
	}
	closed := make(chan error, 1)
	go func() { closed <- l.close() }() // to its end, whatever becomes of the call
	select {
	case err = <-closed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	return &pb.LeaseRevokeResponse{Header: ls.s.header(0)}, nil
}

// LeaseKeepAlive answers each request when the claims of its lease are sure to stand for the ttl
// from then on. A lease that waits for the store does not hold up the others of the stream; further
// requests for it are answered by the one answer.
func (ls *leases) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	var mu sync.Mutex
	busy := map[int64]bool{}
	answer := func(id int64) {
		ttl := ls.keepAlive(ctx, id)
		mu.Lock()
		defer mu.Unlock()
		delete(busy, id)
		if ctx.Err() != nil {
			return
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: ls.s.header(0), ID: id,
			TTL: seconds(ttl)}); err != nil {
			cancel(err)
		}
	}
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			all.Wait() // who has said all that he has to say waits for the answers
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		mu.Lock()
		if !busy[r.ID] && len(busy) < ls.s.o.MaxLeases {
			busy[r.ID] = true
			all.Go(func() { answer(r.ID) })
		}
		mu.Unlock()
	}
}

func (ls *leases) keepAlive(ctx context.Context, id int64) time.Duration {
	l, err := ls.s.lease(id)
	if err != nil {
		return 0
	}
	return l.keepAlive(ctx)
}

func (ls *leases) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse,
	error,
) {
	a := &pb.LeaseTimeToLiveResponse{Header: ls.s.header(0), ID: r.ID, TTL: -1}
	l, err := ls.s.lease(r.ID)
	if err != nil {
		return a, nil
	}
	if left := l.left(); left >= 0 {
		a.TTL, a.GrantedTTL = seconds(left), seconds(l.ttl)
	}
	if r.Keys {
		for _, name := range l.names() {
			a.Keys = append(a.Keys, key(name, l.id))
		}
	}
	return a, nil
}

func (ls *leases) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	ls.s.mu.Lock()
	defer ls.s.mu.Unlock()
	a := &pb.LeaseLeasesResponse{Header: ls.s.header(0)}
	for id, l := range ls.s.leases {
		if l != nil {
			a.Leases = append(a.Leases, &pb.LeaseStatus{ID: id})
		}
	}
	slices.SortFunc(a.Leases, func(a, b *pb.LeaseStatus) int { return int(min(max(a.ID-b.ID, -1), 1)) })
	return a, nil
}
