package primacy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/primacy-go/primacy/memstore"
)

// benchSession is a session on a store in memory, on the real clock.
func benchSession(b *testing.B, on *memstore.Store, id string) *Session {
	b.Helper()
	s, err := NewSession(on, Options{ID: id})
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
	for _, keep := range []bool{false, true} {
		b.Run(fmt.Sprintf("keep=%v", keep), func(b *testing.B) {
			m := benchSession(b, memstore.New(memstore.Options{}), "a").MutexWith("x", MutexOptions{Keep: keep})
			lockOnce(b, m)
			b.ReportAllocs()
			for b.Loop() {
				lockOnce(b, m)
			}
		})
	}
}

// BenchmarkLockContended is some processes with eight goroutines each that want one lock all the time.
func BenchmarkLockContended(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("processes=%d", n), func(b *testing.B) {
			st := memstore.New(memstore.Options{})
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			for p := range n {
				m := benchSession(b, st, fmt.Sprint("p", p)).Mutex("x")
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
}
