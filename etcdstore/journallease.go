package etcdstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// Journal records are on etcd leases, so that journals nobody uses are forgotten. All processes
// share these leases. Their IDs follow from the prefix, the user, the month and the journal:
// whoever comes first grants one, and the others find it.
//
// Whoever grants a lease also revokes those that are over a year old. Their ttl need not end them:
// each new leader of etcd starts it afresh.
//
// There are many leases, because all keys of a lease end in one step. If etcd asks for users,
// records are on no lease: etcd would check, at each put, the rights to all keys on the put's
// lease. (With 10,000 records on it a hundred releases held etcd up for seconds.) A record whose
// lease cannot be granted now goes without one too: a journal's number of records is bounded.
const (
	month      = 30 * 24 * time.Hour
	recordLife = 400 * 24 * time.Hour // for which a record is kept at least
	recordTTL  = recordLife + month
	shards     = 256
	otherIDs   = 3                // tried where a lease of somebody else has the ID
	grantPause = 10 * time.Second // before a lease that could not be had is asked for again

	// endOldLeases revokes the leases of endedMonths months. The latest of these months is
	// endedAfter months ago, so all their records are older than recordLife. It revokes only if it
	// finds leases of endedSeen of the months after those.
	endedAfter  = 15
	endedMonths = 13
	endedSeen   = 4
)

// recordShard names the records that share a lease: those of a month, of the journals with a
// number.
type recordShard struct {
	month  int64
	number uint8
}

// journalLeases is what is known of the leases for records.
type journalLeases struct {
	layout
	wire *etcdwire.Wire
	now  func() time.Time // the wall clock; tests have another

	mu          sync.Mutex // guards what follows
	known       map[recordShard]leaseState
	noWaitUntil time.Time // for a lease, by releases
}

// leaseState is what is known of a shard's lease.
type leaseState struct {
	id    int64         // 0: records go without a lease
	until time.Time     // when to ask again; zero: never
	ready chan struct{} // closed once it is known
}

func (rl *journalLeases) shardOf(journal string) recordShard {
	h := fnv.New32a()
	h.Write([]byte(journal))
	return recordShard{month: rl.now().Unix() / int64(month/time.Second), number: uint8(h.Sum32() % shards)}
}

func (rl *journalLeases) leaseID(shard recordShard, try int) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "primacy journal %q %q %d %d %d", rl.prefix, rl.wire.Client().Username,
		shard.month, shard.number, try))
	return max(1, int64(binary.BigEndian.Uint64(sum[:])>>1))
}

// leaseFor returns the lease of a shard, granted if need be, or 0 if none is to be had now.
func (rl *journalLeases) leaseFor(ctx context.Context, shard recordShard) int64 {
	rl.mu.Lock()
	r, ok := rl.known[shard]
	if !ok || !r.until.IsZero() && time.Now().After(r.until) {
		if len(rl.known) > 4*shards {
			rl.known = map[recordShard]leaseState{}
		}
		r = leaseState{ready: make(chan struct{})}
		rl.known[shard] = r
		rl.wire.Background(func(ctx context.Context) { // not under the caller's ctx: others wait for it too
			id, err := rl.grant(ctx, shard)
			rl.noteGrant(shard, r, id, err)
		})
	}
	rl.mu.Unlock()
	select {
	case <-r.ready: // first: what is known is returned also where ctx has ended
	default:
		select {
		case <-r.ready:
		case <-ctx.Done():
			return 0
		case <-rl.wire.Context().Done():
			return 0
		}
	}
	return rl.knownID(shard)
}

// noteGrant notes what became of a grant. It replaces what forget or useNoLease has noted during
// the grant. That does no harm: etcd refuses the next record that relies on it, and the refusal has
// forget or useNoLease called again. Nor does a second grant of the shard that forget has let
// begin: both find the same lease.
func (rl *journalLeases) noteGrant(shard recordShard, r leaseState, id int64, err error) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if r.id = id; err != nil {
		r.until = time.Now().Add(grantPause)
	}
	rl.known[shard] = r
	close(r.ready)
}

func (rl *journalLeases) knownID(shard recordShard) int64 {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	return rl.known[shard].id
}

// forget notes that etcd does not know a shard's lease any more: the next record has it granted
// anew.
func (rl *journalLeases) forget(shard recordShard) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	delete(rl.known, shard)
}

// useNoLease has the records of a shard kept without a lease.
func (rl *journalLeases) useNoLease(shard recordShard) {
	ready := make(chan struct{})
	close(ready)
	rl.mu.Lock()
	defer rl.mu.Unlock()
	rl.known[shard] = leaseState{ready: ready}
}

// grant grants the lease of a shard, or finds it. ID 0 and no error: other programs have all
// its IDs, or etcd asks for users.
func (rl *journalLeases) grant(ctx context.Context, shard recordShard) (int64, error) {
	const what = "lease for journals"
	if users, err := asksForUsers(ctx, rl.wire); users || err != nil {
		return 0, err
	}
	for try := range otherIDs {
		id := rl.leaseID(shard, try)
		// It is looked for before it is granted. It usually stands, and an etcd client of a user's
		// own would log the refusal of a second grant as a warning.
		for range 2 { // another process may grant it in between
			left, ours, err := rl.leaseLeft(ctx, what, id)
			if err != nil {
				return 0, err
			}
			if ours && left >= recordLife {
				return id, nil // one with less left was granted long ago, by a clock that ran far ahead
			}
			if left > 0 {
				break
			}
			_, err = rl.wire.Grant(ctx, what, id, int64(recordTTL/time.Second))
			if err == nil {
				rl.wire.Background(func(ctx context.Context) { rl.endOldLeases(ctx, shard) })
				return id, nil
			}
			if !errors.Is(err, rpctypes.ErrLeaseExist) {
				return 0, err
			}
		}
	}
	return 0, nil
}

// asksForUsers reports whether etcd asks who is there.
func asksForUsers(ctx context.Context, w *etcdwire.Wire) (bool, error) {
	var resp *pb.AuthStatusResponse
	_, err := w.Call(ctx, "auth status", func(ctx context.Context, conn *grpc.ClientConn,
		opts ...grpc.CallOption) (err error) {
		resp, err = pb.NewAuthClient(conn).AuthStatus(ctx, &pb.AuthStatusRequest{}, opts...)
		return err
	})
	switch {
	case err == nil:
		return resp.Enabled, nil
	// only the administrator is told
	case errors.Is(err, driver.ErrRefused), errors.Is(err, rpctypes.ErrPermissionDenied):
		return true, nil
	case status.Code(err) == codes.Unimplemented: // etcd 3.4
		return w.Client().Username != "", nil
	}
	return false, err
}

// leaseLeft returns how long a lease lives on, and whether it is one for records, by its ttl.
func (rl *journalLeases) leaseLeft(ctx context.Context, what string, id int64,
) (left time.Duration, ours bool, err error) {
	left, ttl, err := rl.wire.TimeToLive(ctx, what, id)
	switch {
	case isGone(err):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	return left, ttl == recordTTL, nil
}

// endOldLeases revokes the record leases that are too old. Our clock may be far ahead, and then
// what looks old is not. So it must find leases of the months in between: of several, for the lease
// of one month may have been granted by such a clock.
func (rl *journalLeases) endOldLeases(ctx context.Context, shard recordShard) {
	const what = "end old leases for journals"
	stands := func(month int64) (int64, bool) {
		id := rl.leaseID(recordShard{month, shard.number}, 0)
		_, ours, err := rl.leaseLeft(ctx, what, id)
		return id, err == nil && ours
	}
	seen := 0
	for m := shard.month - 1; m > shard.month-endedAfter && seen < endedSeen; m-- {
		if _, there := stands(m); there {
			seen++
		}
	}
	for m := shard.month - endedAfter; seen == endedSeen && m > shard.month-endedAfter-endedMonths; m-- {
		if id, there := stands(m); there {
			_ = rl.wire.Revoke(ctx, what, id) // where it fails: the next month tries again
		}
	}
}

// waitLimit returns how long a release waits for a lease for its record. After one has waited in
// vain others do not: releases come in waves, and each wave would wait anew.
func (rl *journalLeases) waitLimit() time.Duration {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if time.Now().Before(rl.noWaitUntil) {
		return 0
	}
	return recordWait
}

func (rl *journalLeases) skipWaits() {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	rl.noWaitUntil = time.Now().Add(grantPause)
}
