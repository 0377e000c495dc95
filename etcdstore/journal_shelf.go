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
)

// Records hang on etcd leases, so that journals nobody uses any more are forgotten some day. All processes share these leases, whose IDs follow from
// the prefix, the user, the month and the journal: whoever comes first grants one, for the others it is there already.
//
// Whoever grants one ends those that have had their time: etcd's own leader, when it is new, gives every lease its whole ttl again.
//
// Not one lease for all: all keys of a lease end in one step. And none where etcd asks who is there: then it looks, at each put, at every key that the put's
// lease has, while everybody else waits. With 10,000 records on it a hundred releases held all of etcd up for seconds. Nor where none is to be
// had: journals are bounded in number too.
const (
	month      = 30 * 24 * time.Hour
	shelfLife  = 400 * 24 * time.Hour // for which a record is kept at least
	shelfTTL   = shelfLife + month
	shards     = 256
	shelfAge   = 15               // months after which no record of a shelf is younger than shelfLife
	shelfLooks = 13               // months before that are looked at, for what was left because nobody came
	shelfSeen  = 4                // months since that must be there too
	otherIDs   = 3                // tried where a lease of somebody else has the ID
	shelfPause = 10 * time.Second // before a lease that could not be had is asked for again
)

// shelf is a lease for records: of a month, and of the journals in a shard.
type shelf struct {
	month int64
	shard uint8
}

// shelves is what is known of the leases for records, and who trims which journal. The zero value works.
type shelves struct {
	mu    sync.Mutex
	known map[shelf]rented
	trims map[string]bool
	off   time.Time        // until then releases leave no records
	hasty time.Time        // until then releases do not wait for a lease
	now   func() time.Time // tests only: the wall clock
}

// rented is a lease for records as it is known.
type rented struct {
	id    int64         // 0: do without
	until time.Time     // when to ask again; zero: never
	ready chan struct{} // closed once it is known
}

// shelfOf returns where a record of that journal goes now.
func (s *Store) shelfOf(journal string) shelf {
	now := time.Now
	if s.shelves.now != nil {
		now = s.shelves.now
	}
	h := fnv.New32a()
	h.Write([]byte(journal))
	return shelf{month: now().Unix() / int64(month/time.Second), shard: uint8(h.Sum32() % shards)}
}

// shelfID returns the ID of a shelf's lease, another one for each try.
func (s *Store) shelfID(at shelf, try int) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "primacy journal %q %q %d %d %d", s.prefix, s.ring.client.Username, at.month, at.shard, try))
	return max(1, int64(binary.BigEndian.Uint64(sum[:])>>1))
}

// shelfLease returns the lease of a shelf, granted if need be, or 0 if none is to be had now.
func (s *Store) shelfLease(ctx context.Context, at shelf) int64 {
	k := &s.shelves
	k.mu.Lock()
	r, ok := k.known[at]
	if !ok || !r.until.IsZero() && time.Now().After(r.until) {
		if k.known == nil || len(k.known) > 4*shards {
			k.known = map[shelf]rented{}
		}
		r = rented{ready: make(chan struct{})}
		k.known[at] = r
		s.later(func(ctx context.Context) { // not the caller's: others wait for it too, and he may give up
			id, err := s.rent(ctx, at)
			k.learn(at, r, id, err)
		})
	}
	k.mu.Unlock()
	select {
	case <-r.ready:
		return k.idOf(at) // also for who does not wait
	default:
	}
	select {
	case <-r.ready:
		return k.idOf(at)
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return 0
}

// learn notes what became of the asking for a lease.
func (k *shelves) learn(at shelf, r rented, id int64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.id = id; err != nil {
		r.until = time.Now().Add(shelfPause)
	}
	k.known[at] = r
	close(r.ready)
}

func (k *shelves) idOf(at shelf) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[at].id
}

// forget has a lease that etcd does not know any more be granted anew.
func (k *shelves) forget(at shelf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, at)
}

// without has the records of a shelf be kept without a lease.
func (k *shelves) without(at shelf) {
	ready := make(chan struct{})
	close(ready)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[at] = rented{ready: ready}
}

// begin reports whether nobody trims that journal; the caller does now.
func (k *shelves) begin(journal string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.trims[journal] {
		return false
	}
	if k.trims == nil {
		k.trims = map[string]bool{}
	}
	k.trims[journal] = true
	return true
}

func (k *shelves) done(journal string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.trims, journal)
}

// rent grants a shelf's lease, or finds that it is there. ID 0 and no error: all its IDs are somebody else's, or etcd asks for a user.
func (s *Store) rent(ctx context.Context, at shelf) (int64, error) {
	const what = "lease for journals"
	if users, err := s.guarded(ctx); users || err != nil {
		return 0, err
	}
	for try := range otherIDs {
		id := s.shelfID(at, try)
		_, err := s.call(ctx, what, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
			resp, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: int64(shelfTTL / time.Second)}, opts...)
			if err != nil {
				return err
			}
			return s.same(resp.Header)
		})
		if err == nil {
			s.later(func(ctx context.Context) { s.clearShelves(ctx, at) })
			return id, nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseExist) {
			return 0, err
		}
		left, ours, err := s.shelfLeft(ctx, what, id)
		if err != nil {
			return 0, err
		}
		if ours && left >= shelfLife {
			return id, nil // less is one of a clock that ran far ahead
		}
	}
	return 0, nil
}

// shelfLeft returns how long a lease lives on, and whether it looks like one for records: whoever else makes a lease for that long?
func (s *Store) shelfLeft(ctx context.Context, what string, id int64) (left time.Duration, ours bool, err error) {
	var resp *pb.LeaseTimeToLiveResponse
	_, err = s.call(ctx, what, func(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
		if resp, err = pb.NewLeaseClient(conn).LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id}, opts...); err != nil {
			return err
		}
		return s.same(resp.Header)
	})
	if isGone(err) || err == nil && resp.TTL < 0 {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL)*time.Second == shelfTTL, nil
}

// clearShelves ends the shelves before this one that are too old. Where there are few of the months between, hardly anybody has been here for as long, or
// our clock is far ahead, and what looks old is not: they stay. One month between may be of that very clock, a day ago.
func (s *Store) clearShelves(ctx context.Context, at shelf) {
	const what = "end old leases for journals"
	stands := func(month int64) (int64, bool) {
		id := s.shelfID(shelf{month, at.shard}, 0)
		_, ours, err := s.shelfLeft(ctx, what, id)
		return id, err == nil && ours
	}
	seen := 0
	for m := at.month - 1; m > at.month-shelfAge && seen < shelfSeen; m-- {
		if _, there := stands(m); there {
			seen++
		}
	}
	for m := at.month - shelfAge; seen == shelfSeen && m > at.month-shelfAge-shelfLooks; m-- {
		if id, there := stands(m); there {
			_ = s.revoke(ctx, what, id) // what is left is tried again in a month
		}
	}
}
