package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.LeaseTimer = (*lease)(nil)
	_ driver.Admin      = (*Store)(nil)
)

// Left implements [driver.LeaseTimer]. Etcd tells whole seconds, on the clock of its leader, which is the one that expires leases.
func (l *lease) Left(ctx context.Context) (left, step time.Duration, err error) {
	var resp *pb.LeaseTimeToLiveResponse
	_, err = l.s.call(ctx, "time to live", func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewLeaseClient(conn).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: l.anchored().id}, opts...)
		return err
	})
	if isGone(err) || err == nil && resp.TTL < 0 {
		return 0, time.Second, l.goneErr("time to live")
	}
	if err != nil {
		return 0, time.Second, err
	}
	return time.Duration(resp.TTL) * time.Second, time.Second, nil
}

// Leases implements [driver.Admin].
func (s *Store) Leases(ctx context.Context, prefix string) ([]string, error) {
	dir := s.prefix + sessions
	resp, err := s.get(ctx, "list sessions", &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir))})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, kv := range resp.Kvs {
		id := strings.TrimPrefix(string(kv.Key), dir)
		var r record
		if !strings.Contains(id, "/") && json.Unmarshal(kv.Value, &r) == nil && strings.HasPrefix(r.Owner, prefix) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	dir := s.lineDir(name)
	resp, err := s.get(ctx, fmt.Sprintf("remove a claim on %q", name), &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)),
		MinCreateRevision: int64(token), MaxCreateRevision: int64(token), KeysOnly: true})
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	key := string(resp.Kvs[0].Key)
	_, _, err = s.txn(ctx, fmt.Sprintf("remove a claim on %q", name), &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(key, int64(token))}, Success: []*pb.RequestOp{doDelete(key)}})
	return err
}

// EndLease implements [driver.Admin]. The ID is the session's, which keeps it also when its keys have moved to another etcd lease.
func (s *Store) EndLease(ctx context.Context, id string) error {
	first, err := strconv.ParseInt(id, 16, 64)
	if err != nil {
		return refused("end lease", strconv.Quote(id)+" is not the ID of a lease")
	}
	resp, err := s.get(ctx, "end lease "+id, &pb.RangeRequest{Key: []byte(s.sessionKey(first))})
	if err != nil {
		return err
	}
	if len(resp.Kvs) > 0 && resp.Kvs[0].Lease != 0 && resp.Kvs[0].Lease != first {
		if err := s.revoke(ctx, "end lease "+id, resp.Kvs[0].Lease); err != nil {
			return err
		}
	}
	return s.revoke(ctx, "end lease "+id, first)
}
