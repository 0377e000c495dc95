package etcdsim

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"
)

type kvService struct {
	pb.UnimplementedKVServer
	m *member
}

type leaseService struct {
	pb.UnimplementedLeaseServer
	m *member
}

type maintenance struct {
	pb.UnimplementedMaintenanceServer
	m *member
}

func (m *member) register() {
	pb.RegisterKVServer(m.srv, &kvService{m: m})
	pb.RegisterLeaseServer(m.srv, &leaseService{m: m})
	pb.RegisterWatchServer(m.srv, &watchService{m: m})
	pb.RegisterMaintenanceServer(m.srv, &maintenance{m: m})
}

// read runs do on the member's state: once it has applied all that was committed when the call
// began, or at once if serializable.
func (m *member) read(ctx context.Context, serializable bool, do func() error) (*pb.ResponseHeader, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if !m.gate() {
		return nil, rpctypes.ErrGRPCStopped
	}
	if !serializable {
		at, ok := m.index(ctx, requestLimit)
		if !ok || !m.until(ctx, requestLimit, func() bool { return m.applied >= at }) {
			return nil, rpctypes.ErrGRPCTimeout
		}
	}
	m.c.stats.Reads++
	err := do()
	return m.header(), err
}

func (s *kvService) Range(ctx context.Context, r *pb.RangeRequest) (resp *pb.RangeResponse, err error) {
	h, err := s.m.read(ctx, r.Serializable, func() error {
		if err := s.m.st.checkRange(r); err != nil {
			return err
		}
		resp = s.m.st.read(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	resp.Header = h
	return resp, nil
}

func (s *kvService) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkOps(r, s.m.c.o.TxnOps); err != nil {
		return nil, err
	}
	if err := checkOnce(r); err != nil {
		return nil, err
	}
	full, late := s.m.c.full(r)
	if full && !late {
		return nil, rpctypes.ErrGRPCNoSpace
	}
	var resp *pb.TxnResponse
	var h *pb.ResponseHeader
	var err error
	if readOnly(r) {
		h, err = s.m.read(ctx, false, func() (err error) {
			resp, err = s.m.st.txn(r)
			return err
		})
	} else {
		var out any
		out, h, err = s.m.propose(ctx, r)
		resp, _ = out.(*pb.TxnResponse)
	}
	if err != nil {
		return nil, err
	}
	if full {
		return nil, rpctypes.ErrGRPCNoSpace
	}
	h.Revision = resp.Header.Revision
	// the other members hold resp too
	out := &pb.TxnResponse{Header: h, Succeeded: resp.Succeeded, Responses: resp.Responses}
	return out, nil
}

func (s *kvService) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	out, h, err := s.m.propose(ctx, r)
	if err != nil {
		return nil, err
	}
	h.Revision = out.(*pb.PutResponse).Header.Revision
	return &pb.PutResponse{Header: h}, nil
}

func (s *kvService) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	out, h, err := s.m.propose(ctx, r)
	if err != nil {
		return nil, err
	}
	done := out.(*pb.DeleteRangeResponse)
	h.Revision = done.Header.Revision
	return &pb.DeleteRangeResponse{Header: h, Deleted: done.Deleted}, nil
}

func (s *kvService) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	_, h, err := s.m.propose(ctx, r)
	if err != nil {
		return nil, err
	}
	return &pb.CompactionResponse{Header: h}, nil
}

func (s *leaseService) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	id := r.ID
	if id == 0 {
		s.m.c.mu.Lock()
		id = s.m.c.rnd.Int64()
		s.m.c.mu.Unlock()
	}
	out, h, err := s.m.propose(ctx, &pb.LeaseGrantRequest{ID: id, TTL: r.TTL})
	if err != nil {
		return nil, err
	}
	done := out.(*pb.LeaseGrantResponse)
	return &pb.LeaseGrantResponse{Header: h, ID: done.ID, TTL: done.TTL}, nil
}

func (s *leaseService) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	_, h, err := s.m.propose(ctx, r)
	if err != nil {
		return nil, err
	}
	return &pb.LeaseRevokeResponse{Header: h}, nil
}

// LeaseTimeToLive is answered by the leader, as this member knows it. Keys are not told.
func (s *leaseService) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	resp := &pb.LeaseTimeToLiveResponse{ID: r.ID, TTL: -1}
	h, err := s.m.read(ctx, false, func() error {
		if s.m.lead < 0 {
			return rpctypes.ErrGRPCNoLeader
		}
		lead := s.m.c.members[s.m.lead]
		l, at := s.m.st.leases[r.ID], lead.expiry[r.ID]
		if l == nil || at == 0 {
			return nil
		}
		resp.GrantedTTL, resp.TTL = l.ttl, int64((at - lead.clock()).Round(time.Second).Seconds())
		return nil
	})
	if err != nil {
		return nil, err
	}
	resp.Header = h
	return resp, nil
}

// LeaseLeases tells what this member has applied, as etcd does: it asks nobody else.
func (s *leaseService) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	resp := &pb.LeaseLeasesResponse{}
	h, err := s.m.read(ctx, true, func() error {
		for _, id := range slices.Sorted(maps.Keys(s.m.st.leases)) {
			resp.Leases = append(resp.Leases, &pb.LeaseStatus{ID: id})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	resp.Header = h
	return resp, nil
}

// LeaseKeepAlive answers renewals one after another. The header is made before the renewal.
func (s *leaseService) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	m := s.m
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	over := make(chan error, 1)
	m.c.work.Go(func() { over <- m.keep(ctx, stream) })
	select {
	case err := <-over:
		return err
	case <-m.noLeader(ctx):
		return rpctypes.ErrGRPCNoLeader
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) keep(ctx context.Context, stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		m.c.mu.Lock()
		up := m.gate()
		h := m.header()
		var ttl int64
		if up {
			ttl, err = m.renew(ctx, r.ID)
		} else {
			err = rpctypes.ErrGRPCStopped
		}
		m.c.mu.Unlock()
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: h, ID: r.ID, TTL: ttl}); err != nil {
			return err
		}
	}
}

// noLeader returns a channel that is closed when the member has had no leader for three election
// timeouts, if the stream asks for that.
func (m *member) noLeader(ctx context.Context) <-chan struct{} {
	md, _ := metadata.FromIncomingContext(ctx)
	stop := make(chan struct{})
	if v := md.Get(rpctypes.MetadataRequireLeaderKey); len(v) == 0 || v[0] != rpctypes.MetadataHasLeader {
		return nil
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.leaderless[stop] = true
	context.AfterFunc(ctx, func() {
		m.c.mu.Lock()
		defer m.c.mu.Unlock()
		delete(m.leaderless, stop)
	})
	return stop
}

func (s *maintenance) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	m := s.m
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if !m.gate() {
		return nil, rpctypes.ErrGRPCStopped
	}
	resp := &pb.StatusResponse{Header: m.header(), Version: "3.7.3", RaftTerm: m.term, RaftIndex: uint64(m.have),
		RaftAppliedIndex: uint64(m.applied)}
	if m.lead >= 0 {
		resp.Leader = m.c.members[m.lead].id
	} else {
		resp.Errors = append(resp.Errors, rpctypes.ErrNoLeader.Error())
	}
	return resp, nil
}
