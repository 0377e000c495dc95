//go:build linux

package interop

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// The line of all tests: our name for it, and the string etcd's clients know it by. The name needs
// escaping.
const (
	lineName   = "shop/till"
	linePrefix = "primacy/shop%2Ftill"
)

// world is an etcd server with one line, and all who stand in it.
type world struct {
	testing.TB
	server *etcdtest.Server
	client *clientv3.Client // the test's own eyes
	dir    string
	acts   acts
	trace  trace
	ttl    int // of etcd's own sessions

	mu       sync.Mutex
	count    int
	shared   *primacy.Session        // see sharedSession
	arrivals map[string]chan arrival // commands that began, by the turn they belong to
	cleanups []func()
}

// arrival is a command that has begun.
type arrival struct {
	conn net.Conn
	in   *bufio.Reader
	what string // it holds: a key, or a token
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, ttl: longTTL, server: etcdtest.Start(t, etcdtest.Options{}), arrivals: map[string]chan arrival{}}
	dir, err := os.MkdirTemp("", "interop-") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	if w.acts, err = openActs(w.actsPath()); err != nil {
		t.Fatal(err)
	}
	w.client = w.dial()
	t.Cleanup(func() { w.client.Close() })
	w.listen()
	t.Cleanup(w.close)
	return w
}

func (w *world) actsPath() string { return filepath.Join(w.dir, "acts") }

// atEnd has something done when the world is closed, the latest first.
func (w *world) atEnd(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cleanups = append(w.cleanups, do)
}

// close ends every session. It may be called before the test's end, to look at what is left.
func (w *world) close() {
	w.mu.Lock()
	all := w.cleanups
	w.cleanups = nil
	w.mu.Unlock()
	for i := len(all) - 1; i >= 0; i-- {
		all[i]()
	}
}

// newClient returns a client of etcd's own, which lives until the world is closed.
func (w *world) newClient() *clientv3.Client {
	w.Helper()
	c := w.dial()
	w.atEnd(func() { c.Close() })
	return c
}

func (w *world) dial() *clientv3.Client {
	w.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{w.server.Addr()}, DialTimeout: limit,
		Logger: zap.NewNop()})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// newSession returns a session of ours on a store of its own.
func (w *world) newSession(id string) *primacy.Session {
	w.Helper()
	store, err := etcdstore.Open(soon(w), etcdstore.Config{Endpoints: []string{w.server.Addr()}})
	if err != nil {
		w.Fatal(err)
	}
	s, err := primacy.NewSession(store, &primacy.Options{ID: id, TTL: longTTL * time.Second})
	if err != nil {
		w.Fatal(err)
	}
	w.atEnd(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			w.Errorf("close of the session of %s: %v", id, err)
		}
		store.Close()
	})
	return s
}

// listen takes the calls of commands that begin.
func (w *world) listen() {
	l, err := net.Listen("unix", filepath.Join(w.dir, "s"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.arrived(conn)
		}
	}()
}

func (w *world) arrived(conn net.Conn) {
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	id, what, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		conn.Close()
		return
	}
	w.expect(id) <- arrival{conn, in, what}
}

// expect returns where the command of that turn is told, once it has begun.
func (w *world) expect(id string) chan arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.arrivals[id] == nil {
		w.arrivals[id] = make(chan arrival, 1)
	}
	return w.arrivals[id]
}

// claim is a key in the line.
type claim struct {
	key   string
	lease clientv3.LeaseID
	rev   int64 // create revision
}

// line returns who stands, oldest first, as etcd has it.
func (w *world) line() []claim {
	w.Helper()
	return w.below(linePrefix + "/")
}

func (w *world) below(prefix string) []claim {
	w.Helper()
	resp, err := w.client.Get(soon(w), prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		w.Fatal(err)
	}
	var all []claim
	for _, kv := range resp.Kvs {
		all = append(all, claim{string(kv.Key), clientv3.LeaseID(kv.Lease), kv.CreateRevision})
	}
	return all
}

// create returns the create revision of a key that stands.
func (w *world) create(ctx context.Context, key string) (uint64, error) {
	resp, err := w.client.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	if len(resp.Kvs) == 0 {
		return 0, fmt.Errorf("%w: %s does not stand", errLost, key)
	}
	return uint64(resp.Kvs[0].CreateRevision), nil
}

// scale makes a create revision comparable with the tokens of locks, which count local hand-overs
// in their last sixteen bits.
func scale(create uint64) uint64 { return create << 16 }

// standing returns every key of anybody but the records of past terms, which are meant to stay.
func (w *world) standing() []claim {
	w.Helper()
	return slices.DeleteFunc(w.below(""), func(c claim) bool { return strings.HasPrefix(c.key, "primacy/@journal/") })
}

// empty checks that no key of anybody is left in all of etcd, but records of past terms, once
// leases have had the time to run out.
func (w *world) empty(within time.Duration) {
	w.Helper()
	left := w.standing()
	for end := time.Now().Add(within); len(left) > 0 && time.Now().Before(end); left = w.standing() {
		time.Sleep(50 * time.Millisecond)
	}
	if len(left) > 0 {
		w.Errorf("%v after everybody has gone, still there: %+v", within, left)
	}
}

// storeURL is how our program is told of the server.
func (w *world) storeURL() string {
	return (&url.URL{Scheme: "etcd", Host: w.server.Addr()}).String()
}
