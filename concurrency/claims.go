package concurrency

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// claim is a key of this session's in a line. Its fields are guarded by claims.mu; key, prefix
// and, once it is known, rev do not change: a key that is deleted and made anew is another claim.
type claim struct {
	key, prefix string
	rev         int64      // the key's create revision; 0 while it is being put
	mod         int64      // its mod revision as last known; 0: not known
	lease       v3.LeaseID // what it is attached to, as last known
	confirmed   bool       // it was seen to stand: if it does not any more, the session is lost
	counts      bool       // it was seen to be attached to a lease of ours that is relied upon
	givenUp     bool       // it is being deleted, or was
	users       int        // elections and mutexes that wait for it or hold it
	entered     time.Time
	lookedAt    int64   // on the boot clock, when a renewal looked at it last
	unwatch     func()  // ends the watch on it
	past        []int64 // create revisions given up while it was being put: a late answer may still show them
}

// claims is what a session knows of its keys. It makes no requests.
type claims struct {
	s *Session

	mu      sync.Mutex
	prefix  string // a key that the user may use, for proofs while no claim stands
	by      map[string]*claim
	givenUp map[string]map[int64]bool // claims given up that may stand yet: by key, the create revisions
}

// standingLocked returns the claims that stand, as far as we know. The caller holds mu.
func (t *claims) standingLocked() []*claim {
	all := make([]*claim, 0, len(t.by))
	for _, c := range t.by {
		if c.rev != 0 && !c.givenUp {
			all = append(all, c)
		}
	}
	return all
}

// notOn returns the claims that are not known to be attached to a lease, oldest first: see
// lookOrder. What one is attached to is known as surely as its create revision: only this session
// moves it.
func (t *claims) notOn(lease v3.LeaseID) []*claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	some := slices.DeleteFunc(t.standingLocked(), func(c *claim) bool { return c.lease == lease })
	slices.SortFunc(some, func(a, b *claim) int { return cmp.Compare(a.rev, b.rev) })
	return some
}

// has reports whether the session has a claim under a key.
func (t *claims) has(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by[key] != nil
}

// mustMove reports whether a claim is to be attached to another lease than it does.
func (t *claims) mustMove(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s.live() && !c.givenUp && c.lease != t.s.leases.current().id
}

// at returns the session's claim under a key, to enter with: a new one where there is none.
func (t *claims) at(key, prefix string) *claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.by[key]; c != nil && !c.givenUp {
		return c
	}
	return &claim{key: key, prefix: prefix}
}

// register puts a claim into the table, unless it was given up or the session's true claim is
// there: nobody would look after that any more.
func (t *claims) register(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.by[c.key]
	switch {
	case c.givenUp:
		return false
	case was == c:
		return true
	case was != nil && !was.givenUp:
		return c.rev != 0 && was.rev == c.rev // resumed twice
	case was != nil && c.rev != 0:
		return false
	}
	for rev := range t.givenUp[c.key] {
		c.past = append(c.past, rev)
	}
	t.insertLocked(c)
	return true
}

// insertLocked puts a claim into the table, with the watch of the one whose place it takes. The
// caller holds mu.
func (t *claims) insertLocked(c *claim) {
	if was := t.by[c.key]; was != nil && was != c {
		c.unwatch, was.unwatch = was.unwatch, nil
	}
	t.by[c.key] = c
}

// removeLocked takes a claim out of the table. The caller holds mu.
func (t *claims) removeLocked(c *claim) {
	if t.by[c.key] != c {
		return
	}
	delete(t.by, c.key)
	if c.unwatch != nil {
		go c.unwatch()
	}
}

// drop takes a claim that was never put out of the table.
func (t *claims) drop(c *claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.rev == 0 {
		t.removeLocked(c)
	}
}

// passed reports whether a claim that is gone was given up by another object of this session, or
// went before it counted, with a lease that was given up as it was put, or by an earlier
// session's deletion. It is out of the table then.
func (t *claims) passed(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.counts && !c.givenUp {
		t.removeLocked(c)
	}
	return c.givenUp || !c.counts
}

// unused counts one user of a claim less. Where it was the last one, the claim is given up, under
// the same lock: who enters with it now must not hold what goes.
func (t *claims) unused(c *claim) (mod int64, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.users--; c.users > 0 || c.rev == 0 {
		return 0, false
	}
	return t.giveUpLocked(c.key, c.rev), true
}

// giveUp marks a key as given up: that it goes is no news, and a claim that is entered later waits
// until it has gone. It returns the key's mod revision, or 0 where that is not known.
func (t *claims) giveUp(key string, rev int64) (mod int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.giveUpLocked(key, rev)
}

// giveUpLocked is giveUp. The caller holds mu.
func (t *claims) giveUpLocked(key string, rev int64) (mod int64) {
	if t.givenUp[key] == nil {
		t.givenUp[key] = map[int64]bool{}
	}
	t.givenUp[key][rev] = true
	switch c := t.by[key]; {
	case c == nil:
	case c.rev == rev:
		c.givenUp = true
		return c.mod
	case c.rev == 0:
		c.past = append(c.past, rev)
	}
	return 0
}

// isGivenUp reports whether a key was given up and has not been seen to be gone.
func (t *claims) isGivenUp(key string, rev int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.givenUp[key][rev]
}

// forget notes that a key is known to be gone.
func (t *claims) forget(key string, rev int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.givenUp[key], rev); len(t.givenUp[key]) == 0 {
		delete(t.givenUp, key)
	}
	if c := t.by[key]; c != nil && c.rev == rev {
		t.removeLocked(c)
	}
}

// close returns what ends the watches on the claims. The session has ended.
func (t *claims) close() (stops []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.by {
		if c.unwatch != nil {
			stops = append(stops, c.unwatch)
		}
	}
	return stops
}

// compare holds claims against how their keys stood, and notes whether they are attached to a
// lease.
func (t *claims) compare(some []*claim, found []etcdwire.State, lease v3.LeaseID) error {
	now := int64(t.s.clock())
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, c := range some {
		c.lookedAt = now
		switch {
		case t.by[c.key] != c || c.givenUp:
			// given up meanwhile
		case found[i].Attached:
			c.lease, c.confirmed, c.counts = lease, true, true
		case found[i].Stands:
			c.confirmed = true
			if c.lease == lease {
				c.lease = 0
			}
		case !c.confirmed:
			t.removeLocked(c) // resumed, but over before
		default:
			return errGone
		}
	}
	return nil
}

// resume returns a claim for a key that stood before this session did. Fresh: it is the session's
// own, and must be kept alive from now on.
func (t *claims) resume(key, prefix string, rev int64) (c *claim, fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.by[key]; c != nil && c.rev == rev && !c.givenUp {
		c.users++
		return c, false
	}
	c = &claim{key: key, prefix: prefix, rev: rev, users: 1}
	fresh = strings.HasSuffix(key, t.s.key("/")) && t.s.live() && t.by[key] == nil
	if fresh {
		t.by[key] = c
	}
	return c, fresh
}

// missed reports whether a claim that was resumed turned out to be gone.
func (t *claims) missed(c *claim) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.key != t.s.key(c.prefix) || !t.s.live() || c.givenUp {
		return false
	}
	now := t.by[c.key]
	return now == nil || now.rev != c.rev
}

// usePrefix remembers a prefix that the user works with.
func (t *claims) usePrefix(prefix string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.prefix == "" {
		t.prefix = t.s.key(prefix)
	}
}
