package etcdstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// awaitsOf returns how many claims hear of something in a hub.
func awaitsOf(h *etcdwire.Hub) int {
	h.Lock()
	defer h.Unlock()
	seen := map[etcdwire.Listener]bool{}
	for _, w := range h.Watches {
		for _, a := range w.Listeners {
			seen[a] = true
		}
	}
	return len(seen)
}

// looksAtLine reports whether req reads a line and does nothing else.
func looksAtLine(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && len(txn.Compare) == 0 && len(txn.Success) >= 2 && txn.Success[0].GetRequestRange() != nil
}

// heldLook has the answer to the next look at a line wait until release is closed.
func (g *gate) heldLook() (came, release chan struct{}) {
	came, release = make(chan struct{}), make(chan struct{})
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			err := do(ctx)
			if looksAtLine(req) {
				select {
				case <-came:
				default:
					close(came)
					<-release
				}
			}
			return err
		}
	})
	return came, release
}

// newsLoop calls News as a session does.
func listening(t *testing.T, l *lease) {
	ctx := ending(t, 10*time.Minute)
	go func() {
		for ctx.Err() == nil {
			if _, err := drivertest.News(ctx, l); isGone(err) {
				return
			}
		}
	}()
}

// touch has the store move on: a watch that begins from now on begins after what was there before.
func touch(t *testing.T, c *etcdsim.Cluster, key string) {
	kv := pb.NewKVClient(simClient(t, c, 9, c.Endpoints()[:1]).ActiveConnection())
	eventually(t, func() bool {
		_, err := kv.Put(ending(t, 2*time.Second), &pb.PutRequest{Key: []byte(key)})
		return err == nil
	})
}

// TestSimulatedFollowedTwiceDuringALook: the answer to a look comes when the place is followed
// anew. The first following must not hear of the line again: it would stay in the hub for ever.
func TestSimulatedFollowedTwiceDuringALook(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		hl := granted(t, first, "a", 4*time.Minute)
		hp := claimed(t, hl, "x")
		s, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		p := claimed(t, l, "x")
		touch(t, c, "other")
		came, release := g.heldLook()
		listening(t, l)
		time.Sleep(time.Second)
		l.Follow(p)
		<-came
		l.Follow(p)
		close(release)
		time.Sleep(5 * time.Second)
		if n := awaitsOf(s.wire.Hub); n != 1 {
			t.Errorf("seed 1: %d awaits for one followed place", n)
		}
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		_ = hl.Release(ending(t, 10*time.Second), hp)
		time.Sleep(2 * time.Minute)
		if n := awaitsOf(s.wire.Hub); n != 0 {
			t.Errorf("seed 1: two minutes after its release %d awaits are left", n)
		}
	})
}

// TestSimulatedClosedDuringALook: the lease is closed before the answer comes.
func TestSimulatedClosedDuringALook(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		claimed(t, granted(t, first, "a", 4*time.Minute), "x")
		s, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		p := claimed(t, l, "x")
		touch(t, c, "other")
		came, release := g.heldLook()
		listening(t, l)
		time.Sleep(time.Second)
		l.Follow(p)
		<-came
		if err := l.Close(ending(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		close(release)
		time.Sleep(2 * time.Minute)
		if n := awaitsOf(s.wire.Hub); n != 0 {
			t.Errorf("seed 1: two minutes after Close %d awaits are left in %d watches", n, len(s.wire.Hub.Watches))
		}
	})
}

// TestSimulatedFollowedAgainBetweenRounds: more places than one round of looks takes are followed
// again and again, as elections do.
func TestSimulatedFollowedAgainBetweenRounds(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const names = 70
		first, _ := gatedAt(t, c, 0, 0)
		hl := granted(t, first, "a", 5*time.Minute)
		s, _ := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 5*time.Minute)
		var claims []driver.Claim
		for i := range names {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("n", i), ID: fmt.Sprint("c", i)})
		}
		if _, err := hl.Claim(ending(t, time.Minute), claims...); err != nil {
			t.Fatal(err)
		}
		places, err := l.Claim(ending(t, time.Minute), claims...)
		if err != nil {
			t.Fatal(err)
		}
		listening(t, l)
		l.Follow(places...)
		for range 10 {
			time.Sleep(7 * time.Second)
			l.Follow(places...)
		}
		time.Sleep(time.Minute)
		if n := awaitsOf(s.wire.Hub); n != names {
			t.Errorf("seed 1: %d awaits for %d followed places", n, names)
		}
	})
}

// TestSimulatedReleasedDuringALook: a claim that was waited for is released while News looks at it.
func TestSimulatedReleasedDuringALook(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		hl := granted(t, first, "a", 4*time.Minute)
		hp := claimed(t, hl, "x")
		s, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		listening(t, l)
		p := claimed(t, l, "x")
		turn := held(t, l, p)
		time.Sleep(time.Second)
		if err := hl.Release(ending(t, 10*time.Second), hp); err != nil {
			t.Fatal(err)
		}
		<-turn
		if awaitsOf(s.wire.Hub) != 1 {
			t.Fatal("nothing is kept")
		}
		came, release := g.heldLook() // by the timer, after some seconds
		<-came
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		close(release)
		time.Sleep(2 * time.Minute)
		if n := awaitsOf(s.wire.Hub); n != 0 {
			t.Errorf("seed 1: two minutes after the release %d awaits are left in %d watches", n,
				len(s.wire.Hub.Watches))
		}
	})
}

// TestSimulatedSessionsLeaveNothingBehind: sessions that follow many places end while News looks
// at them, one after another. News stops, and nothing adds up.
func TestSimulatedSessionsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const names, sessions = 300, 3
		first, _ := gatedAt(t, c, 0, 0)
		hl := granted(t, first, "a", 5*time.Minute)
		s, g := gatedAt(t, c, 1, 0)
		var claims []driver.Claim
		for i := range names {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("n", i), ID: fmt.Sprint("c", i)})
		}
		if _, err := hl.Claim(ending(t, time.Minute), claims...); err != nil {
			t.Fatal(err)
		}
		for range sessions {
			l := granted(t, s, "b", 5*time.Minute)
			places, err := l.Claim(ending(t, time.Minute), claims...)
			if err != nil {
				t.Fatal(err)
			}
			listening(t, l)
			l.Follow(places...)
			time.Sleep(20 * time.Second)
			came, release := g.heldLook()
			touch(t, c, "other")
			c.Reset(1, 0) // all become unsure
			c.Reset(1, 1)
			c.Reset(1, 2)
			<-came
			l.end() // as where a renewal has found it gone
			before := g.calls.Load()
			close(release)
			time.Sleep(time.Minute)
			t.Logf("after the session's end: %d requests, %d awaits in %d watches are left", g.calls.Load()-before,
				awaitsOf(s.wire.Hub), len(s.wire.Hub.Watches))
			if err := l.Close(ending(t, 10*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if n := awaitsOf(s.wire.Hub); n != 0 {
			t.Errorf("seed 1: %d awaits in %d watches are left of sessions that are over", n, len(s.wire.Hub.Watches))
		}
	})
}
