package redisstore_test

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// forked has several processes beside each other: each is a store of its own here.
func contenders(b *testing.B, clients, each int) (leases []driver.Lease) {
	srv := redistest.Start(b, redistest.Options{})
	b.Cleanup(func() {
		stats := fmt.Sprint(srv.Do("INFO", "commandstats"))
		m := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=\d+,usec_per_call=([0-9.]+)`).FindStringSubmatch(stats)
		calls, _ := strconv.ParseFloat(m[1], 64)
		per, _ := strconv.ParseFloat(m[2], 64)
		b.ReportMetric(calls/float64(b.N), "trips/op")
		b.ReportMetric(per, "µs/script")
	})
	for range clients {
		s := openAt(b, redisstore.Config{Addrs: []string{srv.Addr()}})
		b.Cleanup(func() { s.Close() })
		l, err := s.Grant(b.Context(), "x", time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		for range each {
			leases = append(leases, l)
		}
	}
	return leases
}

// BenchmarkHandOver: 8 contenders for one name, each behind the others whenever it has held. It
// tells hand-overs a second and the least share of a contender against the largest.
func BenchmarkHandOver(b *testing.B) {
	for _, shape := range [][2]int{{1, 8}, {4, 2}} {
		b.Run(fmt.Sprintf("%dx%d", shape[0], shape[1]), func(b *testing.B) {
			leases := contenders(b, shape[0], shape[1])
			var done atomic.Int64
			counts := make([]int64, len(leases))
			var all sync.WaitGroup
			b.ResetTimer()
			begun := time.Now()
			for i, l := range leases {
				all.Go(func() {
					for n := 0; done.Add(1) <= int64(b.N); n++ {
						p, err := l.Claim(b.Context(), driver.Claim{Name: "n", Seat: strconv.Itoa(i), ID: fmt.Sprint(i, "-", n)})
						if err == nil && !p[0].Held {
							p[0], err = drivertest.Await(b.Context(), l, p[0])
						}
						if err == nil {
							err = l.Release(b.Context(), p[0])
						}
						if err != nil {
							b.Error(err)
							return
						}
						counts[i]++
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/time.Since(begun).Seconds(), "handovers/s")
			least, most := counts[0], counts[0]
			for _, n := range counts {
				least, most = min(least, n), max(most, n)
			}
			b.ReportMetric(float64(least)/float64(most), "share")
		})
	}
}

// BenchmarkUncontended: lock and unlock of names that nobody else wants.
func BenchmarkUncontended(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			l := contenders(b, 1, 1)[0]
			var done atomic.Int64
			var all sync.WaitGroup
			b.ResetTimer()
			begun := time.Now()
			for i := range n {
				all.Go(func() {
					for k := 0; done.Add(1) <= int64(b.N); k++ {
						p, err := l.Claim(b.Context(), driver.Claim{Name: strconv.Itoa(i), ID: fmt.Sprint(i, "-", k)})
						if err == nil {
							err = l.Release(b.Context(), p[0])
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/time.Since(begun).Seconds(), "pairs/s")
		})
	}
}
