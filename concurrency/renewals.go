package concurrency

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// renewals renews the session and ends it in time.
type renewals struct {
	s       *Session
	renewer renewer
	core    *core.Lease // run's alone
	events  chan core.LeaseEvent

	underWay     atomic.Bool // a renewal is under way; it alone uses the fields below
	unknown      int         // answers in a row that did not know the lease
	unknownSince core.Time
}

// run renews the session and ends it in time, whatever the client is doing: every call runs
// beside it. It looks at the clock once a second at least: timers stand still in suspend, and
// would be late by as much after it.
func (r *renewals) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := r.s.clock()
		o := r.core.Step(now, e)
		if r.core.Phase() == core.Alive {
			r.s.extend(r.core)
		}
		if o.Renew {
			go r.attempt(now)
		}
		if r.core.Phase() != core.Alive {
			why := "it was not renewed in time"
			if o.Stop == core.Deposed {
				why = "its lease or a claim of it is gone from etcd"
			}
			r.s.end(lost, why)
			return
		}
		timer.Reset(min(time.Second, max(0, o.Wake-r.s.clock())))
		select {
		case e = <-r.events:
		case <-timer.C:
			e = core.LeaseEvent{Kind: core.Tick}
		case <-r.s.over.Done():
			return
		}
	}
}

// attempt makes one renewal and tells run. A client that ignores its context keeps underWay set:
// then no other is made, and the session ends.
func (r *renewals) attempt(asked core.Time) {
	e := core.LeaseEvent{Kind: core.Unknown, Asked: asked}
	if r.underWay.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(r.s.over, r.s.timing.Attempt)
		switch err := r.renew(ctx); {
		case err == nil:
			e.Kind = core.Accepted
		case errors.Is(err, errGone):
			e.Kind = core.Gone
		}
		cancel()
		r.underWay.Store(false)
	}
	select {
	case r.events <- e:
	case <-r.s.over.Done():
	}
}

// errGone says for certain that the session's lease or a claim of it is no more.
var errGone = errors.New("gone from etcd")

var (
	errVague    = errors.New("etcd's leader does not know the lease")
	errUnproven = errors.New("nothing that may be read and written was there to prove the renewal with")
)

// renew makes one renewal, of which nil says: what the session holds lives for its ttl from the
// moment renew was called.
//
// It keeps the session's own lease alive, and the anchor, and proves by etcd's log, on a key of the
// user's own, that no deposed leader answered. So all that is attached to the anchor stands, unless
// somebody has deleted it. In the same Txn it looks whether claims stand, under the right lease. A
// Txn does not take all of many: see lookOrder.
func (r *renewals) renew(ctx context.Context) error {
	s := r.s
	at, doubts := s.leases.current(), s.removals.doubted()
	s.claims.mu.Lock()
	key, claims := s.claims.prefix, s.claims.standingLocked()
	slices.SortFunc(claims, lookOrder(at.id))
	s.claims.mu.Unlock()
	if len(claims) > 0 {
		key = claims[0].key
	}
	leases := []v3.LeaseID{s.id}
	if at.id != 0 && at.id != s.id {
		leases = append(leases, at.id)
	}
	var p etcdwire.Proof
	var err error
	for {
		claims = claims[:min(s.wire.limit.Keys(), len(claims))]
		p, err = r.renewer.renew(ctx, leases, key, keysOf(claims, at.id))
		if !etcdwire.TooMany(err) || len(claims) <= 1 {
			break
		}
		s.wire.limit.Refused(len(claims))
	}
	if len(claims) == 0 && key != "" && errors.Is(err, rpctypes.ErrPermissionDenied) {
		p, err = r.renewer.renew(ctx, leases, "", nil)
	}
	if err == nil {
		err = r.known(p.TTL[0])
	}
	switch {
	case err != nil:
		return err
	case len(claims) == 0:
		err = s.leases.anchorNone(p.Term != 0 && p.Term == at.term)
	default:
		if err = s.claims.compare(claims, p.Keys, at.id); err == nil {
			err = s.leases.anchorAll(ctx, at, p.Term, len(p.TTL) > 1 && p.TTL[1] <= 0)
		}
	}
	if err == nil {
		s.removals.sweep(doubts)
	}
	return err
}

// lookOrder is the order in which a renewal looks at claims, of which lease is the anchor. First
// come those that are to be moved to it, in the order in which notOn has them moved: where etcd
// took longer for a move than the renewal had, nobody knows whether it was carried out. If the next
// renewal looked at others, it would move the same ones again, and one with many claims might never
// end. Then come those that were not looked at for longest.
func lookOrder(lease v3.LeaseID) func(a, b *claim) int {
	rank := func(c *claim) int64 {
		if c.lease != lease {
			return -1
		}
		return c.lookedAt
	}
	return func(a, b *claim) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.rev, b.rev)) }
}

// known judges the answer to the keepalive of the session's own lease. One "unknown" is not
// enough: a leader that has just been elected may not have carried out the grant yet.
func (r *renewals) known(ttl int64) error {
	if ttl > 0 {
		r.unknown = 0
		return nil
	}
	if r.unknown++; r.unknown == 1 {
		r.unknownSince = r.s.clock()
	}
	if r.unknown > 2 && r.s.clock()-r.unknownSince >= etcdwire.RetryPause {
		return errGone
	}
	return errVague
}

func keysOf(claims []*claim, lease v3.LeaseID) []etcdwire.Key {
	keys := make([]etcdwire.Key, len(claims))
	for i, c := range claims {
		keys[i] = etcdwire.Key{Key: c.key, Created: c.rev, Lease: int64(lease)}
	}
	return keys
}
