package etcdwire

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
