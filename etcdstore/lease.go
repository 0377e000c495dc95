package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
)

// lease is a [driver.Lease]: an etcd lease, the session's own key under it, and one slot for each spot claimed.
type lease struct {
	s      *Store
	id     int64 // of its first etcd lease: its name, in keys and to observers, for its whole life
	ttl    time.Duration
	base   time.Duration // of the etcd lease; the ttl itself without a heartbeat
	heart  *heart        // nil: the ttl is kept by the etcd lease alone
	stem   string        // its part of its claims' keys
	key    string        // of the session's record
	record []byte        // its value
	born   int64         // its create revision, the same for the lease's whole life

	beat beat          // renewals
	gone chan struct{} // closed once the lease is known to have ended
	once sync.Once
	news news
	pool pool // claims and releases that wait to travel together

	mu      sync.Mutex
	at      anchor
	slots   map[spot]*slot
	spent   spent
	closing bool // a move gives up from now on
}

// record is what a session's key holds.
type record struct {
	Owner string `json:"owner"`
	Beat  int64  `json:"beat,omitempty"` // the ttl of its heartbeat in milliseconds, where it has one
}

// Grant implements [driver.Store].
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl > maxTTL {
		return nil, fmt.Errorf("etcd: grant: %w: a ttl of %v is more than %v", driver.ErrRefused, ttl, maxTTL)
	}
	ttl, base, beating := s.span(ttl)
	if base > maxTTL {
		return nil, fmt.Errorf("etcd: grant: %w: with a heartbeat a ttl of %v is more than %v", driver.ErrRefused, ttl, maxTTL/baseOver)
	}
	asked := now()
	resp, err := s.grantIn(ctx, "grant", int64(base/time.Second))
	if err != nil {
		return nil, err
	}
	base = time.Duration(resp.TTL) * time.Second // etcd may have granted more than was asked for
	l := &lease{s: s, id: resp.ID, ttl: base, base: base, key: s.sessionKey(resp.ID), stem: stemOf(resp.ID, 0),
		gone: make(chan struct{}), slots: map[spot]*slot{}, at: anchor{id: resp.ID, term: resp.Header.RaftTerm, settled: true}}
	rec := record{Owner: owner}
	if beating {
		l.ttl, l.stem, rec.Beat = ttl, stemOf(resp.ID, ttl), ttl.Milliseconds()
		l.heart = newHeart(s.beatKey(l.ID()), ttl, base, asked)
	}
	if l.record, err = json.Marshal(rec); err != nil {
		return nil, fmt.Errorf("etcd: grant: %w", err)
	}
	l.news.init()
	if err := l.register(ctx); err != nil {
		s.later(l.revoke)
		return nil, err
	}
	return l, nil
}

// register puts the session's record, which says who owns the lease and which every renewal reads.
func (l *lease) register(ctx context.Context) error {
	req := &pb.TxnRequest{
		Compare: []*pb.Compare{ifCreate(l.key, 0)},
		Success: []*pb.RequestOp{doPut(l.key, l.record, l.id)},
		Failure: []*pb.RequestOp{doGet(l.key)},
	}
	if l.heart != nil {
		req.Success = append(req.Success, doPut(l.heart.key, nil, l.id)) // in the same step: it has the record's create revision
	}
	resp, _, err := l.s.txn(ctx, "grant", req)
	if err != nil {
		return err
	}
	l.born = resp.Header.Revision
	if kv := one(resp, 0); !resp.Succeeded && kv != nil {
		// Our own put, whose answer was lost: nobody else knows this lease.
		l.born = kv.CreateRevision
	}
	l.at.mark = l.born
	return nil
}

// ID implements [driver.Lease].
func (l *lease) ID() string { return hex(l.id) }

// TTL implements [driver.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true // a move from now on gives up; one before this is seen in old
	ids := append(slices.Clone(l.at.old), l.at.id)
	l.mu.Unlock()
	for _, id := range ids {
		if err := l.s.revoke(ctx, "close lease "+l.ID(), id); err != nil {
			return err
		}
	}
	l.end()
	return nil
}

// revoke ends the lease as far as it can; the store does the rest when the ttl is over.
func (l *lease) revoke(ctx context.Context) { _ = l.Close(ctx) }

// end notes that the lease is over, and tells everybody who waits on it.
func (l *lease) end() {
	l.once.Do(func() {
		close(l.gone)
		l.beat.close()
		l.mu.Lock()
		subs := make([]*sub, 0, len(l.slots))
		for _, sl := range l.slots {
			subs = append(subs, sl.sub)
		}
		l.mu.Unlock()
		for _, su := range subs {
			su.stop()
		}
		l.news.close()
	})
}

// lost says that the session's record no longer stands, and returns the error for it. Somebody may have deleted just
// the record: then the claims stand on, under a lease that nobody renews any more. They are left to run out: revoked here
// they would let the next one lead before the caller has heard of it and stopped.
func (l *lease) lost(verb string) error {
	l.end()
	return l.goneErr(verb)
}

// over reports whether the lease is known to have ended.
func (l *lease) over() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// goneErr is the error of a verb on a lease that has ended.
func (l *lease) goneErr(verb string) error {
	return fmt.Errorf("etcd: %s: lease %s: %w", verb, l.ID(), driver.ErrGone)
}

// placeGone is the error of a verb on a place that no longer stands.
func placeGone(verb string, name string) error {
	return fmt.Errorf("etcd: %s %q: the claim: %w", verb, name, driver.ErrGone)
}
