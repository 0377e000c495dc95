package primacy

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/memstore"
)

// benchStores are what the locks are measured on: a store in memory, where all that costs is ours,
// and a real etcd.
func benchStores(b *testing.B, f func(b *testing.B, open func() driver.Store)) {
	b.Run("mem", func(b *testing.B) {
		st := memstore.New(memstore.Options{})
		f(b, func() driver.Store { return st })
	})
	b.Run("etcd", func(b *testing.B) {
		srv := etcdtest.Start(b, etcdtest.Options{})
		f(b, func() driver.Store {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
			if err != nil {
				b.Fatal(err)
			}
			st, err := etcdstore.New(context.Background(), c, etcdstore.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _, _ = st.Close(), c.Close() })
			return st
		})
	})
}

// benchSession is a session on the real clock.
func benchSession(b *testing.B, on driver.Store, id string) *Session {
	b.Helper()
	s, err := NewSession(on, &Options{ID: id})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// lockOnce has the lock once, asking Check in the hold.
func lockOnce(b *testing.B, m *Mutex) {
	t, err := m.Lock(context.Background())
	if err == nil {
		err = t.Check()
	}
	if err == nil {
		err = t.Resign(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkLock is one goroutine that nobody is in the way of.
func BenchmarkLock(b *testing.B) {
	benchStores(b, func(b *testing.B, open func() driver.Store) {
		m := benchSession(b, open(), "a").Mutex("x", nil)
		lockOnce(b, m)
		b.ReportAllocs()
		for b.Loop() {
			lockOnce(b, m)
		}
	})
}

// BenchmarkLockApart is so many goroutines, each with a lock of its own that nobody else wants.
func BenchmarkLockApart(b *testing.B) {
	benchStores(b, func(b *testing.B, open func() driver.Store) {
		for _, n := range []int{64, 1024} {
			b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
				s := benchSession(b, open(), "a")
				lockOnce(b, s.Mutex("x", nil))
				var wg sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ReportAllocs()
				b.ResetTimer()
				for i := range n {
					m := s.Mutex(fmt.Sprint("x", i), nil)
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							lockOnce(b, m)
						}
					})
				}
				wg.Wait()
			})
		}
	})
}

// BenchmarkLockContended is some processes with eight goroutines each that want one lock all the
// time.
func BenchmarkLockContended(b *testing.B) {
	benchStores(b, func(b *testing.B, open func() driver.Store) {
		for _, n := range []int{1, 4} {
			b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
				var wg sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ReportAllocs()
				for p := range n {
					m := benchSession(b, open(), fmt.Sprint("p", p)).Mutex("x", nil)
					for range 8 {
						wg.Go(func() {
							for left.Add(-1) >= 0 {
								lockOnce(b, m)
							}
						})
					}
				}
				wg.Wait()
			})
		}
	})
}

// BenchmarkLockHandedOn is what a hand-over inside a process costs: the store is asked as seldom as
// possible.
func BenchmarkLockHandedOn(b *testing.B) {
	m := benchSession(b, memstore.New(memstore.Options{}), "a").Mutex("x", &MutexOptions{Turns: core.MaxTurns})
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	for range 8 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				lockOnce(b, m)
			}
		})
	}
	wg.Wait()
}

// crowdSession returns a session whose lease outlasts the benchmark.
func crowdSession(b *testing.B, store driver.Store, id string) *Session {
	b.Helper()
	s, err := NewSession(store, &Options{ID: id, TTL: 5 * time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// take iterates until n terms were won.
func takeTerms(es *Elections, n int) []*Term {
	all := make([]*Term, 0, n)
	for term, err := range es.Terms(context.Background()) {
		if err != nil {
			panic(err)
		}
		if all = append(all, term); len(all) == n {
			break
		}
	}
	return all
}

// BenchmarkWin10000 is one process that wins 10,000 elections nobody else stands in, and resigns
// them: one operation is all of that.
func BenchmarkWin10000(b *testing.B) {
	names := manyNames(10_000)
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprintf("campaign-%d", callers), func(b *testing.B) {
			s := crowdSession(b, memstore.New(memstore.Options{}), "a")
			b.ReportAllocs()
			for b.Loop() {
				for _, term := range campaignAll(s, names, callers) {
					_ = term.Resign(context.Background())
				}
			}
		})
	}
	b.Run("elections", func(b *testing.B) {
		s := crowdSession(b, memstore.New(memstore.Options{}), "a")
		b.ReportAllocs()
		for b.Loop() {
			es := s.Elections(nil)
			_ = es.Stand(names...)
			_ = es.Resign(context.Background(), takeTerms(es, len(names))...)
			_ = es.Close(context.Background())
		}
	})
}

// campaignAll wins all names by Election.Campaign, so many at a time.
func campaignAll(s *Session, names []string, callers int) []*Term {
	held := make([]*Term, len(names))
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for j := i; j < len(names); j += callers {
				term, err := s.Election(names[j]).Campaign(context.Background(), nil)
				if err != nil {
					panic(err)
				}
				held[j] = term
			}
		})
	}
	all.Wait()
	return held
}

// nowhere is a store in which everybody waits for ever, and which keeps nothing.
type nowhere struct{ driver.Store }

type nowhereLease struct{ driver.Lease }

func (s nowhere) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	l, err := s.Store.Grant(ctx, owner, ttl)
	return nowhereLease{l}, err
}

func (l nowhereLease) Claim(_ context.Context, claims ...driver.Claim) ([]driver.Place, error) {
	places := make([]driver.Place, len(claims))
	for i, c := range claims {
		places[i] = driver.Place{Name: c.Name, ID: c.ID, Token: 7}
	}
	return places, nil
}

func (l nowhereLease) Follow(...driver.Place) {}

// BenchmarkWaiting is what an election that waits costs the library in memory. The time means
// nothing.
func BenchmarkWaiting(b *testing.B) {
	const n = 10_000
	names := manyNames(n)
	for b.Loop() {
		s := crowdSession(b, nowhere{memstore.New(memstore.Options{})}, "a")
		es := s.Elections(nil)
		before, objects := heapInUse()
		_ = es.Stand(names...)
		for phases(s)[core.Waiting] < n {
			time.Sleep(time.Millisecond)
		}
		after, more := heapInUse()
		b.ReportMetric(float64(after-before)/n, "B/waiting")
		b.ReportMetric(float64(more-objects)/n, "objects/waiting")
		runtime.KeepAlive(es)
	}
}

// BenchmarkHeld is what an election that is held costs the library and the store in memory.
func BenchmarkHeld(b *testing.B) {
	const n = 10_000
	names := manyNames(n)
	for b.Loop() {
		s := crowdSession(b, memstore.New(memstore.Options{}), "a")
		es := s.Elections(nil)
		before, objects := heapInUse()
		_ = es.Stand(names...)
		terms := takeTerms(es, n)
		after, more := heapInUse()
		for _, t := range terms {
			t.Context()
		}
		full, _ := heapInUse()
		b.ReportMetric(float64(after-before)/n, "B/held")
		b.ReportMetric(float64(full-after)/n, "B/context")
		b.ReportMetric(float64(more-objects)/n, "objects/held")
		runtime.KeepAlive(es)
	}
}

func heapInUse() (bytes, objects uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

// phases counts the claims of a session by where they stand.
func phases(s *Session) map[core.ClaimPhase]int {
	n := map[core.ClaimPhase]int{}
	s.mu.Lock()
	l := s.lease
	s.mu.Unlock()
	if l == nil {
		return n
	}
	for _, c := range l.standingClaims() {
		c.mu.Lock()
		n[c.core.Phase()]++
		c.mu.Unlock()
	}
	return n
}

// BenchmarkLeaseEnd100000 is the end of a lease that holds 100,000 terms: until the last context is
// cancelled, and until all are told.
func BenchmarkLeaseEnd100000(b *testing.B) {
	const n = 100_000
	names := manyNames(n)
	for b.Loop() {
		b.StopTimer()
		s := crowdSession(b, memstore.New(memstore.Options{}), "a")
		es := s.Elections(nil)
		_ = es.Stand(names...)
		terms := takeTerms(es, n)
		for _, t := range terms {
			t.Context()
		}
		b.StartTimer()
		began := time.Now()
		terms[0].l.end(core.Expired)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/cancel-all")
		ended := 0
		for term, err := range es.Terms(context.Background()) {
			if err == nil || term.Context().Err() == nil {
				b.Fatal("a term lives on")
			}
			if ended++; ended == n {
				break
			}
		}
	}
}

// BenchmarkTakeOver100000 is the end of a process that held 100,000 elections, until another that
// stood second has won the last of them.
func BenchmarkTakeOver100000(b *testing.B) {
	const n = 100_000
	names := manyNames(n)
	for b.Loop() {
		b.StopTimer()
		store := memstore.New(memstore.Options{})
		first, second := crowdSession(b, store, "a"), crowdSession(b, store, "b")
		es1, es2 := first.Elections(nil), second.Elections(nil)
		_ = es1.Stand(names...)
		held := takeTerms(es1, n)
		_ = es2.Stand(names...)
		for phases(second)[core.Waiting] < n {
			time.Sleep(time.Millisecond)
		}
		b.StartTimer()
		began := time.Now()
		_ = held[0].l.stored.Close(context.Background())
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/in-the-store")
		takeTerms(es2, n)
	}
}
