package zkstore

import (
	"context"

	"github.com/primacy-go/primacy/driver"
)

// LateCreate does what a create does that lay in a buffer while its outcome was looked for.
func LateCreate(held driver.Lease, want driver.Claim) error {
	l := held.(*lease)
	version := l.life.version.Load()
	c := newClaim(l.store, want)
	if err := l.ensure(context.Background(), c.dir); err != nil {
		return err
	}
	e := &entry{l: l, batch: []*claim{c}}
	if err := e.resolve(); err != nil {
		return err
	}
	_, err := l.multi(context.Background(), e.step(version)...)
	return err
}

// WatchedGone looks at a node that is not there, watched, and returns how many watches that leaves.
func WatchedGone(held driver.Lease, path string) (int, error) {
	l := held.(*lease)
	count := func() int {
		l.watches.mu.Lock()
		defer l.watches.mu.Unlock()
		return len(l.watches.all)
	}
	before := count()
	_, _, err := l.tree.watch(context.Background(), ofNode, path)
	return count() - before, err
}

// RequestNumber is the number of a session's nth request.
var RequestNumber = requestNumber

// ErrBadVersion is ZooKeeper's error for a node of another version.
var ErrBadVersion = errBadVersion

// IsClosed says whether a channel is closed.
var IsClosed = isClosed

// HandOverTo does the last step of a transfer to a claim whose node has that path. It says whether
// the line must be looked at again.
func HandOverTo(held driver.Lease, p driver.Place, path string) (again bool, err error) {
	l := held.(*lease)
	h := handOver{l: l, c: l.claims.find(p)}
	return h.try(context.Background(), nil, node{path: path})
}
