package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/primacy-go/primacy/driver"
)

var _ driver.LeaseViewer = (*Store)(nil)

// glances is how many leases are asked about at once.
const glances = 16

// Remaining implements [driver.LeaseViewer], in whole seconds. Of a session with a heartbeat nothing is told: its waiters go by that, not by etcd's lease.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	ids := map[string]int64{}
	for len(leases) > 0 {
		n := min(chunk, len(leases))
		if err := s.leasesNow(ctx, leases[:n], ids); err != nil {
			return nil, err
		}
		leases = leases[n:]
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		all   = map[string]driver.Remaining{}
		turns = make(chan struct{}, glances)
	)
	for name, id := range ids {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			r, err := s.timeToLive(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all[name] = r
			case !errors.Is(err, driver.ErrGone):
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// leasesNow finds the leases that these sessions have at present: one keeps its first lease's ID, also on another one.
func (s *Store) leasesNow(ctx context.Context, sessionIDs []string, ids map[string]int64) error {
	req := &pb.TxnRequest{}
	for _, id := range sessionIDs {
		req.Success = append(req.Success, doRange(&pb.RangeRequest{Key: []byte(s.prefix + sessions + id)}))
	}
	resp, _, err := s.txn(ctx, "read sessions", req)
	if err != nil {
		return err
	}
	for i, id := range sessionIDs {
		if lease := leaseOf(id, one(resp, i)); lease != 0 {
			ids[id] = lease
		}
	}
	return nil
}

// leaseOf returns the lease that a session's record hangs on; 0: none, or not what others go by. Without a record the claim is another program's.
func leaseOf(id string, kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		lease, _ := strconv.ParseInt(id, 16, 64)
		return lease
	}
	var r record
	if json.Unmarshal(kv.Value, &r) != nil || r.Beat != 0 {
		return 0
	}
	return kv.Lease
}

// timeToLive asks etcd's leader, whose clock expires leases.
func (s *Store) timeToLive(ctx context.Context, id int64) (driver.Remaining, error) {
	var resp *pb.LeaseTimeToLiveResponse
	_, err := s.call(ctx, "time to live", func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewLeaseClient(conn).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id}, opts...)
		return err
	})
	if isGone(err) || err == nil && resp.TTL < 0 {
		return driver.Remaining{}, driver.ErrGone
	}
	if err != nil {
		return driver.Remaining{}, err
	}
	return driver.Remaining{Left: time.Duration(resp.TTL) * time.Second, TTL: time.Duration(resp.GrantedTTL) * time.Second, Step: time.Second}, nil
}
