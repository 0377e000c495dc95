package etcdstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
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
//
// There are not too many either: each costs a process that writes to many journals a request, and a
// proposal once a month. What a process that wants several needs to know of all it asks once: see
// leaseSurvey.
const (
	month      = 30 * 24 * time.Hour
	recordLife = 400 * 24 * time.Hour // for which a record is kept at least
	recordTTL  = recordLife + month
	shards     = 64
	otherIDs   = 3                      // tried where a lease of somebody else has the ID
	grantPause = 10 * time.Second       // before a lease that could not be had is asked for again
	surveyLife = 10 * time.Second       // for which a leaseSurvey is used
	listLimit  = etcdwire.CallLimit / 4 // for the list of all leases

	// endOldLeases revokes the leases of months that lie at least endedAfter back, whose records
	// are all older than recordLife, and looks at endedMonths such months. Before, it must have
	// found leases of endedSeen months that are later than those.
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
	survey      *leaseSurvey // the last one, or nil
	noWaitUntil time.Time    // for a lease, by releases
}

// leaseSurvey is what etcd said of users and leases when a lease for records was to be had. Others
// that are to be had soon after need not ask again.
type leaseSurvey struct {
	asked chan struct{} // closed once users and err are known

	users bool  // etcd asks for users
	err   error // why it is not known whether it does

	// journalLeases.mu guards these.
	wanted int           // how many leases were to be had
	listed chan struct{} // closed once all is known; nil: it was not asked for

	all map[int64]bool // the IDs of all leases; nil: not known
}

// surveyed returns the present survey, made if need be. One that has failed is nobody's answer but
// theirs who waited for it: they ask once more.
func (rl *journalLeases) surveyed(ctx context.Context) (sv *leaseSurvey, err error) {
	for range 2 {
		rl.mu.Lock()
		isNew := rl.survey == nil
		if isNew {
			rl.survey = &leaseSurvey{asked: make(chan struct{})}
		}
		sv = rl.survey
		sv.wanted++
		rl.mu.Unlock()
		if isNew {
			time.AfterFunc(surveyLife, func() { rl.drop(sv) }) // all may be of many thousands
			if sv.users, sv.err = asksForUsers(ctx, rl.wire); sv.err != nil {
				rl.drop(sv)
			}
			close(sv.asked)
		}
		select {
		case <-sv.asked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if sv.err == nil || isNew {
			break
		}
	}
	return sv, sv.err
}

// drop forgets a survey.
func (rl *journalLeases) drop(sv *leaseSurvey) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if rl.survey == sv {
		rl.survey = nil
	}
}

// standing returns the IDs of all leases, nil if they are not known: where etcd did not tell, and
// as long as only one lease was to be had, for which etcd is asked less.
func (rl *journalLeases) standing(ctx context.Context, sv *leaseSurvey) map[int64]bool {
	rl.mu.Lock()
	few := sv.wanted < 2
	rl.mu.Unlock()
	if few {
		return nil
	}
	return rl.list(ctx, sv)
}

// list returns the IDs of all leases, nil if etcd does not tell.
func (rl *journalLeases) list(ctx context.Context, sv *leaseSurvey) map[int64]bool {
	rl.mu.Lock()
	isFirst := sv.listed == nil
	if isFirst {
		sv.listed = make(chan struct{})
	}
	rl.mu.Unlock()
	if isFirst {
		sv.all, _ = rl.wire.Leases(ctx, listLimit)
		close(sv.listed)
	}
	select {
	case <-sv.listed:
		return sv.all
	case <-ctx.Done():
		return nil
	}
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

// noteGrant notes what became of a grant. What forget or useNoLease has noted during the grant is
// lost. That does no harm: etcd refuses the next record on that lease, and they are called again.
// Two grants of a shard at once, which forget makes possible, do none either: both find the same
// lease.
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
	sv, err := rl.surveyed(ctx)
	if err != nil || sv.users {
		return 0, err
	}
	all := rl.standing(ctx, sv)
	for try := range otherIDs {
		id := rl.leaseID(shard, try)
		// If it may stand, it is looked for before it is granted: an etcd client of a user's own
		// would log the refusal of a second grant as a warning.
		look := all == nil || all[id]
		for range 2 { // another process may grant it in between
			left, ours, err := time.Duration(0), false, error(nil)
			if look {
				left, ours, err = rl.leaseLeft(ctx, what, id)
			}
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
				rl.wire.Background(func(ctx context.Context) { rl.endOldLeases(ctx, shard, sv) })
				return id, nil
			}
			if !errors.Is(err, rpctypes.ErrLeaseExist) {
				return 0, err
			}
			look = true
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

// endOldLeases revokes the record leases of a shard that are too old. If etcd does not tell which
// leases stand, the next month tries again. Our clock may be far ahead, and then what looks old is
// in use now. So it must first find leases of several later months: those of one or two may have
// been granted by other clocks that ran ahead. It looks under the first of a shard's IDs only:
// where another program had that one, nothing is revoked, and the lease ends by its ttl.
//
// There were 256 shards once. It looks at those too whose number differs by a multiple of shards.
func (rl *journalLeases) endOldLeases(ctx context.Context, shard recordShard, sv *leaseSurvey) {
	const what = "end old leases for journals"
	all := rl.list(ctx, sv)
	standing := func(month int64) (ids []int64) {
		for number := int(shard.number); number <= math.MaxUint8; number += shards {
			if id := rl.leaseID(recordShard{month, uint8(number)}, 0); all[id] {
				ids = append(ids, id)
			}
		}
		return ids
	}
	seen := 0
	for m := shard.month - 1; m > shard.month-endedAfter && seen < endedSeen; m-- {
		if len(standing(m)) > 0 {
			seen++
		}
	}
	for m := shard.month - endedAfter; seen == endedSeen && m > shard.month-endedAfter-endedMonths; m-- {
		for _, id := range standing(m) {
			if _, ours, err := rl.leaseLeft(ctx, what, id); ours && err == nil {
				_ = rl.wire.Revoke(ctx, what, id) // where it fails: the next month tries again
			}
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
