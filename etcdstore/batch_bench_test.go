package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// locker locks and unlocks the i-th name once.
type locker func(ctx context.Context, i int) error

// ours claims and releases under one lease, which is not renewed: benchmarks end before it does.
func ours(b *testing.B, endpoints []string) locker {
	b.Helper()
	l := grant(b, open(b, endpoints...), "bench", 5*time.Minute)
	var ids atomic.Int64
	return func(ctx context.Context, i int) error {
		p, err := l.Claim(ctx, driver.Claim{Name: fmt.Sprintf("ours-%d", i), ID: fmt.Sprint(ids.Add(1))})
		if err != nil {
			return err
		}
		return l.Release(ctx, p[0])
	}
}

// theirs is the same with etcd's own package.
func theirs(b *testing.B, endpoints []string) locker {
	b.Helper()
	c := plainClient(b, endpoints...)
	s := etcdSession(b, c)
	var made sync.Map
	return func(ctx context.Context, i int) error {
		m, ok := made.Load(i)
		if !ok {
			m, _ = made.LoadOrStore(i, concurrency.NewMutex(s, fmt.Sprintf("theirs-%d", i)))
		}
		if err := m.(*concurrency.Mutex).Lock(ctx); err != nil {
			return err
		}
		return m.(*concurrency.Mutex).Unlock(ctx)
	}
}

func etcdSession(b *testing.B, c *clientv3.Client) *concurrency.Session {
	b.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(300))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

var workers = []int{1, 64, 1024}

// BenchmarkLockUnlock is a lock taken and given back by so many goroutines, each with a name of
// its own.
func BenchmarkLockUnlock(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{})
	for _, side := range []struct {
		name string
		make func(*testing.B, []string) locker
	}{{"primacy", ours}, {"etcd", theirs}} {
		for _, n := range workers {
			b.Run(fmt.Sprintf("%s/goroutines=%d", side.name, n), func(b *testing.B) {
				do := side.make(b, []string{srv.Endpoint()})
				b.ReportAllocs()
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				crowd(b, n, func(i int) bool { return left.Add(-1) >= 0 }, do)
			})
		}
	}
}

// crowd runs n goroutines that lock and unlock as long as more says so, and returns how often
// they did.
func crowd(b *testing.B, n int, more func(i int) bool, do locker) int64 {
	b.Helper()
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range n {
		all.Go(func() {
			for more(i) {
				if err := do(context.Background(), i); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return done.Load()
}

// BenchmarkAgainstMutex runs ours and etcd's own Mutex in slices that alternate, and tells the
// ratio: -benchtime=7x is seven pairs. The time of an operation has no meaning here.
func BenchmarkAgainstMutex(b *testing.B) {
	const slice = 700 * time.Millisecond
	for _, members := range []int{1, 3} {
		endpoints := etcdtest.StartCluster(b, members, etcdtest.Options{}).Endpoints()
		for _, n := range workers {
			b.Run(fmt.Sprintf("members=%d/goroutines=%d", members, n), func(b *testing.B) {
				us, them := ours(b, endpoints), theirs(b, endpoints)
				var a, c, ratios []float64
				for range b.N {
					x, y := perSecond(b, n, slice, us), perSecond(b, n, slice, them)
					a, c, ratios = append(a, x), append(c, y), append(ratios, x/y)
				}
				b.ReportMetric(median(a), "ours/s")
				b.ReportMetric(median(c), "etcd/s")
				b.ReportMetric(median(ratios), "ratio")
				b.ReportMetric(slices.Min(ratios), "least")
			})
		}
	}
}

func perSecond(b *testing.B, n int, d time.Duration, do locker) float64 {
	b.Helper()
	begin := time.Now()
	done := crowd(b, n, func(int) bool { return time.Since(begin) < d }, do)
	return float64(done) / time.Since(begin).Seconds()
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// BenchmarkWin is one process that comes to hold 10,000 names nobody else wants, with so many
// goroutines; 0: in one call. It alternates with etcd's own Election, and tells the ratio of the
// times.
func BenchmarkWin(b *testing.B) {
	const names = 10_000
	endpoints := etcdtest.StartCluster(b, 1, etcdtest.Options{}).Endpoints()
	for _, n := range []int{64, 256, 0} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s, c := open(b, endpoints...), plainClient(b, endpoints...)
			var a, e, ratios []float64
			for range b.N {
				x, y := winOurs(b, s, n, names), winTheirs(b, c, max(n, 64), names)
				a, e, ratios = append(a, x), append(e, y), append(ratios, y/x)
			}
			b.ReportMetric(median(a), "ours-s")
			b.ReportMetric(median(e), "etcd-s")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(slices.Min(ratios), "least")
		})
	}
}

// winOurs returns how many seconds it took.
func winOurs(b *testing.B, s driver.Store, n, names int) float64 {
	b.Helper()
	l := grant(b, s, "bench", 5*time.Minute)
	claims := make([]driver.Claim, names)
	for i := range claims {
		claims[i] = driver.Claim{Name: fmt.Sprintf("win-%d", i), ID: fmt.Sprint(i)}
	}
	begin := time.Now()
	if n == 0 {
		if _, err := l.Claim(context.Background(), claims...); err != nil {
			b.Fatal(err)
		}
	} else {
		each(b, n, names, func(ctx context.Context, i int) error {
			p, err := l.Claim(ctx, claims[i])
			if err == nil && !p[0].Held {
				err = fmt.Errorf("%+v is not held", p[0])
			}
			return err
		})
	}
	took := time.Since(begin).Seconds()
	if err := l.Close(soon(b)); err != nil {
		b.Fatal(err)
	}
	return took
}

// winTheirs is the same with etcd's own package.
func winTheirs(b *testing.B, c *clientv3.Client, n, names int) float64 {
	b.Helper()
	s, err := concurrency.NewSession(c, concurrency.WithTTL(300))
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	each(b, n, names, func(ctx context.Context, i int) error {
		return concurrency.NewElection(s, fmt.Sprintf("etcdwin-%d", i)).Campaign(ctx, "v")
	})
	took := time.Since(begin).Seconds()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return took
}

// each does all i below names with n goroutines.
func each(b *testing.B, n, names int, do locker) {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < names; i = int(next.Add(1)) - 1 {
				if err := do(context.Background(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
