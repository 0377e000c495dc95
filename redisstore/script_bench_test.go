package redisstore_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// BenchmarkScripts: what a script takes on the server, by itself: one caller, so that nothing runs
// beside it. Of parts of some hundred calls the fastest counts, for the machine is not idle. Lone:
// lock and unlock of a name that nobody else wants. Line: the same with 7 others in the line.
func BenchmarkScripts(b *testing.B) {
	srv := redistest.Start(b, redistest.Options{})
	s := openAt(b, redisstore.Config{Addrs: []string{srv.Addr()}})
	b.Cleanup(func() { s.Close() })
	var leases []driver.Lease
	for range 8 {
		l, err := s.Grant(b.Context(), "x", time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		leases = append(leases, l)
	}
	claim := func(b *testing.B, i, n int) driver.Place {
		p, err := leases[i%8].Claim(b.Context(), driver.Claim{Name: "n", ID: fmt.Sprint(b.Name(), b.N, i, "-", n)})
		if err != nil {
			b.Fatal(err)
		}
		return p[0]
	}
	const part = 300
	for name, among := range map[string]int{"lone": 1, "line": 8} {
		b.Run(name, func(b *testing.B) {
			stand := make([]driver.Place, among)
			for i := range stand[1:] {
				stand[i+1] = claim(b, i+1, -1)
			}
			n, least := 0, math.Inf(1)
			for b.Loop() {
				srv.Do("CONFIG", "RESETSTAT")
				for range part {
					stand[n%among] = claim(b, n%among, n)
					n++
					p := stand[n%among]
					if err := leases[n%among].Release(b.Context(), driver.Place{Name: p.Name, ID: p.ID, Token: p.Token}); err != nil {
						b.Fatal(err)
					}
				}
				m := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=\d+,usec_per_call=([0-9.]+)`).FindStringSubmatch(fmt.Sprint(srv.Do("INFO", "commandstats")))
				per, _ := strconv.ParseFloat(m[1], 64)
				least = min(least, per)
			}
			b.ReportMetric(least, "µs/script")
			for i := range stand[1:] {
				_ = leases[i+1].Release(b.Context(), stand[i+1])
			}
		})
	}
}
