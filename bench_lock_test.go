package primacy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/memstore"
)

// benchStores are what the locks are measured on: a store in memory, where all that costs is ours, and a real etcd.
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

// BenchmarkLockContended is some processes with eight goroutines each that want one lock all the time.
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

// BenchmarkLockHandedOn is what a hand-over inside a process costs: the store is asked as seldom as possible.
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
