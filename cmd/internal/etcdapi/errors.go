package etcdapi

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy"
)

// Clients know these by their text, which is etcd's, and by the code that etcd leaves them: none.
var (
	errNotLeader   = status.Error(codes.Unknown, "election: not leader")
	errNoLeader    = status.Error(codes.Unknown, "election: no leader")
	errNoLeaderKey = status.Error(codes.Unknown, `"leader" field must be provided`)
)

// statusOf returns err as clients of etcd know it.
func statusOf(ctx context.Context, err error) error {
	var over *primacy.EndedError
	if _, done := status.FromError(err); done { // nil too
		return err
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	case errors.As(err, &over):
		return errNotLeader
	case errors.Is(err, primacy.ErrNoLeader):
		return errNoLeader
	case errors.Is(err, primacy.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, primacy.ErrRefused):
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
