package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The floor on etcd: the Txns that a claim and a release of ours send, and the push of a watch that
// stands, by bare gRPC on one open connection.
func init() {
	contenders = append(contenders,
		&Contender{Name: "floor of etcd", Store: "etcd", Floor: true, Local: true, Dial: dialBareEtcd})
}

// bareLease outlives every slice: nobody renews it.
const bareLease = 2 * time.Minute

// bareEtcd is one connection.
type bareEtcd struct {
	conn *grpc.ClientConn
	kv   pb.KVClient
	stop context.CancelFunc // of its watch stream
	news *bareNews
}

// dialBareEtcd connects to the member that leads: another would pass each Txn on to it.
func dialBareEtcd(ctx context.Context, endpoints []string) (Process, error) {
	for _, endpoint := range endpoints {
		addr := strings.TrimPrefix(endpoint, "http://")
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		status, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
		if err != nil || status.Leader != status.Header.MemberId {
			conn.Close()
			continue
		}
		p := &bareEtcd{conn: conn, kv: pb.NewKVClient(conn)}
		ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
		stream, err := pb.NewWatchClient(conn).Watch(ctx)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.news = &bareNews{stream: stream, watched: map[string]bool{}, gone: map[string]bool{}}
		go p.news.read()
		return p, nil
	}
	return nil, fmt.Errorf("no member of %v leads", endpoints)
}

func (p *bareEtcd) Close() {
	p.stop()
	p.conn.Close()
}

func (p *bareEtcd) MinTTL() time.Duration { return 2 * time.Second }

// Session grants a lease and puts a record under it, which the Txn of each claim compares.
func (p *bareEtcd) Session(ctx context.Context, _ time.Duration) (Session, error) {
	granted, err := pb.NewLeaseClient(p.conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64(bareLease.Seconds())})
	if err != nil {
		return nil, err
	}
	s := &bareSession{p: p, lease: granted.ID, id: strconv.FormatInt(granted.ID, 16)}
	s.record = []byte("floor/@session/" + s.id)
	put, err := p.kv.Put(ctx, &pb.PutRequest{Key: s.record, Lease: s.lease})
	if err == nil {
		s.modified = put.Header.Revision
	}
	return s, err
}

type bareSession struct {
	p        *bareEtcd
	lease    int64
	id       string
	record   []byte       // the record's key
	modified int64        // its mod revision
	claims   atomic.Int64 // how many it has made
}

func (s *bareSession) Close(ctx context.Context) error { return s.Revoke(ctx) }

func (s *bareSession) Revoke(ctx context.Context) error {
	_, err := pb.NewLeaseClient(s.p.conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: s.lease})
	return err
}

func (s *bareSession) Lock(name string, _ LockOptions) Lock { return bareLock{s, bareLine(name)} }

func (s *bareSession) Campaign(ctx context.Context, name string) (Held, error) {
	return s.Lock(name, LockOptions{}).Lock(ctx)
}

// bareLine is what the keys of a line begin with.
func bareLine(name string) string { return "floor/" + name + "/" }

// rangeEnd is the end of all keys that begin with prefix.
func rangeEnd(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++
	return end
}

// key is that of a new claim: no other ever had it.
func (s *bareSession) key(line string) []byte {
	return []byte(line + s.id + "." + strconv.FormatInt(s.claims.Add(1), 10))
}

// claim is the Txn that reads who stands in a line and enters it.
func (s *bareSession) claim(line string, key []byte) *pb.TxnRequest {
	ahead := &pb.RangeRequest{Key: []byte(line), RangeEnd: rangeEnd(line), Limit: 16, KeysOnly: true}
	put := &pb.PutRequest{Key: key, Lease: s.lease}
	return &pb.TxnRequest{
		Compare: []*pb.Compare{{Target: pb.Compare_MOD, Key: s.record,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: s.modified}}, created(key, 0)},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: ahead}},
			{Request: &pb.RequestOp_RequestPut{RequestPut: put}}},
	}
}

// release is the Txn that leaves the line.
func release(key []byte, revision int64) *pb.TxnRequest {
	gone := &pb.DeleteRangeRequest{Key: key}
	return &pb.TxnRequest{Compare: []*pb.Compare{created(key, revision)},
		Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: gone}}}}
}

func created(key []byte, revision int64) *pb.Compare {
	return &pb.Compare{Target: pb.Compare_CREATE, Key: key,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: revision}}
}

// txn sends a Txn that must do what it asks for.
func (p *bareEtcd) txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	resp, err := p.kv.Txn(ctx, req)
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("a compare of the floor's failed: %v", req.Compare)
	}
	return resp, err
}

// bareLock is a place in the line of one name. Who enters holds when all who stood before are gone.
type bareLock struct {
	s    *bareSession
	line string
}

func (l bareLock) Lock(ctx context.Context) (Held, error) {
	key := l.s.key(l.line)
	resp, err := l.s.p.txn(ctx, l.s.claim(l.line, key))
	if err != nil {
		return nil, err
	}
	h := &bareHeld{l.s.p, key, resp.Header.Revision}
	ahead := resp.Responses[0].GetResponseRange().Kvs
	if len(ahead) == 0 {
		return h, nil
	}
	return h, l.s.p.news.await(ctx, l.line, ahead, h.revision)
}

type bareHeld struct {
	p        *bareEtcd
	key      []byte
	revision int64
}

func (h *bareHeld) Check() error  { return nil }
func (h *bareHeld) Token() uint64 { return uint64(h.revision) }

func (h *bareHeld) Release(ctx context.Context) error {
	_, err := h.p.txn(ctx, release(h.key, h.revision))
	return err
}

// bareNews is one watch stream with a watch for each line in which somebody has had to wait. It
// stands from then on.
type bareNews struct {
	stream pb.Watch_WatchClient

	mu      sync.Mutex
	watched map[string]bool // lines
	gone    map[string]bool // keys that were deleted: few enough in one slice to keep them all
	waiting []*bareWait
}

type bareWait struct {
	left map[string]bool // keys that stand before it
	done chan struct{}
}

// await waits until all keys are gone that were read at the revision.
func (n *bareNews) await(ctx context.Context, line string, ahead []*mvccpb.KeyValue, revision int64) error {
	w := &bareWait{map[string]bool{}, make(chan struct{})}
	n.mu.Lock()
	for _, kv := range ahead {
		if !n.gone[string(kv.Key)] {
			w.left[string(kv.Key)] = true
		}
	}
	if len(w.left) == 0 {
		n.mu.Unlock()
		return nil
	}
	n.waiting = append(n.waiting, w)
	err := n.watchLocked(line, revision)
	n.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *bareNews) watchLocked(line string, revision int64) error {
	if n.watched[line] {
		return nil
	}
	n.watched[line] = true
	create := &pb.WatchCreateRequest{Key: []byte(line), RangeEnd: rangeEnd(line),
		StartRevision: revision + 1, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}}
	return n.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// read takes the pushes until the stream ends.
func (n *bareNews) read() {
	for {
		resp, err := n.stream.Recv()
		if err != nil {
			return
		}
		n.mu.Lock()
		for _, e := range resp.Events {
			n.goneLocked(string(e.Kv.Key))
		}
		n.mu.Unlock()
	}
}

func (n *bareNews) goneLocked(key string) {
	n.gone[key] = true
	still := n.waiting[:0]
	for _, w := range n.waiting {
		if delete(w.left, key); len(w.left) == 0 {
			close(w.done)
		} else {
			still = append(still, w)
		}
	}
	n.waiting = still
}
