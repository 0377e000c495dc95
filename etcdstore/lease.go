package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// lease is a [driver.Lease]: an etcd lease, the session's record under it, and at most one claim
// for each seat. Its own methods enter claims, replace their values and give them up. What it
// embeds does the rest, each part under a lock of its own.
//
// # Locks
//
// The mutexes of this package, and the turns. One may be held while one further down is taken,
// never one further up or in the same line:
//
//  1. seatState.turn: a seat's turn, which is held through requests
//  2. livenessSubs.mu (the heartbeats that one waiter watches)
//  3. the hub's lock (etcdwire.Hub.Lock: all watches), which guards each waiter too
//  4. waiters.mu (the claims that are followed), newsbox.mu (what News is to read),
//     livenessWatches.mu (the heartbeats that a store watches)
//  5. session.mu, seats.mu, batcher.mu (operations that are queued), heartbeat.mu, journal.mu,
//     owners.mu (what sessions' records say), journalLeases.mu (the leases of journal records)
//  6. the other locks of etcdwire; that of Keepalives is held while a stream is opened
//
// Store.lineReads is a semaphore: whoever waits for it holds none of these.
//
// Two seats' turns are taken in the order of the seats (see Exchange).
type lease struct {
	*session // its name, its record, the etcd lease it is on; look (order.go)
	*renewal // Renew
	*newsbox // News, Follow; announce (order.go)
	seats    *seats
	batch    *batcher
}

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl > maxTTL {
		return nil, fmt.Errorf("etcd: grant: %w: a ttl of %v is more than %v", driver.ErrRefused, ttl, maxTTL)
	}
	ttl, base, withHeartbeat := s.ttls(ttl)
	if base > maxTTL {
		return nil, fmt.Errorf("etcd: grant: %w: with a heartbeat a ttl of %v is more than %v", driver.ErrRefused,
			ttl, maxTTL/baseTTLs)
	}
	asked := now()
	resp, err := s.wire.GrantInTerm(ctx, "grant", int64(base/time.Second))
	if err != nil {
		return nil, err
	}
	base = time.Duration(resp.TTL) * time.Second // etcd may have granted more than was asked for
	l := newLease(s, resp.ID)
	l.ttl, l.base = base, base
	l.attached = attachment{lease: resp.ID, raftTerm: resp.Header.RaftTerm, claimsMoved: true}
	rec := sessionRecord{Owner: owner}
	if withHeartbeat {
		l.ttl, l.stem, rec.HeartbeatMS = ttl, stemOf(resp.ID, ttl), ttl.Milliseconds()
		l.heartbeat = newHeartbeat(s.beatKey(l.ID()), ttl, base, asked)
	}
	if l.recordValue, err = json.Marshal(rec); err != nil {
		return nil, fmt.Errorf("etcd: grant: %w", err)
	}
	if err := l.register(ctx); err != nil {
		s.wire.Background(func(ctx context.Context) { _ = l.Close(ctx) }) // where this fails, it ends after its ttl
		return nil, err
	}
	return l, nil
}

// ttls returns what a session has for the ttl that was asked for: its own ttl, that of its etcd
// lease, and whether it has a heartbeat.
func (s *Store) ttls(asked time.Duration) (ttl, base time.Duration, withHeartbeat bool) {
	if asked >= minLease && !s.heartbeats {
		ttl = roundUp(asked, time.Second)
		return ttl, ttl, false
	}
	ttl = roundUp(max(asked, minTTL), time.Millisecond)
	return ttl, roundUp(max(minBase, baseTTLs*ttl), time.Second), true
}

// newLease puts a lease together, of that ID. Nothing runs yet.
func newLease(s *Store, id int64) *lease {
	se := &session{s: s, id: id, recordKey: s.sessionKey(id), stem: stemOf(id, 0), gone: make(chan struct{})}
	ss := &seats{by: map[seatID]*seatState{}}
	news := newNewsbox(se, ss)
	l := &lease{session: se, seats: ss,
		renewal: &renewal{session: se, seats: ss, haveRead: news.readSoon},
		newsbox: news,
		batch:   &batcher{w: s.wire, j: s.journal}}
	se.onEnd = func() {
		// First, so that News tells of the end: keepalives.Close waits while a stream is opened.
		l.waiters.poke()
		l.keepalives.Close()
		for _, sub := range ss.subs() {
			sub.Stop() // some are nil, which Stop allows
		}
		l.newsbox.close()
	}
	return l
}

// register puts the session's record, which says who owns the lease and which every renewal reads.
func (l *lease) register(ctx context.Context) error {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(l.recordKey, 0)},
		Success: []*pb.RequestOp{doPut(l.recordKey, l.recordValue, l.id)},
		Failure: []*pb.RequestOp{doGet(l.recordKey)},
	}
	if l.heartbeat != nil {
		req.Success = append(req.Success, doPut(l.heartbeat.key, nil, l.id)) // so its create revision is the record's
	}
	resp, _, err := l.s.wire.Txn(ctx, "grant", req)
	if err != nil {
		return err
	}
	l.recordCreated = resp.Header.Revision
	if kv := kvAt(resp, 0); !resp.Succeeded && kv != nil {
		// Our own put, whose answer was lost: nobody else knows this lease.
		l.recordCreated = kv.CreateRevision
	}
	l.attached.recordMod = l.recordCreated
	return nil
}
