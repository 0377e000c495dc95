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

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

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

	// endOldLeases revokes the leases of endedMonths months, the last of them endedAfter months
	// ago: all their records are older than recordLife. It does so only if it finds the leases of
	// endedSeen months since.
	endedAfter  = 15
	endedMonths = 13
	endedSeen   = 4
)

// recordLeaseID names the lease for the records of a month and of the journals in a shard.
type recordLeaseID struct {
	month int64
	shard uint8
}

// recordLeases is what is known of the leases for records.
type recordLeases struct {
	layout
	wire *etcdwire.Wire
	now  func() time.Time // the wall clock; tests have another

	mu    sync.Mutex // guards what follows; nothing is called while it is held
	known map[recordLeaseID]leaseState
	hasty time.Time // until then releases do not wait for a lease
}

// leaseState is a lease for records as it is known.
type leaseState struct {
	id    int64         // 0: do without
	until time.Time     // when to ask again; zero: never
	ready chan struct{} // closed once it is known
}

// leaseFor returns where a record of that journal goes now.
func (rl *recordLeases) leaseFor(journal string) recordLeaseID {
	h := fnv.New32a()
	h.Write([]byte(journal))
	return recordLeaseID{month: rl.now().Unix() / int64(month/time.Second), shard: uint8(h.Sum32() % shards)}
}

// leaseID returns the ID of a record lease, another one for each try.
func (rl *recordLeases) leaseID(at recordLeaseID, try int) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "primacy journal %q %q %d %d %d", rl.prefix, rl.wire.Client().Username,
		at.month, at.shard, try))
	return max(1, int64(binary.BigEndian.Uint64(sum[:])>>1))
}

// recordLease returns a record lease, granted if need be, or 0 if none is to be had now.
func (rl *recordLeases) recordLease(ctx context.Context, at recordLeaseID) int64 {
	rl.mu.Lock()
	r, ok := rl.known[at]
	if !ok || !r.until.IsZero() && time.Now().After(r.until) {
		if len(rl.known) > 4*shards {
			rl.known = map[recordLeaseID]leaseState{}
		}
		r = leaseState{ready: make(chan struct{})}
		rl.known[at] = r
		rl.wire.Later(func(ctx context.Context) { // not under the caller's ctx: others wait for it too
			id, err := rl.grantRecordLease(ctx, at)
			rl.learn(at, r, id, err)
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
	return rl.idOf(at)
}

// learn notes what became of the asking for a lease. It replaces what forget or without has noted
// meanwhile: etcd's next refusal has that noted again.
func (rl *recordLeases) learn(at recordLeaseID, r leaseState, id int64, err error) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if r.id = id; err != nil {
		r.until = time.Now().Add(grantPause)
	}
	rl.known[at] = r
	close(r.ready)
}

func (rl *recordLeases) idOf(at recordLeaseID) int64 {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	return rl.known[at].id
}

// forget has a lease granted anew that etcd does not know any more.
func (rl *recordLeases) forget(at recordLeaseID) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	delete(rl.known, at)
}

// without has records kept without a lease.
func (rl *recordLeases) without(at recordLeaseID) {
	ready := make(chan struct{})
	close(ready)
	rl.mu.Lock()
	defer rl.mu.Unlock()
	rl.known[at] = leaseState{ready: ready}
}

// grantRecordLease grants a record lease, or finds it. ID 0 and no error: other programs have all
// its IDs, or etcd asks for users.
func (rl *recordLeases) grantRecordLease(ctx context.Context, at recordLeaseID) (int64, error) {
	const what = "lease for journals"
	if users, err := asksForUsers(ctx, rl.wire); users || err != nil {
		return 0, err
	}
	for try := range otherIDs {
		id := rl.leaseID(at, try)
		_, err := rl.wire.Grant(ctx, what, id, int64(recordTTL/time.Second))
		if err == nil {
			rl.wire.Later(func(ctx context.Context) { rl.endOldLeases(ctx, at) })
			return id, nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseExist) {
			return 0, err
		}
		left, ours, err := rl.recordLeaseLeft(ctx, what, id)
		if err != nil {
			return 0, err
		}
		if ours && left >= recordLife {
			return id, nil // one with less left was granted long ago, by a clock that ran far ahead
		}
	}
	return 0, nil
}

// recordLeaseLeft returns how long a lease lives on, and whether it is one for records, by its ttl.
func (rl *recordLeases) recordLeaseLeft(ctx context.Context, what string, id int64,
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
func (rl *recordLeases) endOldLeases(ctx context.Context, at recordLeaseID) {
	const what = "end old leases for journals"
	stands := func(month int64) (int64, bool) {
		id := rl.leaseID(recordLeaseID{month, at.shard}, 0)
		_, ours, err := rl.recordLeaseLeft(ctx, what, id)
		return id, err == nil && ours
	}
	seen := 0
	for m := at.month - 1; m > at.month-endedAfter && seen < endedSeen; m-- {
		if _, there := stands(m); there {
			seen++
		}
	}
	for m := at.month - endedAfter; seen == endedSeen && m > at.month-endedAfter-endedMonths; m-- {
		if id, there := stands(m); there {
			_ = rl.wire.Revoke(ctx, what, id) // where it fails: the next month tries again
		}
	}
}

// patience returns how long a release waits for a lease for its record. After one has waited in
// vain others do not: releases come in waves, and each wave would wait anew.
func (rl *recordLeases) patience() time.Duration {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if time.Now().Before(rl.hasty) {
		return 0
	}
	return recordWait
}

func (rl *recordLeases) hurry() {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	rl.hasty = time.Now().Add(grantPause)
}
