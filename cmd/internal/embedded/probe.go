package embedded

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// DialOptions are for the etcd client of a node. gRPC waits a second after the first connection
// that was refused, and longer each time, up to two minutes: a take-over is over before that, and a
// lease may be shorter.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
		MinConnectTimeout: time.Second,
	})}
}

// awaitAnswer tells whether a host answered before ctx ended. To connect proves nothing: the kernel
// accepts connections for a process that is frozen.
func awaitAnswer(ctx context.Context, endpoint string) bool {
	conn, err := grpc.NewClient(endpoint, append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return false
	}
	defer conn.Close()
	for ctx.Err() == nil {
		_, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return true
		}
		// The host ended while it was asked: ask the next one.
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}
