package concurrency

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// moment is how long a call that failed waits for its clean-up, which then goes on without it.
const moment = 500 * time.Millisecond

// release gives a key up: deletes it under its create revision. After an error it may be called
// again; meanwhile the deletion is tried on, in the background, and the key is never taken up
// again.
func (s *Session) release(ctx context.Context, key string, rev int64) (*pb.ResponseHeader, error) {
	mod := s.leave(key, rev)
	h, err := s.remove(ctx, key, rev, &mod)
	if err != nil {
		if !final(err) {
			go s.retire(key, rev, mod)
		}
		return nil, blame(ctx, err)
	}
	s.forget(key, rev)
	return h, nil
}

// quit gives up a claim that was not won, unless another object of this session waits for it or
// holds it.
func (s *Session) quit(c *claim) {
	s.mu.Lock()
	if c.users--; c.users > 0 || c.rev == 0 {
		s.mu.Unlock()
		return
	}
	mod := s.marked(c.key, c.rev) // under the same lock: who enters with it now must not hold what goes
	s.mu.Unlock()
	s.promptly(func() { s.retire(c.key, c.rev, mod) })
}

// abandon is quit for a put that failed. Where its outcome is unknown, what stands is looked for:
// a key that is younger than all we had seen before the put is of that put.
func (s *Session) abandon(c *claim, known int64, doubt bool) {
	s.drop(c)
	if doubt && c.rev == 0 && known != 0 {
		// It waits for the key's turn, which the caller has.
		go s.insist(func(ctx context.Context) error { return s.clean(ctx, c.key, known) })
	}
}

// promptly runs do in the background and waits for it for a moment.
func (s *Session) promptly(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// leave marks a key as given up: that it goes is no news, and a claim that is entered later waits
// until it has gone. It returns the key's mod revision, or 0 where that is not known.
func (s *Session) leave(key string, rev int64) (mod int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marked(key, rev)
}

// marked is leave. The caller has s.mu.
func (s *Session) marked(key string, rev int64) (mod int64) {
	if s.going[key] == nil {
		s.going[key] = map[int64]bool{}
	}
	s.going[key][rev] = true
	switch c := s.claims[key]; {
	case c == nil:
	case c.rev == rev:
		c.leaving = true
		return c.mod
	case c.rev == 0:
		c.past = append(c.past, rev)
	}
	return 0
}

// forget is for a key that is known to be gone.
func (s *Session) forget(key string, rev int64) {
	s.mu.Lock()
	if delete(s.going[key], rev); len(s.going[key]) == 0 {
		delete(s.going, key)
	}
	var unwatch func()
	if c := s.claims[key]; c != nil && c.rev == rev {
		delete(s.claims, key)
		unwatch = c.unwatch
	}
	s.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
}

// retire deletes a key that was given up until etcd has confirmed it.
func (s *Session) retire(key string, rev, mod int64) {
	s.insist(func(ctx context.Context) error {
		s.mu.Lock()
		done := !s.going[key][rev]
		s.mu.Unlock()
		if done {
			return nil
		}
		_, err := s.remove(ctx, key, rev, &mod)
		if err == nil {
			s.forget(key, rev)
		}
		return err
	})
}

// insist repeats do until it has succeeded, gets an answer that will not change, or the lease is
// likely gone: a ttl after the end of the session, which is kept alive by nobody then, and a
// minute at most.
func (s *Session) insist(do func(ctx context.Context) error) {
	var end time.Time
	for try := 1; s.client.Ctx().Err() == nil; try++ {
		ctx, cancel := context.WithTimeout(s.client.Ctx(), 2*etcdwire.CallLimit)
		err := do(ctx)
		cancel()
		if err == nil || final(err) {
			return
		}
		switch now := time.Now(); {
		case s.over.Err() == nil:
		case end.IsZero():
			end = now.Add(min(max(s.timing.TTL, minPatience), maxPatience))
		case now.After(end):
			return
		}
		etcdwire.Sleep(s.client.Ctx(), core.Pause(try))
	}
}

// remove deletes a key if it still has that create revision, and the mod revision that it is
// known to have, or one that we have given it. What is gone already is no error, nor what a later
// session of the same lease has taken up: it moves the key to a guard of its own, and a deletion
// that arrives late must not end what it holds. A mod revision of 0 is not known; it is read, and
// known then.
func (s *Session) remove(ctx context.Context, key string, rev int64, mod *int64) (*pb.ResponseHeader, error) {
	for {
		resp, _, err := s.wire.txn(ctx, txn{
			when: []v3.Cmp{v3.Compare(v3.CreateRevision(key), "=", rev), v3.Compare(v3.ModRevision(key), "=",
				*mod)},
			then:      []v3.Op{v3.OpDelete(key)},
			otherwise: []v3.Op{v3.OpGet(key)},
		})
		if err != nil {
			return nil, err
		}
		kv := one(resp, 0)
		if resp.Succeeded || kv == nil || kv.CreateRevision != rev {
			return resp.Header, nil
		}
		s.mu.Lock()
		taken := *mod != 0 && (s.foreign(kv) || !s.going[key][rev]) // by another session, or by this one again
		if c := s.claims[key]; c != nil && c.rev == rev && !taken {
			c.mod = max(c.mod, kv.ModRevision) // for the next attempt
		}
		s.mu.Unlock()
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
func (s *Session) doubt(c *claim, known int64) {
	s.mu.Lock()
	_, before := s.doubts[c.key]
	full := len(s.doubts) >= maxDoubts
	if !before && !full {
		s.doubts[c.key] = known
	}
	s.mu.Unlock()
	if before || full || s.over.Err() != nil {
		return
	}
	stop, _ := s.wire.watch(c.key, "", true, func() { s.suspect(c.key) })
	context.AfterFunc(s.over, stop)
}

// sweep removes what puts in doubt have brought back.
func (s *Session) sweep(keys []string) {
	for _, key := range keys {
		s.mu.Lock()
		known, doubted := s.doubts[key]
		claimed := s.claims[key] != nil
		s.mu.Unlock()
		if doubted && !claimed {
			s.later(func(ctx context.Context) { _ = s.clean(ctx, key, known) })
		}
	}
}

// clean deletes a key that nobody stands behind, if it is younger than known and hangs on a lease
// of ours. Where nothing is known, any key might be an earlier session's.
func (s *Session) clean(ctx context.Context, key string, known int64) error {
	if known == 0 {
		return nil
	}
	turn := s.turn(key)
	if err := etcdwire.Acquire(ctx, turn); err != nil {
		return err
	}
	defer func() { <-turn }()
	resp, err := s.wire.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	kv := resp.Kvs[0]
	s.mu.Lock()
	keep := s.claims[key] != nil || !s.ours(kv.Lease)
	s.mu.Unlock()
	if keep || kv.CreateRevision <= known {
		return nil
	}
	_, err = s.remove(ctx, key, kv.CreateRevision, &kv.ModRevision)
	return err
}
