package etcdapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	epb "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	lpb "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/fanout"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

// Options of a server. The zero value works, on loopback.
type Options struct {
	// of this process, as a part of its clients' identities; at most MaxID bytes. Default: the
	// library's
	ID string
	// what clients must show: as metadata "token", as "Authorization: Bearer TOKEN", or as any
	// user's password
	Token      string
	TLS        *tls.Config // nil: plain text
	Hosts      []string    // names under which JSON may be asked for, beside localhost and addresses
	MaxLeases  int         // at once; default 1000: each is one in the store, with a heartbeat of its own
	MaxStreams int         // of Observe at once; default 1000
	// States tells who leads. Default: a hub of the server's own.
	States  *fanout.Hub[primacy.State]
	Timeout time.Duration // of calls on the store where the client sets no limit, but for waits. Default 5 s
	Logger  *slog.Logger  // default: none
}

// MaxID is how long a server's ID may be: those of its clients' leases are longer.
const MaxID = 128

// Server answers etcd's calls.
type Server struct {
	store     driver.Store
	o         Options
	clock     boottime.Clock
	reader    *primacy.Session // without a lease: it only asks
	states    *fanout.Hub[primacy.State]
	ownStates bool // it closes them
	streams   atomic.Int64
	grpc      *grpc.Server
	http      *http.Server
	inner     *pipe            // the way of the JSON form to grpc
	conn      *grpc.ClientConn // over it
	member    pb.ResponseHeader

	arrival time.Duration // within which a request in JSON has to arrive; tests have less

	mu     sync.Mutex
	leases map[int64]*lease // nil while one is being granted
	closed bool
}

// ttls that a client can have, beside what the store can keep.
const (
	minTTL     = 2 * time.Second // as etcd's own
	defaultTTL = 60 * time.Second
)

// New returns a server over a store, which stays the caller's to close, after the server. It does
// no I/O.
func New(store driver.Store, o Options) (*Server, error) {
	if o.MaxLeases == 0 {
		o.MaxLeases = 1000
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 1000
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	_, most := bounds(store.Caps())
	switch {
	case len(o.ID) > MaxID:
		return nil, fmt.Errorf("etcdapi: the id has %d bytes, more than %d", len(o.ID), MaxID)
	case o.MaxLeases < 0 || o.MaxStreams < 0 || o.Timeout < 0:
		return nil, fmt.Errorf("etcdapi: %d leases, %d streams and a timeout of %v must not be negative", o.MaxLeases,
			o.MaxStreams, o.Timeout)
	case most < minTTL:
		return nil, fmt.Errorf("etcdapi: %s keeps leases of at most %v: too short for etcd's clients",
			store.Caps().Store, store.Caps().MaxTTL)
	}
	reader, err := primacy.NewSession(store, &primacy.Options{ID: o.ID,
		TTL: max(primacy.DefaultTTL, store.Caps().MinTTL), Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	o.ID = reader.ID()
	o.ID = strings.ToValidUTF8(o.ID[:min(len(o.ID), MaxID)], "")
	s := &Server{store: store, o: o, clock: boottime.Now, reader: reader, inner: newPipe(),
		leases: map[int64]*lease{}, arrival: 20 * time.Second,
		member: pb.ResponseHeader{ClusterId: sum(store.Caps().Store), MemberId: sum(o.ID)}}
	if s.states = o.States; s.states == nil {
		s.states, s.ownStates = fanout.States(reader), true
	}
	s.register()
	if s.http, err = s.web(); err != nil {
		return nil, err
	}
	go func() { _ = s.grpc.Serve(s.inner) }()
	return s, nil
}

func (s *Server) register() {
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxBody), grpc.UnaryInterceptor(s.admitCall),
		grpc.StreamInterceptor(s.admitStream))
	epb.RegisterElectionServer(s.grpc, &elections{s: s})
	lpb.RegisterLockServer(s.grpc, &locks{s: s})
	pb.RegisterLeaseServer(s.grpc, &leases{s: s})
	pb.RegisterAuthServer(s.grpc, &auth{s: s})
}

func sum(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// bounds returns the least and the largest ttl that a client can have: the store's lease has half
// as much again.
func bounds(c driver.Caps) (least, most time.Duration) {
	most = primacy.MaxTTL
	if c.MaxTTL > 0 {
		most = min(most, c.MaxTTL)
	}
	return minTTL, (most * 2 / 3).Truncate(time.Second)
}

// storeTTL is how long the store keeps a client's claims without this process.
func (s *Server) storeTTL(client time.Duration) time.Duration {
	return max(client*3/2, s.store.Caps().MinTTL)
}

// Serve answers on a listener until [Server.Close], then returns nil. It refuses one that others
// than this machine can reach, unless there are TLS and a token. The listener is closed when it
// returns.
func (s *Server) Serve(ln net.Listener) error {
	if !local(ln.Addr()) && (s.o.TLS == nil || s.o.Token == "") {
		_ = ln.Close()
		return fmt.Errorf("etcdapi: %v can be reached from other machines: that needs TLS and a token", ln.Addr())
	}
	if s.o.TLS != nil {
		c := s.o.TLS.Clone()
		c.NextProtos = []string{"h2", "http/1.1"}
		ln = tls.NewListener(ln, c)
	}
	if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// local says whether only this machine can reach an address.
func local(a net.Addr) bool {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return a.Network() == "unix"
}

// Close ends every lease with what it holds, then what is served. Clients that still work learn it
// from their next keepalive, so what they hold is given up only when the ttl of each is over or it
// has given up itself; when ctx ends before that, it is left to run out in the store, and the error
// says so.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	var all []*lease
	for _, l := range s.leases {
		if l != nil {
			all = append(all, l)
		}
	}
	s.mu.Unlock()
	for _, l := range all {
		l.end()
	}
	var err error
	for _, l := range all {
		select {
		case <-l.gone:
			err = errors.Join(err, l.failed)
		case <-ctx.Done():
			err = errors.Join(err, fmt.Errorf("etcdapi: lease %x is left to run out in the store: %w", l.id,
				context.Cause(ctx)))
		}
	}
	_ = s.http.Close()
	_ = s.conn.Close()
	s.grpc.Stop()
	if s.ownStates {
		s.states.Close()
	}
	return errors.Join(err, s.reader.Close(ctx))
}

// grant makes a lease. An ID of 0 is for this process to choose.
func (s *Server) grant(ctx context.Context, id int64, ttl time.Duration) (*lease, error) {
	id, err := s.reserve(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	least, most := bounds(s.store.Caps())
	l, err := newLease(ctx, s, id, min(max(ttl, least), most))
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.leases, id)
		return nil, err
	}
	s.leases[id] = l
	if s.closed {
		go l.end()
	}
	return l, nil
}

// observes counts one stream more, until the returned function is called.
func (s *Server) observes() (leave func(), err error) {
	if s.streams.Add(1) > int64(s.o.MaxStreams) {
		s.streams.Add(-1)
		return nil, status.Errorf(codes.ResourceExhausted, "%d streams of Observe are open, as many as --max-streams "+
			"allows: end some, or start the server with a larger one", s.o.MaxStreams)
	}
	return func() { s.streams.Add(-1) }, nil
}

// reserve keeps an ID and room for one lease.
func (s *Server) reserve(id int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.leases[id]
	switch {
	case s.closed:
		return 0, rpctypes.ErrGRPCStopped
	case there:
		return 0, rpctypes.ErrGRPCLeaseExist
	case len(s.leases) >= s.o.MaxLeases:
		return 0, rpctypes.ErrGRPCRequestTooManyRequests
	}
	for ; id == 0 || there; _, there = s.leases[id] {
		id = rand.Int64()
	}
	s.leases[id] = nil
	return id, nil
}

// lease returns a lease that was granted here.
func (s *Server) lease(id int64) (*lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil {
		return l, nil
	}
	return nil, rpctypes.ErrGRPCLeaseNotFound
}

func (s *Server) forget(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases[l.id] == l {
		delete(s.leases, l.id)
	}
}

// limited gives a call the time limit that its client did not set.
func (s *Server) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, set := ctx.Deadline(); set {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.o.Timeout)
}

// header returns the header of an answer.
func (s *Server) header(revision uint64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: s.member.ClusterId, MemberId: s.member.MemberId, Revision: int64(revision)}
}
