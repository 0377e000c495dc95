package etcdstore

import (
	"context"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// Origin names the cluster whose revisions this store's tokens are: "etcd/" and the cluster's ID in hex. Tokens of two
// origins cannot be compared. A cluster that was restored from a snapshot, or started on an empty disk, counts from an earlier revision
// again; but etcd computes the ID from --initial-cluster-token and the members' peer URLs, so only with a new token is it another. With the
// same flags the ID stays, and tokens of before and after look alike. Restore with a new --initial-cluster-token, or with
// --bump-revision and --mark-compacted, after which revisions grow on.
func (s *Store) Origin() string { return "etcd/" + strconv.FormatUint(s.cluster, 16) }

// ClaimKey returns the key of the claim that holds name under token, for a compare on its create revision in a Txn of one's own. As
// long as the key stands with that create revision the claim holds the name, also when it is moved to another lease. It is
// one linearizable read, and a second one where shared claims hold the name. [driver.ErrGone] if that claim does not hold the name.
func (s *Store) ClaimKey(ctx context.Context, name string, token uint64) (string, error) {
	kv, _, err := s.holding(ctx, verb("read", name), name, token, true)
	if err != nil {
		return "", err
	}
	if kv == nil {
		return "", fmt.Errorf("etcd: %q under token %d: the claim: %w", name, token, driver.ErrGone)
	}
	return string(kv.Key), nil
}

// holding returns the claim that holds name under token, and its slots. Nil: none does. KeysOnly leaves its value and lease out.
func (s *Store) holding(ctx context.Context, what, name string, token uint64, keysOnly bool) (*mvccpb.KeyValue, int, error) {
	dir := s.lineDir(name)
	resp, err := s.get(ctx, what, &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), Limit: 1, KeysOnly: keysOnly,
		SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	// A claim that waits stands as well, and would pass for one that holds.
	first := resp.Kvs[0]
	slots, _ := parseClaim(dir, string(first.Key))
	if uint64(first.CreateRevision) == token {
		return first, slots, nil
	}
	if slots == 0 {
		return nil, 0, nil
	}
	if resp, err = s.readLine(ctx, what, name); err != nil {
		return nil, 0, err
	}
	all, held := ranks(dir, resp.Kvs)
	for i, kv := range resp.Kvs {
		if held[i] && uint64(kv.CreateRevision) == token {
			return kv, all[i], nil
		}
	}
	return nil, 0, nil
}
