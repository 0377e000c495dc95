package etcdwire

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// members answers etcd's calls on one address as what stands behind a proxy does: the second of two
// requests may be another member's to answer.
type members struct {
	pb.UnimplementedKVServer
	answers [2]txnHeader
	asked   atomic.Int64
}

// txnHeader is what the header of an answer says.
type txnHeader struct{ member, revision, term uint64 }

func (m *members) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{MemberId: m.answers[0].member}}, nil
}

func (m *members) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	a := m.answers[m.asked.Add(1)%2]
	h := &pb.ResponseHeader{MemberId: a.member, Revision: int64(a.revision), RaftTerm: a.term}
	return &pb.TxnResponse{Header: h}, nil
}

// Two requests prove the raft term only where one member has answered both. The member that
// answered alone at its place may have caught up by a snapshot, and show the new state under the
// term of before: such a proof would count a renewal by a deposed leader.
func TestTheProofComesFromOneMember(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		answers [2]txnHeader
		term    uint64
		err     error
	}{
		{"one member", [2]txnHeader{{1, 7, 3}, {1, 7, 3}}, 3, nil},
		{"the later answer counts", [2]txnHeader{{1, 7, 3}, {1, 8, 4}}, 4, nil},
		{"in whatever order they come", [2]txnHeader{{1, 8, 4}, {1, 7, 3}}, 4, nil},
		{"two members", [2]txnHeader{{1, 7, 3}, {2, 7, 3}}, 0, errMembers},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := wireTo(t, &members{answers: c.answers})
			conn, err := w.Members.Current()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, term, err := w.Prove(ctx, conn, "k"); term != c.term || !errors.Is(err, c.err) {
				t.Errorf("Prove = term %d, %v, want %d, %v", term, err, c.term, c.err)
			}
		})
	}
}

// wireTo returns a Wire to a server of the test's own.
func wireTo(t *testing.T, kv pb.KVServer, more ...func(*grpc.Server)) *Wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterKVServer(server, kv)
	for _, register := range more {
		register(server)
	}
	go server.Serve(ln)
	t.Cleanup(server.Stop)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{ln.Addr().String()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	w := New(client, "")
	t.Cleanup(w.Close)
	return w
}
