package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// reentry is the claim on x by which a place is exchanged, on another seat.
func reentry(seat, id string) driver.Claim { return driver.Claim{Name: "x", Seat: seat, ID: id} }

// tokensOf returns the create revisions of the claims on x.
func tokensOf(c *etcdsim.Cluster) (all []uint64) {
	for _, kv := range c.Keys("primacy/x/") {
		all = append(all, uint64(kv.CreateRevision))
	}
	return all
}

// TestSimulatedExchange: release and re-entry are one request, and nothing of the old claim is
// left.
func TestSimulatedExchange(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		for i, seat := range []string{"2", "", "2"} {
			before := g.calls.Load()
			q, err := l.Exchange(ending(t, 5*time.Second), p, reentry(seat, fmt.Sprint(i)))
			if err != nil || !q.Held || q.Token <= p.Token {
				t.Fatalf("seed 1: Exchange = %+v, %v, want it held under a token above %d", q, err, p.Token)
			}
			if n := g.calls.Load() - before; n != 1 {
				t.Errorf("seed 1: an exchange took %d requests", n)
			}
			if all := tokensOf(c); len(all) != 1 || all[0] != q.Token {
				t.Errorf("seed 1: tokens %v stand, want %d alone", all, q.Token)
			}
			p = q
		}
	})
}

// TestSimulatedExchangeOfUnknownOutcome: the answer to an exchange is lost, carried out or not,
// and the caller repeats it as a release and a claim, or gives both up. When the request arrives
// once more nothing may change.
func TestSimulatedExchangeOfUnknownOutcome(t *testing.T) {
	for _, executed := range []bool{true, false} {
		for _, goOn := range []bool{true, false} {
			t.Run(fmt.Sprintf("executed=%v,goOn=%v", executed, goOn), func(t *testing.T) {
				simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
					s, g := gatedAt(t, c, 0, 0)
					l := granted(t, s, "a", time.Minute)
					p := entered(t, l, "x", "", 0)
					sent := g.capture(s.lineDir("x") + l.ID() + ".2")
					c.Hold(0, 0, !executed, true)
					if _, err := l.Exchange(ending(t, 500*time.Millisecond), p, reentry("2", "x2")); err == nil ||
						driver.IsFinal(err) {
						t.Fatalf("seed 1: Exchange = %v without an answer", err)
					}
					g.set(func() { g.before = nil })
					old := tokensOf(c)
					if len(old) != 1 || (old[0] == p.Token) == executed {
						t.Fatalf("seed 1: tokens %v stand, so this test shows nothing", old)
					}
					if err := l.Release(ending(t, 10*time.Second), p); err != nil {
						t.Fatal(err)
					}
					var want []uint64
					if goOn {
						q, err := l.Claim(ending(t, 10*time.Second), reentry("2", "x2"))
						if err != nil || !q[0].Held || executed && q[0].Token != old[0] {
							t.Fatalf("seed 1: Claim = %+v, %v, want it held, with token %v if it had entered", q, err,
								old)
						}
						r := entered(t, l, "x", "3", 0)
						want = []uint64{q[0].Token, r.Token}
					} else if err := l.Release(ending(t, 10*time.Second), driver.Place{Name: "x", Seat: "2",
						ID: "x2"}); err != nil {
						t.Fatal(err)
					}
					sent.arrive(t, c)
					if got := tokensOf(c); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("seed 1: tokens %v stand, want %v", got, want)
					}
				})
			})
		}
	}
}

// TestSimulatedExchangeAtAFrozenMember: an exchange is sent to a member that is frozen, and is
// carried out by another one. Both claims are exchanged and released in turn; whenever the first
// member wakes up and does what it was sent, nothing may come back, and nothing that stands may
// go.
func TestSimulatedExchangeAtAFrozenMember(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		at := another(c)
		s, g := gatedAt(t, c, 0, at)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		sent := g.capture(s.lineDir("x") + l.ID() + ".2")
		c.Freeze(at)
		q, err := l.Exchange(ending(t, 10*time.Second), p, reentry("2", "x2"))
		if err != nil {
			t.Fatal(err)
		}
		// the first seat again: the key that the straggler deletes
		r, err := l.Exchange(ending(t, 10*time.Second), q, reentry("", "x3"))
		if err != nil {
			t.Fatal(err)
		}
		c.Thaw(at)
		sent.arrive(t, c)
		if all := tokensOf(c); len(all) != 1 || all[0] != r.Token {
			t.Errorf("seed 1: tokens %v stand, want %d alone", all, r.Token)
		}
		if err := l.Release(ending(t, 10*time.Second), r); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if all := tokensOf(c); len(all) != 0 {
			t.Errorf("seed 1: tokens %v stand after the release", all)
		}
	})
}

// TestSimulatedExchangeAfterAChange: the session's mark is another one than known. The exchange
// is one step still: whoever waits never finds the line empty, nor two claims of ours in it.
func TestSimulatedExchangeAfterAChange(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		l.seats.mu.Lock()
		l.attached.recordMod-- // as if another claim had just been retracted
		l.seats.mu.Unlock()
		q, err := l.Exchange(ending(t, 5*time.Second), p, reentry("2", "x2"))
		if err != nil || !q.Held {
			t.Fatalf("seed 1: Exchange = %+v, %v, want it held", q, err)
		}
		if all := tokensOf(c); len(all) != 1 || all[0] != q.Token {
			t.Errorf("seed 1: tokens %v stand, want %d alone", all, q.Token)
		}
	})
}

// TestSimulatedExchangeRefused: etcd refuses the new claim, as one that is too large. It is told,
// and the place is given up all the same.
func TestSimulatedExchangeRefused(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if puts(req, s.lineDir("x")+l.ID()+".2") {
					return rpctypes.ErrGRPCRequestTooLarge
				}
				return do(ctx)
			}
		})
		if _, err := l.Exchange(ending(t, 5*time.Second), p, reentry("2", "x2")); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("seed 1: Exchange = %v, want ErrRefused", err)
		}
		if all := tokensOf(c); len(all) != 0 {
			t.Errorf("seed 1: tokens %v stand", all)
		}
	})
}

// TestSimulatedExchangesThatCross: two go from one seat of a name to the other, in opposite ways,
// and both seats have been busy. They end.
func TestSimulatedExchangesThatCross(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		busy := make(chan struct{})
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				<-busy
				return do(ctx)
			}
		})
		done := make(chan error, 4)
		for _, seat := range []string{"", "2"} {
			go func() {
				_, err := l.Claim(ending(t, 5*time.Second), reentry(seat, "busy"+seat))
				done <- err
			}()
		}
		synctest.Wait()
		for _, seats := range [][2]string{{"", "2"}, {"2", ""}} {
			go func() {
				_, err := l.Exchange(ending(t, 5*time.Second), driver.Place{Name: "x", Seat: seats[0], ID: "gone" +
					seats[0], Token: 1}, reentry(seats[1], "to"+seats[1]))
				done <- err
			}()
		}
		synctest.Wait()
		close(busy)
		for range 4 {
			if err := <-done; err != nil {
				t.Errorf("seed 1: %v", err)
			}
		}
	})
}

// TestSimulatedExchangeGivenUpMeanwhile: the new claim is released while the exchange is under
// way. It must not enter afterwards.
func TestSimulatedExchangeGivenUpMeanwhile(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		key := s.lineDir("x") + l.ID() + ".2"
		sent := g.capture(key)
		g.set(func() {
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if puts(req, key) {
					<-ctx.Done()
					return ctx.Err()
				}
				return do(ctx)
			}
		})
		done := make(chan error, 1)
		go func() {
			_, err := l.Exchange(ending(t, 20*time.Second), p, reentry("2", "x2"))
			done <- err
		}()
		synctest.Wait()
		if err := l.Release(ending(t, 5*time.Second), driver.Place{Name: "x", Seat: "2", ID: "x2"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Error("seed 1: Exchange = nil, though its claim was released")
		}
		if err := l.Release(ending(t, 5*time.Second), p); err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if all := tokensOf(c); len(all) != 0 {
			t.Errorf("seed 1: tokens %v stand after both were released", all)
		}
	})
}

// TestSimulatedExchangeInHalves: after an unknown outcome the first half has been repeated, and
// somebody of the same lease stands on the old seat anew when the request arrives. It must not
// take that claim away.
func TestSimulatedExchangeInHalves(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "", 0)
		sent := g.capture(s.lineDir("x") + l.ID() + ".2")
		c.Hold(0, 0, true, true)
		if _, err := l.Exchange(ending(t, 500*time.Millisecond), p, reentry("2", "x2")); err == nil {
			t.Fatal("seed 1: Exchange = nil, though its request did not arrive")
		}
		if err := l.Release(ending(t, 10*time.Second), p); err != nil {
			t.Fatal(err)
		}
		q, err := l.Claim(ending(t, 10*time.Second), reentry("", "x3"))
		if err != nil {
			t.Fatal(err)
		}
		sent.arrive(t, c)
		if all := tokensOf(c); len(all) != 1 || all[0] != q[0].Token {
			t.Errorf("seed 1: tokens %v stand, want %d alone", all, q[0].Token)
		}
	})
}

// TestSimulatedExchangeOfADoubtfulPlace: a first attempt at the claim that is given up lies in a
// frozen member. When that wakes up it must not enter.
func TestSimulatedExchangeOfADoubtfulPlace(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		at := another(c)
		s, g := gatedAt(t, c, 0, at)
		l := granted(t, s, "a", time.Minute)
		sent := g.capture(s.lineDir("x") + l.ID())
		c.Freeze(at)
		p := entered(t, l, "x", "", 0)
		q, err := l.Exchange(ending(t, 10*time.Second), p, reentry("2", "x2"))
		if err != nil {
			t.Fatal(err)
		}
		c.Thaw(at)
		sent.arrive(t, c)
		if all := tokensOf(c); len(all) != 1 || all[0] != q.Token {
			t.Errorf("seed 1: tokens %v stand, want %d alone", all, q.Token)
		}
	})
}
