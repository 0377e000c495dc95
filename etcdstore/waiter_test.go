package etcdstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// waitsIn has a claim of a new client wait in the line x, with its watch open before, as where
// the process has waited there lately.
func waitsIn(t *testing.T, c *etcdsim.Cluster, client int) (*lease, *gate, driver.Place, <-chan time.Time) {
	t.Helper()
	s, g := gatedAt(t, c, client, client%3)
	l := granted(t, s, fmt.Sprint(client), 4*time.Minute)
	p := claimed(t, l, "x")
	return l, g, p, held(t, l, p)
}

// TestSimulatedHandOverCostsTwoRequests: among clients who take turns, each turn costs a claim
// and a release, and no request tells the next one.
func TestSimulatedHandOverCostsTwoRequests(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const clients, turns = 5, 30
		var calls []*gate
		over := make(chan error, clients)
		for i := range clients {
			s, g := gatedAt(t, c, i, i%3)
			l := granted(t, s, fmt.Sprint(i), 4*time.Minute)
			calls = append(calls, g)
			go func() {
				var err error
				for n := range turns {
					var p []driver.Place
					if p, err = l.Claim(context.Background(), driver.Claim{Name: "x", ID: fmt.Sprint(i, "-",
						n)}); err == nil && !p[0].Held {
						p[0], err = drivertest.Await(context.Background(), l, p[0])
					}
					if err == nil {
						err = l.Release(context.Background(), p[0])
					}
					if err != nil {
						break
					}
				}
				over <- err
			}()
		}
		for range clients {
			if err := <-over; err != nil {
				t.Fatalf("seed 1: %v", err)
			}
		}
		var n int64
		for _, g := range calls {
			n += g.calls.Load()
		}
		// Beside those, each client asks for the version, grants a lease and registers it, reads
		// the requests to it twice, and may read once until its watch stands.
		if most := int64(2*clients*turns + 7*clients); n > most {
			t.Errorf("seed 1: %d turns cost %d requests, want %d at most", clients*turns, n, most)
		}
	})
}

// TestSimulatedAwaitCountsOnlyWhatCameLater feeds the hub with messages by hand: those of earlier
// claims under the same keys, told late or twice, count for nothing, a whole revision is looked
// at before anything is concluded, and a watch that is too young proves nothing.
func TestSimulatedAwaitCountsOnlyWhatCameLater(t *testing.T) {
	const dir = "primacy/x/"
	gone := func(rev int64, keys ...string) (out []*mvccpb.Event) {
		for _, k := range keys {
			out = append(out, &mvccpb.Event{Type: mvccpb.Event_EventType(1), Kv: &mvccpb.KeyValue{Key: []byte(dir +
				k), ModRevision: rev}})
		}
		return out
	}
	type message struct {
		since  int64 // a new watch, which began then
		ended  bool  // the stream
		events []*mvccpb.Event
	}
	told := func(events ...[]*mvccpb.Event) (m message) {
		for _, e := range events {
			m.events = append(m.events, e...)
		}
		return m
	}
	for name, c := range map[string]struct {
		messages []message
		outcome  fate
		unsure   bool
	}{
		"all before it go": {[]message{{since: 100}, told(gone(101, "b")), told(gone(102, "a"))},
			holds, false},
		"in another order": {[]message{{since: 90}, told(gone(101, "a")), told(gone(102, "b"))},
			holds, false},
		"together":         {[]message{{since: 90}, told(gone(101, "a", "b"))}, holds, false},
		"one stands still": {[]message{{since: 100}, told(gone(101, "b"))}, waits, false},
		"an earlier claim's end, told late": {[]message{{since: 90}, told(gone(99, "a")), told(gone(101, "b"))},
			waits, false},
		"an end before it entered": {[]message{{since: 90}, told(gone(100, "a", "b"))}, waits, false},
		"one told twice": {[]message{{since: 100}, told(gone(101, "b")), told(gone(101, "b"))},
			waits, false},
		"a stranger's": {[]message{{since: 100}, told(gone(101, "b", "c")), told(gone(102,
			"d"))}, waits, false},
		"its own": {[]message{{since: 100}, told(gone(101, "own"))}, ended, false},
		"its own in the same revision, last": {[]message{{since: 100}, told(gone(101, "a", "b", "own"))}, ended,
			false},
		"its own in the same message, later": {[]message{{since: 100}, told(gone(101, "a", "b"), gone(102, "own"))},
			ended, false},
		"its own before, then the others": {[]message{{since: 100}, told(gone(101, "own")), told(gone(102, "a",
			"b"))}, ended, false},
		"an earlier claim's under its own key": {[]message{{since: 90}, told(gone(99, "own")), told(gone(101, "a",
			"b"))}, holds, false},
		"a watch that is too young": {[]message{{since: 101}, told(gone(102, "a", "b"))}, waits, true},
		"a stream that broke": {[]message{{since: 100}, told(gone(101, "a")), {ended: true},
			{since: 105}, told(gone(106, "b"))}, waits, true},
		"a stream that broke in quiet": {[]message{{since: 90}, {ended: true}, {since: 100}, told(gone(106,
			"a", "b"))}, holds, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wide := range []bool{false, true} {
				h, l := fakeHub()
				wt := &waiter{s: l.s, all: l.waiters, seat: seatID{Name: "x"}, key: dir + "own", token: 100,
					asOf: 100, ahead: []predecessor{{dir + "b", 60}, {dir + "a", 50}}, aheadIsAll: true}
				if wide {
					h.Above = 0
				}
				wt.startListening()
				src := h.Source(wt.watches[0])
				if wide != (src == h.PrefixWatch) {
					t.Fatal("not the watch that was meant")
				}
				for _, m := range c.messages {
					h.Lock()
					switch {
					case m.ended:
						if h.PrefixWatch != nil {
							h.PrefixWatch.Forget()
						}
						wt.watches[0].Forget()
					case m.since != 0:
						src.ID = 1
						h.Stood(src, m.since)
					default:
						h.Deliver(src, m.events)
					}
					h.Unlock()
				}
				if f, unsure := wt.ask(); f != c.outcome || unsure != c.unsure {
					t.Errorf("wide %v: outcome %d, unsure %v, want %d, %v", wide, f, unsure, c.outcome, c.unsure)
				}
			}
		})
	}
}

// TestSimulatedEventBeforeItsWaiter: the claim before ours goes after we entered, and the watch,
// open already, tells so before Wait is called.
func TestSimulatedEventBeforeItsWaiter(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		holds := granted(t, first, "a", 4*time.Minute)
		s, g := gatedAt(t, c, 1, 0)
		l, other := granted(t, s, "b", 4*time.Minute), granted(t, s, "c", 4*time.Minute)
		p := claimed(t, holds, "x")
		// Another session of the process waits there too, so that the watch stands.
		mid := claimed(t, other, "x")
		turn := held(t, other, mid)
		time.Sleep(time.Second)
		late := claimed(t, l, "x")
		if err := holds.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		<-turn
		if err := other.Release(ending(t, 10*time.Second), mid); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		var looks atomic.Int64
		g.set(func() {
			g.before = func(req any) {
				if looksAtLine(req) {
					looks.Add(1)
				}
			}
		})
		begun := time.Now()
		got, err := drivertest.Await(ending(t, 10*time.Second), l, late)
		if err != nil || !got.Held || time.Since(begun) > handOver || looks.Load() > 0 {
			t.Errorf("seed 1: Await = %+v, %v after %v, looked at the line %d times: want it held at once, without a look",
				got, err, time.Since(begun), looks.Load())
		}
	})
}

// TestSimulatedLongLine: of many in line each hears of his turn at once, and a release costs no
// more requests than it does in a short one.
func TestSimulatedLongLine(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const n = 48
		var gates []*gate
		var leases []*lease
		var places []driver.Place
		var at []<-chan time.Time
		for i := range n {
			l, g, p, turn := waitsIn(t, c, i)
			leases, gates, places, at = append(leases, l), append(gates, g), append(places, p), append(at, turn)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
		<-at[0]
		near := 0
		for _, l := range leases {
			l.s.wire.Hub.Lock()
			for _, w := range l.s.wire.Hub.Watches {
				if w.Replaceable && w.End != "" {
					near++
				}
			}
			l.s.wire.Hub.Unlock()
		}
		if near > 17 {
			t.Errorf("seed 1: %d of %d in line hear of all of it, want those who are near their turn", near, n)
		}
		calls := func() (n int64) {
			for _, g := range gates {
				n += g.calls.Load()
			}
			return n
		}
		for i := range n - 1 {
			before, begun := calls(), time.Now()
			if err := leases[i].Release(ending(t, 10*time.Second), places[i]); err != nil {
				t.Fatal(err)
			}
			if took := (<-at[i+1]).Sub(begun); took > handOver {
				t.Errorf("seed 1: claim %d held %v after the release, want %v at most", i+1, took, handOver)
			}
			time.Sleep(20 * time.Millisecond)
			if cost := calls() - before; cost > 3 { // a timer may ask beside
				t.Errorf("seed 1: release %d cost %d requests of all who stand, want the release and a look by who comes near", i, cost)
			}
		}
	})
}

// TestSimulatedWideWatch: a process that waits in many lines has one watch for them all, misses
// nothing while it begins and ends, and goes back to single ones when few are left.
func TestSimulatedWideWatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const names = 90
		first, _ := gatedAt(t, c, 0, 0)
		s, g := gatedAt(t, c, 1, 0)
		holds, l := granted(t, first, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		var places, waiting []driver.Place
		var at []<-chan time.Time
		name := func(i int) string { return fmt.Sprint("n", i) }
		for i := range names {
			places = append(places, claimed(t, holds, name(i)))
		}
		for i := range names {
			waiting = append(waiting, claimed(t, l, name(i)))
			at = append(at, held(t, l, waiting[i]))
		}
		release := func(i int) {
			t.Helper()
			begun := time.Now()
			if err := holds.Release(ending(t, 10*time.Second), places[i]); err != nil {
				t.Fatal(err)
			}
			if took := (<-at[i]).Sub(begun); took > handOver {
				t.Errorf("seed 1: name %d was held %v after its release, want %v at most", i, took, handOver)
			}
			if err := l.Release(ending(t, 10*time.Second), waiting[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 10 {
			release(i) // while it begins
		}
		time.Sleep(2 * time.Second)
		if n := opened(s.wire.Hub); n != 1 {
			t.Errorf("seed 1: %d watches are open for %d lines, want one", n, names-10)
		}
		before := g.calls.Load()
		for i := 10; i < names-10; i++ {
			release(i)
		}
		if n := g.calls.Load() - before; n > names-20+5 {
			t.Errorf("seed 1: %d turns cost who waited %d requests, want his releases", names-20, n)
		}
		for i := names - 10; i < names-5; i++ {
			time.Sleep(1100 * time.Millisecond)
			release(i) // while it ends
		}
		time.Sleep(5 * time.Second)
		s.wire.Hub.Lock()
		wide := s.wire.Hub.PrefixWatch
		s.wire.Hub.Unlock()
		if wide != nil {
			t.Error("seed 1: the wide watch stays for five lines")
		}
		for i := names - 5; i < names; i++ {
			release(i)
		}
	})
}

// opened returns how many watches a hub has asked etcd for, of those that see deletions only.
func opened(h *etcdwire.Hub) (n int) {
	h.Lock()
	defer h.Unlock()
	for _, w := range h.ByID {
		if !w.Puts {
			n++
		}
	}
	return n
}

// TestSimulatedFollowedTakeOver: the holder of many names goes, and who follows them is told of
// all in one piece of news, without a request.
func TestSimulatedFollowedTakeOver(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		const names = 150
		first, _ := gatedAt(t, c, 0, 0)
		s, g := gatedAt(t, c, 1, 0)
		holds, l := granted(t, first, "a", 4*time.Minute), granted(t, s, "b", 4*time.Minute)
		var claims []driver.Claim
		for i := range names {
			claims = append(claims, driver.Claim{Name: fmt.Sprint("n", i), ID: fmt.Sprint("c", i)})
		}
		if _, err := holds.Claim(ending(t, time.Minute), claims...); err != nil {
			t.Fatal(err)
		}
		places, err := l.Claim(ending(t, time.Minute), claims...)
		if err != nil {
			t.Fatal(err)
		}
		l.Follow(places...)
		told := make(chan []driver.News, 1)
		ctx := ending(t, 4*time.Minute)
		go func() {
			out, _ := l.News(ctx)
			told <- out
		}()
		time.Sleep(3 * time.Second) // between two looks that nothing gives cause for, which come some 2 s apart
		var requests atomic.Int64
		g.set(func() { g.before = func(any) { requests.Add(1) } })
		if n := opened(s.wire.Hub); n != 1 {
			t.Errorf("seed 1: %d watches are open for %d places, want one", n, names)
		}
		if err := holds.Close(ending(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		out := <-told
		for _, n := range out {
			if !n.Held || !n.Place.Held {
				t.Errorf("seed 1: news = %+v, want it held", n)
			}
		}
		if len(out) != names || requests.Load() > 0 {
			t.Errorf("seed 1: %d places were told in one piece, with %d requests; want all %d and none", len(out),
				requests.Load(), names)
		}
	})
}

// TestSimulatedCompactedWatch: etcd's history is forgotten while a claim waits behind a member
// that hears nothing; its turn comes all the same.
func TestSimulatedCompactedWatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 1)
		holds := granted(t, first, "a", 4*time.Minute)
		p := claimed(t, holds, "x")
		_, _, _, turn := waitsIn(t, c, 1)
		time.Sleep(time.Second)
		c.Isolate(1, true)
		time.Sleep(200 * time.Millisecond)
		eventually(t, func() bool { return holds.Release(ending(t, 2*time.Second), p) == nil })
		kv := pb.NewKVClient(simClient(t, c, 9, c.Endpoints()[:1]).ActiveConnection())
		eventually(t, func() bool {
			r, err := kv.Put(ending(t, 2*time.Second), &pb.PutRequest{Key: []byte("other")})
			return err == nil && c.Compact(ending(t, 2*time.Second), r.Header.Revision) == nil
		})
		begun := time.Now()
		c.Isolate(1, false)
		if took := (<-turn).Sub(begun); took > 8*time.Second {
			t.Errorf("seed 1: the turn came %v after the history was forgotten", took)
		}
	})
}

func eventually(t *testing.T, do func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !do(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("seed 1: it did not happen")
		}
	}
}
