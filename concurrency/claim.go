package concurrency

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// claim is a key of this session's in a line. Its fields are guarded by Session.mu; key, prefix
// and, once it is known, rev do not change: a key that is deleted and made anew is another claim.
type claim struct {
	key, prefix string
	rev         int64      // the key's create revision; 0 while it is being put
	mod         int64      // its mod revision as last known; 0: not known
	lease       v3.LeaseID // what it hangs on, as last known
	sure        bool       // it was seen to stand: if it does not any more, the session is lost
	leaving     bool       // we are giving it up
	users       int        // elections and mutexes that wait for it or hold it
	fresh       time.Time  // when it was entered
	unwatch     func()     // ends the watch on it
	looked      int64      // on the boot clock, when a renewal looked at it last
	tied        bool       // it counts: it was seen to hang on a lease of ours that is relied upon
	past        []int64    // create revisions given up while it was being put: a late answer may still show them
}

// entered is what enter found.
type entered struct {
	c      *claim
	held   bool             // nobody stands before it
	own    *mvccpb.KeyValue // the key as it stood before, where it did
	header *pb.ResponseHeader
}

var seed = maphash.MakeSeed()

// turn is what serialises entering under one key, shared by keys of one hash.
func (s *Session) turn(key string) chan struct{} {
	return s.turns[maphash.String(seed, key)%uint64(len(s.turns))]
}

// standing returns the claims that stand, as far as we know. The caller has s.mu.
func (s *Session) standing() []*claim {
	all := make([]*claim, 0, len(s.claims))
	for _, c := range s.claims {
		if c.rev != 0 && !c.leaving {
			all = append(all, c)
		}
	}
	return all
}

// enter puts the session's key under prefix, one put and nothing else, or takes the one that
// stands: a session has one place in a line. With try, only if nobody else stands there; else the
// error is ErrLocked. On an error nothing is left behind that is not being cleaned up.
func (s *Session) enter(ctx context.Context, prefix, value string, try bool) (entered, error) {
	key := s.key(prefix)
	turn := s.turn(key)
	if err := etcdwire.Acquire(ctx, turn); err != nil {
		return entered{}, err
	}
	defer func() { <-turn }()
	for {
		e, again, err := s.tryEnter(ctx, key, prefix, value, try)
		if again {
			continue
		}
		if err != nil {
			return entered{}, blame(ctx, err)
		}
		return e, nil
	}
}

// tryEnter is one round of enter. The caller has the key's turn.
func (s *Session) tryEnter(ctx context.Context, key, prefix, value string, try bool,
) (e entered, again bool, err error) {
	if s.gone() {
		return e, false, ErrSessionExpired
	}
	s.mu.Lock()
	c := s.claims[key]
	if c == nil || c.leaving {
		c = &claim{key: key, prefix: prefix}
	}
	s.mu.Unlock()
	lease, err := s.anchored(ctx, c)
	if err == errGone {
		return e, true, nil // given up meanwhile
	}
	if err != nil {
		s.drop(c)
		return e, false, err
	}
	s.mu.Lock()
	known := s.seen
	s.mu.Unlock()
	resp, doubt, err := s.wire.txn(ctx, entry(key, prefix, value, lease, try))
	if doubt {
		s.doubt(c, known)
	}
	if err != nil {
		s.abandon(c, known, doubt)
		return e, missing(err) && s.unhook(lease), err
	}
	e, again, err = s.entered(ctx, c, lease, resp)
	if err == errGone {
		s.bereaved(c, known, resp, doubt)
		return e, false, ErrSessionExpired
	}
	if err != nil || again {
		s.drop(c)
		return e, again && err == nil, err
	}
	again, err = s.fasten(ctx, e.c)
	return e, again, err
}

// bereaved ends a session of which enter has found that a claim was deleted, and deletes what
// enter has put in its place: who holds the claim must not take that for it.
func (s *Session) bereaved(c *claim, known int64, resp *v3.TxnResponse, doubt bool) {
	s.end(lost, "a claim of it was deleted")
	s.mu.Lock()
	if s.claims[c.key] == c {
		delete(s.claims, c.key)
	}
	s.mu.Unlock()
	switch rev := resp.Header.Revision; {
	case resp.Succeeded:
		s.leave(c.key, rev)
		go s.retire(c.key, rev, rev)
	case doubt:
		go s.insist(func(ctx context.Context) error { return s.clean(ctx, c.key, known) })
	}
}

// unhook is for a lease that turned out to be gone, as nothing else showed while no claim hung on
// it. It reports whether another one will do.
func (s *Session) unhook(lease v3.LeaseID) bool {
	if lease == s.id {
		s.end(lost, "its lease is gone from etcd")
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.anchor.id == lease {
		s.anchor = anchor{}
	}
	return true
}

// entry is the Txn of enter. It tells who stands before the key in the same step: in a Txn, reads
// see what stands before them in its list.
func entry(key, prefix, value string, lease v3.LeaseID, try bool) txn {
	last := v3.OpGet(prefix, append(v3.WithLastCreate(), v3.WithKeysOnly())...)
	t := txn{
		when:      []v3.Cmp{v3.Compare(v3.CreateRevision(key), "=", 0)},
		then:      []v3.Op{last, v3.OpPut(key, value, v3.WithLease(lease))},
		otherwise: []v3.Op{v3.OpGet(key), v3.OpGet(prefix, append(v3.WithFirstCreate(), v3.WithKeysOnly())...)},
	}
	if try {
		t.when = []v3.Cmp{v3.Compare(v3.CreateRevision(prefix), "=", 0).WithPrefix()}
	}
	return t
}

// entered takes the answer to enter's Txn over. Again says that a key which we have given up
// stood in the way, and is gone now; errGone, that the claim was deleted by somebody.
func (s *Session) entered(ctx context.Context, c *claim, lease v3.LeaseID, resp *v3.TxnResponse,
) (e entered, again bool, err error) {
	e = entered{c: c, header: resp.Header}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = max(s.seen, resp.Header.Revision)
	if c.leaving || !c.sure && c.rev != 0 && !shows(resp, c.rev) {
		// Given up meanwhile, or resumed and over before: what stands now is another claim.
		c = &claim{key: c.key, prefix: c.prefix, past: append(c.past, c.rev)}
		e.c = c
	}
	if resp.Succeeded {
		if c.rev != 0 {
			return e, false, errGone
		}
		e.held = one(resp, 0) == nil
		c.rev, c.mod, c.lease = resp.Header.Revision, resp.Header.Revision, lease
	} else {
		own, first := one(resp, 0), one(resp, 1)
		switch {
		case own == nil:
			return e, false, ErrLocked
		case c.rev != 0 && c.rev != own.CreateRevision:
			return e, false, errGone // deleted by somebody, and made anew
		case s.foreign(own):
			if c.tied {
				return e, false, errGone // taken over by another session of our lease
			}
		case s.going[c.key][own.CreateRevision] || slices.Contains(c.past, own.CreateRevision):
			// To take it up would be to hold what a deletion still under way ends.
			s.mu.Unlock()
			mod := own.ModRevision
			_, err := s.remove(ctx, c.key, own.CreateRevision, &mod)
			if err == nil {
				s.forget(c.key, own.CreateRevision)
			}
			s.mu.Lock()
			return e, true, err
		}
		delete(s.going[c.key], own.CreateRevision) // what is under way ends it no more: fasten moves it
		e.own, e.held = own, first != nil && first.CreateRevision == own.CreateRevision
		if c.rev == 0 { // who waits with it reads it meanwhile
			c.rev = own.CreateRevision
		}
		c.mod, c.lease = own.ModRevision, v3.LeaseID(own.Lease)
	}
	c.fresh = time.Now()
	c.users++
	s.place(c)
	s.poke()
	return e, false, nil
}

// shows reports whether the answer to enter's Txn shows the session's key to stand with that
// create revision.
func shows(resp *v3.TxnResponse, rev int64) bool {
	own := one(resp, 0)
	return !resp.Succeeded && own != nil && own.CreateRevision == rev
}

// place puts a claim into the table, with the watch of the one whose place it takes. The caller
// has s.mu.
func (s *Session) place(c *claim) {
	if was := s.claims[c.key]; was != nil && was != c {
		c.unwatch, was.unwatch = was.unwatch, nil
	}
	s.claims[c.key] = c
}

// fasten hangs a claim on the anchor, which may have changed while it was put, or on which a
// claim that was found did not hang. Until then it counts for nothing. Again says that it went
// before it counted.
func (s *Session) fasten(ctx context.Context, c *claim) (again bool, err error) {
	for {
		s.mu.Lock()
		live, in := s.state == live, s.claims[c.key] == c && !c.leaving
		done := !live || in && c.lease == s.anchor.id
		if done {
			c.sure, c.tied = true, c.tied || live
		}
		s.mu.Unlock()
		switch {
		case done && s.gone():
			s.quit(c)
			return false, ErrSessionExpired
		case done:
			return false, nil
		case !in:
			return true, nil
		}
		at, err := s.anchored(ctx, c)
		if err == nil {
			err = s.attach(ctx, []*claim{c}, at)
		}
		if err == errGone {
			if s.passed(c) {
				return true, nil
			}
			s.end(lost, "a claim of it was deleted")
			err = ErrSessionExpired
		}
		if err != nil {
			s.quit(c)
			return false, err
		}
	}
}

// passed reports whether a claim that is gone was given up by another object of this session, or
// went before it counted, with a lease that was given up as it was put, or by an earlier
// session's deletion. It is out of the table then.
func (s *Session) passed(c *claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.tied && !c.leaving {
		s.strike(c)
	}
	return c.leaving || !c.tied
}

// strike takes a claim out of the table. The caller has s.mu.
func (s *Session) strike(c *claim) {
	if s.claims[c.key] != c {
		return
	}
	delete(s.claims, c.key)
	if c.unwatch != nil {
		go c.unwatch()
	}
}

// drop takes a claim that was never put out of the table.
func (s *Session) drop(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.rev == 0 {
		s.strike(c)
	}
}

// await waits until nobody stands before c and returns the header of the read that showed it. It
// ends with ctx, with the session, with the claim unless that may be gone, and on nothing else: a
// watch that fails or is compacted is a reason to read again.
func (s *Session) await(ctx context.Context, c *claim, mayBeGone func() bool) (*pb.ResponseHeader, error) {
	changed, notify := etcdwire.Signal()
	stop, _ := s.wire.watch(c.key, "", false, notify)
	defer stop()
	ahead, unwatch := "", func() {}
	defer func() { unwatch() }()
	over := s.over.Done()
	for {
		resp, stands, err := s.inspect(ctx, c)
		pause := etcdwire.Poll()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && !stands && !mayBeGone():
			return nil, ErrSessionExpired
		case final(err):
			return nil, err
		case err != nil:
			pause = etcdwire.Again
		case one(resp, 1) == nil:
			if s.gone() {
				return nil, ErrSessionExpired
			}
			return resp.Header, nil
		case ahead != string(one(resp, 1).Key):
			unwatch()
			ahead = string(one(resp, 1).Key)
			var told func() bool
			if unwatch, told = s.wire.watch(ahead, "", false, notify); told() {
				continue // it tells nothing at first: look again
			}
		}
		switch waitFor(ctx, changed, over, pause); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case s.client.Ctx().Err() != nil:
			return nil, s.client.Ctx().Err()
		case s.over.Err() != nil:
			if over = nil; s.gone() { // otherwise orphaned: the lease may live on
				return nil, ErrSessionExpired
			}
		}
	}
}

// inspect reads a claim's key and the youngest one before it, at one instant.
func (s *Session) inspect(ctx context.Context, c *claim) (resp *v3.TxnResponse, stands bool, err error) {
	before := append(v3.WithLastCreate(), v3.WithMaxCreateRev(c.rev-1), v3.WithKeysOnly())
	resp, _, err = s.wire.txn(ctx, txn{then: []v3.Op{v3.OpGet(c.key, v3.WithKeysOnly()), v3.OpGet(c.prefix,
		before...)}})
	if err != nil {
		return nil, false, err
	}
	own := one(resp, 0)
	return resp, own != nil && own.CreateRevision == c.rev, nil
}

func never() bool { return false }

// abandoned reports whether the session was orphaned with a lease that it had granted itself, so
// that nobody keeps it alive. The original's tests want such a candidate to be told that it has
// won when all before it are gone, though its own lease may have run out first.
func (s *Session) abandoned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == orphaned && !s.brought
}
