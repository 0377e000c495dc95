package etcdstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// isStrike says whether req ends the session of that heartbeat.
func isStrike(req any, beat string) bool {
	txn, ok := req.(*pb.TxnRequest)
	if !ok {
		return false
	}
	for _, op := range txn.Success {
		if d := op.GetRequestDeleteRange(); d != nil && string(d.Key) == beat {
			return true
		}
	}
	return false
}

// freeze stops all that goes between a client and the cluster, or lets it go on: as when its
// process is paused, with answers in its buffers.
func freeze(c *etcdsim.Cluster, client int, on bool) {
	for m := range c.Endpoints() {
		c.Hold(client, m, true, on)
		c.Hold(client, m, false, on)
	}
}

// TestSimulatedFrozenWaiter: who watches is paused for long, while the holder's heart beats
// on. As it wakes up all it has is old, and what it sent when it believed the holder dead
// arrives: nothing may happen to the holder.
func TestSimulatedFrozenWaiter(t *testing.T) {
	for _, pause := range []time.Duration{250, 400, 700, 5000} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			holder, k, waiter, p := pairOf(t, c, short)
			at := held(t, waiter, p)
			time.Sleep(2 * time.Second)
			for range 3 {
				freeze(c, 1, true)
				time.Sleep(pause * time.Millisecond)
				freeze(c, 1, false)
				time.Sleep(2 * time.Second)
			}
			if len(at) > 0 || holder.over() {
				t.Fatalf("seed 1: after pauses of %d ms of the waiter: it holds: %v; the holder's session is over: %v",
					pause, len(at) > 0, holder.over())
			}
			last := k.stop()
			if took := (<-at).Sub(last); took < short || took > short*3/2 {
				t.Errorf("seed 1: the waiter held %v after the last heartbeat", took)
			}
		})
	}
}

// TestSimulatedWatchCountsFromTheReceipt: the first read of who watches is on its way for almost a
// ttl, while the holder beats. What it then tells is news, however long ago it was asked for.
func TestSimulatedWatchCountsFromTheReceipt(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, g := gatedAt(t, c, 1, 1)
		const ttl = time.Second
		holder := granted(t, a, "a", ttl)
		k := keep(t, holder)
		claimed(t, holder, "x")
		waiter := granted(t, b, "b", time.Minute)
		p := claimed(t, waiter, "x")
		var last atomic.Pointer[time.Time]
		var once atomic.Bool
		g.set(func() {
			g.before = func(req any) {
				txn, ok := req.(*pb.TxnRequest)
				if ok && len(txn.Success) == 1 &&
					string(txn.Success[0].GetRequestRange().GetKey()) == holder.heartbeat.key &&
					once.CompareAndSwap(false, true) {
					freeze(c, 1, true) // no event comes, and the read does not leave
					time.Sleep(ttl * 9 / 10)
					at := k.stop()
					last.Store(&at)
					freeze(c, 1, false)
				}
			}
		})
		at := held(t, waiter, p)
		won := <-at
		if last.Load() == nil {
			t.Fatal("seed 1: the heartbeat was never read")
		}
		if took := won.Sub(*last.Load()); took < ttl {
			t.Errorf("seed 1: the waiter held %v after the last heartbeat, before its ttl of %v was over", took, ttl)
		}
	})
}

// TestSimulatedWatchWithALostAnswer: the Txn that ends the session is carried out, its answer is
// lost, and the watches are deaf. The next one must lead all the same, and nothing may be left.
func TestSimulatedWatchWithALostAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, g := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		claimed(t, holder, "x")
		claimed(t, holder, "y") // nobody waits behind this one
		waiter := granted(t, b, "b", time.Minute)
		p := claimed(t, waiter, "x")
		var lost atomic.Int32
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				err := do(ctx)
				if isStrike(req, holder.heartbeat.key) && err == nil && lost.Add(1) == 1 {
					return status.Error(codes.DeadlineExceeded, "lost")
				}
				return err
			}
		})
		at := held(t, waiter, p)
		time.Sleep(2 * time.Second)
		last := k.stop()
		if took := (<-at).Sub(last); took > 3*short {
			t.Errorf("seed 1: the waiter held %v after the last heartbeat", took)
		}
		time.Sleep(12 * time.Second)
		if lost.Load() == 0 {
			t.Fatal("seed 1: no answer was lost")
		}
		if n := len(c.Keys("primacy/")); n != 2 {
			t.Errorf("seed 1: %d keys are left, want the waiter's record and claim", n)
		}
	})
}

// TestSimulatedWatchIsOutrunByItsNews: the news that the claim is gone comes before the answer to
// the Txn that took it. The rest of the session must go too.
func TestSimulatedWatchIsOutrunByItsNews(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, g := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		claimed(t, holder, "x")
		claimed(t, holder, "y")
		waiter := granted(t, b, "b", time.Minute)
		p := claimed(t, waiter, "x")
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				err := do(ctx)
				if isStrike(req, holder.heartbeat.key) && err == nil {
					time.Sleep(50 * time.Millisecond)
					err = ctx.Err()
				}
				return err
			}
		})
		at := held(t, waiter, p)
		time.Sleep(2 * time.Second)
		k.stop()
		<-at
		time.Sleep(time.Second)
		if n := len(c.Keys("primacy/y/")); n != 0 {
			t.Errorf("seed 1: %d claims of the dead session are left on the other name", n)
		}
	})
}

// TestSimulatedTwoWatchs: readers of several processes wait behind one writer, and all find it
// silent at once.
func TestSimulatedTwoWatchs(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		claimed(t, holder, "x")
		claimed(t, holder, "y")
		var at []<-chan time.Time
		for i := range 3 {
			s, _ := gatedAt(t, c, 1+i, i%3)
			l := granted(t, s, "r", time.Minute)
			p, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: "r", Slots: driver.Unlimited})
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, held(t, l, p[0]))
		}
		time.Sleep(3 * time.Second)
		last := k.stop()
		for i := range at {
			if took := (<-at[i]).Sub(last); took < short || took > short*3/2 {
				t.Errorf("seed 1: reader %d held %v after the last heartbeat", i, took)
			}
		}
		time.Sleep(time.Second)
		if n := len(c.Keys("primacy/y/")); n != 0 {
			t.Errorf("seed 1: %d claims of the dead session are left on the other name", n)
		}
	})
}

// TestSimulatedDeadStaysDead: a claim, and a move, that were under way when their session was
// ended arrive afterwards. Neither may bring it back.
func TestSimulatedDeadStaysDead(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, g := gatedAt(t, c, 0, 0)
		b, gb := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		claimed(t, holder, "x")
		waiter := granted(t, b, "b", time.Minute)
		p := claimed(t, waiter, "x")
		gb.set(func() { // the one who ends the session dies before it has revoked its lease
			gb.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if _, ok := req.(*pb.LeaseRevokeRequest); ok {
					return status.Error(codes.Unavailable, "gone")
				}
				return do(ctx)
			}
		})
		at := held(t, waiter, p)
		time.Sleep(time.Second)
		entry := g.capture(a.claimKey(seatID{Name: "y"}, 0, holder.stem))
		go func() { _, _ = holder.Claim(ending(t, 10*time.Second), driver.Claim{Name: "y", ID: "y-1"}) }()
		time.Sleep(100 * time.Millisecond)
		if err := holder.Release(ending(t, 10*time.Second), driver.Place{Name: "y", ID: "y-1", Token: uint64(only(t,
			c, "primacy/y/").CreateRevision)}); err != nil {
			t.Fatal(err)
		}
		k.stop()
		<-at
		entry.arrive(t, c)
		if n := len(c.Keys("primacy/y/")); n != 0 {
			t.Error("seed 1: a claim has entered though its session is dead")
		}
		if err := holder.Renew(ending(t, time.Second)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("seed 1: Renew of a dead session = %v, want ErrGone", err)
		}
		if _, err := holder.Claim(ending(t, 10*time.Second), driver.Claim{Name: "z", ID: "z-1"}); !errors.Is(err,
			driver.ErrGone) {
			t.Errorf("seed 1: Claim on a dead session = %v, want ErrGone", err)
		}
	})
}

// TestSimulatedWatchEndsWhatAnotherLeftHalfDone: the heartbeat is gone, and the claim stands: who
// deleted it did no more, or was no watch at all, and the holder may have had an answer just
// before.
func TestSimulatedWatchEndsWhatAnotherLeftHalfDone(t *testing.T) {
	for _, early := range []bool{true, false} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			_, k, waiter, p := pairOf(t, c, time.Second)
			var at <-chan time.Time
			if early {
				at = held(t, waiter, p)
			}
			time.Sleep(2 * time.Second)
			beat := only(t, c, "primacy/@beat/")
			if err := c.Delete(ending(t, 10*time.Second), string(beat.Key), beat.CreateRevision); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if !early {
				at = held(t, waiter, p)
			}
			won := <-at
			last := k.stop()
			if took := won.Sub(last); took < time.Second {
				t.Errorf("seed 1: the waiter held %v after the last heartbeat that counted", took)
			}
			if took := won.Sub(begun); took > time.Second*13/10 {
				t.Errorf("seed 1: the waiter held %v after the heartbeat was deleted, want one silence of 1.12 s", took)
			}
		})
	}
}

// TestSimulatedWatchRemindsTheDeaf: what is pushed does not arrive, and the session before is
// ended. Who waits must hear of it all the same, long before it would look by itself.
func TestSimulatedWatchRemindsTheDeaf(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		_, k, waiter, p := pairOf(t, c, short)
		at := held(t, waiter, p)
		time.Sleep(time.Second) // it looks by itself 4 s after its last look, at the earliest
		waiter.s.wire.Hub.Lock()
		for id, w := range waiter.s.wire.Hub.ByID { // what comes on them is taken for a watch that was given up
			if !strings.Contains(w.Key, beats) {
				delete(waiter.s.wire.Hub.ByID, id)
			}
		}
		waiter.s.wire.Hub.Unlock()
		last := k.stop()
		if took := (<-at).Sub(last); took > 3*short {
			t.Errorf("seed 1: the waiter held %v after the last heartbeat", took)
		}
	})
}

// TestSimulatedOrdinaryLineKeepsNoWatch: where nobody has a heartbeat, nobody asks for one.
func TestSimulatedOrdinaryLineKeepsNoWatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		first, second := granted(t, a, "a", time.Minute), granted(t, b, "b", time.Minute)
		q := claimed(t, first, "x")
		p := claimed(t, second, "x")
		at := held(t, second, p)
		time.Sleep(time.Second)
		b.liveness.mu.Lock()
		n := len(b.liveness.by)
		b.liveness.mu.Unlock()
		if n != 0 {
			t.Errorf("seed 1: %d watches", n)
		}
		if err := first.Release(ending(t, time.Second), q); err != nil {
			t.Fatal(err)
		}
		<-at
	})
}

// TestSimulatedWatchIsShared: many who wait behind one session watch it once, and nothing is left
// when they have gone.
func TestSimulatedWatchIsShared(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		holder := granted(t, a, "a", short)
		k := keep(t, holder)
		waiter := granted(t, b, "b", time.Minute)
		var at []<-chan time.Time
		for i := range 60 { // more than one Txn ends
			name := "x" + string(rune('A'+i))
			claimed(t, holder, name)
			at = append(at, held(t, waiter, claimed(t, waiter, name)))
		}
		time.Sleep(2 * time.Second)
		b.liveness.mu.Lock()
		n := len(b.liveness.by)
		b.liveness.mu.Unlock()
		if n != 1 {
			t.Errorf("seed 1: %d watches over one session", n)
		}
		last := k.stop()
		for i := range at {
			if took := (<-at[i]).Sub(last); took < short || took > 2*short {
				t.Errorf("seed 1: claim %d was held %v after the last heartbeat", i, took)
			}
		}
		time.Sleep(time.Second)
		b.liveness.mu.Lock()
		defer b.liveness.mu.Unlock()
		if len(b.liveness.by) != 0 {
			t.Errorf("seed 1: %d watches are left", len(b.liveness.by))
		}
	})
}

// TestSimulatedCrashBeforeOneWhoFollows: a place is followed and not waited for, behind a session
// with a heartbeat, which falls silent.
func TestSimulatedCrashBeforeOneWhoFollows(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		_, k, waiter, p := pairOf(t, c, short)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		told := make(chan time.Time, 1)
		go func() {
			for {
				news, err := waiter.News(ctx)
				if err != nil {
					return
				}
				for _, n := range news {
					if n.Held && n.Place.Token == p.Token {
						told <- time.Now()
					}
				}
			}
		}()
		waiter.Follow(p)
		time.Sleep(3 * time.Second)
		if len(told) > 0 {
			t.Fatal("seed 1: News tells that the place is held while the holder's heart beats")
		}
		last := k.stop()
		if took := (<-told).Sub(last); took < short || took > short*3/2 {
			t.Errorf("seed 1: the place that is followed was held %v after the last heartbeat", took)
		}
		waiter.s.liveness.mu.Lock()
		defer waiter.s.liveness.mu.Unlock()
		if n := len(waiter.s.liveness.by); n != 0 {
			t.Errorf("seed 1: %d watches are left", n)
		}
	})
}
