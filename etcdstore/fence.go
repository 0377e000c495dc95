package etcdstore

import (
	"context"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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
// one linearizable read. [driver.ErrGone] if that claim does not hold the name.
func (s *Store) ClaimKey(ctx context.Context, name string, token uint64) (string, error) {
	dir := s.lineDir(name)
	resp, err := s.get(ctx, verb("read", name), &pb.RangeRequest{Key: []byte(dir), RangeEnd: []byte(prefixEnd(dir)), Limit: 1, KeysOnly: true,
		SortOrder: pb.RangeRequest_ASCEND, SortTarget: pb.RangeRequest_CREATE})
	if err != nil {
		return "", err
	}
	// Only the oldest: a claim that waits stands as well, and would pass the compare.
	if len(resp.Kvs) == 0 || token == 0 || uint64(resp.Kvs[0].CreateRevision) != token {
		return "", fmt.Errorf("etcd: %q under token %d: the claim: %w", name, token, driver.ErrGone)
	}
	return string(resp.Kvs[0].Key), nil
}
