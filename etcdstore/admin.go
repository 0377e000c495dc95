package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Here a lease that the port names is a session: its ID is a string, the hex digits of its first
// etcd lease. An etcd lease is an int64.

var (
	_ driver.LeaseViewer = (*Store)(nil)
	_ driver.Admin       = (*Store)(nil)
)

// Revoke implements [driver.Store]. An ID of no session of this prefix counts as gone: leases of
// other programs are not touched.
//
// A session that has moved to another etcd lease keeps the ID of its first one; its record tells
// where it is. A Txn by which a claim enters or moves compares the record. So once the record is
// gone, no Txn that is still on its way can succeed: the session is over.
func (s *Store) Revoke(ctx context.Context, session string) error {
	what := "revoke lease " + strconv.Quote(session)
	first, err := strconv.ParseInt(session, 16, 64)
	if err != nil || first <= 0 || hex(first) != session {
		return refused(what, "that is no lease's ID: give it as Lease.ID returns it, in lower-case hex")
	}
	for ended := int64(0); ; {
		resp, err := s.wire.Get(ctx, what, &pb.RangeRequest{Key: []byte(s.sessionKey(first))})
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
		rec := resp.Kvs[0]
		if rec.ModRevision == ended {
			rec.Lease = 0 // the record stands though its lease was revoked: etcd did not know that lease
		}
		if rec.Lease != first {
			// sweep comes before the revocation, with which the record goes. If this call broke off
			// in between, a repeated call would find no record, and so no claims that are left.
			if done, err := s.sweep(ctx, what, session, rec); err != nil || !done {
				if err != nil {
					return err
				}
				continue
			}
		}
		if rec.Lease != 0 {
			if err := s.wire.Revoke(ctx, what, rec.Lease); err != nil {
				return err
			}
			ended = rec.ModRevision
		}
		// Once more: a move that came between has put the record onto a newer lease. The round that
		// finds no record is the last.
	}
}

// sweep deletes the claims of a session that are not on its record's lease, which a move has not
// reached yet. etcd 3.7 does not tell the lease of keys without values: there sweep deletes all
// claims, for the session is about to end. If the record is on no lease, sweep deletes it too. It
// reports false if the record has changed meanwhile: there may be more claims then.
func (s *Store) sweep(ctx context.Context, what, session string, rec *mvccpb.KeyValue) (bool, error) {
	since := func(from, end string) *pb.RequestOp {
		r := keysOnly(keyRange(from, end), 0)
		r.MinCreateRevision = rec.CreateRevision
		return doRange(r)
	}
	resp, _, err := s.wire.Txn(ctx, what, &pb.TxnRequest{Success: []*pb.RequestOp{
		since(s.prefix, s.prefix+nonLine), since(s.prefix+nonLineEnd, etcdwire.PrefixEnd(s.prefix))}})
	if err != nil {
		return false, fmt.Errorf("%w (its claims are looked for under %q)", err, s.prefix)
	}
	var left []*mvccpb.KeyValue
	for _, kv := range append(kvsAt(resp, 0), kvsAt(resp, 1)...) {
		if (kv.Lease != rec.Lease || rec.Lease == 0) && s.isClaimOf(string(kv.Key), session) {
			left = append(left, kv)
		}
	}
	done, err := s.wire.Limit.InChunks(len(left), func(from, to int) (bool, error) {
		return s.sweepSome(ctx, what, rec, left[from:to])
	})
	if err != nil || done < len(left) {
		return false, err
	}
	if rec.Lease != 0 {
		return true, nil
	}
	return s.sweepSome(ctx, what, rec, []*mvccpb.KeyValue{rec})
}

func (s *Store) isClaimOf(key, session string) bool {
	whose, _ := parseStem(key)
	return s.isClaim(key) && whose == session
}

func (s *Store) sweepSome(ctx context.Context, what string, rec *mvccpb.KeyValue, keys []*mvccpb.KeyValue,
) (bool, error) {
	resp, _, err := s.wire.Txn(ctx, what, &pb.TxnRequest{
		Compare: []*pb.Compare{ifMod(string(rec.Key), rec.ModRevision)}, Success: removals(keys)})
	return err == nil && resp.Succeeded, err
}

// Leases implements [driver.Admin].
func (s *Store) Leases(ctx context.Context, prefix string) ([]string, error) {
	dir := s.prefix + sessions
	resp, err := s.wire.Get(ctx, "list sessions", prefixRange(dir))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, kv := range resp.Kvs {
		id := strings.TrimPrefix(string(kv.Key), dir)
		var r sessionRecord
		if !strings.Contains(id, "/") && json.Unmarshal(kv.Value, &r) == nil && strings.HasPrefix(r.Owner, prefix) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	what := verb("remove a claim on", name)
	if token == 0 {
		return nil // no claim has it, and etcd would take a revision of 0 for any
	}
	r := keysOnly(prefixRange(s.lineDir(name)), 0)
	r.MinCreateRevision, r.MaxCreateRevision = int64(token), int64(token)
	resp, err := s.wire.Get(ctx, what, r)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	_, _, err = s.wire.Txn(ctx, what, &pb.TxnRequest{Success: removals(resp.Kvs)})
	return err
}

// maxTTLReads is how many leases are asked about at once.
const maxTTLReads = 16

// Remaining implements [driver.LeaseViewer], in whole seconds. A session with a
// heartbeat is left out: its waiters go by that, not by etcd's lease.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	ids := map[string]int64{}
	if _, err := s.wire.Limit.InChunks(len(leases), func(from, to int) (bool, error) {
		return true, s.leasesNow(ctx, leases[from:to], ids)
	}); err != nil {
		return nil, err
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		all   = map[string]driver.Remaining{}
		turns = make(chan struct{}, maxTTLReads)
	)
	for name, id := range ids {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			left, ttl, err := s.wire.TimeToLive(ctx, "time to live", id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all[name] = driver.Remaining{Left: left, TTL: ttl, Step: time.Second}
			case !errors.Is(err, driver.ErrGone):
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

func (s *Store) leasesNow(ctx context.Context, sessionIDs []string, ids map[string]int64) error {
	req := &pb.TxnRequest{}
	for _, id := range sessionIDs {
		req.Success = append(req.Success, doGet(s.prefix+sessions+id))
	}
	resp, _, err := s.wire.Txn(ctx, "read sessions", req)
	if err != nil {
		return err
	}
	for i, id := range sessionIDs {
		if lease := leaseOf(id, kvAt(resp, i)); lease != 0 {
			ids[id] = lease
		}
	}
	return nil
}

// leaseOf returns the lease that a session's record is on. Without a record the claim is another
// program's, under the lease of that ID. 0: there is none, or its waiters go by a heartbeat.
func leaseOf(id string, kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		lease, _ := strconv.ParseInt(id, 16, 64)
		return lease
	}
	var r sessionRecord
	if json.Unmarshal(kv.Value, &r) != nil || r.HeartbeatMS != 0 {
		return 0
	}
	return kv.Lease
}
