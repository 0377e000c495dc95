package concurrency

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lines is how a session enters lines and waits in them. Who enters with a key, or cleans up
// after that, has its turn; keys of one hash share it.
type lines struct {
	s     *Session
	turns [64]chan struct{}
}

var seed = maphash.MakeSeed()

func newLines(s *Session) *lines {
	l := &lines{s: s}
	for i := range l.turns {
		l.turns[i] = make(chan struct{}, 1)
	}
	return l
}

func (l *lines) turn(key string) chan struct{} {
	return l.turns[maphash.String(seed, key)%uint64(len(l.turns))]
}

// entered is what enter found.
type entered struct {
	c      *claim
	held   bool             // nobody stands before it
	own    *mvccpb.KeyValue // the key as it stood before, where it did
	header *pb.ResponseHeader
}

// enter puts the session's key under prefix, one put and nothing else, or takes the one that
// stands: a session has one place in a line. With try, only if nobody else stands there; else the
// error is ErrLocked. On an error nothing is left behind that is not being cleaned up.
func (l *lines) enter(ctx context.Context, prefix, value string, try bool) (entered, error) {
	key := l.s.key(prefix)
	turn := l.turn(key)
	if err := etcdwire.Acquire(ctx, turn); err != nil {
		return entered{}, err
	}
	defer func() { <-turn }()
	for {
		e, again, err := l.tryEnter(ctx, key, prefix, value, try)
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
func (l *lines) tryEnter(ctx context.Context, key, prefix, value string, try bool,
) (e entered, again bool, err error) {
	s := l.s
	if s.gone() {
		return e, false, ErrSessionExpired
	}
	c := s.claims.at(key, prefix)
	lease, err := s.leases.forClaim(ctx, c)
	if errors.Is(err, errGone) {
		return e, true, nil // given up meanwhile
	}
	if err != nil {
		s.claims.drop(c)
		return e, false, err
	}
	known := s.leases.saw(0)
	resp, doubt, err := s.wire.txn(ctx, entry(key, prefix, value, lease, try))
	if doubt {
		s.removals.doubt(c, known)
	}
	if err != nil {
		s.removals.abandon(c, known, doubt)
		return e, missing(err) && s.leases.lacks(lease), err
	}
	e, v := l.takeOver(c, lease, resp)
	switch v {
	case locked:
		s.claims.drop(c)
		return e, false, ErrLocked
	case leftover:
		// To take it up would be to hold what a deletion still under way ends.
		mod := e.own.ModRevision
		_, err := s.removals.removeGivenUp(ctx, key, e.own.CreateRevision, &mod)
		s.claims.drop(c)
		return e, err == nil, err
	case deleted:
		// What was put in its place goes: who holds the claim must not take that for it.
		s.end(lost, "a claim of it was deleted")
		s.removals.replaced(e.c, known, resp, doubt)
		return e, false, ErrSessionExpired
	}
	s.watcher.poke()
	again, err = l.fasten(ctx, e.c)
	return e, again, err
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

// verdict is what the answer to enter's Txn says of the claim that it was sent for.
type verdict int

const (
	put      verdict = iota // the key was put
	stood                   // the key stood already, and is taken up
	locked                  // somebody else stands in the line
	leftover                // a key that this session has given up is in the way
	deleted                 // the claim was deleted by somebody, or taken over by another session of our lease
)

// judge returns the verdict where the Txn has put the key, or has found own, which is nil where the
// key does not stand. Foreign: own is attached to a lease that is not this session's; givenUp: own
// is a key that this session has given up.
func judge(c *claim, hasPut bool, own *mvccpb.KeyValue, foreign, givenUp bool) verdict {
	switch {
	case hasPut && c.rev != 0:
		return deleted
	case hasPut:
		return put
	case own == nil:
		return locked
	case c.rev != 0 && c.rev != own.CreateRevision:
		return deleted // and made anew
	case foreign && c.counts:
		return deleted
	case givenUp && !foreign:
		return leftover
	}
	return stood
}

// takeOver judges the answer to enter's Txn, and notes in the table what was put or stood.
func (l *lines) takeOver(c *claim, lease v3.LeaseID, resp *v3.TxnResponse) (e entered, v verdict) {
	t := l.s.claims
	t.mu.Lock()
	defer t.mu.Unlock()
	l.s.leases.saw(resp.Header.Revision)
	found, first := one(resp, 0), one(resp, 1) // or, with a put, the youngest key before it, and nothing
	var own *mvccpb.KeyValue
	foreign, givenUp := false, false
	if !resp.Succeeded && found != nil {
		own, foreign = found, l.s.leases.foreign(found)
	}
	if c.givenUp || !c.confirmed && c.rev != 0 && (own == nil || own.CreateRevision != c.rev) {
		// Given up meanwhile, or resumed and over before: what stands now is another claim.
		c = &claim{key: c.key, prefix: c.prefix, past: append(c.past, c.rev)}
	}
	if own != nil {
		givenUp = t.givenUp[c.key][own.CreateRevision] || slices.Contains(c.past, own.CreateRevision)
	}
	e = entered{c: c, own: own, header: resp.Header}
	switch v = judge(c, resp.Succeeded, own, foreign, givenUp); v {
	case put:
		e.held = found == nil
		c.rev, c.mod, c.lease = resp.Header.Revision, resp.Header.Revision, lease
	case stood:
		delete(t.givenUp[c.key], own.CreateRevision) // what is under way ends it no more: fasten moves it
		e.held = first != nil && first.CreateRevision == own.CreateRevision
		if c.rev == 0 { // who waits with it reads it meanwhile
			c.rev = own.CreateRevision
		}
		c.mod, c.lease = own.ModRevision, v3.LeaseID(own.Lease)
	default:
		return e, v
	}
	c.entered = time.Now()
	c.users++
	t.insertLocked(c)
	return e, v
}

// fasten attaches a claim to the anchor, which may have changed while it was put, or on which a
// claim that was found was not attached. Until then it counts for nothing. Again says that it went
// before it counted.
func (l *lines) fasten(ctx context.Context, c *claim) (again bool, err error) {
	s := l.s
	for {
		s.claims.mu.Lock()
		live, in := s.live(), s.claims.by[c.key] == c && !c.givenUp
		done := !live || in && c.lease == s.leases.current().id
		if done {
			c.confirmed, c.counts = true, c.counts || live
		}
		s.claims.mu.Unlock()
		switch {
		case done && s.gone():
			s.removals.quit(c)
			return false, ErrSessionExpired
		case done:
			return false, nil
		case !in:
			return true, nil
		}
		err := s.leases.attach(ctx, c)
		if errors.Is(err, errGone) {
			if s.claims.passed(c) {
				return true, nil
			}
			s.end(lost, "a claim of it was deleted")
			err = ErrSessionExpired
		}
		if err != nil {
			s.removals.quit(c)
			return false, err
		}
	}
}

// wait waits until nobody stands before c and returns the header of the read that showed it. It
// ends with ctx, with the session, with the claim unless that may be gone, and on nothing else: a
// watch that fails or is compacted is a reason to read again.
func (l *lines) wait(ctx context.Context, c *claim, mayBeGone func() bool) (*pb.ResponseHeader, error) {
	s := l.s
	changed, notify := etcdwire.Signal()
	stop, _ := s.wire.watch(c.key, "", false, notify)
	defer stop()
	ahead, unwatch := "", func() {}
	defer func() { unwatch() }()
	defer context.AfterFunc(s.over, notify)()
	for {
		resp, stands, err := l.look(ctx, c)
		pause := etcdwire.Poll()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && !stands && !mayBeGone():
			return nil, ErrSessionExpired
		case final(err):
			return nil, err
		case err != nil:
			pause = etcdwire.RetryPause
		case one(resp, 1) == nil:
			if s.gone() {
				return nil, ErrSessionExpired
			}
			return resp.Header, nil
		case ahead != string(one(resp, 1).Key):
			unwatch()
			ahead = string(one(resp, 1).Key)
			var stood func() bool
			if unwatch, stood = s.wire.watch(ahead, "", false, notify); stood() {
				continue // it tells nothing at first: look again
			}
		}
		switch err := storeutil.WaitFor(ctx, pause, changed); {
		case err != nil:
			return nil, err
		case s.client.Ctx().Err() != nil:
			return nil, s.client.Ctx().Err()
		case s.over.Err() != nil && s.gone(): // otherwise orphaned: the lease may live on
			return nil, ErrSessionExpired
		}
	}
}

// look reads a claim's key and the youngest one before it, at one instant.
func (l *lines) look(ctx context.Context, c *claim) (resp *v3.TxnResponse, stands bool, err error) {
	before := append(v3.WithLastCreate(), v3.WithMaxCreateRev(c.rev-1), v3.WithKeysOnly())
	resp, _, err = l.s.wire.txn(ctx, txn{then: []v3.Op{v3.OpGet(c.key, v3.WithKeysOnly()),
		v3.OpGet(c.prefix, before...)}})
	if err != nil {
		return nil, false, err
	}
	own := one(resp, 0)
	return resp, own != nil && own.CreateRevision == c.rev, nil
}

func never() bool { return false }

// proclaim puts a value under a claim's key. It compares the mod revision: an earlier one whose
// outcome was unknown, carried out late, would bring its old value back. errGone: the claim was
// given up or deleted.
func (l *lines) proclaim(ctx context.Context, c *claim, val string) (*pb.ResponseHeader, error) {
	s := l.s
	for {
		s.claims.mu.Lock()
		mod, givenUp := c.mod, c.givenUp
		s.claims.mu.Unlock()
		if givenUp { // another object of this session gave the key up
			return nil, errGone
		}
		at, err := s.leases.forClaim(ctx, c)
		if err != nil {
			return nil, err
		}
		resp, _, err := s.wire.txn(ctx, txn{when: still(c.key, c.rev, mod),
			then:      []v3.Op{v3.OpPut(c.key, val, v3.WithLease(at))},
			otherwise: []v3.Op{v3.OpGet(c.key, v3.WithKeysOnly())}})
		if err != nil {
			return nil, err
		}
		own := one(resp, 0)
		if !resp.Succeeded && (own == nil || own.CreateRevision != c.rev) {
			return nil, errGone
		}
		s.claims.mu.Lock()
		if resp.Succeeded {
			c.mod, c.lease, c.confirmed = max(c.mod, resp.Header.Revision), at, true
		} else {
			c.mod = own.ModRevision
		}
		s.claims.mu.Unlock()
		if !resp.Succeeded {
			continue
		}
		for s.claims.mustMove(c) && err == nil { // the anchor has changed since
			err = s.leases.attach(ctx, c)
		}
		return resp.Header, err
	}
}
