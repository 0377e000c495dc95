package concurrency

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// beat renews the session and ends it in time, whatever the client is doing: every call runs
// beside it. It looks at the clock once a second at least: timers stand still in suspend, and
// would be late by as much after it.
func (s *Session) beat() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	e := core.LeaseEvent{Kind: core.Tick}
	for {
		now := s.clock()
		o := s.core.Step(now, e)
		s.mu.Lock()
		if s.state == live && s.core.Phase() == core.Alive {
			s.soft.Store(int64(s.core.SoftEnd()))
			s.deadline.Store(int64(s.core.Deadline()))
		}
		s.mu.Unlock()
		if o.Renew {
			go s.renewal(now)
		}
		if s.core.Phase() != core.Alive {
			s.end(lost, reason(o.End))
			return
		}
		timer.Reset(min(time.Second, max(0, o.Wake-s.clock())))
		select {
		case e = <-s.events:
		case <-timer.C:
			e = core.LeaseEvent{Kind: core.Tick}
		case <-s.over.Done():
			return
		}
	}
}

func reason(c core.Cause) string {
	if c == core.Deposed {
		return "its lease or a claim of it is gone from etcd"
	}
	return "it was not renewed in time"
}

// renewal sends one renewal. A client that ignores its context keeps renewing set: then no other
// is sent, and the session ends.
func (s *Session) renewal(asked core.Time) {
	e := core.LeaseEvent{Kind: core.Unknown, Asked: asked}
	if s.renewing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(s.over, s.timing.Attempt)
		switch err := s.renew(ctx); {
		case err == nil:
			e.Kind = core.Accepted
		case errors.Is(err, errGone):
			e.Kind = core.Gone
		}
		cancel()
		s.renewing.Store(false)
	}
	s.post(e)
}

func (s *Session) post(e core.LeaseEvent) {
	select {
	case s.events <- e:
	case <-s.over.Done():
	}
}

// errGone says for certain that the session's lease or a claim of it is no more.
var errGone = errors.New("gone from etcd")

var (
	errVague    = errors.New("etcd's leader does not know the lease")
	errUnproven = errors.New("nothing that may be read and written was there to prove the renewal with")
)

// chunk is how many keys are read or moved in one Txn: etcd allows 128 operations, unless it was
// told otherwise.
const chunk = 100

// renew makes one renewal, of which nil says: what the session holds lives for its ttl from the
// moment renew was called.
//
// It keeps the session's own lease alive, and the one that claims hang on (see anchor); proves by
// etcd's log, on a key of the user's own, that no deposed leader answered. By that, all stands
// that hangs on this lease and that nobody has deleted. In the same Txn it looks whether claims
// stand, under the right lease: those that it has not looked at for longest, where there are more
// than a Txn takes. That a claim is deleted is told by its watch, too.
func (s *Session) renew(ctx context.Context) error {
	s.mu.Lock()
	at, key, claims, doubts := s.anchor, s.prefix, s.standing(), slices.Collect(maps.Keys(s.doubts))
	slices.SortFunc(claims, func(a, b *claim) int { return cmp.Compare(a.looked, b.looked) })
	s.mu.Unlock()
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
		claims = claims[:min(s.wire.limit().Keys(), len(claims))]
		p, err = s.renewer.renew(ctx, leases, key, keysOf(claims, at.id))
		if !etcdwire.TooMany(err) || len(claims) <= 1 {
			break
		}
		s.wire.limit().Refused(len(claims))
	}
	if len(claims) == 0 && key != "" && denied(err) {
		p, err = s.renewer.renew(ctx, leases, "", nil)
	}
	if err == nil {
		err = s.known(p.TTL[0])
	}
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		err = s.settleEmpty(p.Term != 0 && p.Term == at.term)
	} else {
		err = s.verify(ctx, at, p, claims)
	}
	if err != nil {
		return err
	}
	s.sweep(doubts)
	return nil
}

// verify judges a proof: claims stand, and every one hangs on a lease that may be trusted.
func (s *Session) verify(ctx context.Context, at anchor, p etcdwire.Proof, claims []*claim) error {
	if err := s.compare(claims, p.Keys, at.id); err != nil {
		return err
	}
	return s.settle(ctx, at, p.Term, len(p.TTL) > 1 && p.TTL[1] <= 0)
}

// known judges the answer to the keepalive of the session's own lease. One "unknown" is not
// enough: a leader that has just been elected may not have carried out the grant yet.
func (s *Session) known(ttl int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ttl > 0 {
		s.vague = 0
		return nil
	}
	if s.vague++; s.vague == 1 {
		s.vagueSince = s.clock()
	}
	if s.vague > 2 && s.clock()-s.vagueSince >= etcdwire.Again {
		return errGone
	}
	return errVague
}

// settleEmpty judges a renewal without claims. The lease that the next claim would hang on is
// trusted no further than it was proven.
func (s *Session) settleEmpty(proven bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if proven || s.anchor.id == 0 {
		return nil
	}
	if len(s.claims) > 0 {
		return errUnproven // one has come meanwhile
	}
	if old := s.anchor.id; old != s.id {
		s.later(func(ctx context.Context) { _ = s.wire.revoke(ctx, old) })
	}
	s.anchor = anchor{}
	return nil
}

// compare holds claims against how their keys stood, and notes whether they hang on a lease.
func (s *Session) compare(claims []*claim, found []etcdwire.State, lease v3.LeaseID) error {
	now := int64(s.clock())
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range claims {
		c.looked = now
		switch {
		case s.claims[c.key] != c || c.leaving:
			// given up meanwhile
		case found[i].Attached:
			c.lease, c.sure, c.tied = lease, true, true
		case found[i].Stands:
			c.sure = true
			if c.lease == lease {
				c.lease = 0
			}
		case !c.sure:
			s.strike(c) // resumed, but over before
		default:
			return errGone
		}
	}
	return nil
}

// read compares claims without a proof.
func (s *Session) read(ctx context.Context, claims []*claim, lease v3.LeaseID) error {
	_, err := s.wire.limit().InChunks(len(claims), func(from, to int) (bool, error) {
		part := claims[from:to]
		keys := keysOf(part, lease)
		t := txn{}
		for _, k := range keys {
			t.then = append(t.then, look(k))
		}
		resp, _, err := s.wire.txn(ctx, t)
		if err != nil {
			return false, err
		}
		return true, s.compare(part, etcdwire.States(keys, (*pb.TxnResponse)(resp)), lease)
	})
	return err
}

func keysOf(claims []*claim, lease v3.LeaseID) []etcdwire.Key {
	keys := make([]etcdwire.Key, len(claims))
	for i, c := range claims {
		keys[i] = etcdwire.Key{Key: c.key, Created: c.rev, Lease: int64(lease)}
	}
	return keys
}
