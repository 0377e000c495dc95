package etcdstore

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Kept returns the value that leaders of an election keep under that name, and its version. The
// version 0 says that there is none. The read is linearizable.
func (s *Store) Kept(ctx context.Context, name string) (value []byte, version uint64, err error) {
	key := s.keptKey(name)
	resp, err := s.wire.Get(ctx, verb("read what is kept of", name), &pb.RangeRequest{Key: []byte(key)})
	if err != nil || len(resp.Kvs) == 0 {
		return nil, 0, err
	}
	return resp.Kvs[0].Value, uint64(resp.Kvs[0].ModRevision), nil
}

// Keep writes a value that outlives its writer's term: no lease ends it. It is written only if the
// present one has that version, and while the claim at claimKey has this token; see
// [Store.ClaimKey]. So nothing is written any more once that claim is gone, not even by a request
// that was held up on its way. An empty claimKey asks for no claim: anybody may write the value. It
// returns the new version. ok is false where another version stands.
// The error is [driver.ErrGone] if the claim is gone. After any other error the value may have been
// written, or may yet be, but only over that version and under that claim.
func (s *Store) Keep(ctx context.Context, name string, value []byte, version uint64, claimKey string, token uint64,
) (next uint64, ok bool, err error) {
	return writeOver(ctx, s.wire, verb("keep a value of", name), s.keptKey(name), value, version, claimKey, token)
}

// Raw returns access to keys of other programs.
func (s *Store) Raw() *Raw { return &Raw{s.layout, s.wire} }

// writeOver writes a value over that version, and while that claim stands.
func writeOver(ctx context.Context, w *etcdwire.Wire, what, key string, value []byte, version uint64, claimKey string,
	token uint64,
) (next uint64, ok bool, err error) {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(key, int64(version))},
		Success: []*pb.RequestOp{doPut(key, value, 0)},
		Failure: []*pb.RequestOp{doGet(key)},
	}
	if claimKey != "" {
		req.Compare = append(req.Compare, ifCreate(claimKey, int64(token)))
		req.Failure = append(req.Failure, doFind(claimKey))
	}
	resp, doubt, err := w.Txn(ctx, what, req)
	switch {
	case err != nil:
		return 0, false, notGone(err)
	case resp.Succeeded:
		return uint64(resp.Header.Revision), true, nil
	}
	if kv := kvAt(resp, 1); claimKey != "" && (kv == nil || uint64(kv.CreateRevision) != token) {
		return 0, false, fmt.Errorf("etcd: %s under token %d: the claim: %w", what, token, driver.ErrGone)
	}
	if kv := kvAt(resp, 0); doubt && kv != nil && string(kv.Value) == string(value) {
		return uint64(kv.ModRevision), true, nil // an earlier attempt of this call has written it
	}
	return 0, false, nil
}
