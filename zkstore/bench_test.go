package zkstore_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/zktest"
)

// TestHandOversBesideGoZookeeper measures hand-overs of one name between 8 clients, each of which
// stands again as soon as it has given up, in turns with go-zookeeper's Lock.
func TestHandOversBesideGoZookeeper(t *testing.T) {
	if os.Getenv("PRIMACY_ZK") != "bench" {
		t.Skip("PRIMACY_ZK=bench runs it")
	}
	srv := zktest.Start(t, zktest.Options{Config: long, NoSync: os.Getenv("PRIMACY_ZK_NOSYNC") != ""})
	const clients, span = 8, time.Second
	s := openAt(t, srv.Addr())
	defer s.Close()
	var conns []*zk.Conn
	var leases []driver.Lease
	for i := range clients {
		conns = append(conns, plain(t, srv.Addr()))
		leases = append(leases, grantAt(t, s, fmt.Sprint(i), 20*time.Second))
		keep(t, leases[i])
	}
	stats := func() (requests, writes int64) {
		text, err := srv.Ask("srvr")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			_, _ = fmt.Sscanf(line, "Received: %d", &requests)
			_, _ = fmt.Sscanf(line, "Zxid: 0x%x", &writes)
		}
		return requests, writes
	}
	run := func(what string, one func(i, n int) error) float64 {
		var count atomic.Int64
		requests, writes := stats()
		var all sync.WaitGroup
		end := time.Now().Add(span)
		for i := range clients {
			all.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					if err := one(i, n); err != nil {
						t.Error(err)
						return
					}
					count.Add(1)
				}
			})
		}
		all.Wait()
		r, w := stats()
		t.Logf("%s: %.2f requests and %.2f writes a hand-over", what, float64(r-requests)/float64(count.Load()), float64(w-writes)/float64(count.Load()))
		return float64(count.Load()) / span.Seconds()
	}
	var theirs, ours, exchanged []float64
	for round := range 5 {
		locks := make([]*zk.Lock, clients)
		for i := range locks {
			locks[i] = zk.NewLock(conns[i], fmt.Sprintf("/lock%d", round), zk.WorldACL(zk.PermAll))
		}
		theirs = append(theirs, run("theirs", func(i, _ int) error {
			if err := locks[i].Lock(); err != nil {
				return err
			}
			return locks[i].Unlock()
		}))
		ours = append(ours, run("ours", func(i, n int) error {
			p := enterAt(t, leases[i], fmt.Sprintf("plain%d", round), fmt.Sprint(round, "p", i, "-", n))
			if _, err := drivertest.Await(t.Context(), leases[i], p); err != nil {
				return err
			}
			return leases[i].Release(t.Context(), p)
		}))
		places := make([]driver.Place, clients)
		exchanged = append(exchanged, run("exchanged", func(i, n int) (err error) {
			name := fmt.Sprintf("ex%d", round)
			if n == 0 {
				places[i] = enterAt(t, leases[i], name, fmt.Sprint(round, "x", i, "-", n))
			}
			if _, err = drivertest.Await(t.Context(), leases[i], places[i]); err != nil {
				return err
			}
			c := driver.Claim{Name: name, ID: fmt.Sprint(round, "x", i, "-", n+1), Seat: []string{"2", ""}[n%2]}
			places[i], err = leases[i].(driver.Exchanger).Exchange(t.Context(), places[i], c)
			return err
		}))
		for i := range places {
			_ = leases[i].Release(t.Context(), places[i])
		}
	}
	t.Logf("hand-overs/s, five rounds: go-zookeeper's Lock %.0f, claim and release %.0f, exchange %.0f", theirs, ours, exchanged)
}
