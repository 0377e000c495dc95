package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// turnTaker takes the lock when its turn has come, and gives it back.
type turnTaker struct {
	lock, unlock func(ctx context.Context) error
}

// ourTurns and theirTurns make clients with connections of their own, all in one line.
func ourTurns(b *testing.B, endpoint string, name string) turnTaker {
	l := grant(b, open(b, endpoint), "bench", 5*time.Minute)
	stop, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	go func() { // as a session does
		for stop.Err() == nil {
			_, _ = drivertest.News(stop, l)
		}
	}()
	var ids atomic.Int64
	var p driver.Place
	return turnTaker{func(ctx context.Context) error {
		places, err := l.Claim(ctx, driver.Claim{Name: name, ID: l.ID() + "-" + strconv.FormatInt(ids.Add(1), 10)})
		if err != nil {
			return err
		}
		if p = places[0]; !p.Held {
			_, err = drivertest.Await(ctx, l, p)
		}
		return err
	}, func(ctx context.Context) error { return l.Release(ctx, p) }}
}

func theirTurns(b *testing.B, endpoint string, name string) turnTaker {
	m := concurrency.NewMutex(etcdSession(b, plainClient(b, endpoint)), name)
	return turnTaker{m.Lock, m.Unlock}
}

// received returns how many messages etcd has been sent, and how many watch events it has sent.
func received(b *testing.B, srv *etcdtest.Server) (messages, events float64) {
	b.Helper()
	for _, m := range srv.Metrics(b) {
		switch {
		case m.Name == "grpc_server_msg_received_total" && strings.HasPrefix(m.Label("grpc_service"), "etcdserverpb."):
			messages += m.Value
		case m.Name == "etcd_debugging_mvcc_events_total":
			events = m.Value
		}
	}
	return messages, events
}

// BenchmarkHandOver is one lock handed on among so many clients, each with a connection of its
// own: its requests and watch events a hand-over too.
func BenchmarkHandOver(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	for _, side := range []struct {
		name string
		make func(*testing.B, string, string) turnTaker
	}{{"primacy", ourTurns}, {"etcd", theirTurns}} {
		for _, n := range []int{2, 8, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", side.name, n), func(b *testing.B) {
				b.ReportAllocs()
				name := fmt.Sprintf("turn-%s-%d-%d", side.name, n, b.N)
				takers := make([]turnTaker, n)
				for i := range takers {
					takers[i] = side.make(b, srv.Endpoint(), name)
				}
				messages, events := received(b, srv)
				var left atomic.Int64
				left.Store(int64(b.N))
				var inside atomic.Int64
				b.ResetTimer()
				var all sync.WaitGroup
				for _, t := range takers {
					all.Go(func() {
						for left.Add(-1) >= 0 {
							if err := t.lock(context.Background()); err != nil {
								b.Error(err)
								return
							}
							if inside.Add(1) != 1 {
								b.Error("two hold the lock at once")
							}
							inside.Add(-1)
							if err := t.unlock(context.Background()); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				m, e := received(b, srv)
				b.ReportMetric((m-messages)/float64(b.N), "requests/op")
				b.ReportMetric((e-events)/float64(b.N), "events/op")
			})
		}
	}
}

// BenchmarkResign is the time from a release to the return of the next one's wait, who has stood
// for a while.
func BenchmarkResign(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	for _, side := range []struct {
		name string
		make func(*testing.B, string, string) turnTaker
	}{{"primacy", ourTurns}, {"etcd", theirTurns}} {
		b.Run(side.name, func(b *testing.B) {
			ctx, name := context.Background(), fmt.Sprint("resign-", side.name, b.N)
			holds, next := side.make(b, srv.Endpoint(), name), side.make(b, srv.Endpoint(), name)
			if err := holds.lock(ctx); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for range b.N {
				done := make(chan error, 1)
				go func() { done <- next.lock(ctx) }()
				time.Sleep(25 * time.Millisecond) // how long it has stood
				begun := time.Now()
				if err := holds.unlock(ctx); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
				holds, next = next, holds
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
