package concurrency

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// anchor is the lease that claims hang on.
//
// A lease is trusted only in the raft term it was granted in: an etcd leader that was paused and
// is deposed may revoke, as it wakes up, what it knew while it led, from its own stale clock, and
// its successor carries that out (see etcdstore/move.go). So while the term is the one that the
// session's own lease was granted in, claims hang on that; in any other, and with a lease that
// was brought along, on a guard: a lease of ours granted in the present term. Create revisions do
// not change when a claim is moved. The session's own lease is kept alive in any case.
type anchor struct {
	id   v3.LeaseID // 0: none is good; the next claim gets a guard
	term uint64
}

// anchored registers a claim that is about to be put, and returns the lease to put it under.
// errGone: the claim was given up, or is not what this session has under its key.
func (s *Session) anchored(ctx context.Context, c *claim) (v3.LeaseID, error) {
	s.mu.Lock()
	known := s.register(c)
	at, st := s.anchor.id, s.state
	s.mu.Unlock()
	if !known {
		return 0, errGone
	}
	if st != live {
		return s.id, nil
	}
	if at != 0 {
		return at, nil
	}
	if err := etcdwire.Acquire(ctx, s.granting); err != nil {
		return 0, err
	}
	defer func() { <-s.granting }()
	s.mu.Lock()
	at = s.anchor.id
	s.mu.Unlock()
	if at != 0 {
		return at, nil
	}
	g, err := s.guard(ctx)
	return g.id, err
}

// register puts a claim into the table, unless it was given up or the session's true claim is
// there: nobody would look after that any more. The caller has s.mu.
func (s *Session) register(c *claim) bool {
	was := s.claims[c.key]
	switch {
	case c.leaving:
		return false
	case was == c:
		return true
	case was != nil && !was.leaving:
		return c.rev != 0 && was.rev == c.rev // resumed twice
	case was != nil && c.rev != 0:
		return false
	}
	for rev := range s.going[c.key] {
		c.past = append(c.past, rev)
	}
	s.place(c)
	return true
}

// guard grants a guard and makes it the anchor. The caller has granting. The former one is among
// the old from then on.
func (s *Session) guard(ctx context.Context) (anchor, error) {
	resp, err := grantIn(ctx, s.wire, s.seconds(), s.later)
	if err != nil {
		return anchor{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != live {
		s.later(func(ctx context.Context) { _ = s.wire.revoke(ctx, resp.ID) })
		return anchor{}, ErrSessionExpired
	}
	if was := s.anchor.id; was != 0 && was != s.id {
		s.old = append(s.old, was)
	}
	s.anchor = anchor{id: resp.ID, term: resp.ResponseHeader.GetRaftTerm()}
	s.seen = max(s.seen, resp.ResponseHeader.GetRevision())
	return s.anchor, nil
}

// settle makes sure that every claim hangs on a lease that was granted in the raft term that was
// proven. Dead says that the anchor, a guard, is not known any more.
func (s *Session) settle(ctx context.Context, was anchor, term uint64, dead bool) error {
	if was.term == term && !dead && len(s.astray(was.id)) == 0 && s.is(was) {
		return nil
	}
	if err := etcdwire.Acquire(ctx, s.granting); err != nil {
		return err
	}
	defer func() { <-s.granting }()
	s.mu.Lock()
	now := s.anchor
	s.mu.Unlock()
	// Where it is neither, nor what it was, it was granted after this renewal began: as good as
	// renewed.
	if now.term != term || dead && now == was || now.id == 0 {
		// The grant takes the keepalive's place: it is as young as this renewal.
		next, err := s.guard(ctx)
		if err != nil {
			return err
		}
		now = next
	}
	for {
		stray := s.astray(now.id)
		if len(stray) == 0 {
			break
		}
		if err := s.attach(ctx, stray, now.id); err != nil {
			return err
		}
	}
	s.revokeOld()
	return nil
}

// astray returns the claims that are not known to hang on a lease. What one hangs on is known as
// surely as its create revision: only this session moves it.
func (s *Session) astray(lease v3.LeaseID) []*claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(s.standing(), func(c *claim) bool { return c.lease == lease })
}

// revokeOld ends former anchors: from now on nothing that is still under way can hang a claim on
// them.
func (s *Session) revokeOld() {
	s.mu.Lock()
	old := s.old
	s.old = nil
	s.mu.Unlock()
	for _, id := range old {
		s.later(func(ctx context.Context) { _ = s.wire.revoke(ctx, id) })
	}
}

// ours reports whether a lease is this session's. The caller has s.mu.
func (s *Session) ours(id int64) bool {
	lease := v3.LeaseID(id)
	return lease != 0 && (lease == s.id || lease == s.anchor.id || slices.Contains(s.old, lease))
}

// foreign reports whether a key hangs on a lease that is none of this session's: then another
// session, of the same lease, has taken it up. The caller has s.mu.
func (s *Session) foreign(kv *mvccpb.KeyValue) bool { return kv.Lease != 0 && !s.ours(kv.Lease) }

func (s *Session) is(a anchor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.anchor == a
}

// seconds is the ttl of a guard: the whole ttl of the session's lease, so that a program that is
// started again and brings the lease along finds its claims.
func (s *Session) seconds() int64 { return int64(s.granted.Seconds()) }

// attach hangs claims on a lease. Each put compares the key's mod revision too: one that is
// carried out late would hang the claim on a lease that nobody renews any more. errGone: a claim
// that should stand does not.
func (s *Session) attach(ctx context.Context, claims []*claim, id v3.LeaseID) error {
	_, err := s.wire.limit().InChunks(len(claims), func(from, to int) (goOn bool, err error) {
		for part := claims[from:to]; len(part) > 0 && err == nil; {
			part, err = s.attachSome(ctx, part, id)
		}
		return true, err
	})
	return err
}

// attachSome moves claims in one Txn, and returns those whose mod revision was another than we
// knew. It is known then.
func (s *Session) attachSome(ctx context.Context, claims []*claim, id v3.LeaseID) (again []*claim, err error) {
	var t txn
	s.mu.Lock()
	for _, c := range claims {
		when := []v3.Cmp{v3.Compare(v3.CreateRevision(c.key), "=", c.rev), v3.Compare(v3.ModRevision(c.key), "=",
			c.mod)}
		put := v3.OpPut(c.key, "", v3.WithIgnoreValue(), v3.WithLease(id))
		t.then = append(t.then, v3.OpTxn(when, []v3.Op{put}, []v3.Op{v3.OpGet(c.key)}))
	}
	s.mu.Unlock()
	resp, _, err := s.wire.txn(ctx, t)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range claims {
		if c.leaving {
			continue // given up meanwhile
		}
		r := (*v3.TxnResponse)(resp.Responses[i].GetResponseTxn())
		if r.Succeeded {
			c.mod, c.lease, c.sure, c.tied = resp.Header.Revision, id, true, true
			continue
		}
		switch kv := one(r, 0); {
		case kv != nil && kv.CreateRevision == c.rev && c.tied && s.foreign(kv):
			return nil, errGone // another session of our lease has taken it over
		case kv != nil && kv.CreateRevision == c.rev:
			c.mod = kv.ModRevision
			again = append(again, c)
		case !c.sure:
			s.strike(c)
		default:
			return nil, errGone
		}
	}
	return again, nil
}
