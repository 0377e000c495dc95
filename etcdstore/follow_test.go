package etcdstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// TestSimulatedFollowOutlivesAFailedRead: the read of a followed place fails once. It is read
// again soon, and not left to the timer.
func TestSimulatedFollowOutlivesAFailedRead(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		hl := granted(t, first, "a", 4*time.Minute)
		hp := claimed(t, hl, "x")
		s, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		p := claimed(t, l, "x")
		if err := hl.Release(ending(t, 10*time.Second), hp); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		failed := g.onceFailing(looksAtLine)
		told := newsOf(t, l)
		time.Sleep(10 * time.Second)
		begun := time.Now()
		l.Follow(p)
		<-failed
		n := <-told
		if took := time.Since(begun); took > time.Second || !n.Held {
			t.Errorf("seed 1: News = %+v after %v", n, took)
		}
	})
}

// TestSimulatedPushesUnderTheWideWatch: whatever is pushed comes at once also where the wide
// watch is always on: requests, shared claims.
func TestSimulatedPushesUnderTheWideWatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		os, _ := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 1)
		s.wire.Hub.Above, s.wire.Hub.Below = 0, -1
		other, l := granted(t, os, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		p := claimed(t, l, "x")
		time.Sleep(6 * time.Second)
		told := newsOf(t, l)
		time.Sleep(10 * time.Second)
		begun := time.Now()
		if err := os.Ask(ending(t, 10*time.Second), "x", driver.Request{Token: p.Token}); err != nil {
			t.Fatal(err)
		}
		if n := <-told; n.Request == nil || time.Since(begun) > handOver {
			t.Errorf("seed 1: the request came after %v: %+v", time.Since(begun), n)
		}
		// a semaphore of two
		sem := func(l *lease, seat string) driver.Place {
			ps, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "z", ID: "z" + l.ID() + seat, Seat: seat,
				Slots: 2})
			if err != nil {
				t.Fatal(err)
			}
			return ps[0]
		}
		first, second := sem(other, ""), sem(other, "1")
		_ = first
		turn := held(t, l, sem(l, ""))
		time.Sleep(time.Second)
		begun = time.Now()
		if err := other.Release(ending(t, 10*time.Second), second); err != nil {
			t.Fatal(err)
		}
		if took := (<-turn).Sub(begun); took > handOver {
			t.Errorf("seed 1: the semaphore's turn came after %v", took)
		}
	})
}

// TestSimulatedTouchUnderTheWideWatch: whoever waits for a slot behind another is told by a put
// that this one holds, and hears of the next release.
func TestSimulatedTouchUnderTheWideWatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		os, _ := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 1)
		s.wire.Hub.Above, s.wire.Hub.Below = 0, -1
		other, l := granted(t, os, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		stand := func(l *lease, seat string) driver.Place {
			p, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", ID: "x" + l.ID() + seat, Seat: seat,
				Slots: 2})
			if err != nil {
				t.Fatal(err)
			}
			return p[0]
		}
		first, second := stand(other, ""), stand(other, "1")
		third := held(t, other, stand(other, "2"))
		turn := held(t, l, stand(l, ""))
		time.Sleep(time.Second)
		if err := other.Release(ending(t, 10*time.Second), first); err != nil {
			t.Fatal(err)
		}
		<-third
		time.Sleep(time.Second)
		begun := time.Now()
		if err := other.Release(ending(t, 10*time.Second), second); err != nil {
			t.Fatal(err)
		}
		if took := (<-turn).Sub(begun); took > handOver {
			t.Errorf("seed 1: the turn came after %v, want %v at most", took, handOver)
		}
	})
}

// TestSimulatedNewsUnderASmallLimit: a server that takes few operations in one Txn. Followed
// places are looked at all the same, and held ones are read.
func TestSimulatedNewsUnderASmallLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := etcdsim.Start(etcdsim.Options{Seed: 1, TxnOps: 8})
		t.Cleanup(func() {
			c.Close()
			synctest.Wait()
		})
		time.Sleep(5 * time.Second)
		first, _ := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 0)
		hl, l := granted(t, first, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		var claims []driver.Claim
		for i := range 40 {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("n", i), ID: fmt.Sprint("c", i)})
		}
		held, err := hl.Claim(ending(t, time.Minute), claims...)
		if err != nil {
			t.Fatal(err)
		}
		places, err := l.Claim(ending(t, time.Minute), claims...)
		if err != nil {
			t.Fatal(err)
		}
		if err := hl.Release(ending(t, time.Minute), held...); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the watches begin later, so all must look
		tell := make(chan driver.News, 100)
		ctx := ending(t, 3*time.Minute)
		go func() {
			for ctx.Err() == nil {
				out, err := l.News(ctx)
				if err != nil && ctx.Err() == nil {
					t.Errorf("seed 1: News = %v", err)
					return
				}
				for _, n := range out {
					tell <- n
				}
			}
		}()
		next := func() (n driver.News) {
			select {
			case n = <-tell:
			case <-ctx.Done():
				t.Fatal("seed 1: not all was told")
			}
			return n
		}
		begun := time.Now()
		l.Follow(places...)
		for range claims {
			if n := next(); !n.Held {
				t.Errorf("seed 1: news = %+v, want it held", n)
			}
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("seed 1: all were told after %v", took)
		}
		time.Sleep(3 * time.Second)
		begun = time.Now()
		for _, p := range places {
			if err := c.Delete(ending(t, 10*time.Second), s.lineDir(p.Name)+l.ID(), int64(p.Token)); err != nil {
				t.Fatal(err)
			}
		}
		for range claims {
			if n := next(); !n.Gone {
				t.Errorf("seed 1: news = %+v, want it gone", n)
			}
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("seed 1: all were told after %v", took)
		}
	})
}

// TestSimulatedOldLineIsForgotten: a slot's next claim, which stands though its entry was never
// answered, knows nothing of the line that its predecessor found.
func TestSimulatedOldLineIsForgotten(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 0)
		claimed(t, granted(t, first, "a", 4*time.Minute), "x")
		l := granted(t, s, "b", 4*time.Minute)
		seat := l.seats.open(seatID{Name: "x"})
		defer l.seats.drop(seat)
		if err := l.Release(ending(t, 10*time.Second), claimed(t, l, "x")); err != nil {
			t.Fatal(err)
		}
		seat.id, seat.key = "x-2", s.lineDir("x")+l.ID()
		p := l.entered(seat, 1000, 1000, 0, false)
		if wt := l.newWaiter(p); wt.asOf != 0 || wt.aheadIsAll || len(wt.ahead) > 0 {
			t.Errorf("seed 1: it knows %v at revision %d", wt.ahead, wt.asOf)
		}
	})
}

// TestSimulatedHeldAndRemoved: followed claims are told to be held, and one is removed by hand
// before the next call of News. That tells it at once, and does not wait until the claim has
// settled and is watched.
func TestSimulatedHeldAndRemoved(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		s, _ := gatedAt(t, c, 1, 0)
		hl, l := granted(t, first, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		hp, p := claimed(t, hl, "x"), claimed(t, l, "x")
		l.Follow(p)
		told := newsOf(t, l)
		time.Sleep(time.Second)
		if err := hl.Release(ending(t, 10*time.Second), hp); err != nil {
			t.Fatal(err)
		}
		if n := <-told; !n.Held {
			t.Fatalf("seed 1: news = %+v, want it held", n)
		}
		if err := c.Delete(ending(t, 10*time.Second), s.lineDir("x")+l.ID(), int64(p.Token)); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if n := <-newsOf(t, l); !n.Gone || time.Since(begun) >= etcdwire.WatchAfter/2 {
			t.Errorf("seed 1: news = %+v after %v, want it gone at once", n, time.Since(begun))
		}
	})
}

// TestSimulatedAnotherNeighbourIsWatched: the claim right before ours goes while ours is about to
// be asked about in any case. The session of the next one, which has a heartbeat, must be watched.
func TestSimulatedAnotherNeighbourIsWatched(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a, _ := gatedAt(t, c, 0, 0)
		b, _ := gatedAt(t, c, 1, 1)
		holder, middle, l := granted(t, a, "a", short), granted(t, a, "b", time.Minute), granted(t, b, "c", time.Minute)
		k := keep(t, holder)
		claimed(t, holder, "x")
		between := claimed(t, middle, "x")
		l.Follow(claimed(t, l, "x"))
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if out, err := l.News(ctx); err == nil {
			t.Fatalf("seed 1: News = %+v", out)
		}
		if err := middle.Release(ending(t, 10*time.Second), between); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		l.waiters.by[seatID{Name: "x"}].check()
		told := newsOf(t, l)
		time.Sleep(time.Second)
		last := k.stop()
		if n, took := <-told, time.Since(last); !n.Held || took > 2*short {
			t.Errorf("seed 1: News = %+v, %v after the last heartbeat of a ttl of %v", n, took, short)
		}
	})
}

// TestSimulatedLateFollowOfAnEarlierClaim: a Follow is overtaken by that of the seat's next claim.
// It must not end it.
func TestSimulatedLateFollowOfAnEarlierClaim(t *testing.T) {
	_, l := fakeHub()
	later := awaitOn(l, "b")
	later.token = 200
	l.waiters.by[later.seat] = later
	l.seats.by[later.seat] = &seatState{seatID: later.seat, key: "primacy/x/own", claimFields: claimFields{id: "c",
		token: 100}}
	l.Follow(driver.Place{Name: "x", ID: "c", Token: 100})
	if wt := l.waiters.by[later.seat]; wt != later || later.dropped {
		t.Errorf("the claim of token %d is followed, want 200", wt.token)
	}
}

// TestSimulatedEndBeforeTheNewsOfTheTurn: a followed claim comes to hold, and it is known to have
// been removed before News has told so. News tells the end, and does not tell it twice.
func TestSimulatedEndBeforeTheNewsOfTheTurn(t *testing.T) {
	for _, kept := range []bool{false, true} {
		h, l := fakeHub()
		wt := awaitOn(l, "b")
		l.seats.by[wt.seat] = &seatState{seatID: wt.seat, claimFields: claimFields{id: "c", token: 100}}
		l.waiters.by[wt.seat] = wt
		wt.startListening()
		h.Lock()
		h.Stood(wt.watches[0], 100)
		h.Deliver(wt.watches[0], goneAt(101, "primacy/x/b"))
		h.Unlock()
		o, _ := wt.ask()
		if kept {
			kept = l.keepFollowing(wt)
		}
		h.Lock()
		h.Deliver(wt.watches[0], goneAt(102, "primacy/x/own"))
		h.Unlock()
		var out []driver.News
		if kept {
			out = l.tell(nil, wt, driver.News{Held: true})
		} else {
			out = l.tellLast(nil, wt, driver.News{Held: true})
		}
		out = l.tellLast(out, wt, driver.News{Gone: true})
		if o != holds || len(out) != 1 || !out[0].Gone || out[0].Held || len(l.waiters.by) > 0 {
			t.Errorf("kept %v: outcome %d, news %+v, %d followed yet", kept, o, out, len(l.waiters.by))
		}
	}
}

// TestSimulatedHeldAsItsWatchIsLost: a followed claim comes to hold, and its watch is lost before
// News has told so. The next call of News reads its key.
func TestSimulatedHeldAsItsWatchIsLost(t *testing.T) {
	h, l := fakeHub()
	wt := awaitOn(l, "b")
	l.seats.by[wt.seat] = &seatState{seatID: wt.seat, claimFields: claimFields{id: "c", token: 100}}
	l.waiters.by[wt.seat] = wt
	wt.startListening()
	h.Lock()
	h.Stood(wt.watches[0], 100)
	h.Deliver(wt.watches[0], goneAt(101, "primacy/x/b"))
	h.Lost(wt.watches[0], false)
	h.Unlock()
	out, _ := l.tellKnown()
	l.readWhatWasTold()
	if len(out) != 1 || !out[0].Held || !l.changed[wt.seat] {
		t.Errorf("news %+v, to be read: %v", out, l.changed)
	}
}

// TestSimulatedForgetsWhatIsGone: claims that others removed are told, and their owner does no more
// with them. A session that holds many names, each for a while, must not keep them for its life.
func TestSimulatedForgetsWhatIsGone(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l, other := granted(t, s, "a", time.Minute), granted(t, s, "b", time.Minute)
		holds := claimed(t, l, "held")
		claimed(t, other, "waited")
		waits := claimed(t, l, "waited")
		l.Follow(waits)
		told := 0
		ctx := ending(t, 30*time.Second)
		go func() {
			time.Sleep(time.Second)
			for _, p := range []driver.Place{holds, waits} {
				if err := c.Delete(ending(t, 10*time.Second), l.keyOf(p), int64(p.Token)); err != nil {
					t.Error(err)
				}
			}
		}()
		for told < 2 {
			news, err := l.News(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range news {
				if one.Gone {
					told++
				}
			}
		}
		if len(l.seats.by) != 0 || len(l.waiters.by) != 0 {
			t.Errorf("seed 1: %d claims and %d waiters are kept of what is gone", len(l.seats.by), len(l.waiters.by))
		}
		time.Sleep(time.Second)
		h := s.wire.Hub
		h.Lock()
		for sp := range h.Watches {
			if sp.End == "" && strings.HasPrefix(sp.Key, "primacy/held") {
				t.Errorf("seed 1: %s is watched yet", sp.Key)
			}
		}
		h.Unlock()
		// Its owner may release it all the same, and stands again under another ID.
		if err := l.Release(ending(t, 10*time.Second), holds, waits); err != nil {
			t.Error(err)
		}
		if _, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "held", ID: holds.ID}); !isGone(err) {
			t.Errorf("seed 1: Claim under the ID that is gone = %v, want ErrGone", err)
		}
		p, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "held", ID: "new"})
		if err != nil || !p[0].Held {
			t.Errorf("seed 1: Claim under a new ID = %+v, %v", p, err)
		}
	})
}
