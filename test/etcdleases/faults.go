//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease is a lease with a key, and what the client was told of it.
type lease struct {
	id    clientv3.LeaseID
	key   string
	ttl   int64
	term  uint64    // the raft term in the answer to its grant
	acked time.Time // when the last keepalive that was acknowledged was sent
	acks  int       // acknowledged keepalives
	lost  bool      // a member answered that there is no such lease
}

// grant makes a lease through a member, and a key under it.
func (r *run) grant(m *member, ttl int64) (*lease, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	got, err := m.client.Grant(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("grant: %w", err)
	}
	key := fmt.Sprintf("lock/%x", got.ID)
	if _, err := m.client.Put(ctx, key, "held", clientv3.WithLease(got.ID)); err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	return &lease{id: got.ID, key: key, ttl: got.TTL, term: got.RaftTerm}, nil
}

// renew sends one keepalive to a member.
func (r *run) renew(m *member, l *lease) bool {
	ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	sent := time.Now()
	_, err := m.client.KeepAliveOnce(ctx, l.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		l.lost = true
	}
	if err == nil {
		l.acked = sent
		l.acks++
	}
	return err == nil
}

// holds asks a member, by a linearizable read, whether a lease's key is there.
func (r *run) holds(m *member, l *lease) (there bool, term uint64, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	got, err := m.client.Get(ctx, l.key)
	if err != nil {
		return false, 0, err
	}
	return len(got.Kvs) > 0, got.Header.RaftTerm, nil
}

// untilGone asks a member again and again, and returns when the key was first seen to be gone.
func (r *run) untilGone(m *member, l *lease, limit time.Duration) (gone time.Time, ok bool) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if there, _, err := r.holds(m, l); err == nil && !there {
			return time.Now(), true
		}
		if !r.sleep(10 * time.Millisecond) {
			break
		}
	}
	return time.Time{}, false
}

// deposed: a leader is frozen and cut off from the others, which elect one of them. When it runs
// again, still cut off, it acknowledges keepalives until it notices that nobody follows it, though
// the lease is counted down elsewhere.
func deposed(r *run) error {
	const ttl, led = 8, 4 * time.Second
	why := ""
	for end := time.Now().Add(r.limit); time.Now().Before(end) && r.ctx.Err() == nil; {
		old := r.leader(r.ctx)
		if old == nil {
			break
		}
		l, err := r.grant(old, ttl)
		if err != nil {
			return err
		}
		r.say("%s grants lease %x with a ttl of %d s", old, l.id, l.ttl)
		old.freeze()
		r.cut(old)
		r.say("%s, the leader, is frozen and cut off from the others", old)
		others := r.others(old)
		next := r.leader(r.ctx, others...)
		if next == nil {
			break
		}
		r.say("%s leads now: it gives each lease its full ttl from here", next)
		r.sleep(led)
		old.thaw()
		r.say("%s runs again, still cut off", old)
		first := time.Time{}
		for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); r.sleep(20 * time.Millisecond) {
			if r.renew(old, l) && first.IsZero() {
				first = l.acked
				r.say("%s acknowledges a keepalive", old)
			}
		}
		if l.acks == 0 {
			why = fmt.Sprintf("%s acknowledged no keepalive", old)
			r.heal()
			r.say("%s; again", why)
			continue
		}
		r.say("%s has acknowledged %d keepalives, the last one sent at %.3f s", old, l.acks,
			l.acked.Sub(r.begun).Seconds())
		gone, ok := r.untilGone(next, l, 15*time.Second)
		r.heal()
		if ok && gone.Sub(l.acked) < time.Duration(l.ttl)*time.Second {
			r.say("%s has ended the lease", next)
			return r.gone(l.acked, gone, l.ttl)
		}
		why = "the majority elected once more and gave the lease its full ttl again"
		r.say("%s; again", why)
	}
	return fmt.Errorf("%w in %v: %s", errNotShown, r.limit, why)
}

// woken: a leader is frozen for longer than the ttl, while leases are renewed at the next one. When
// it runs again, with everybody in reach, it may revoke them by its own clock before it knows that
// it was deposed: the next leader carries that out. That is a race inside the leader that wakes, so
// it takes several rounds; with more leases one of them is hit sooner.
func woken(r *run) error {
	const ttl, pause, leases = 2, 3 * time.Second, 16
	at := func(t time.Time) float64 { return t.Sub(r.begun).Seconds() }
	rounds := 0
	for end := time.Now().Add(r.limit); time.Now().Before(end) && r.ctx.Err() == nil; {
		old := r.leader(r.ctx)
		if old == nil {
			break
		}
		rounds++
		others := r.others(old)
		var all []*lease
		for range leases {
			l, err := r.grant(others[0], ttl)
			if err != nil {
				return err
			}
			all = append(all, l)
		}
		old.freeze()
		frozen := time.Now()
		next := r.leader(r.ctx, others...)
		var lost *lease
		renewFor := func(until time.Duration) (acks int) {
			for time.Since(frozen) < until && lost == nil && r.ctx.Err() == nil {
				for _, l := range all {
					if r.renew(next, l) {
						acks++
					}
					if l.lost && lost == nil {
						lost = l
					}
				}
				r.sleep(time.Millisecond)
			}
			return acks
		}
		before := renewFor(pause)
		old.thaw()
		thawed := time.Now()
		early := lost != nil
		after := renewFor(pause + 700*time.Millisecond)
		if early || lost == nil || lost.acks == 0 {
			r.say("round %d: %s was frozen for %v and runs again; %s acknowledged %d keepalives, and all leases live",
				rounds, old, pause, next, before+after)
			continue
		}
		gone, ok := r.untilGone(next, lost, time.Second)
		if !ok || gone.Sub(lost.acked) >= time.Duration(lost.ttl)*time.Second {
			continue
		}
		r.say("round %d: at %.3f s %s, the leader, was frozen, and %s took over", rounds, at(frozen), old, next)
		r.say("%s acknowledged %d keepalives for %d leases; at %.3f s %s ran again, and %d more were acknowledged",
			next, before, leases, at(thawed), old, after)
		r.say("the last one for lease %x was sent at %.3f s; now there is no such lease", lost.id, at(lost.acked))
		return r.gone(lost.acked, gone, lost.ttl)
	}
	return fmt.Errorf("%w in %v: in %d rounds the woken leader learned that it was deposed before it revoked anything",
		errNotShown, r.limit, rounds)
}

// snapshot: the raft term in an answer does not tell who led when the lease was renewed. A member
// that caught up by a snapshot answers from the present state, but with the term of the last log
// entry that it applied itself. So a client that means to rely on a lease only in the term in which
// it was granted, because of woken leaders, is misled there.
func snapshot(r *run) error {
	const ttl = 60
	why := ""
	for end := time.Now().Add(r.limit); time.Now().Before(end) && r.ctx.Err() == nil; {
		old := r.leader(r.ctx)
		if old == nil {
			break
		}
		const writes = 6400 // a member keeps the last 5,000 entries of its log
		next, behind := r.others(old)[0], r.others(old)[1]
		l, err := r.grant(behind, ttl)
		if err != nil {
			return err
		}
		r.say("lease %x is granted with a ttl of %d s, in raft term %d under %s", l.id, l.ttl, l.term, old)
		behind.freeze()
		r.cut(behind)
		r.say("%s is frozen and cut off from the others", behind)
		if _, err := old.client.MoveLeader(r.ctx, next.id); err != nil {
			r.heal()
			behind.thaw()
			why = "the leadership did not move: " + err.Error()
			continue
		}
		if err := r.fill(next, writes); err != nil {
			return err
		}
		there, now, err := r.holds(next, l)
		if err != nil || !there {
			return fmt.Errorf("%s: the key is there: %v, %v", next, there, err)
		}
		r.say("%s leads, in raft term %d, and has taken %d writes: more than it keeps in its log", next, now, writes)
		r.heal()
		behind.thaw()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !r.renew(behind, l); {
			r.sleep(20 * time.Millisecond)
		}
		there, told, err := r.holds(behind, l)
		if err != nil || !there || l.acks == 0 {
			why = fmt.Sprintf("%s did not answer: %v", behind, err)
			continue
		}
		r.say("%s runs again: it acknowledges a keepalive, and a linearizable read after it in raft term %d", behind, told)
		if told != l.term || now == l.term {
			why = fmt.Sprintf("%s told raft term %d, the lease was granted in %d: it had applied an entry of the new term",
				behind, told, l.term)
			r.say("%s; again", why)
			continue
		}
		r.say("so the renewal seems to count in the lease's own term; the leader's is %d", now)
		if _, err := next.client.Revoke(r.ctx, l.id); err != nil {
			return err
		}
		r.say("the lease is revoked: by this program, in place of a woken leader of term %d (see woken)", l.term)
		gone, ok := r.untilGone(behind, l, 10*time.Second)
		if !ok {
			why = "the key was not seen to go"
			continue
		}
		return r.gone(l.acked, gone, l.ttl)
	}
	return fmt.Errorf("%w in %v: %s", errNotShown, r.limit, why)
}

// fill writes to the log, several writes at a time, and returns the first error.
func (r *run) fill(m *member, writes int) error {
	const writers = 64
	errs := make(chan error, writers)
	for range writers {
		go func() {
			var err error
			for i := 0; i < writes/writers && err == nil; i++ {
				_, err = m.client.Put(r.ctx, "x", fmt.Sprint(i))
			}
			errs <- err
		}()
	}
	var first error
	for range writers {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}
