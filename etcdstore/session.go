package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// session is what all parts of a lease share: its name, its record in etcd, and the etcd lease that
// the record and the claims are attached to.
type session struct {
	s             *Store
	id            int64 // of its first etcd lease; keys and observers know the session by it
	ttl           time.Duration
	base          time.Duration // of the etcd lease; the ttl itself without a heartbeat
	stem          string        // its part of its claims' keys
	recordKey     string
	recordValue   []byte
	recordCreated int64 // the record's create revision, the same for the session's whole life

	gone  chan struct{} // closed once the lease is known to have ended
	once  sync.Once
	onEnd func() // end calls it once; its caller may have a seat's turn, but no other lock

	mu       sync.Mutex // guards what follows
	attached attachment
	closing  bool // Close was called: a move gives up
}

// sessionRecord is what a session's key holds.
type sessionRecord struct {
	Owner       string `json:"owner"`
	HeartbeatMS int64  `json:"beat,omitempty"` // the ttl of its heartbeat in milliseconds, where it has one
}

// ID implements [driver.Lease].
func (se *session) ID() string { return hex(se.id) }

// TTL implements [driver.Lease].
func (se *session) TTL() time.Duration { return se.ttl }

// Close implements [driver.Lease].
func (se *session) Close(ctx context.Context) error {
	se.mu.Lock()
	se.closing = true // the lease of a move that began before is in oldLeases
	ids := append(slices.Clone(se.attached.oldLeases), se.attached.lease)
	se.mu.Unlock()
	for _, id := range ids {
		if err := se.s.wire.Revoke(ctx, "close lease "+se.ID(), id); err != nil {
			return err
		}
	}
	se.end()
	return nil
}

// end notes that the lease is over, and tells everybody who waits on it.
func (se *session) end() {
	se.once.Do(func() {
		close(se.gone)
		se.onEnd()
	})
}

// lost ends the lease, whose record no longer stands, and returns the error for that. If somebody
// has deleted only the record, its claims still stand, under an etcd lease that nobody renews any
// more. lost does not revoke that etcd lease: the next candidate would lead before the caller has
// stopped.
func (se *session) lost(verb string) error {
	se.end()
	return se.goneErr(verb)
}

// over reports whether the lease is known to have ended. It takes no lock.
func (se *session) over() bool {
	select {
	case <-se.gone:
		return true
	default:
		return false
	}
}

func (se *session) goneErr(verb string) error {
	return fmt.Errorf("etcd: %s: lease %s: %w", verb, se.ID(), driver.ErrGone)
}

// attachment is the etcd lease that a session is attached to. It changes with a move.
type attachment struct {
	lease       int64   // the etcd lease that the record and the claims are attached to
	raftTerm    uint64  // the raft term it was granted in, or an older one
	recordMod   int64   // the record's mod revision: a claim enters only if it is this one (see retract)
	oldLeases   []int64 // left by moves, or granted for one: keys may be on them, so Close revokes them
	claimsMoved bool    // no claim is on another lease than lease
}

// attachment returns it as it is now.
func (se *session) attachment() attachment {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.attached
}

// noteRecord takes over a newer state of the record: its mod revision and its lease. If a move was
// carried out and its answer lost, that is another lease than the one known. Its raft term is not
// known then (0), so the next renewal moves everything once more. The leases left behind are in
// oldLeases, and end by themselves.
func (se *session) noteRecord(mod, id int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if mod <= se.attached.recordMod {
		return
	}
	se.attached.recordMod = mod
	if se.attached.lease != id {
		se.attached = attachment{lease: id, recordMod: mod, oldLeases: append(se.attached.oldLeases, se.attached.lease)}
	}
}

// stands reports whether rec, read for a request that was sent once att was known, is the session's
// record as it is now.
//
// It is not where rec is older than att, or has another lease at the same revision. Revisions only
// grow, and the record is read through etcd's log, whichever member answers. So then etcd was put
// back to an earlier state. The lease that the session renews is not in that state, nor are claims
// that entered since; whoever is next there leads once the lease of then has ended.
func (se *session) stands(rec *mvccpb.KeyValue, att attachment) bool {
	return rec != nil && rec.CreateRevision == se.recordCreated &&
		(rec.ModRevision > att.recordMod || rec.ModRevision == att.recordMod && rec.Lease == att.lease)
}

// Left implements [driver.LeaseTimer]. Etcd tells whole seconds, on its leader's clock, which
// expires leases.
func (se *session) Left(ctx context.Context) (left, step time.Duration, err error) {
	if left, _, err = se.s.wire.TimeToLive(ctx, "time to live", se.attachment().lease); isGone(err) {
		err = se.goneErr("time to live")
	}
	return left, time.Second, err
}

func (se *session) keyOf(p driver.Place) string {
	return se.s.claimKey(storeutil.SeatAt(p), p.Slots, se.stem)
}
