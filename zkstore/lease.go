package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

// lease is a session with its claims, at most one for each seat.
type lease struct {
	store *Store
	link  *link
	owner string
	id    string
	ttl   time.Duration

	life, beat, mail string // its nodes

	renewing chan struct{} // holds one while a renewal is under way
	writes   []write       // of late, on the present connection. Guarded by renewing
	timer    *time.Timer   // ends a lease that nobody renews

	guarding sync.Mutex // one barrier at a time

	mu      sync.Mutex
	guard   int32 // version of the life node: a claim enters only where it still has it
	closing bool
	claims  map[seat]*claim
	spent   map[string]bool   // claim IDs that may not enter again
	parted  map[string]*claim // given up, and not yet known to be gone, by ID
	arms    uint64
	news    []driver.News // not told yet
	told    chan struct{} // closed when there is news
	closed  chan struct{} // closed when Close has done its work; nil before
}

// seat is what a lease has at most one claim for.
type seat struct{ name, seat string }

// Grant makes a session. Its timeout is longer than the ttl: a renewal proves what was so some time before it (see [lease.Renew]), so a crashed holder's claims stand
// for that much longer.
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.caps.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.caps.MaxTTL, driver.ErrRefused)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	k, err := s.dial(sessionFor(max(ttl, s.caps.MinTTL), s.tick))
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l := &lease{
		store: s, link: k, owner: owner, renewing: make(chan struct{}, 1),
		claims: map[seat]*claim{}, spent: map[string]bool{}, parted: map[string]*claim{}, told: make(chan struct{}),
	}
	if err := l.begin(ctx, ttl); err != nil {
		k.end(driver.ErrGone, true)
		return nil, err
	}
	return l, nil
}

// begin makes the lease's nodes.
func (l *lease) begin(ctx context.Context, ttl time.Duration) error {
	if err := l.link.ready(ctx); err != nil {
		return err
	}
	_, _, timeout := l.link.generation()
	l.ttl = ttlWithin(timeout, l.store.tick)
	if l.ttl < ttl {
		return fmt.Errorf("ZooKeeper keeps the session for %v, too short for a ttl of %v: %w", timeout, ttl, driver.ErrRefused)
	}
	l.id = l.link.id()
	l.life, l.beat, l.mail = l.store.at("@leases", l.id), l.store.at("@beats", l.id), l.store.at("@mail", l.id)
	a := about{Owner: l.owner, TTL: l.ttl.String()}
	if !utf8.ValidString(l.owner) {
		a.Owner, a.Odd = "", []byte(l.owner)
	}
	data, _ := json.Marshal(a)
	for try := 1; ; try++ {
		_, err := multi(ctx, l.link, l.store.node(l.life, data, zk.FlagEphemeral), l.store.node(l.beat, nil, zk.FlagEphemeral), l.store.node(l.mail, nil, zk.FlagEphemeral))
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists): // by a try whose answer was lost: nobody else has this session
			l.timer = time.AfterFunc(l.patience(), l.neglected)
			go l.watchLife()
			go l.readMail()
			go l.patrol()
			return nil
		case errors.Is(err, zk.ErrNoNode):
			err = l.store.prepare(ctx)
			if err != nil {
				return err
			}
		case final(err) || ctx.Err() != nil || l.link.over():
			return err
		}
		if !l.link.pause(try) {
			return l.link.why
		}
	}
}

// node returns the request to make a node, in a multi.
func (s *Store) node(path string, data []byte, flags int32) *zk.CreateRequest {
	if data == nil {
		data = []byte{}
	}
	return &zk.CreateRequest{Path: path, Data: data, Acl: s.acl, Flags: flags}
}

// final says whether err is an answer of the port.
func final(err error) bool {
	return errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrNoSuccessor)
}

func (l *lease) ID() string         { return l.id }
func (l *lease) TTL() time.Duration { return l.ttl }

// patience is for how long after the last renewal was asked for the lease is kept: go-zookeeper would keep its session alive as long as the process lives.
func (l *lease) patience() time.Duration { return l.ttl + l.ttl/10 }

// neglected ends a lease that was not renewed in time.
func (l *lease) neglected() { l.finish() }

// check returns what a call under the lease must answer at once, nil if it may go on.
func (l *lease) check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.link.over() {
		return l.link.why
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return driver.ErrGone
	}
	return nil
}

// watchLife notes when somebody else ends the lease.
func (l *lease) watchLife() {
	for try := 1; ; try++ {
		got, w, err := l.link.look(context.Background(), ofNode, l.life, true)
		switch {
		case l.link.over():
			return
		case err == nil && !got.exists:
			l.link.end(driver.ErrGone, true)
			return
		case err != nil:
			l.link.pause(try)
			continue
		}
		select {
		case <-w.fired:
		case <-time.After(slowly):
		case <-l.link.dead:
			return
		}
	}
}

// Close ends the lease: its nodes are deleted, which has an answer, and then its session, which has none.
func (l *lease) Close(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := l.finish()
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
	if l.closed != nil {
		return l.closed
	}
	l.closing, l.closed = true, make(chan struct{})
	if l.timer != nil {
		l.timer.Stop()
	}
	close(l.told)
	l.told = make(chan struct{})
	go l.lastRites(l.closed)
	return l.closed
}

// lastRites deletes the lease's nodes, the one that says it lives first: from then on no claim can enter. It gives up when the servers must have ended the session.
func (l *lease) lastRites(done chan struct{}) {
	defer close(done)
	_, _, timeout := l.link.generation()
	limit, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	for try := 1; !l.link.over() && limit.Err() == nil; try++ {
		err := l.store.bury(limit, l.link, l.id, l.standing())
		if err == nil || final(err) {
			break
		}
		l.link.pause(try)
	}
	l.link.end(driver.ErrGone, true)
}

// standing returns the nodes of the lease's claims.
func (l *lease) standing() (paths []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.claims {
		if c.path != "" {
			paths = append(paths, c.path)
		}
	}
	return paths
}

// bury deletes the nodes of a lease, all in one step where they are few, and what stands in paths.
func (s *Store) bury(ctx context.Context, k *link, id string, paths []string) error {
	own := []string{s.at("@leases", id), s.at("@beats", id), s.at("@mail", id)}
	if len(paths) < 100 {
		var ops []any
		for _, path := range append(own, paths...) {
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		if _, err := multi(ctx, k, ops...); err == nil || !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	for _, path := range own {
		if err := s.remove(ctx, k, path); err != nil {
			return err
		}
	}
	return each(len(paths), func(i int) error { return s.remove(ctx, k, paths[i]) })
}
