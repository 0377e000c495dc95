// Package zkstore keeps leases and claims in ZooKeeper (3.5 or newer).
//
// A lease is one ZooKeeper session, with a connection of its own. A claim is an ephemeral
// sequential node of that session:
//
//	/primacy/db%2Fprimary/p1-<session>-<hash of the claim ID>-<slots>-<seat>-<sequence>
//	                             a claim in the line of "db/primary"
//	/primacy/@leases/<session>   says that the lease lives, and for whom; whoever deletes it
//	                             has ended the lease for good
//	/primacy/@beats/<session>    what a renewal writes to
//	/primacy/@mail/<session>     requests to the holder
//	/primacy/@journal/<journal>/<key>
//
// The token is the node's czxid. Nodes of names are kept when nobody stands in them any more; one
// may be deleted by hand while nobody uses the name.
//
// What a renewal proves, and what it rests on, is told at (*lease).Renew.
//
// # Files
//
// Each uses those below it:
//
//	store.go, ask.go, line.go, journal.go, examine.go   the Store
//	lease.go, renew.go, news.go, transfer.go            the Lease
//	claim.go, enter.go, turnwait.go, claims.go          its claims: to enter, to wait, to leave
//	tree.go, watch.go, names.go                         nodes, their watches and their names
//	link.go, servers.go                                 a session, over one connection at a time
//	conn.go, packets.go                                 a connection, and ZooKeeper's protocol
//
// # Locks
//
// These mutexes may be locked while another one is held, and no others:
//
//	claims.mu      then news.mu
//	link.mu        then rotation.mu
//	conn.writing   then conn.mu
//	watches.mu     then watch.mu
//	lifeNode.mu    then any but claims.mu, news.mu and lease.mu: it is held during requests
//
// The functions that a watch calls when it fires ([watch.on]) are called without watch.mu and
// watches.mu.
package zkstore

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Config is how Open reaches ZooKeeper. Servers are required.
type Config struct {
	Servers  []string    // "host:port", or "host" for port 2181
	Username string      // with Password: digest authentication, and nobody else may read or change what is made
	Password string      //
	TLS      *tls.Config // nil: plain
	Root     string      // below which all nodes lie; "/primacy" if empty

	// Tick is the servers' tickTime, if the store cannot find it out: it asks them (the command
	// conf, if they allow it), or takes the larger of half their least session timeout and a
	// twentieth of their largest. Set it where both were configured below the defaults.
	Tick time.Duration
}

// Store is a [driver.Store] on ZooKeeper, and a [driver.Asker],
// [driver.Journal] and [driver.Admin] too.
type Store struct {
	config  Config
	servers servers
	root    string
	acl     []byte
	caps    driver.Caps
	tick    time.Duration
	longest time.Duration // the largest session timeout

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	own    *link          // the session of calls that belong to no lease; nil: none yet, or it ended
	links  map[*link]bool // all that are open
	work   sync.WaitGroup
}

// Open returns a store on the servers of c. It waits for one that does not answer until ctx ends;
// if all of them refuse the connection it fails at once. An error names the servers;
// [driver.ErrRefused] if they are older than 3.5, or do not let us in.
func Open(ctx context.Context, c Config) (*Store, error) {
	s, err := build(c)
	if err != nil {
		return nil, err
	}
	if err := s.detect(ctx); err != nil {
		s.Close()
		return nil, err
	}
	t, err := s.connected(ctx)
	if err == nil {
		err = t.prepare(ctx)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("ZooKeeper at %s: %w", s.servers, err)
	}
	return s, nil
}

// build puts a Store together. Nothing runs yet.
func build(c Config) (*Store, error) {
	if len(c.Servers) == 0 {
		return nil, fmt.Errorf("ZooKeeper: no servers: %w", driver.ErrRefused)
	}
	root := "/" + strings.Trim(c.Root, "/")
	if c.Root == "" {
		root = "/primacy"
	}
	bad := func(r rune) bool { return r < ' ' || r > '~' }
	for _, part := range strings.Split(root[1:], "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, bad) {
			return nil, fmt.Errorf("ZooKeeper: %q is not a path for the root of all nodes: %w",
				c.Root, driver.ErrRefused)
		}
	}
	if (c.Username == "") != (c.Password == "") || strings.Contains(c.Username, ":") {
		return nil, fmt.Errorf("ZooKeeper: a user name (without a colon) and a password come together: %w",
			driver.ErrRefused)
	}
	s := &Store{config: c, root: root, acl: aclOf("world", "anyone"), links: map[*link]bool{}}
	s.servers.tls = c.TLS
	for _, server := range c.Servers {
		s.servers.all = append(s.servers.all, withPort(server))
	}
	if c.Username != "" {
		sum := sha1.Sum([]byte(c.Username + ":" + c.Password)) // as ZooKeeper's scheme "digest" has it
		s.acl = aclOf("digest", c.Username+":"+base64.StdEncoding.EncodeToString(sum[:]))
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// prepare makes the nodes that every call needs, and so finds out whether we may.
func (t tree) prepare(ctx context.Context) error {
	for _, dir := range []string{"@leases", "@beats", "@mail", "@journal", "@sync"} {
		if err := t.ensure(ctx, t.store.at(dir)); err != nil {
			return err
		}
	}
	return t.barrier(ctx)
}

// at returns the path of a node below the root.
func (s *Store) at(parts ...string) string { return s.root + "/" + strings.Join(parts, "/") }

// pathOf returns the path of a name's node.
func (s *Store) pathOf(name string) string { return s.at(escape(name)) }

// Caps tells what the store does.
func (s *Store) Caps() driver.Caps { return s.caps }

// begun returns the session of calls that belong to no lease, when first has been done in it. First
// may be done more than once: a session that was cut off, or whose process slept, is found to have
// ended only when it is used, and then there is another one.
func (s *Store) begun(ctx context.Context, first func(tree) error) (t tree, err error) {
	for range 3 {
		if t, err = s.connected(ctx); err == nil {
			err = first(t)
		}
		if !errors.Is(err, errOwnEnded) {
			break
		}
	}
	return t, err
}

// connected returns the session of calls that belong to no lease, when it is connected.
func (s *Store) connected(ctx context.Context) (tree, error) {
	if err := ctx.Err(); err != nil {
		return tree{}, err
	}
	s.mu.Lock()
	if s.own == nil || s.own.over() {
		timeout := min(10*time.Second, s.longest)
		own, err := s.dialLocked(timeout, max(timeout/4, leastSilence), true)
		if err != nil {
			s.mu.Unlock()
			return tree{}, err
		}
		s.own = own
	}
	l := s.own
	s.mu.Unlock()
	_, err := l.ready(ctx)
	return tree{l}, err
}

// current returns what connected does, when its server has applied all that a quorum had before
// the call.
func (s *Store) current(ctx context.Context) (tree, error) {
	return s.begun(ctx, func(t tree) error { return t.barrier(ctx) })
}

// dialLocked opens a session. The caller holds mu.
func (s *Store) dialLocked(timeout, silence time.Duration, own bool) (*link, error) {
	if s.closed {
		return nil, errClosed
	}
	s.work.Add(1)
	l := newLink(s, timeout, silence, own)
	s.links[l] = true
	return l, nil
}

// Grant makes a session. Its timeout is longer than the ttl: a renewal proves what was so some time
// before it (see [lease.Renew]), so a crashed holder's claims stand for that much longer.
func (s *Store) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 || ttl > s.caps.MaxTTL {
		return nil, fmt.Errorf("ttl %v is not between 0 and %v: %w", ttl, s.caps.MaxTTL, driver.ErrRefused)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	asked := max(ttl, s.caps.MinTTL)
	s.mu.Lock()
	k, err := s.dialLocked(sessionFor(asked, s.tick), silenceFor(asked), false)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l := newLease(tree{k}, owner)
	if err := l.begin(ctx, ttl); err != nil {
		k.end(driver.ErrGone, true)
		return nil, err
	}
	return l, nil
}

var errClosed = errors.New("the store was closed")

// Close frees what the store opened. Leases are not ended: ZooKeeper ends them when it has heard
// nothing for their timeout.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	own, all := s.own, slices.Collect(maps.Keys(s.links))
	s.mu.Unlock()
	for _, l := range all {
		l.end(errClosed, l == own)
	}
	s.work.Wait()
	return nil
}
