package concurrency

import (
	"context"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// anchor is the lease that claims are attached to.
//
// A lease is trusted only in the raft term it was granted in: an etcd leader that was paused and
// deposed may revoke, as it wakes up, what it knew while it led, and its successor carries that out
// (see etcdwire.Wire.Prove). So claims are attached to the session's own lease only in the term of
// its grant; otherwise, and with a lease that was brought along, on a guard: a lease of ours that
// was granted in the present term. A claim that is moved keeps its create revision.
type anchor struct {
	id   v3.LeaseID // 0: none is good; the next claim gets a guard
	term uint64
}

// leases are the session's: its own and the guards. It moves claims from one to the next.
type leases struct {
	s        *Session
	granting chan struct{} // who has it may grant a guard

	mu     sync.Mutex
	anchor anchor
	old    []v3.LeaseID // former anchors, to be revoked once no claim is attached to them
	seen   int64        // the newest revision that we know of; 0: none
}

func (l *leases) current() anchor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.anchor
}

// set makes a lease the anchor, and returns which was. Revision 0: none is known.
func (l *leases) set(a anchor, revision int64) (was anchor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, l.anchor, l.seen = l.anchor, a, max(l.seen, revision)
	return was
}

// saw notes a revision, and returns the newest that is known.
func (l *leases) saw(revision int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = max(l.seen, revision)
	return l.seen
}

// forClaim registers a claim that is about to be put, and returns the lease to put it under.
// errGone: the claim was given up, or is not what this session has under its key.
func (l *leases) forClaim(ctx context.Context, c *claim) (v3.LeaseID, error) {
	if !l.s.claims.register(c) {
		return 0, errGone
	}
	if !l.s.live() {
		return l.s.id, nil
	}
	if at := l.current(); at.id != 0 {
		return at.id, nil
	}
	if err := etcdwire.Acquire(ctx, l.granting); err != nil {
		return 0, err
	}
	defer func() { <-l.granting }()
	if at := l.current(); at.id != 0 {
		return at.id, nil
	}
	g, err := l.grant(ctx)
	return g.id, err
}

// grant grants a guard and makes it the anchor; the former one becomes old. A guard has the whole
// ttl of the session's lease, so that a program that is started again and brings the lease along
// finds its claims. The caller has granting.
func (l *leases) grant(ctx context.Context) (anchor, error) {
	resp, err := l.s.wire.grant(ctx, int64(l.s.granted.Seconds()))
	if err != nil {
		return anchor{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.s.live() { // otherwise the session's end finds it
		l.s.wire.later(func(ctx context.Context) { _ = l.s.wire.revoke(ctx, resp.ID) })
		return anchor{}, ErrSessionExpired
	}
	if was := l.anchor.id; was != 0 && was != l.s.id {
		l.old = append(l.old, was)
	}
	l.anchor = anchor{id: resp.ID, term: resp.ResponseHeader.GetRaftTerm()}
	l.seen = max(l.seen, resp.ResponseHeader.GetRevision())
	return l.anchor, nil
}

// anchorAll makes sure that every claim is attached to a lease that was granted in the raft term
// that was proven. Dead says that the anchor, a guard, is not known any more.
func (l *leases) anchorAll(ctx context.Context, was anchor, term uint64, dead bool) error {
	if was.term == term && !dead && len(l.s.claims.notOn(was.id)) == 0 && l.current() == was {
		return nil
	}
	if err := etcdwire.Acquire(ctx, l.granting); err != nil {
		return err
	}
	defer func() { <-l.granting }()
	now, err := l.current(), error(nil)
	// An anchor that was granted since this renewal began is as good as renewed by it.
	if now.term != term || dead && now == was || now.id == 0 {
		if now, err = l.grant(ctx); err != nil {
			return err
		}
	}
	for stray := l.s.claims.notOn(now.id); len(stray) > 0; stray = l.s.claims.notOn(now.id) {
		if err := l.move(ctx, stray, now.id); err != nil {
			return err
		}
	}
	// From now on nothing that is still under way can attach a claim to a former anchor.
	l.mu.Lock()
	old := l.old
	l.old = nil
	l.mu.Unlock()
	for _, id := range old {
		l.s.wire.later(func(ctx context.Context) { _ = l.s.wire.revoke(ctx, id) })
	}
	return nil
}

// anchorNone judges a renewal without claims. The lease that the next claim would be attached to is
// trusted no further than it was proven.
func (l *leases) anchorNone(proven bool) error {
	t := l.s.claims
	t.mu.Lock() // until the anchor is gone: a claim registers before it asks for the anchor
	defer t.mu.Unlock()
	if proven || l.current().id == 0 {
		return nil
	}
	if len(t.by) > 0 {
		return errUnproven // one has come meanwhile
	}
	if old := l.set(anchor{}, 0).id; old != l.s.id {
		l.s.wire.later(func(ctx context.Context) { _ = l.s.wire.revoke(ctx, old) })
	}
	return nil
}

// lacks notes that etcd does not know a lease, as nothing else showed while no claim was attached
// to it. It reports whether another one will do.
func (l *leases) lacks(lease v3.LeaseID) bool {
	if lease == l.s.id {
		l.s.end(lost, "its lease is gone from etcd")
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.anchor.id == lease {
		l.anchor = anchor{}
	}
	return true
}

// ours reports whether a lease is this session's.
func (l *leases) ours(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := v3.LeaseID(id)
	return lease != 0 && (lease == l.s.id || lease == l.anchor.id || slices.Contains(l.old, lease))
}

// foreign reports whether a key is attached to a lease that is none of this session's: then another
// session, of the same lease, has taken it up.
func (l *leases) foreign(kv *mvccpb.KeyValue) bool { return kv.Lease != 0 && !l.ours(kv.Lease) }

// move attaches claims to a lease. Each put compares the key's mod revision too: one that is
// carried out late would attach the claim to a lease that nobody renews any more. errGone: a claim
// that should stand does not.
func (l *leases) move(ctx context.Context, some []*claim, id v3.LeaseID) error {
	_, err := l.s.wire.limit.InChunks(len(some), func(from, to int) (goOn bool, err error) {
		for part := some[from:to]; len(part) > 0 && err == nil; {
			part, err = l.moveSome(ctx, part, id)
		}
		return true, err
	})
	return err
}

// moveSome moves claims in one Txn, and returns those whose mod revision was another than we
// knew. It is known then.
func (l *leases) moveSome(ctx context.Context, some []*claim, id v3.LeaseID) (again []*claim, err error) {
	table := l.s.claims
	var t txn
	table.mu.Lock()
	for _, c := range some {
		put := v3.OpPut(c.key, "", v3.WithIgnoreValue(), v3.WithLease(id))
		t.then = append(t.then, v3.OpTxn(still(c.key, c.rev, c.mod), []v3.Op{put}, []v3.Op{v3.OpGet(c.key)}))
	}
	table.mu.Unlock()
	resp, _, err := l.s.wire.txn(ctx, t)
	if err != nil {
		return nil, err
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	for i, c := range some {
		if c.givenUp {
			continue // given up meanwhile
		}
		r := (*v3.TxnResponse)(resp.Responses[i].GetResponseTxn())
		if r.Succeeded {
			c.mod, c.lease, c.confirmed, c.counts = resp.Header.Revision, id, true, true
			continue
		}
		switch kv := one(r, 0); {
		case kv != nil && kv.CreateRevision == c.rev && c.counts && l.foreign(kv):
			return nil, errGone // another session of our lease has taken it over
		case kv != nil && kv.CreateRevision == c.rev:
			c.mod = kv.ModRevision
			again = append(again, c)
		case !c.confirmed:
			table.removeLocked(c)
		default:
			return nil, errGone
		}
	}
	return again, nil
}

// attach attaches a claim to the anchor, and has it watched.
func (l *leases) attach(ctx context.Context, c *claim) error {
	defer l.s.watcher.poke()
	at, err := l.forClaim(ctx, c)
	if err != nil {
		return err
	}
	return l.move(ctx, []*claim{c}, at)
}
