package concurrency

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// The tests wait for etcd's clock and use little CPU time, so more of them run at once than there
// are CPUs.
const parallel = 20

func TestMain(m *testing.M) {
	flag.Parse()
	f := flag.Lookup("test.parallel")
	if n, err := strconv.Atoi(f.Value.String()); err == nil && n < parallel {
		_ = f.Value.Set(strconv.Itoa(parallel))
	}
	code := m.Run()
	common.close()
	os.Exit(code)
}

// outlives is the testing.TB of a server that several tests share: it ends after the last of them.
type outlives struct{ testing.TB }

func (outlives) Cleanup(f func()) { common.cleanups = append(common.cleanups, f) }
func (outlives) Failed() bool     { return false }
func (o outlives) TempDir() string {
	dir, err := os.MkdirTemp("", "concurrency")
	if err != nil {
		o.Fatal(err)
	}
	o.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var common sharedServer

type sharedServer struct {
	mu       sync.Mutex
	srv      *etcdtest.Server
	users    map[string]bool
	cleanups []func()
}

func (c *sharedServer) close() {
	for i := range c.cleanups {
		c.cleanups[len(c.cleanups)-1-i]()
	}
}

// SharedServer returns the server of all tests that do nothing to it, each with keys of its own.
// A test that runs again (-count) gets another one: keys of its first run may still stand.
func SharedServer(t *testing.T) *etcdtest.Server {
	t.Helper()
	c := &common
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.srv == nil || c.users[t.Name()] {
		c.srv = etcdtest.Start(outlives{t}, etcdtest.Options{Args: []string{"--unsafe-no-fsync"}})
		c.users = map[string]bool{}
	}
	c.users[t.Name()] = true
	return c.srv
}

// WaitRenewals returns when n renewals that began after the call have been accepted. It fails the
// test if the session ends before.
func WaitRenewals(t testing.TB, s *Session, n int) {
	t.Helper()
	called, last := s.clock(), s.soft.Load()
	for n > 0 {
		select {
		case <-s.Done():
			t.Fatalf("the session has ended: %v", s.Check())
		case <-time.After(5 * time.Millisecond):
		}
		soft := s.soft.Load()
		began := core.Time(soft) - (s.timing.Span() - s.timing.Grace)
		if soft != last && began >= called {
			n--
		}
		last = soft
	}
}
