package etcdwire

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watcher answers each watch stream by its end.
type watcher struct{ pb.UnimplementedWatchServer }

func (watcher) Watch(pb.Watch_WatchServer) error { return status.Error(codes.Aborted, "reached") }

// A member's connection may be retired between the choice of the member and the request for a watch
// stream: the request goes on the connection that was chosen, which lives on for a while.
func TestAWatchIsOpenedOnTheConnectionThatWasChosen(t *testing.T) {
	t.Parallel()
	w := wireTo(t, &members{}, func(s *grpc.Server) { pb.RegisterWatchServer(s, watcher{}) })
	chosen, err := w.Members.Current()
	if err != nil {
		t.Fatal(err)
	}
	w.Client().SetEndpoints("127.0.0.1:1")
	if _, err := w.Members.Current(); err != nil { // retires the one that is no endpoint any more
		t.Fatal(err)
	}
	stream, err := openWatch(t.Context(), chosen)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("the stream ended with %v, want the answer of the member that was chosen", err)
	}
}

// overTLS is credentials with which gRPC dials no plain endpoint.
type overTLS struct{}

func (overTLS) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, nil
}
func (overTLS) RequireTransportSecurity() bool { return true }

// An endpoint may be one that cannot be dialled at all. Calls go to the others.
func TestAnEndpointThatCannotBeDialledIsLeft(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://127.0.0.1:1"}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithPerRPCCredentials(overTLS{})}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	for _, c := range []struct {
		endpoints []string
		want      string
	}{
		{[]string{"http://127.0.0.1:2", "http://127.0.0.1:3", "https://127.0.0.1:1"}, "127.0.0.1:1"},
		{[]string{"http://127.0.0.1:2", "http://127.0.0.1:3"}, ""},
	} {
		w := New(client, "")
		t.Cleanup(w.Close)
		client.SetEndpoints(c.endpoints...)
		got, err := w.Members.Current()
		if (err == nil) != (c.want != "") || err == nil && got.Host() != c.want {
			t.Errorf("Current of %v = %v, want %q", c.endpoints, err, c.want)
		}
	}
}
