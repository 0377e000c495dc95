package etcdstore

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// handOver is how soon a waiter knows that its turn has come where nothing is amiss. The poll
// beside its watch takes 4 s at least.
const handOver = 500 * time.Millisecond

// held runs Wait, and returns where it tells when the place was held.
func held(t *testing.T, l *lease, p driver.Place) <-chan time.Time {
	at := make(chan time.Time, 1)
	ctx := ending(t, 2*time.Minute)
	go func() {
		if _, err := drivertest.Await(ctx, l, p); err != nil {
			t.Errorf("seed 1: Wait: %v", err)
		}
		at <- time.Now()
	}()
	return at
}

// TestSimulatedLineMovesUp: of five in line the second gives up, and later the first is done: the
// third must hold at once, and so on, each time that those before it go in another order than
// they came.
func TestSimulatedLineMovesUp(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		var leases []*lease
		var places []driver.Place
		var at []<-chan time.Time
		for i := range 5 {
			s, _ := gatedAt(t, c, i, i%3)
			l := granted(t, s, "a", time.Minute)
			leases, places = append(leases, l), append(places, claimed(t, l, "x"))
			if i == 1 || i == 3 {
				at = append(at, nil) // these give up before their turn comes
			} else {
				at = append(at, held(t, l, places[i]))
			}
			time.Sleep(300 * time.Millisecond)
		}
		<-at[0]
		leave := func(i int) {
			if err := leases[i].Release(ending(t, 10*time.Second), places[i]); err != nil {
				t.Fatalf("seed 1: Release: %v", err)
			}
		}
		for _, i := range []int{0, 2} {
			leave(i + 1) // in the middle of the line
			time.Sleep(time.Second)
			if len(at[i+2]) > 0 {
				t.Fatalf("seed 1: claim %d is held while %d stands", i+2, i)
			}
			begun := time.Now()
			leave(i)
			if took := (<-at[i+2]).Sub(begun); took > handOver {
				t.Errorf("seed 1: claim %d held %v after %d was released, want %v at most", i+2, took, i, handOver)
			}
		}
	})
}

// onceFailing has the first call that matches fail without reaching etcd, and with nothing to
// blame its member for. It returns where it tells that it has.
func (g *gate) onceFailing(matches func(req any) bool) <-chan struct{} {
	failed := make(chan struct{})
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			select {
			case <-failed:
			default:
				if matches(req) {
					close(failed)
					return status.Error(codes.FailedPrecondition, "etcdserver: not now")
				}
			}
			return do(ctx)
		}
	})
	return failed
}

// TestSimulatedAWatchFollowsTheCalls: a member falls silent, and a call finds that out. The watch
// leaves it at once too, and so does whoever waits: it is told of its turn as if nothing were
// amiss. Nothing that it asked is under way then: it would wait for that.
func TestSimulatedAWatchFollowsTheCalls(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		silent := another(c)
		hs, _ := gatedAt(t, c, 0, c.Leader())
		ws, g := gatedAt(t, c, 1, silent)
		hl, wl := granted(t, hs, "a", time.Minute), granted(t, ws, "b", time.Minute)
		holder := claimed(t, hl, "x")
		at := held(t, wl, claimed(t, wl, "x"))
		watched := time.Now()
		looked := make(chan struct{})
		look := sync.OnceFunc(func() { close(looked) })
		g.set(func() {
			g.after = func(req any) {
				if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Compare) == 2 {
					look() // whoever waits looks every few seconds whether it is still not its turn
				}
			}
		})
		<-looked
		// The stream looks for a sign of life every second: it leaves the member before that.
		time.Sleep(2*time.Second - time.Since(watched)%time.Second + 50*time.Millisecond)
		c.Hold(1, silent, true, true)
		c.Hold(1, silent, false, true)
		if _, err := ws.Line(ending(t, 300*time.Millisecond), "x"); err == nil {
			t.Fatal("seed 1: the silent member has answered")
		}
		time.Sleep(350 * time.Millisecond)
		begun := time.Now()
		if err := hl.Release(ending(t, 10*time.Second), holder); err != nil {
			t.Fatalf("seed 1: Release: %v", err)
		}
		if took := (<-at).Sub(begun); took > 200*time.Millisecond {
			t.Errorf("seed 1: held %v after the release, want 0.2 s at most", took)
		}
	})
}

// TestSimulatedCallsUnderWayLeaveASilentMember: a call finds out that a member has fallen silent.
// One that is under way there does not wait for its own limit.
func TestSimulatedCallsUnderWayLeaveASilentMember(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		silent := another(c)
		s, _ := gatedAt(t, c, 0, silent)
		claimed(t, granted(t, s, "a", time.Minute), "x")
		c.Hold(0, silent, true, true)
		c.Hold(0, silent, false, true)
		begun, told := time.Now(), make(chan time.Duration, 1)
		go func() {
			if _, err := s.Line(ending(t, time.Minute), "x"); err != nil {
				t.Errorf("seed 1: Line: %v", err)
			}
			told <- time.Since(begun)
		}()
		if _, err := s.Line(ending(t, 300*time.Millisecond), "x"); err == nil {
			t.Error("seed 1: the silent member has answered")
		}
		if took := <-told; took > time.Second {
			t.Errorf("seed 1: the other call took %v, want 1 s at most", took)
		}
	})
}

// TestSimulatedASlowCallIsLeftAlone: one call of two blames a member, which answers another call
// after that. So it lives, and the slow one is not made twice.
func TestSimulatedASlowCallIsLeftAlone(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, another(c))
		claimed(t, granted(t, s, "a", time.Minute), "x")
		takes := map[string]time.Duration{"slow": 1500 * time.Millisecond, "cut": 400 * time.Millisecond,
			"answered": 400 * time.Millisecond}
		var made atomic.Int64
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				r, ok := req.(*pb.RangeRequest)
				if !ok {
					return do(ctx)
				}
				for name, d := range takes {
					if !bytes.Contains(r.Key, []byte(name)) {
						continue
					}
					if name == "slow" {
						made.Add(1)
					}
					if err := storeutil.Sleep(ctx, d); err != nil {
						return status.FromContextError(err).Err()
					}
				}
				return do(ctx)
			}
		})
		var all sync.WaitGroup
		for name := range takes {
			limit := time.Minute
			if name == "cut" {
				limit = 300 * time.Millisecond
			}
			all.Go(func() {
				if _, err := s.Line(ending(t, limit), name); (err != nil) != (name == "cut") {
					t.Errorf("seed 1: Line of %s: %v", name, err)
				}
			})
		}
		all.Wait()
		if n := made.Load(); n != 1 {
			t.Errorf("seed 1: the slow call was made %d times, want 1", n)
		}
	})
}

// TestSimulatedNewsOutlivesAFailedRead: a claim is deleted by hand, its session is pushed to
// look, and the look fails. It must look again soon: the push does not come twice.
func TestSimulatedNewsOutlivesAFailedRead(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		told := newsOf(t, l)
		time.Sleep(10 * time.Second) // the claim is watched, and all that was to be read has been
		failed := g.onceFailing(func(req any) bool {
			txn, ok := req.(*pb.TxnRequest)
			return ok && len(txn.Success) == 1 &&
				string(txn.Success[0].GetRequestRange().GetKey()) == s.lineDir("x")+l.ID()
		})
		begun := time.Now()
		if err := c.Delete(ending(t, 10*time.Second), s.lineDir("x")+l.ID(), int64(p.Token)); err != nil {
			t.Fatal(err)
		}
		<-failed
		n := <-told
		if took := time.Since(begun); took > time.Second || !n.Gone || n.Place.Token != p.Token {
			t.Errorf("seed 1: News = %+v, %v after the claim was deleted, want it gone within 1 s", n, took)
		}
	})
}

// TestSimulatedRequestOutlivesAFailedRead is the same for a request to the holder.
func TestSimulatedRequestOutlivesAFailedRead(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := claimed(t, l, "x")
		told := newsOf(t, l)
		time.Sleep(10 * time.Second)
		failed := g.onceFailing(func(req any) bool {
			r, ok := req.(*pb.RangeRequest)
			return ok && string(r.Key) == l.recordKey && len(r.RangeEnd) > 0
		})
		begun := time.Now()
		other, _ := gatedAt(t, c, 1, 1)
		if err := other.Ask(ending(t, 10*time.Second), "x", driver.Request{Token: p.Token}); err != nil {
			t.Fatal(err)
		}
		<-failed
		n := <-told
		if took := time.Since(begun); took > time.Second || n.Request == nil || n.Place.Token != p.Token {
			t.Errorf("seed 1: News = %+v, %v after the holder was asked, want the request within 1 s", n, took)
		}
	})
}

// newsOf runs News until it tells something, and returns where that arrives.
func newsOf(t *testing.T, l *lease) <-chan driver.News {
	told := make(chan driver.News, 1)
	ctx := ending(t, time.Minute)
	go func() {
		var n driver.News
		out, err := l.News(ctx)
		if err != nil || len(out) != 1 {
			t.Errorf("seed 1: News = %+v, %v, want one", out, err)
		} else {
			n = out[0]
		}
		told <- n
	}()
	return told
}

// TestSimulatedWaiterHearsOfItsOwnEnd: the claim of one who waits is deleted by hand, and he is
// told at once.
func TestSimulatedWaiterHearsOfItsOwnEnd(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		claimed(t, granted(t, first, "a", time.Minute), "x")
		s, _ := gatedAt(t, c, 1, 1)
		l := granted(t, s, "b", time.Minute)
		p := claimed(t, l, "x")
		ended := make(chan error, 1)
		ctx := ending(t, time.Minute)
		go func() {
			_, err := drivertest.Await(ctx, l, p)
			ended <- err
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		if err := c.Delete(ending(t, 10*time.Second), s.lineDir("x")+l.ID(), int64(p.Token)); err != nil {
			t.Fatal(err)
		}
		if err, took := <-ended, time.Since(begun); !isGone(err) || took > handOver {
			t.Errorf("seed 1: Wait = %v, %v after its claim was deleted, want ErrGone within %v", err, took, handOver)
		}
	})
}

// TestSimulatedQuietWaitReadsNoLine: whoever waits asks now and then whether he still does. That
// must not range over the line, or the waiters of a long one would cost etcd their number
// squared; and where a claim was removed without a word, it still finds his turn.
func TestSimulatedQuietWaitReadsNoLine(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		holds := granted(t, first, "a", 4*time.Minute)
		p := claimed(t, holds, "x")
		s, g := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		at := held(t, l, claimed(t, l, "x"))
		time.Sleep(5 * time.Second)
		var asked, ranged atomic.Int64
		g.set(func() {
			g.before = func(req any) {
				txn, ok := req.(*pb.TxnRequest)
				if !ok {
					return
				}
				if len(txn.Compare) > 0 {
					asked.Add(1)
				}
				for _, op := range txn.Success {
					if r := op.GetRequestRange(); r != nil && len(r.RangeEnd) > 0 {
						ranged.Add(1)
					}
				}
			}
		})
		time.Sleep(time.Minute)
		if asked.Load() < 2 || ranged.Load() > 0 {
			t.Errorf("seed 1: in a quiet minute it asked %d times and read the line %d times, want some and none",
				asked.Load(), ranged.Load())
		}
		s.wire.Hub.Lock()
		for _, w := range s.wire.Hub.Watches {
			w.Subs, w.Listeners = map[*etcdwire.Sub]struct{}{}, nil // nobody is told anything any more
		}
		s.wire.Hub.Unlock()
		if err := holds.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		gone := time.Now()
		if took := (<-at).Sub(gone); took > 25*time.Second {
			t.Errorf("seed 1: without a push it took %v", took)
		}
	})
}

// TestSimulatedBusyNewsLooksToo: nobody is told that the claim before ours went, while the session
// has news of another claim every second. The timer must find our turn all the same.
func TestSimulatedBusyNewsLooksToo(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		holds := granted(t, first, "a", 4*time.Minute)
		p := claimed(t, holds, "x")
		s, _ := gatedAt(t, c, 1, 0)
		l := granted(t, s, "b", 4*time.Minute)
		busy := claimed(t, l, "y")
		l.Follow(claimed(t, l, "x"))
		ctx := ending(t, 2*time.Minute)
		at := make(chan time.Time, 1)
		var requests atomic.Int64
		go func() {
			for {
				news, err := l.News(ctx)
				if err != nil {
					return
				}
				for _, n := range news {
					if n.Held {
						at <- time.Now()
					}
					if n.Request != nil {
						requests.Add(1)
					}
				}
			}
		}()
		go func() {
			for ctx.Err() == nil {
				_ = first.Ask(ctx, "y", driver.Request{Token: busy.Token})
				_ = storeutil.Sleep(ctx, time.Second)
			}
		}()
		time.Sleep(5 * time.Second)
		s.wire.Hub.Lock()
		for _, w := range s.wire.Hub.Watches {
			w.Listeners = nil // whoever waits is told nothing any more
		}
		s.wire.Hub.Unlock()
		if err := holds.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		gone := time.Now()
		select {
		case told := <-at:
			if took := told.Sub(gone); took > 25*time.Second || requests.Load() < 3 {
				t.Errorf("seed 1: without a push it took %v, with %d requests told meanwhile", took, requests.Load())
			}
		case <-ctx.Done():
			t.Errorf("seed 1: without a push it was never told, with %d requests told", requests.Load())
		}
	})
}

// TestSimulatedKnownTurnIsToldFirst: the turn of one claim is known while etcd is asked about
// another, and the answer is slow. The turn is told at once.
func TestSimulatedKnownTurnIsToldFirst(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		first, _ := gatedAt(t, c, 0, 0)
		holds := granted(t, first, "a", 4*time.Minute)
		claimed(t, holds, "x")
		p := claimed(t, holds, "y")
		s, g := gatedAt(t, c, 1, 1)
		l := granted(t, s, "b", 4*time.Minute)
		l.Follow(claimed(t, l, "x"))
		l.Follow(claimed(t, l, "y"))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if out, err := l.News(ctx); err == nil {
			t.Fatalf("seed 1: News = %+v", out)
		}
		l.waiters.by[seatID{Name: "x"}].check()
		if err := holds.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				time.Sleep(1500 * time.Millisecond)
				return do(ctx)
			}
		})
		begun := time.Now()
		out, err := l.News(ending(t, 10*time.Second))
		if took := time.Since(begun); err != nil || len(out) != 1 || !out[0].Held || took > 100*time.Millisecond {
			t.Errorf("seed 1: News = %+v, %v after %v", out, err, took)
		}
		s.wire.Hub.Lock()
		due := l.waiters.by[seatID{Name: "x"}].recheck
		s.wire.Hub.Unlock()
		if !due {
			t.Error("seed 1: the other claim is not asked about any more")
		}
	})
}
