package etcdstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

const short = 300 * time.Millisecond

// kept renews a lease as a session does, until it is stopped. It tells when the last renewal that was accepted was sent.
type kept struct {
	stop func() time.Time
}

func keep(t *testing.T, l *lease) kept {
	quit, done := make(chan struct{}), make(chan time.Time, 1)
	stop := sync.OnceFunc(func() { close(quit) })
	t.Cleanup(stop)
	go func() {
		var last time.Time
		for {
			now := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), l.ttl*3/10)
			if err := l.Renew(ctx); err == nil {
				last = now
			} else {
				t.Logf("%v after the last that was accepted: %v", now.Sub(last), err)
			}
			cancel()
			select {
			case <-quit:
				done <- last
				return
			case <-time.After(l.ttl / 5):
			}
		}
	}()
	return kept{func() time.Time { stop(); return <-done }}
}

// pairOf returns a lease with a heartbeat that holds x and is kept, and a place right behind it, in another process.
func pairOf(t *testing.T, c *etcdsim.Cluster, ttl time.Duration) (holder *lease, k kept, waiter *lease, p driver.Place) {
	a, _ := gatedAt(t, c, 0, 0)
	b, _ := gatedAt(t, c, 1, 1)
	holder = granted(t, a, "a", ttl)
	k = keep(t, holder)
	claimed(t, holder, "x")
	waiter = granted(t, b, "b", time.Minute)
	return holder, k, waiter, claimed(t, waiter, "x")
}

// TestSimulatedCrash: a holder with a heartbeat falls silent, and the next in line leads about the ttl later; not before it is over, by the waiter's clock.
func TestSimulatedCrash(t *testing.T) {
	for _, ttl := range []time.Duration{short, 500 * time.Millisecond, time.Second, 1900 * time.Millisecond} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			holder, k, waiter, p := pairOf(t, c, ttl)
			at := held(t, waiter, p)
			time.Sleep(20 * time.Second)
			if len(at) > 0 {
				t.Fatal("the waiter holds while the holder's heart beats")
			}
			last := k.stop()
			took := (<-at).Sub(last)
			if took < ttl || took > ttl*13/10+50*time.Millisecond {
				t.Errorf("ttl %v: the waiter held %v after the last heartbeat was sent", ttl, took)
			}
			if err := holder.Renew(ending(t, time.Second)); !errors.Is(err, driver.ErrGone) {
				t.Errorf("Renew of a session that was ended = %v, want ErrGone", err)
			}
			time.Sleep(100 * time.Millisecond)
			if left := len(c.Keys("primacy/@beat/")); left != 0 {
				t.Errorf("%d heartbeats are left", left)
			}
			if n := len(c.Keys("primacy/")); n != 2 {
				t.Errorf("%d keys are left, want the waiter's record and claim", n)
			}
		})
	}
}
