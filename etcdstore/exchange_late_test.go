package etcdstore

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedExchangeWhoseNewClaimIsGivenUpFirst: the new claim is released, the request
// arrives late, then the old one is released.
func TestSimulatedExchangeWhoseNewClaimIsGivenUpFirst(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		sent := g.capture(s.lineDir("x") + l.ID() + ".2")
		c.Hold(0, 0, true, true)
		_, err := l.Exchange(ending(t, 500*time.Millisecond), p, reentry("2", "x2"))
		if err == nil || driver.IsFinal(err) {
			t.Fatalf("Exchange = %v", err)
		}
		g.set(func() { g.before = nil })
		if err := l.Release(ending(t, 10*time.Second), driver.Place{Name: "x", Seat: "2", ID: "x2"}); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		if got := tokensOf(c); len(got) != 0 {
			t.Errorf("seed 1: tokens %v stand after both were given up", got)
		}
	})
}

// TestSimulatedExchangeThatArrivesAfterAMove: the request bears the lease of before. Without the
// mark it enters under a lease that nobody renews.
func TestSimulatedExchangeThatArrivesAfterAMove(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		sent := g.capture(s.lineDir("x") + l.ID() + ".2")
		c.Hold(0, 0, true, true)
		_, err := l.Exchange(ending(t, 500*time.Millisecond), p, reentry("2", "x2"))
		if err == nil || driver.IsFinal(err) {
			t.Fatalf("Exchange = %v", err)
		}
		g.set(func() { g.before = nil })
		c.Hold(0, 0, true, false)
		c.Reset(0, 0)
		was := l.attachment().lease
		changeLeader(c)
		if err := renewedOnce(t, l); err != nil {
			t.Fatal(err)
		}
		if l.attachment().lease == was {
			t.Fatal("not moved")
		}
		sent.arrive(t, c)
		for _, kv := range c.Keys("primacy/x/") {
			if kv.Lease != l.attachment().lease {
				t.Errorf("seed 1: %s hangs on lease %x, renewed is %x", kv.Key, kv.Lease, l.attachment().lease)
			}
		}
	})
}

// TestSimulatedExchangeForAClaimThatWasGivenUp: it cannot enter any more, and the old place goes
// all the same: who is told "gone" does not release it.
func TestSimulatedExchangeForAClaimThatWasGivenUp(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		if err := l.Release(ending(t, 5*time.Second), driver.Place{Name: "x", Seat: "2", ID: "x2"}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Exchange(ending(t, 5*time.Second), p, reentry("2", "x2")); !isGone(err) {
			t.Errorf("seed 1: Exchange = %v, want gone", err)
		}
		if got := tokensOf(c); len(got) != 0 {
			t.Errorf("seed 1: tokens %v stand", got)
		}
	})
}
