package zkstore

import (
	"context"

	"github.com/primacy-go/primacy/driver"
)

// LateCreate does what a create does that lay in a buffer while its outcome was looked for.
func LateCreate(held driver.Lease, want driver.Claim) error {
	l := held.(*lease)
	l.mu.Lock()
	guard := l.guard
	l.mu.Unlock()
	c := l.newClaim(want)
	if err := l.store.ensure(context.Background(), l.link, c.dir); err != nil {
		return err
	}
	if err := l.resolve([]*claim{c}, nil); err != nil {
		return err
	}
	_, err := multi(context.Background(), l.link, l.step(guard, []*claim{c}, nil)...)
	return err
}

// WatchedGone looks at a node that is not there, watched, and returns how many watches that leaves.
func WatchedGone(held driver.Lease, path string) (int, error) {
	l := held.(*lease)
	count := func() int {
		l.link.mu.Lock()
		defer l.link.mu.Unlock()
		return len(l.link.watches)
	}
	before := count()
	_, _, err := l.link.look(context.Background(), ofNode, path, true)
	return count() - before, err
}

// OurNumber is the number of a session's nth request of ours.
var OurNumber = ourNumber
