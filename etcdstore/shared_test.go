package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

// entered makes one claim with slots.
func entered(t *testing.T, l *lease, name, seat string, slots int) driver.Place {
	t.Helper()
	p, err := l.Claim(ending(t, 20*time.Second), driver.Claim{Name: name, Seat: seat, Slots: slots, ID: name + seat})
	if err != nil {
		t.Fatalf("seed 1: Claim: %v", err)
	}
	return p[0]
}

// queued is a line of claims of different clients, each of which waits for its turn.
type queued struct {
	gates  []*gate
	leases []*lease
	places []driver.Place
	turns  []<-chan time.Time
}

func queueUp(t *testing.T, c *etcdsim.Cluster, slots ...int) *queued {
	q := &queued{}
	for i, n := range slots {
		s, g := gatedAt(t, c, i, i%3)
		l := granted(t, s, "q", time.Minute)
		q.gates, q.leases = append(q.gates, g), append(q.leases, l)
		q.places = append(q.places, entered(t, l, "x", "", n))
		turn, ctx := make(chan time.Time, 1), ending(t, time.Minute)
		go func() {
			if _, err := drivertest.Await(ctx, l, q.places[i]); err == nil { // some wait until the test is over
				turn <- time.Now()
			}
		}()
		q.turns = append(q.turns, turn)
	}
	time.Sleep(time.Second) // all who wait have looked, and their watches stand
	return q
}

func (q *queued) calls() (n int64) {
	for _, g := range q.gates {
		n += g.calls.Load()
	}
	return n
}

func (q *queued) leave(t *testing.T, i int) {
	t.Helper()
	if err := q.leases[i].Release(ending(t, 10*time.Second), q.places[i]); err != nil {
		t.Fatalf("seed 1: Release: %v", err)
	}
}

// turn waits for one turn and reports whether it came by a signal.
func (q *queued) turn(t *testing.T, i int, begun time.Time) {
	t.Helper()
	if took := (<-q.turns[i]).Sub(begun); took > handOver {
		t.Errorf("seed 1: claim %d held %v after the release, want %v at most", i, took, handOver)
	}
}

// TestSimulatedSlotCosts counts what the release of a slot costs a crowd: its delete, a look and
// a touch by who comes to hold, and two looks by who is first then.
func TestSimulatedSlotCosts(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		q := queueUp(t, c, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)
		<-q.turns[0]
		<-q.turns[1]
		for i, leaves := range []int{1, 0, 2, 3} {
			before, begun := q.calls(), time.Now()
			q.leave(t, leaves)
			q.turn(t, i+2, begun)
			time.Sleep(200 * time.Millisecond)
			if n := q.calls() - before; n > 5 {
				t.Errorf("seed 1: release %d cost %d requests of all who stand, want 5", i, n)
			}
			if len(q.turns[i+3]) > 0 {
				t.Fatalf("seed 1: claim %d holds beyond the slots", i+3)
			}
		}
	})
}

// TestSimulatedReadersCosts: the end of a writer wakes all readers behind it, each for one look,
// and nobody behind the next writer.
func TestSimulatedReadersCosts(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		r := driver.Unlimited
		q := queueUp(t, c, 0, r, r, r, r, 0, r, r)
		<-q.turns[0]
		before, begun := q.calls(), time.Now()
		q.leave(t, 0)
		for i := 1; i <= 4; i++ {
			q.turn(t, i, begun)
		}
		time.Sleep(200 * time.Millisecond)
		if n := q.calls() - before; n > 5 {
			t.Errorf("seed 1: the writer's release cost %d requests, want 5: its own, and a look by each of 4 readers",
				n)
		}
		for i, leaves := range []int{4, 2, 1, 3} {
			if len(q.turns[5]) > 0 {
				t.Fatalf("seed 1: the second writer holds beside %d readers", 4-i)
			}
			begun = time.Now()
			q.leave(t, leaves)
			time.Sleep(100 * time.Millisecond)
		}
		q.turn(t, 5, begun)
	})
}

// TestSimulatedWaiterThatDoesNotLook: the first who waits for a slot comes to hold and does not
// look. Whoever is behind it is not told, and finds its own turn by the timer.
func TestSimulatedWaiterThatDoesNotLook(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 8, 0)
		l := granted(t, s, "a", time.Minute)
		first := entered(t, l, "x", "1", 1)
		deaf := entered(t, l, "x", "2", 1)
		q := queueUp(t, c, 1)
		for _, p := range []driver.Place{first, deaf} {
			if len(q.turns[0]) > 0 {
				t.Fatal("seed 1: a claim holds beyond the slots")
			}
			if err := l.Release(ending(t, 10*time.Second), p); err != nil {
				t.Fatal(err)
			}
		}
		<-q.turns[0]
		// With two slots the one that does not look goes on standing.
		first = entered(t, l, "y", "1", 2)
		other := entered(t, l, "y", "2", 2)
		entered(t, l, "y", "3", 2)
		last := entered(t, l, "y", "4", 2)
		turn := held(t, l, last)
		time.Sleep(time.Second)
		begun := time.Now()
		if err := l.Release(ending(t, 10*time.Second), first, other); err != nil {
			t.Fatal(err)
		}
		if took := (<-turn).Sub(begun); took > 6*time.Second {
			t.Errorf("seed 1: held %v after two slots came free, want 6s at most", took)
		}
	})
}

// TestSimulatedTryLeavesNoTrace: a try for a slot where none is free writes nothing at all.
func TestSimulatedTryLeavesNoTrace(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		q := queueUp(t, c, 2, 2)
		s, g := gatedAt(t, c, 9, 0)
		l := granted(t, s, "a", time.Minute)
		try := driver.Claim{Name: "x", Slots: 2, ID: "t", Try: true}
		before, entries := g.calls.Load(), c.Stats().Entries
		if _, err := l.Claim(ending(t, 10*time.Second), try); !errors.Is(err, driver.ErrTaken) {
			t.Errorf("seed 1: Claim = %v, want ErrTaken", err)
		}
		if n, e := g.calls.Load()-before, c.Stats().Entries-entries; n != 1 || e != 0 {
			t.Errorf("seed 1: a try without a free slot took %d requests and %d entries of the log, want one read", n,
				e)
		}
		q.leave(t, 0)
		before = g.calls.Load()
		if p, err := l.Claim(ending(t, 10*time.Second), try); err != nil || !p[0].Held || g.calls.Load()-before != 2 {
			t.Errorf("seed 1: Claim = %+v, %v in %d requests, want it held in 2", p, err, g.calls.Load()-before)
		}
	})
}

// TestSimulatedTryForASlotThatAnotherTakes: a try reads that a slot is free, and another takes the
// slot before the try's write arrives. The try must not hold beside the two who do.
func TestSimulatedTryForASlotThatAnotherTakes(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		far, _ := gatedAt(t, c, 1, 1)
		l, other := granted(t, s, "a", time.Minute), granted(t, far, "b", time.Minute)
		entered(t, other, "x", "1", 2)
		try := driver.Claim{Name: "x", Slots: 2, ID: "t", Try: true}
		writes := 0
		g.set(func() {
			g.before = func(req any) {
				if !puts(req, l.keyOf(driver.Place{Name: "x", Slots: 2})) {
					return
				}
				if writes++; writes == 1 && !entered(t, other, "x", "2", 2).Held {
					t.Error("seed 1: the other does not hold the last slot")
				}
			}
		})
		if p, err := l.Claim(ending(t, 20*time.Second), try); !errors.Is(err, driver.ErrTaken) || writes == 0 {
			t.Errorf("seed 1: Claim = %+v, %v after %d writes, want ErrTaken after one", p, err, writes)
		}
		if n := len(c.Keys("primacy/x/")); n != 2 {
			t.Errorf("seed 1: %d claims stand, want the two that hold", n)
		}
	})
}

// TestSimulatedForeignClaimsAreExclusive: what another program put into the line keeps readers
// and semaphores out.
func TestSimulatedForeignClaimsAreExclusive(t *testing.T) {
	for _, slots := range []int{driver.Unlimited, 3} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
				kv := pb.NewKVClient(simClient(t, c, 9, c.Endpoints()).ActiveConnection())
				put, err := kv.Put(ending(t, 10*time.Second), &pb.PutRequest{Key: []byte("primacy/x/694d7c3b")})
				if err != nil {
					t.Fatal(err)
				}
				q := queueUp(t, c, slots, slots)
				ln, err := q.leases[0].s.Line(ending(t, 10*time.Second), "x")
				if err != nil || ln.Holder == nil || ln.Holder.Slots != 0 || !ln.Holder.Held || len(ln.Waiters) != 2 ||
					ln.Waiters[0].Held ||
					ln.Waiters[0].Slots != slots || ln.Waiters[0].Owner != "q" {
					t.Errorf("seed 1: line = %+v, %v, want the other program's claim to hold alone", ln, err)
				}
				if len(q.turns[0])+len(q.turns[1]) > 0 {
					t.Fatal("seed 1: a shared claim holds beside another program's")
				}
				begun := time.Now()
				if err := c.Delete(ending(t, 10*time.Second), "primacy/x/694d7c3b", put.Header.Revision); err != nil {
					t.Fatal(err)
				}
				q.turn(t, 0, begun)
				q.turn(t, 1, begun)
			})
		})
	}
}

// TestSimulatedMixedSlotsAreNamed: the refusal says both numbers, and nothing is left.
func TestSimulatedMixedSlotsAreNamed(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		p := entered(t, l, "x", "1", 3)
		for _, try := range []bool{false, true} {
			_, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", Seat: "2", Slots: 4,
				ID: fmt.Sprint(try), Try: try})
			if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "3 slots") ||
				!strings.Contains(err.Error(), "4 slots") {
				t.Errorf("seed 1: Claim = %v, want ErrRefused with both numbers", err)
			}
		}
		if only(t, c, "primacy/x/").CreateRevision != int64(p.Token) {
			t.Error("seed 1: the first claim is gone")
		}
		_, err := l.Claim(ending(t, 10*time.Second), driver.Claim{Name: "x", Seat: "1", Slots: 4, ID: p.ID})
		if !errors.Is(err, driver.ErrRefused) {
			t.Errorf("seed 1: Claim of the same ID with other slots = %v, want ErrRefused", err)
		}
		only(t, c, "primacy/x/")
	})
}

// TestSimulatedHolderOfASlotIsKnown: the fence finds each claim that holds, and no other; and a
// shared claim is not asked.
func TestSimulatedHolderOfASlotIsKnown(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", time.Minute)
		for i := range 4 {
			p := entered(t, l, "x", fmt.Sprint(i), 2)
			key, err := s.ClaimKey(ending(t, 10*time.Second), "x", p.Token)
			if want := l.keyOf(p); p.Held && (err != nil || key != want) || !p.Held && !isGone(err) {
				t.Errorf("seed 1: ClaimKey of claim %d (held %v) = %q, %v", i, p.Held, key, err)
			}
			err = s.Ask(ending(t, 10*time.Second), "x", driver.Request{Token: p.Token})
			if p.Held && !errors.Is(err, driver.ErrRefused) || !p.Held && !isGone(err) {
				t.Errorf("seed 1: Ask of claim %d (held %v) = %v, want it refused, or gone", i, p.Held, err)
			}
		}
	})
}

// TestSimulatedTryWhoseAnswerIsLost: a try gets the last slot and does not hear so; others stand
// behind it meanwhile. Made again it finds its place, wherever its key is among theirs.
func TestSimulatedTryWhoseAnswerIsLost(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		far, _ := gatedAt(t, c, 1, 1)
		var leases []*lease
		for range 4 {
			leases = append(leases, granted(t, s, "a", time.Minute))
		}
		other := granted(t, far, "b", time.Minute)
		for i, l := range leases {
			try := driver.Claim{Name: fmt.Sprint(i), Slots: 2, ID: "t", Try: true}
			entered(t, other, try.Name, "1", 2)
			answers := func(lost bool) {
				for m := range c.Endpoints() {
					c.Hold(0, m, false, lost)
				}
			}
			g.set(func() {
				g.before = func(req any) {
					if puts(req, l.keyOf(driver.Place{Name: try.Name, Slots: 2})) {
						answers(true)
					}
				}
			})
			if _, err := l.Claim(ending(t, 500*time.Millisecond), try); err == nil || driver.IsFinal(err) {
				t.Fatalf("seed 1: Claim = %v without an answer", err)
			}
			g.set(func() { g.before = nil })
			answers(false)
			for seat := range 4 {
				entered(t, other, try.Name, fmt.Sprint(2+seat), 2)
			}
			if p, err := l.Claim(ending(t, 10*time.Second), try); err != nil || !p[0].Held ||
				len(c.Keys("primacy/"+try.Name+"/")) != 6 {
				t.Errorf("seed 1: Claim again = %+v, %v, want the slot that it has", p, err)
			}
		}
	})
}

// TestSimulatedTryForASlotWhoseClaimIsRemoved: a try of unknown outcome has entered and is
// repeated. Its claim is removed by hand before the repeated write arrives, and those who waited
// behind it have all slots by then. The try must not hold beside them.
func TestSimulatedTryForASlotWhoseClaimIsRemoved(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		far, _ := gatedAt(t, c, 1, 1)
		l, other := granted(t, s, "a", time.Minute), granted(t, far, "b", time.Minute)
		try := driver.Claim{Name: "x", Slots: 2, ID: "t", Try: true}
		key := l.keyOf(driver.Place{Name: "x", Slots: 2})
		ctx, giveUp := context.WithCancel(ending(t, 20*time.Second))
		defer giveUp()
		g.set(func() {
			g.after = func(req any) {
				if puts(req, key) {
					giveUp()
				}
			}
			g.instead = func(ctx context.Context, req any, do func(context.Context) error) error {
				if err := do(ctx); err != nil || !puts(req, key) {
					return err
				}
				return status.Error(codes.Unavailable, "the answer is lost")
			}
		})
		if _, err := l.Claim(ctx, try); err == nil || driver.IsFinal(err) {
			t.Fatalf("seed 1: Claim = %v, want an unknown outcome", err)
		}
		ours := only(t, c, key)
		entered(t, other, "x", "1", 2)
		entered(t, other, "x", "2", 2)
		removed := false
		g.set(func() {
			g.after, g.instead = nil, nil
			g.before = func(req any) {
				if !removed && puts(req, key) {
					removed = true
					if err := c.Delete(ending(t, 10*time.Second), key, ours.CreateRevision); err != nil {
						t.Errorf("seed 1: Delete: %v", err)
					}
				}
			}
		})
		if p, err := l.Claim(ending(t, 20*time.Second), try); !errors.Is(err, driver.ErrTaken) || !removed {
			t.Errorf("seed 1: Claim = %+v, %v beside two who hold two slots, want ErrTaken", p, err)
		}
		if n := len(c.Keys("primacy/x/")); n != 2 {
			t.Errorf("seed 1: %d claims stand, want the two that hold", n)
		}
	})
}
