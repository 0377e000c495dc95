package zkstore

import (
	"context"
	"errors"
	"io"
	"time"

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

// EndOwnSession has a server end the session of the calls that belong to no lease, as the servers
// do where they hear nothing of it.
func EndOwnSession(s *Store, addr string) error {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	own.mu.Lock()
	known := own.session
	own.mu.Unlock()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		c, err := s.servers.connect(s.ctx, addr)
		if err != nil {
			return err
		}
		_ = c.SetDeadline(end)
		got, err := known.ask(c, 0)
		if err == nil && got.id == 0 {
			c.Close()
			return nil
		}
		if err == nil {
			_, _ = c.Write(op{code: opClose}.frame(1))
			_, _ = io.Copy(io.Discard, c)
		}
		c.Close()
	}
	return errors.New("the session goes on")
}

// IsOwnConnected says whether the session of the calls that belong to no lease has a connection.
func IsOwnConnected(s *Store) bool {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.present != nil
}
