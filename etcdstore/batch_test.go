package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// jam has as many claims under way as go by themselves, which the gate holds back: so all that
// follows waits, and then goes together. What follows is left to instead, if that is not nil.
func jam(t *testing.T, l *lease, g *gate, instead func(ctx context.Context, req any,
	do func(context.Context) error) error,
) (open func()) {
	t.Helper()
	gate, names := make(chan struct{}), make([]string, maxAlone)
	for i := range names {
		names[i] = fmt.Sprintf("jam%d", jams.Add(1))
	}
	g.set(func() {
		g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
			for _, name := range names {
				if puts(req, l.s.lineDir(name)+l.ID()) {
					<-gate
					return do(ctx)
				}
			}
			if instead != nil {
				return instead(ctx, req, do)
			}
			return do(ctx)
		}
	})
	for _, name := range names {
		claiming(ending(t, 30*time.Second), l, name)
	}
	return func() { close(gate) }
}

var jams atomic.Int64 // so that no name is used twice

// told is what the caller of a claim was told.
type told struct {
	driver.Place
	err error
}

// claiming claims a name in the background.
func claiming(ctx context.Context, l *lease, name string) <-chan told {
	done := make(chan told, 1)
	go func() {
		p, err := l.Claim(ctx, driver.Claim{Name: name, ID: name + "-1"})
		if err != nil {
			p = make([]driver.Place, 1)
		}
		done <- told{p[0], err}
	}()
	synctest.Wait()
	return done
}

// claimingAll claims n names in the background, which begin with x and wait for others.
func claimingAll(t *testing.T, l *lease, x string, n int) (all []<-chan told) {
	t.Helper()
	for i := range n {
		all = append(all, claiming(ending(t, 30*time.Second), l, fmt.Sprintf("%s%d", x, i)))
	}
	return all
}

// mustStand takes the claims, which must have entered, and returns their places.
func mustStand(t *testing.T, all []<-chan told) (places []driver.Place) {
	t.Helper()
	for _, f := range all {
		got := <-f
		if got.err != nil || !got.Held {
			t.Errorf("seed 1: Claim = %+v, %v, want it held", got.Place, got.err)
		}
		places = append(places, got.Place)
	}
	return places
}

// nested returns how many Txns req has within, 0 if it is none or has none.
func nested(req any) (n int) {
	txn, ok := req.(*pb.TxnRequest)
	if !ok || settles(req) && len(txn.Compare) > 0 {
		return 0
	}
	for _, op := range txn.Success {
		if op.GetRequestTxn() != nil {
			n++
		}
	}
	return n
}

// TestSimulatedBatch: what waits while others are under way goes together, in as few requests as
// the server's limit allows; a lone claim goes by itself. Each claim has the key's create
// revision as its token, and a release takes it away.
func TestSimulatedBatch(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		sent := func(do func()) int64 {
			before := g.calls.Load()
			do()
			return g.calls.Load() - before
		}
		if n := sent(func() { claimed(t, l, "alone") }); n != 1 {
			t.Errorf("seed 1: a lone claim took %d requests", n)
		}
		open := jam(t, l, g, nil)
		var places []driver.Place
		if n := sent(func() {
			all := claimingAll(t, l, "x", 300)
			open()
			places = mustStand(t, all)
		}); n != 3 {
			t.Errorf("seed 1: 300 claims went in %d requests, want 3", n)
		}
		tokens := map[string]int64{}
		for _, kv := range c.Keys("primacy/x") {
			tokens[string(kv.Key)] = kv.CreateRevision
		}
		for _, p := range places {
			if at := tokens[s.lineDir(p.Name)+l.ID()]; at != int64(p.Token) {
				t.Fatalf("seed 1: %s has token %d, its key was made at %d", p.Name, p.Token, at)
			}
		}
		if n := sent(func() {
			if err := l.Release(ending(t, 10*time.Second), places...); err != nil {
				t.Error(err)
			}
			// how many lanes are opened before the first has taken its load is the scheduler's
			// choice
		}); n > maxAlone+maxBatches+3 {
			t.Errorf("seed 1: 300 releases went in %d requests", n)
		}
		if keys := c.Keys("primacy/x"); len(keys) > 0 {
			t.Errorf("seed 1: %d claims stand after their release", len(keys))
		}
	})
}

// TestSimulatedBatchOfOneName: claims of two seats of one name never go in one Txn. They would
// have one create revision, and neither would be first.
func TestSimulatedBatchOfOneName(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		open := jam(t, l, g, nil)
		other := claiming(ending(t, 20*time.Second), l, "y")
		done := make(chan told, 3)
		for i := range 3 {
			go func() {
				p, err := l.Claim(ending(t, 20*time.Second), driver.Claim{Name: "x", Seat: fmt.Sprint(i),
					ID: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
					p = make([]driver.Place, 1)
				}
				done <- told{p[0], err}
			}()
		}
		synctest.Wait()
		open()
		mustStand(t, []<-chan told{other})
		tokens, held := map[uint64]bool{}, 0
		for range 3 {
			f := <-done
			tokens[f.Token] = true
			if f.Held {
				held++
			}
		}
		if len(tokens) != 3 || held != 1 {
			t.Errorf("seed 1: three claims on one name have %d tokens, and %d of them hold", len(tokens), held)
		}
	})
}

// TestSimulatedBatchWithoutACaller: a claim is given up while it waits for others. It is not
// sent, and nothing is in doubt: its release asks nothing of etcd.
func TestSimulatedBatchWithoutACaller(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		var mu sync.Mutex
		seen := false
		open := jam(t, l, g, func(ctx context.Context, req any, do func(context.Context) error) error {
			mu.Lock()
			seen = seen || puts(req, s.lineDir("x")+l.ID())
			mu.Unlock()
			return do(ctx)
		})
		ctx, cancel := context.WithCancel(t.Context())
		x, y := claiming(ctx, l, "x"), claiming(ending(t, 20*time.Second), l, "y")
		cancel()
		if f := <-x; !errors.Is(f.err, context.Canceled) {
			t.Errorf("seed 1: Claim = %v, want its context's error", f.err)
		}
		before := g.calls.Load()
		if err := l.Release(ending(t, time.Second), driver.Place{Name: "x", ID: "x-1"}); err != nil ||
			g.calls.Load() != before {
			t.Errorf("seed 1: Release = %v in %d requests, want none: nothing was sent", err, g.calls.Load()-before)
		}
		open()
		mustStand(t, []<-chan told{y})
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if seen || len(c.Keys("primacy/x/")) > 0 {
			t.Error("seed 1: a claim was sent that had been given up while it waited")
		}
	})
}

// TestSimulatedBatchOutlivesACaller: one of several that are under way together is given up and
// released. It must not enter when they arrive; the others must.
func TestSimulatedBatchOutlivesACaller(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		away, late := make(chan struct{}), make(chan struct{})
		open := jam(t, l, g, func(ctx context.Context, req any, do func(context.Context) error) error {
			if nested(req) == 3 {
				close(away)
				<-late
			}
			return do(ctx)
		})
		ctx, cancel := context.WithCancel(t.Context())
		x, y, z := claiming(ctx, l, "x"), claiming(ending(t, 20*time.Second), l, "y"), claiming(ending(t,
			20*time.Second), l, "z")
		open()
		<-away
		cancel()
		if f := <-x; !errors.Is(f.err, context.Canceled) {
			t.Errorf("seed 1: Claim = %v, want its context's error", f.err)
		}
		if err := l.Release(ending(t, 5*time.Second), driver.Place{Name: "x", ID: "x-1"}); err != nil {
			t.Fatal(err)
		}
		close(late)
		mustStand(t, []<-chan told{y, z})
		if keys := c.Keys("primacy/x/"); len(keys) > 0 {
			t.Errorf("seed 1: after Release a ghost stands under token %d", keys[0].CreateRevision)
		}
	})
}

// TestSimulatedBatchAnsweredByNobody: claims go together and are carried out, and the answer is
// lost, or the request lies in a member that is frozen. Each finds its place through another
// member. Once released none may come back, when the request arrives again.
func TestSimulatedBatchAnsweredByNobody(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprint(frozen), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				at := another(c)
				s, g := gatedAt(t, c, 0, at)
				l := granted(t, s, "a", time.Minute)
				open := jam(t, l, g, nil)
				sent := g.capture(s.lineDir("x0") + l.ID())
				all := claimingAll(t, l, "x", 5)
				var once sync.Once
				g.set(func() {
					before, instead := g.before, g.instead
					g.before = func(req any) {
						before(req)
						if nested(req) > 1 {
							once.Do(func() {
								if frozen {
									c.Freeze(at)
								} else {
									c.Hold(0, at, false, true)
								}
							})
						}
					}
					g.instead = instead
				})
				open()
				places := mustStand(t, all)
				for _, p := range places {
					if kv := only(t, c, s.lineDir(p.Name)); uint64(kv.CreateRevision) != p.Token {
						t.Errorf("seed 1: %s has token %d, its key was made at %d", p.Name, p.Token, kv.CreateRevision)
					}
				}
				if err := l.Release(ending(t, 20*time.Second), places...); err != nil {
					t.Fatal(err)
				}
				c.Heal()
				sent.arrive(t, c)
				if nested(sent.txn) != 5 {
					t.Errorf("seed 1: %d claims went together, so this test shows nothing", nested(sent.txn))
				}
				if keys := c.Keys("primacy/x"); len(keys) > 0 {
					t.Errorf("seed 1: after Release %d ghosts stand, the first at %s", len(keys), keys[0].Key)
				}
			})
		})
	}
}
