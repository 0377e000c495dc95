package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a session with its claims.
type lease struct {
	tree
	owner   string
	id      string
	ttl     time.Duration
	beat    string // the node that renewals write to
	mail    string // the node that requests come to
	life    lifeNode
	claims  claims
	renewal renewal

	mu     sync.Mutex
	closed chan struct{} // closed when Close has done its work; nil before Close
	timer  *time.Timer   // ends a lease that nobody renews
}

func newLease(t tree, owner string) *lease {
	return &lease{
		tree: t, owner: owner,
		claims: claims{news: &news{more: make(chan struct{})}, bySeat: map[storeutil.Seat]*claim{},
			going: map[string]*claim{}},
	}
}

// begin makes the lease's nodes.
func (l *lease) begin(ctx context.Context, ttl time.Duration) error {
	if _, err := l.ready(ctx); err != nil {
		return err
	}
	_, _, timeout := l.generation()
	s := l.store
	l.ttl = ttlWithin(timeout, s.tick)
	if l.ttl < ttl {
		return fmt.Errorf("ZooKeeper keeps the session for %v, too short for a ttl of %v: %w",
			timeout, ttl, driver.ErrRefused)
	}
	l.id = l.tree.id()
	l.beat, l.mail = s.at("@beats", l.id), s.at("@mail", l.id)
	l.life = lifeNode{tree: l.tree, path: s.at("@leases", l.id)}
	l.renewal = renewal{tree: l.tree, node: l.beat, tick: s.tick, ttl: l.ttl, busy: make(chan struct{}, 1)}
	a := about{Owner: l.owner, TTL: l.ttl.String()}
	if !utf8.ValidString(l.owner) {
		a.Owner, a.Odd = "", []byte(l.owner)
	}
	data, _ := json.Marshal(a)
	for try := 1; ; try++ {
		_, err := l.multi(ctx, createOp(l.life.path, data, s.acl, ephemeral),
			createOp(l.beat, nil, s.acl, ephemeral), createOp(l.mail, nil, s.acl, ephemeral))
		if errors.Is(err, errNoNode) {
			if err := l.prepare(ctx); err != nil {
				return err
			}
		}
		switch {
		case err == nil || errors.Is(err, errNodeExists): // made by a try whose answer was lost: the session is ours
			l.start()
			return nil
		case driver.IsFinal(err) || ctx.Err() != nil || l.over():
			return err
		}
		if !l.pause(try) {
			return l.reason()
		}
	}
}

// start starts what runs as long as the lease.
func (l *lease) start() {
	l.timer = time.AfterFunc(l.patience(), func() { l.finish() })
	go l.onChange(l.life.path, func(got looked) error { //nolint:unparam // onChange asks for an error
		if !got.exists { // somebody else has ended the lease
			l.end(driver.ErrGone, true)
		}
		return nil
	})
	go l.onChange(l.mail, l.readMail)
	go l.patrol()
}

func (l *lease) ID() string         { return l.id }
func (l *lease) TTL() time.Duration { return l.ttl }

// patience is for how long after the last renewal was asked for the lease is kept: pings would keep
// its session alive as long as the process lives.
func (l *lease) patience() time.Duration { return l.ttl + l.ttl/10 }

// check returns what a call under the lease must answer at once, nil if it may go on.
func (l *lease) check(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err != nil:
		return err
	case l.over():
		return l.reason()
	case l.isClosing():
		return driver.ErrGone
	}
	return nil
}

func (l *lease) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed != nil
}

// Close ends the lease: its nodes are deleted, which has an answer, and then its session, which has
// none.
func (l *lease) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return waitFor(ctx, l.finish())
}

// waitFor waits for what ends also if the link is over.
func waitFor(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish begins to end the lease, once, and returns a channel that is closed when that is done.
func (l *lease) finish() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		l.closed = make(chan struct{})
		l.timer.Stop()
		go l.removeAllNodes(l.closed)
	}
	return l.closed
}

// removeAllNodes deletes the lease's nodes, the one that says it lives first: from then on no claim
// can enter. It gives up when the servers must have ended the session.
func (l *lease) removeAllNodes(done chan struct{}) {
	defer close(done)
	l.claims.news.wake()
	_, _, timeout := l.generation()
	limit, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	for try := 1; !l.over() && limit.Err() == nil; try++ {
		var paths []string
		for _, c := range l.claims.standing() {
			paths = append(paths, c.path)
		}
		err := l.endLease(limit, l.id, paths)
		if err == nil || driver.IsFinal(err) {
			break
		}
		l.pause(try)
	}
	l.end(driver.ErrGone, true)
}

// guardWith makes a watch on a claim's own node its guard.
func (l *lease) guardWith(c *claim, w *watch, gen uint64) {
	if !c.own.use(w, gen) {
		return
	}
	w.on(func(deleted bool) {
		if deleted {
			l.claims.tellGone(c)
		} else {
			go l.guardNode(c)
		}
	})
}

// guardNode sets a watch on a claim's own node, so that we notice when somebody removes it.
func (l *lease) guardNode(c *claim) {
	for try := 1; !l.over(); try++ {
		if c.isGone() || l.claims.isBeingRemoved(c) || c.own.stands(0) { // who waits sets it with others
			return
		}
		gen, _, _ := l.generation()
		all, err := l.arm(context.Background(), c.path)
		if err == nil {
			l.guardWith(c, all[0], gen)
			return
		}
		l.pause(try)
	}
}

// patrol looks at all claims now and then, should a watch have been lost.
func (l *lease) patrol() {
	for {
		select {
		case <-time.After(12 * slowly):
		case <-l.ctx.Done():
			return
		}
		all := l.claims.standing()
		_ = parallel(len(all), func(i int) error {
			got, err := l.look(context.Background(), ofNode, all[i].path)
			if err == nil && !got.exists {
				l.claims.tellGone(all[i])
			}
			return err
		})
	}
}

// lifeNode is the node that says that a lease lives. A claim enters only where it still has the
// version that the claim's create asks for.
type lifeNode struct {
	tree
	path string

	mu      sync.Mutex // held while the node is written or read
	version atomic.Int32
}

// raise gives the node a new version, which no create under way has asked for.
func (n *lifeNode) raise() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	got, err := n.look(context.Background(), ofNode, n.path)
	if err != nil {
		return err
	}
	err = error(errNoNode)
	var written stat
	if got.exists {
		written, err = n.set(context.Background(), n.path, got.data, -1)
	}
	if errors.Is(err, errNoNode) {
		n.end(driver.ErrGone, true)
		return driver.ErrGone
	}
	if err == nil {
		n.version.Store(written.version)
	}
	return err
}

// reread takes the node's version as it is.
func (n *lifeNode) reread() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	got, err := n.look(context.Background(), ofNode, n.path)
	if err == nil && got.exists {
		n.version.Store(max(n.version.Load(), got.stat.version))
	}
	return err
}
