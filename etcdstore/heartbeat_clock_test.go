package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// TestSimulatedWatchIsWokenForNothing: a watch that is woken for nothing (its stream was opened
// anew) more than half a ttl after the last heartbeat must not end the session early.
func TestSimulatedWatchIsWokenForNothing(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const ttl = time.Second
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", ttl)
		claimed(t, holder, "x")
		waiter := granted(t, b, "b", time.Minute)
		at := held(t, waiter, claimed(t, waiter, "x"))
		for range 20 {
			asked := time.Now()
			if err := holder.Renew(ending(t, ttl/10)); err != nil {
				t.Fatalf("seed 1: Renew: %v; the waiter holds: %v", err, len(at) > 0)
			}
			time.Sleep(time.Until(asked.Add(ttl * 62 / 100)))
			for m := range c.Endpoints() {
				c.Reset(1, m)
			}
			time.Sleep(time.Until(asked.Add(ttl * 85 / 100)))
			if len(at) > 0 {
				t.Fatalf("seed 1: the waiter holds %v after the last heartbeat was sent, of a ttl of %v",
					time.Since(asked), ttl)
			}
		}
		for range 30 {
			time.Sleep(100 * time.Millisecond)
		}
		<-at
	})
}

// TestInstantIsAsOldAsEitherClockSays: a machine was suspended, and only the boot clock knows;
// or, in a test, only Go's clock goes on.
func TestInstantIsAsOldAsEitherClockSays(t *testing.T) {
	const old = time.Minute
	for _, i := range []moment{{boottime.Now() - old, time.Now()}, {boottime.Now(), time.Now().Add(-old)}} {
		if ago := i.ago(); ago < old {
			t.Errorf("seed 1: an instant that one clock has %v ago is %v old", old, ago)
		}
	}
}

// TestSimulatedProofCountsFromTheCall: the calls that prove the lease below take long. It may
// have been renewed as they began.
func TestSimulatedProofCountsFromTheCall(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		const slow = 700 * time.Millisecond
		asked := make(chan time.Time, 1)
		slowly := func(which func(req any) bool) {
			g.set(func() {
				g.before = func(req any) {
					if !which(req) {
						return
					}
					select {
					case asked <- time.Now():
					default:
					}
					time.Sleep(slow)
				}
			})
		}
		slowly(func(req any) bool { _, ok := req.(*pb.LeaseGrantRequest); return ok })
		l := granted(t, s, "a", short)
		proven := func() time.Time {
			l.heartbeat.mu.Lock()
			defer l.heartbeat.mu.Unlock()
			return l.heartbeat.proven.mono
		}
		first := proven()
		if at := <-asked; first.After(at) {
			t.Errorf("seed 1: the lease counts as proven %v after its grant was asked for", first.Sub(at))
		}
		for len(asked) > 0 {
			<-asked
		}
		slowly(func(req any) bool {
			txn, ok := req.(*pb.TxnRequest)
			return ok && len(txn.Compare) == 1 && txn.Compare[0].Target == pb.Compare_VERSION
		})
		for range 100 {
			time.Sleep(short / 6)
			_ = l.Renew(ending(t, short/3))
			if again := proven(); again != first {
				if at := <-asked; again.After(at) {
					t.Errorf("seed 1: the lease counts as proven %v after the proof was asked for", again.Sub(at))
				}
				return
			}
		}
		t.Error("seed 1: the lease was not proven again")
	})
}

// TestSimulatedHeartbeatNeedsTheRecord: the record alone is gone. The heartbeat must not count
// without it, for nothing else keeps claims out.
func TestSimulatedHeartbeatNeedsTheRecord(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", short)
		if err := c.Delete(ending(t, 10*time.Second), l.recordKey, l.recordCreated); err != nil {
			t.Fatal(err)
		}
		if err := l.Renew(ending(t, time.Second)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("seed 1: Renew without the session's record = %v, want ErrGone", err)
		}
	})
}

// TestSimulatedMoveLeavesADeadHeartbeatDead: the heartbeat is gone, and the session is just being
// moved: the move must fail, and not write it anew.
func TestSimulatedMoveLeavesADeadHeartbeatDead(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", short)
		if err := c.Delete(ending(t, 10*time.Second), l.heartbeat.key, l.recordCreated); err != nil {
			t.Fatal(err)
		}
		if err := l.moveRecord(context.Background()); err == nil {
			t.Error("seed 1: a session without its heartbeat was moved")
		}
		if n := len(c.Keys(l.heartbeat.key)); n != 0 {
			t.Error("seed 1: the move has written the heartbeat anew")
		}
	})
}
