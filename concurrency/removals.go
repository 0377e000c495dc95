package concurrency

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// cleanUpWait is how long a call that failed waits for its clean-up, which then goes on alone.
const cleanUpWait = 500 * time.Millisecond

// removals deletes the keys that a session gives up, and those that puts whose outcome was unknown
// may still bring back.
type removals struct {
	s *Session

	mu     sync.Mutex
	doubts map[string]int64 // keys of such puts; the newest revision known before the put
}

// release gives a key up: deletes it under its create revision. After an error it may be called
// again; meanwhile the deletion is tried on, in the background, and the key is never taken up
// again.
func (r *removals) release(ctx context.Context, key string, rev int64) (*pb.ResponseHeader, error) {
	mod := r.s.claims.giveUp(key, rev)
	h, err := r.removeGivenUp(ctx, key, rev, &mod)
	if err != nil && !final(err) {
		go r.retire(key, rev, mod)
	}
	return h, blame(ctx, err)
}

// quit gives up a claim that was not won, unless another object of this session waits for it or
// holds it. The key is deleted in the background, for which quit waits for up to cleanUpWait.
func (r *removals) quit(c *claim) {
	mod, last := r.s.claims.unused(c)
	if !last {
		return
	}
	ctx, done := context.WithTimeout(context.Background(), cleanUpWait)
	go func() {
		defer done()
		r.retire(c.key, c.rev, mod)
	}()
	<-ctx.Done()
}

// abandon is for a put that failed. Where its outcome is unknown, what stands is looked for: a
// key that is younger than all we had seen before the put is of that put.
func (r *removals) abandon(c *claim, known int64, doubt bool) {
	r.s.claims.drop(c)
	if doubt && c.rev == 0 && known != 0 {
		// It waits for the key's turn, which the caller has.
		go r.insist(func(ctx context.Context) error { return r.clean(ctx, c.key, known) })
	}
}

// replaced deletes what enter has put in the place of a claim that somebody had deleted.
func (r *removals) replaced(c *claim, known int64, resp *v3.TxnResponse, doubt bool) {
	t := r.s.claims
	t.mu.Lock()
	t.removeLocked(c) // who ends the session at this moment may not have stopped its watch yet
	t.mu.Unlock()
	switch rev := resp.Header.Revision; {
	case resp.Succeeded:
		t.giveUp(c.key, rev)
		go r.retire(c.key, rev, rev)
	case doubt:
		go r.insist(func(ctx context.Context) error { return r.clean(ctx, c.key, known) })
	}
}

// retire deletes a key that was given up until etcd has confirmed it.
func (r *removals) retire(key string, rev, mod int64) {
	r.insist(func(ctx context.Context) error {
		if !r.s.claims.isGivenUp(key, rev) {
			return nil
		}
		_, err := r.removeGivenUp(ctx, key, rev, &mod)
		return err
	})
}

// insist repeats do until it succeeds, its error is final, or the lease has probably expired: a
// ttl after the end of the session, at least 10 s and at most 60 s.
func (r *removals) insist(do func(ctx context.Context) error) {
	life, giveUp := context.WithCancel(r.s.client.Ctx())
	defer giveUp()
	defer context.AfterFunc(r.s.over, func() {
		time.AfterFunc(min(max(r.s.timing.TTL, minPatience), maxPatience), giveUp)
	})()
	_ = retry(life, func() error {
		ctx, cancel := context.WithTimeout(life, 2*etcdwire.CallLimit)
		defer cancel()
		return do(ctx)
	})
}

// removeGivenUp is remove for a key that was given up.
func (r *removals) removeGivenUp(ctx context.Context, key string, rev int64, mod *int64,
) (*pb.ResponseHeader, error) {
	h, err := r.remove(ctx, key, rev, mod)
	if err == nil {
		r.s.claims.forget(key, rev)
	}
	return h, err
}

// remove deletes a key if it still has that create revision, and the mod revision that it is
// known to have, or one that we have given it. What is gone already is no error, nor what a later
// session of the same lease has taken up: it moves the key to a guard of its own, and a deletion
// that arrives late must not end what it holds. A mod revision of 0 is not known; it is read, and
// known then.
func (r *removals) remove(ctx context.Context, key string, rev int64, mod *int64) (*pb.ResponseHeader, error) {
	t := r.s.claims
	for {
		resp, _, err := r.s.wire.txn(ctx, txn{when: still(key, rev, *mod), then: []v3.Op{v3.OpDelete(key)},
			otherwise: []v3.Op{v3.OpGet(key)}})
		if err != nil {
			return nil, err
		}
		kv := one(resp, 0)
		if resp.Succeeded || kv == nil || kv.CreateRevision != rev {
			return resp.Header, nil
		}
		t.mu.Lock()
		// By another session, or by this one again.
		taken := *mod != 0 && (r.s.leases.foreign(kv) || !t.givenUp[key][rev])
		if c := t.by[key]; c != nil && c.rev == rev && !taken {
			c.mod = max(c.mod, kv.ModRevision) // for the next attempt
		}
		t.mu.Unlock()
		if taken {
			return resp.Header, nil
		}
		*mod = kv.ModRevision
	}
}

// maxDoubts bounds what a session remembers of puts whose outcome was unknown.
const maxDoubts = 1000

// doubt notes that a put of c may still be under way, to a member that is frozen: carried out
// late it would bring a key back that nobody stands behind. So the key is watched, and looked for
// at each renewal, until the session ends; with it ends the lease, and the key.
func (r *removals) doubt(c *claim, known int64) {
	r.mu.Lock()
	_, before := r.doubts[c.key]
	full := len(r.doubts) >= maxDoubts
	if !before && !full {
		r.doubts[c.key] = known
	}
	r.mu.Unlock()
	if before || full || r.s.over.Err() != nil {
		return
	}
	stop, _ := r.s.wire.watch(c.key, "", true, func() { r.s.watcher.look(c.key) })
	context.AfterFunc(r.s.over, stop)
}

// doubted returns the keys that may be brought back.
func (r *removals) doubted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.doubts))
}

// sweep removes what puts in doubt have brought back.
func (r *removals) sweep(keys []string) {
	for _, key := range keys {
		r.mu.Lock()
		known, doubted := r.doubts[key]
		r.mu.Unlock()
		if doubted && !r.s.claims.has(key) {
			r.s.wire.later(func(ctx context.Context) { _ = r.clean(ctx, key, known) })
		}
	}
}

// clean deletes a key that nobody stands behind, if it is younger than known and is attached to a
// lease of ours. Where nothing is known, any key might be an earlier session's.
func (r *removals) clean(ctx context.Context, key string, known int64) error {
	if known == 0 {
		return nil
	}
	turn := r.s.lines.turn(key)
	if err := etcdwire.Acquire(ctx, turn); err != nil {
		return err
	}
	defer func() { <-turn }()
	resp, err := r.s.wire.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	kv := resp.Kvs[0]
	if r.s.claims.has(key) || !r.s.leases.ours(kv.Lease) || kv.CreateRevision <= known {
		return nil
	}
	_, err = r.remove(ctx, key, kv.CreateRevision, &kv.ModRevision)
	return err
}
