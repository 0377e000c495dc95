//go:build unix

package embedded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/servertest"
)

// openNode opens a node of this process. Several of one directory know nothing of each other: the
// lock is per open file.
func openNode(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func client(t *testing.T, n *Node) *clientv3.Client {
	t.Helper()
	c, err := newClient(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// put writes until it is acknowledged, and returns the revision.
func put(t *testing.T, n *Node, key, value string, o ...clientv3.OpOption) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c := client(t, n)
	for {
		r, err := c.Put(ctx, key, value, o...)
		if err == nil {
			return r.Header.Revision
		}
		if ctx.Err() != nil {
			t.Fatalf("put %s: %v", key, err)
		}
	}
}

func get(t *testing.T, n *Node, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	r, err := client(t, n).Get(ctx, key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if len(r.Kvs) == 0 {
		return ""
	}
	return string(r.Kvs[0].Value)
}

// TestLeaseSurvivesHandOver: a leader must not fall because somebody else's process ended.
func TestLeaseSurvivesHandOver(t *testing.T) {
	t.Parallel()
	dir := privateDir(t)
	first, second := openNode(t, dir), openNode(t, dir)
	c := client(t, second)
	for {
		lease, err := c.Grant(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if lease.TTL != 1 {
			t.Errorf("a lease of 1 s was granted %d s", lease.TTL)
		}
		_, err = c.Put(t.Context(), "short", "v", clientv3.WithLease(lease.ID))
		if err == nil {
			break
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it ended before: the machine is busy
			t.Fatal(err)
		}
	}
	long, err := c.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	put(t, second, "k", "v", clientv3.WithLease(long.ID))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if is, err := second.Changed(t.Context(), false); !is || err != nil {
		t.Fatalf("Changed: %v, %v", is, err)
	}
	if r, err := c.TimeToLive(t.Context(), long.ID); err != nil || r.TTL < 500 {
		t.Errorf("the lease has %+v left after the hand-over (%v)", r, err)
	}
	// And the one that nobody renews still ends.
	for end := time.Now().Add(waitLimit); get(t, second, "short") != ""; {
		if time.Now().After(end) {
			t.Fatal("a lease of 1 s never ended")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := get(t, second, "k"); got != "v" {
		t.Errorf("got %q, want v", got)
	}
}

func TestEachDirectoryIsItsOwnCluster(t *testing.T) {
	var ids [2]uint64
	for i := range ids {
		r, err := client(t, openNode(t, privateDir(t))).Get(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = r.Header.ClusterId
	}
	if ids[0] == ids[1] {
		t.Errorf("two stores have the cluster ID %x: their tokens cannot be told apart", ids[0])
	}
}

func TestChanged(t *testing.T) {
	dir := privateDir(t)
	first, second := openNode(t, dir), openNode(t, dir)
	if !first.Hosting() || second.Hosting() {
		t.Fatalf("hosting: %v, %v, want true, false", first.Hosting(), second.Hosting())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := second.Changed(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("with a dead context: %v", err)
	}
	first.Close()
	if is, err := second.Changed(t.Context(), false); !is || err != nil {
		t.Errorf("after the host left: %v, %v, want true", is, err)
	}
	second.Close()
	if is, err := second.Changed(t.Context(), true); is || err != nil {
		t.Errorf("after Close, from hosting: %v, %v, want false", is, err)
	}
	if _, err := second.Changed(t.Context(), false); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v, want errClosed", err)
	}
	if err := second.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestRemovedDirectory: a store that begins anew in the place of one in use would elect a second
// leader.
func TestRemovedDirectory(t *testing.T) {
	dir := privateDir(t)
	first, second := openNode(t, dir), openNode(t, dir)
	put(t, second, "k", "v")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	third := openNode(t, dir)
	for _, n := range []*Node{first, second} {
		if _, err := n.Changed(t.Context(), n == first); n == second && !errors.Is(err, errReplaced) {
			t.Errorf("the joiner learned %v", err)
		}
		if _, err := n.Changed(t.Context(), false); !errors.Is(err, errReplaced) {
			t.Errorf("learned %v, want %v", err, errReplaced)
		}
		if n.Hosting() {
			t.Error("it still hosts a store that has no directory")
		}
	}
	if !third.Hosting() || get(t, third, "k") != "" {
		t.Error("the new store is not new")
	}
}

func TestFrozenHost(t *testing.T) {
	servertest.Long(t, "race-program")
	dir := privateDir(t)
	host := startChild(t, dir)
	host.opened()
	joined := openNode(t, dir)
	put(t, joined, "k", "v")
	host.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := Open(ctx, dir, Options{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), joined.lock.holder()) {
		t.Errorf("Open beside a frozen host: %v, want a deadline and the process ID %s", err, joined.lock.holder())
	}
	if joined.Hosting() {
		t.Error("took over from a host that may come back")
	}
	host.cmd.Process.Signal(syscall.SIGCONT)
	if got := get(t, openNode(t, dir), "k"); got != "v" {
		t.Errorf("after the thaw: got %q, want v", got)
	}
}

// TestCancelledOpen gives up at every stage of a first start. Whatever that leaves is in nobody's
// way.
func TestCancelledOpen(t *testing.T) {
	dir := privateDir(t)
	for wait := time.Duration(0); wait < time.Second; wait += 5 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		n, err := Open(ctx, dir, Options{})
		cancel()
		if err == nil {
			n.Close()
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Open with %v left: %v", wait, err)
		}
	}
	put(t, openNode(t, dir), "k", "v")
}

// TestForksWhileStarting: a child has its parent's open files until its exec, and with them the
// locks that etcd believed to have given up.
func TestForksWhileStarting(t *testing.T) {
	servertest.Long(t, "race-program")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				exec.Command("/bin/true").Run()
			}
		})
	}
	for range 4 {
		dir := privateDir(t)
		put(t, openNode(t, dir), "k", "v")
	}
}

// TestFullStoreHeals: etcd refuses every write to a store that was once full until somebody cleans
// it up.
func TestFullStoreHeals(t *testing.T) {
	servertest.Long(t, "race-program")
	dir := privateDir(t)
	n, err := Open(t.Context(), dir, Options{quota: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { n.Close() }()
	overfill(t, n)
	put(t, n, "k", "small") // tries until the alarm is off
	overfill(t, n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err = Open(t.Context(), dir, Options{quota: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	put(t, n, "k", "small")
}

// overfill writes until etcd takes no more.
func overfill(t *testing.T, n *Node) {
	t.Helper()
	c := client(t, n)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = c.Put(t.Context(), "k", strings.Repeat("x", 1<<20))
	}
	if err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Fatalf("writing 100 MiB into 4: %v", err)
	}
}

func TestNothingLeaks(t *testing.T) {
	servertest.Long(t, "race-program")
	parent := t.TempDir()
	cycle := func(name string) {
		dir := filepath.Join(parent, name)
		host, err := Open(t.Context(), dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		joiner, err := Open(t.Context(), dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := newClient(joiner)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		host.Close()
		if is, err := joiner.Changed(t.Context(), false); !is || err != nil {
			t.Fatal(is, err)
		}
		c.Close()
		joiner.Close()
	}
	cycle("first") // what etcd and gRPC make once for the process
	routines, files := runtime.NumGoroutine(), openFiles(t)
	for _, name := range []string{"a", "b", strings.Repeat("long", 40)} {
		cycle(name)
	}
	for end := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= routines && openFiles(t) <= files {
			return
		}
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("goroutines: %d, then %d; files: %d, then %d\n%s", routines, runtime.NumGoroutine(), files,
				openFiles(t),
				stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("cannot count open files here")
	}
	return len(entries)
}
