package zkstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// long has servers keep sessions long enough for claims that must outlive a clause without a
// renewal.
var long = []string{"maxSessionTimeout=120000"}

func openAt(t testing.TB, servers ...string) *zkstore.Store {
	t.Helper()
	return openWith(t, zkstore.Config{Servers: servers})
}

func openWith(t testing.TB, c zkstore.Config) *zkstore.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := zkstore.Open(ctx, c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

// quiet is go-zookeeper's logger in tests.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// plain returns a client of go-zookeeper's own, closed with the test.
func plain(t testing.TB, servers ...string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(servers, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	go func() {
		for range events {
		}
	}()
	return c
}

// removeByHand deletes the node with that czxid.
func removeByHand(t testing.TB, c *zk.Conn, token uint64) {
	t.Helper()
	names, _, err := c.Children("/primacy")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "@") {
			continue
		}
		children, _, err := c.Children("/primacy/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range children {
			path := "/primacy/" + name + "/" + child
			if ok, stat, err := c.Exists(path); err == nil && ok && uint64(stat.Czxid) == token {
				if err := c.Delete(path, -1); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatalf("no claim has token %d", token)
}

// harness tells the suite about a server of its own.
func harness(t *testing.T) drivertest.Harness {
	t.Helper()
	srv := zktest.Start(t, zktest.Options{Config: long, NoSync: true})
	c := plain(t, srv.Addr())
	return drivertest.Harness{
		Open:   func(t testing.TB) driver.Store { return openAt(t, srv.Addr()) },
		TTL:    2 * time.Second,
		Remove: func(t testing.TB, _ string, token uint64) { removeByHand(t, c, token) },
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			p := drivertest.NewProxy(t, srv.Addr())
			return openAt(t, p.Addr), p.Cut
		},
		Restart: func(testing.TB) { srv.Restart() },
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harness(t))
}

func TestConformanceOverABadNetwork(t *testing.T) {
	needAll(t)
	h := harness(t)
	h.Faults = &drivertest.Faults{Seed: 1, Delay: 5 * time.Millisecond, Drop: 0.1, Lose: 0.1}
	drivertest.Run(t, h)
}
