package embedded

import (
	"context"
	"fmt"
	"path/filepath"
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
		Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2,
			MaxDelay: 200 * time.Millisecond},
		MinConnectTimeout: time.Second,
	})}
}

// awaitAnswer says whether a host answered before ctx ended. To connect proves nothing: the kernel
// accepts connections for a process that is frozen.
func awaitAnswer(ctx context.Context, endpoint string) bool {
	conn, err := grpc.NewClient(endpoint, append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
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

// Reach returns where the store in directory path answers while some process hosts it, for an etcd
// client of a process that will never host it itself; done is to be called when that is closed. It
// looks at nothing and changes nothing.
func Reach(path string) (endpoint string, done func(), err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, fmt.Errorf("embedded store %s: %w", path, err)
	}
	d := &dir{name: abs}
	if d.at, d.file, err = shortPath(abs, socketName); err != nil {
		return "", nil, fmt.Errorf("embedded store %s: %w", abs, err)
	}
	return d.endpoint(), d.close, nil
}
