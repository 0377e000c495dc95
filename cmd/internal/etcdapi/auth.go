package etcdapi

import (
	"context"
	"crypto/subtle"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// auth lets clients of etcd that know users and passwords log in: the password is the server's
// token, and the name says nothing.
type auth struct {
	s *Server
	pb.UnimplementedAuthServer
}

func (a *auth) Authenticate(_ context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	switch {
	case a.s.o.Token == "":
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	case !same(r.Password, a.s.o.Token):
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	return &pb.AuthenticateResponse{Header: a.s.header(0), Token: a.s.o.Token}, nil
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// admit returns an error for who has not shown the token. The JSON form's header comes here as
// metadata.
func (s *Server) admit(ctx context.Context, method string) error {
	if s.o.Token == "" || method == pb.Auth_Authenticate_FullMethodName {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for _, key := range []string{rpctypes.TokenFieldNameGRPC, rpctypes.TokenFieldNameSwagger} {
		for _, v := range md.Get(key) {
			if same(strings.TrimPrefix(v, "Bearer "), s.o.Token) {
				return nil
			}
		}
	}
	return rpctypes.ErrGRPCInvalidAuthToken
}

func (s *Server) admitCall(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
	error,
) {
	if err := s.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, r)
}

func (s *Server) admitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler,
) error {
	if err := s.admit(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, stream)
}
