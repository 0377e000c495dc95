package etcdapi

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	lpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy"
)

// elections answers v3electionpb.Election.
type elections struct {
	s *Server
	epb.UnsafeElectionServer
}

// locks answers v3lockpb.Lock. As with etcd, a lock is an election whose value is empty.
type locks struct {
	s *Server
	lpb.UnsafeLockServer
}

// key is the key that etcd would have for a claim.
func key(name string, lease int64) []byte { return fmt.Appendf(nil, "%s/%x", name, lease) }

// split takes a key apart.
func split(key []byte) (name string, lease int64, ok bool) {
	i := bytes.LastIndexByte(key, '/')
	if i < 0 {
		return "", 0, false
	}
	lease, err := strconv.ParseInt(string(key[i+1:]), 16, 64)
	return string(key[:i]), lease, err == nil
}

func (e *elections) Campaign(ctx context.Context, r *epb.CampaignRequest) (*epb.CampaignResponse, error) {
	o := primacy.CampaignOptions{Value: r.Value, ObeyPauses: true}
	l, t, err := e.s.campaign(ctx, r.Lease, string(r.Name), o)
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	return &epb.CampaignResponse{Header: e.s.header(uint64(t.Token())),
		Leader: &epb.LeaderKey{Name: r.Name, Key: key(t.Name(), l.id), Rev: int64(t.Token()), Lease: l.id}}, nil
}

// campaign wins name for a lease, or for one of its own if that is 0.
func (s *Server) campaign(ctx context.Context, lease int64, name string, o primacy.CampaignOptions) (l *lease,
	t *primacy.Term, err error,
) {
	if err := primacy.CheckName(name); err != nil {
		return nil, nil, err
	}
	if len(o.Value) > primacy.MaxValue {
		return nil, nil, status.Errorf(codes.InvalidArgument, "the value has %d bytes, more than %d", len(o.Value),
			primacy.MaxValue)
	}
	if lease == 0 {
		return s.campaignAlone(ctx, name, o)
	}
	if l, err = s.lease(lease); err == nil {
		t, err = l.campaign(ctx, name, o)
	}
	return l, t, fits(t, err)
}

// campaignAlone is campaign under a lease that nobody has yet: if it is not won, the lease goes,
// too.
func (s *Server) campaignAlone(ctx context.Context, name string, o primacy.CampaignOptions) (*lease, *primacy.Term,
	error,
) {
	l, err := s.grant(ctx, 0, defaultTTL)
	if err != nil {
		return nil, nil, err
	}
	l.begin()
	defer l.done()
	t, err := l.campaign(ctx, name, o)
	if err == nil && l.keepAlive(ctx) == 0 {
		err = rpctypes.ErrGRPCLeaseNotFound
	}
	if err = fits(t, err); err != nil {
		go func() { _ = l.close() }()
	}
	return l, t, err
}

// fits returns err, or why the term's token cannot be told to a client of etcd.
func fits(t *primacy.Term, err error) error {
	if err == nil && (t.Token() == 0 || uint64(t.Token()) > math.MaxInt64) {
		return status.Errorf(codes.FailedPrecondition, "the store's token %d cannot be a revision of etcd's", t.Token())
	}
	return err
}

// held returns what the client of a leader key holds under it; nil if it holds that no more.
func (s *Server) held(ctx context.Context, name string, lease, rev int64) (*hold, error) {
	l, err := s.lease(lease)
	if err != nil {
		return nil, s.elsewhere(ctx, name, lease)
	}
	h := l.find(name)
	if h == nil {
		return nil, nil
	}
	t := h.term.Load()
	if t == nil || rev != 0 && int64(t.Token()) != rev {
		return nil, nil
	}
	return h, nil
}

// elsewhere returns an error if the claim stands, which another process holds for its client: only
// there can it be changed.
func (s *Server) elsewhere(ctx context.Context, name string, lease int64) error {
	if primacy.CheckName(name) != nil {
		return nil
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	st, err := s.reader.Election(name).State(ctx)
	if err != nil {
		return err
	}
	if st.Leader != nil && leaseOf(*st.Leader) == lease {
		return status.Errorf(codes.FailedPrecondition, "lease %x is kept by %q: ask there", lease, st.Leader.ID)
	}
	return nil
}

func (e *elections) Proclaim(ctx context.Context, r *epb.ProclaimRequest) (*epb.ProclaimResponse, error) {
	if r.Leader == nil {
		return nil, errNoLeaderKey
	}
	if len(r.Value) > primacy.MaxValue {
		return nil, status.Errorf(codes.InvalidArgument, "the value has %d bytes, more than %d", len(r.Value),
			primacy.MaxValue)
	}
	h, err := e.s.held(ctx, string(r.Leader.Name), r.Leader.Lease, r.Leader.Rev)
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	if h == nil || h.held() == nil || !bytes.Equal(r.Leader.Key, key(h.name, h.l.id)) {
		return nil, errNotLeader
	}
	limit, cancel := e.s.limited(ctx)
	defer cancel()
	if err := h.proclaim(limit, h.term.Load(), r.Value); err != nil {
		return nil, statusOf(ctx, err)
	}
	return &epb.ProclaimResponse{Header: e.s.header(uint64(r.Leader.Rev))}, nil
}

func (e *elections) Resign(ctx context.Context, r *epb.ResignRequest) (*epb.ResignResponse, error) {
	if r.Leader == nil {
		return nil, errNoLeaderKey
	}
	h, err := e.s.held(ctx, string(r.Leader.Name), r.Leader.Lease, r.Leader.Rev)
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	if h != nil && bytes.Equal(r.Leader.Key, key(h.name, h.l.id)) {
		limit, cancel := e.s.limited(ctx)
		defer cancel()
		if err := h.resign(limit); err != nil {
			return nil, statusOf(ctx, err)
		}
	}
	return &epb.ResignResponse{Header: e.s.header(uint64(r.Leader.Rev))}, nil
}

func (e *elections) Leader(ctx context.Context, r *epb.LeaderRequest) (*epb.LeaderResponse, error) {
	limit, cancel := e.s.limited(ctx)
	defer cancel()
	st, err := e.s.reader.Election(string(r.Name)).State(limit)
	switch {
	case err != nil:
		return nil, statusOf(ctx, err)
	case st.Leader == nil:
		return nil, errNoLeader
	}
	return e.s.told(st), nil
}

// Observe streams the leader and what it proclaims. While the store does not answer it is silent;
// it ends only with the client, or when the store refuses.
func (e *elections) Observe(r *epb.LeaderRequest, stream epb.Election_ObserveServer) error {
	ctx := stream.Context()
	leave, err := e.s.observes()
	if err != nil {
		return err
	}
	defer leave()
	states := e.s.states.Join(string(r.Name))
	defer states.Close()
	var last primacy.Entry
	for {
		select {
		case <-states.Changed():
		case <-ctx.Done():
			return statusOf(ctx, ctx.Err())
		}
		n := states.Take()
		switch {
		case n == nil || n.Err == nil && n.Value.Leader == nil:
		case n.Err == nil:
			if l := n.Value.Leader; l.Token == last.Token && bytes.Equal(l.Value, last.Value) {
				continue
			}
			last = *n.Value.Leader
			if err := stream.Send(e.s.told(n.Value)); err != nil {
				return err
			}
		default:
			if final := statusOf(ctx, n.Err); status.Code(final) != codes.Unavailable {
				return final
			}
		}
	}
}

// told returns the leader as etcd would show its key.
func (s *Server) told(st primacy.State) *epb.LeaderResponse {
	lease, rev := leaseOf(*st.Leader), int64(st.Leader.Token)
	return &epb.LeaderResponse{Header: s.header(st.Revision),
		Kv: &mvccpb.KeyValue{Key: key(st.Name, lease), Value: st.Leader.Value,
			CreateRevision: rev, ModRevision: max(rev, int64(st.Revision)), Version: 1, Lease: lease}}
}

// leaseOf returns the lease of who leads: that of a client of etcd's, here or in another process,
// or a number made of the store's own.
func leaseOf(who primacy.Entry) int64 {
	if hex, _, ok := strings.Cut(strings.TrimPrefix(who.ID, "etcd-"), "@"); ok && strings.HasPrefix(who.ID, "etcd-") {
		if id, err := strconv.ParseInt(hex, 16, 64); err == nil {
			return id
		}
	}
	if id, err := strconv.ParseInt(who.Lease, 16, 64); err == nil {
		return id
	}
	return int64(sum(who.Lease) >> 1)
}

func (ls *locks) Lock(ctx context.Context, r *lpb.LockRequest) (*lpb.LockResponse, error) {
	l, t, err := ls.s.campaign(ctx, r.Lease, string(r.Name), primacy.CampaignOptions{})
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	token, ok := lockToken(t.Token())
	if !ok {
		if h := l.find(t.Name()); h != nil {
			h.drop() // its client is told that it has not got it
		}
		return nil, status.Errorf(codes.FailedPrecondition, "the store's token %d is too large for a lock's", t.Token())
	}
	return &lpb.LockResponse{Header: ls.s.header(token), Key: key(t.Name(), l.id)}, nil
}

// turnBits is how far a lock's token is shifted from its claim's by [primacy.Session.Mutex].
const turnBits = 16

// lockToken returns the token of a lock on the scale of [primacy.Session.Mutex]: both exclude each
// other, and one fence may stand behind both. It says whether a revision can hold it.
func lockToken(claim primacy.Token) (uint64, bool) {
	return uint64(claim) << turnBits, claim <= math.MaxInt64>>turnBits
}

func (ls *locks) Unlock(ctx context.Context, r *lpb.UnlockRequest) (*lpb.UnlockResponse, error) {
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	a := &lpb.UnlockResponse{Header: ls.s.header(0)}
	name, lease, ok := split(r.Key)
	if !ok {
		return a, nil
	}
	h, err := ls.s.held(ctx, name, lease, 0)
	if err == nil && h != nil {
		limit, cancel := ls.s.limited(ctx)
		defer cancel()
		err = h.resign(limit)
	}
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	return a, nil
}
