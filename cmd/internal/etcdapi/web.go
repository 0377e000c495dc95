package etcdapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pbgw "go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	epbgw "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw"
	lpbgw "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxBody is how long a request may be: a name, a value and a key, each at most some KiB, in
// base64.
const maxBody = 64 << 10

// web returns what answers on a listener: gRPC, and its JSON form for what is not gRPC.
func (s *Server) web() (*http.Server, error) {
	conn, err := grpc.NewClient("passthrough:///inner", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.inner.dial(ctx) }))
	if err != nil {
		return nil, err
	}
	s.conn = conn
	form := &runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true},
		UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true}}
	mux := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard,
		&runtime.HTTPBodyMarshaler{Marshaler: form}))
	for _, register := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		epbgw.RegisterElectionHandler, lpbgw.RegisterLockHandler, pbgw.RegisterLeaseHandler, pbgw.RegisterAuthHandler} {
		if err := register(context.Background(), mux, conn); err != nil {
			return nil, err
		}
	}
	srv := &http.Server{Handler: s.route(mux), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxBody,
		// a call that waits is a stream
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10_000}, Protocols: &http.Protocols{}}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv, nil
}

// route tells gRPC from JSON. A web page can send the latter to a server on the reader's own
// machine, so it must come from no other site, under a name that is known to be this server's.
func (s *Server) route(json http.Handler) http.Handler {
	json = http.NewCrossOriginProtection().Handler(json)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			s.grpc.ServeHTTP(w, r)
			return
		}
		if !s.known(r.Host) {
			http.Error(w, fmt.Sprintf("the host %q is not known to be this server's", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		if r.ProtoMajor == 1 { // a body that never comes would keep its connection, also for who has no token
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.arrival))
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		json.ServeHTTP(w, r)
	})
}

// known says whether a request for that host is meant for this server. An address always is: only a
// name can be bound to it by somebody else.
func (s *Server) known(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil ||
		slices.ContainsFunc(s.o.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// pipe is a listener within the process.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipe) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements [net.Listener].
func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements [net.Listener].
func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "inner", Net: "unix"} }
