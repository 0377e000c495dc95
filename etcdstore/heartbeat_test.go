package etcdstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdsim"
)

const short = 300 * time.Millisecond

// kept renews a lease as a session does, until it is stopped. It tells when the last renewal that
// was accepted was sent.
type kept struct {
	stop func() time.Time
	gap  *atomic.Int64 // the longest time between two that were accepted
}

func keep(t *testing.T, l *lease) kept {
	quit, done := make(chan struct{}), make(chan time.Time, 1)
	stop := sync.OnceFunc(func() { close(quit) })
	t.Cleanup(stop)
	var gap atomic.Int64
	go func() {
		var last time.Time
		for {
			now := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), l.ttl*3/10)
			if err := l.Renew(ctx); err == nil {
				if !last.IsZero() {
					gap.Store(max(gap.Load(), int64(now.Sub(last))))
				}
				last = now
			} else if !errors.Is(err, driver.ErrGone) {
				t.Logf("%v after the last that was accepted: %v", now.Sub(last), err)
			}
			cancel()
			select {
			case <-quit:
				done <- last
				return
			case <-time.After(l.ttl / 5):
			}
		}
	}()
	return kept{func() time.Time { stop(); return <-done }, &gap}
}

// pairOf returns a lease with a heartbeat that holds x and is kept, and a place right behind it,
// in another process.
func pairOf(t *testing.T, c *etcdsim.Cluster, ttl time.Duration,
) (holder *lease, k kept, waiter *lease, p driver.Place) {
	a, _ := gatedAt(t, c, 0, 0)
	b, _ := gatedAt(t, c, 1, 1)
	holder = granted(t, a, "a", ttl)
	k = keep(t, holder)
	claimed(t, holder, "x")
	waiter = granted(t, b, "b", time.Minute)
	return holder, k, waiter, claimed(t, waiter, "x")
}

// TestSimulatedCrash: a holder with a heartbeat falls silent, and the next in line leads about
// the ttl later; not before it is over, by the waiter's clock.
func TestSimulatedCrash(t *testing.T) {
	for _, ttl := range []time.Duration{short, 500 * time.Millisecond, time.Second, 1900 * time.Millisecond} {
		simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
			holder, k, waiter, p := pairOf(t, c, ttl)
			at := held(t, waiter, p)
			time.Sleep(20 * time.Second)
			if len(at) > 0 {
				t.Fatal("seed 1: the waiter holds while the holder's heart beats")
			}
			last := k.stop()
			took := (<-at).Sub(last)
			if took < ttl*112/100 || took > ttl*13/10+50*time.Millisecond {
				t.Errorf("seed 1: ttl %v: the waiter held %v after the last heartbeat was sent", ttl, took)
			}
			if err := holder.Renew(ending(t, time.Second)); !errors.Is(err, driver.ErrGone) {
				t.Errorf("Renew of a session that was ended = %v, want ErrGone", err)
			}
			time.Sleep(100 * time.Millisecond)
			if left := len(c.Keys("primacy/@beat/")); left != 0 {
				t.Errorf("%d heartbeats are left", left)
			}
			if n := len(c.Keys("primacy/")); n != 2 {
				t.Errorf("%d keys are left, want the waiter's record and claim", n)
			}
		})
	}
}

// TestSimulatedThawedHolder: the holder is paused past its ttl and wakes up. It must learn that
// it is over, and bring nothing back.
func TestSimulatedThawedHolder(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		holder, k, waiter, p := pairOf(t, c, short)
		at := held(t, waiter, p)
		time.Sleep(2 * time.Second)
		freeze(c, 0, true)
		<-at
		freeze(c, 0, false)
		time.Sleep(time.Second)
		k.stop()
		if err := holder.Renew(ending(t, time.Second)); !errors.Is(err, driver.ErrGone) {
			t.Errorf("seed 1: Renew = %v, want ErrGone", err)
		}
		time.Sleep(20 * time.Second)
		if n := len(c.Keys("primacy/")); n != 2 {
			t.Errorf("seed 1: %d keys are left, want the waiter's record and claim", n)
		}
	})
}

// TestSimulatedBaseIsProven: heartbeats are written, but the lease below cannot be proven.
// Renewals may be accepted for as long as it surely lives, and no longer.
func TestSimulatedBaseIsProven(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", short)
		k := keep(t, l)
		time.Sleep(20 * time.Second)
		begun := time.Now()
		g.fails(func(req any) bool { // what proves the base
			txn, ok := req.(*pb.TxnRequest)
			return ok && len(txn.Compare) == 1 && txn.Compare[0].Target == pb.Compare_VERSION
		})
		time.Sleep(30 * time.Second)
		last := k.stop()
		if good := last.Sub(begun); good > minBase/2-short || good < time.Second {
			t.Errorf("seed 1: renewals were accepted for %v after the lease below could no longer be proven", good)
		}
	})
}

// TestSimulatedBaseOutlivesChangesOfEtcdsLeader: etcd's leader changes, the lease moves, and the
// heartbeat with it: what hung on the old lease has long ended, and the session lives.
func TestSimulatedBaseOutlivesChangesOfEtcdsLeader(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		holder, k, waiter, p := pairOf(t, c, 1900*time.Millisecond)
		at := held(t, waiter, p)
		for range 3 {
			before := only(t, c, "primacy/@beat/").Lease
			changeLeader(c)
			for i := 0; i < 15; i++ {
				time.Sleep(time.Second)
				_ = waiter.Renew(ending(t, time.Second))
			}
			if holder.over() || len(at) > 0 {
				t.Fatal("seed 1: the session did not outlive a change of etcd's leader")
			}
			if beat := only(t, c, "primacy/@beat/").Lease; beat == before || beat != only(t, c,
				"primacy/@session/"+holder.ID()).Lease {
				t.Fatal("seed 1: the heartbeat does not hang on the lease that the record was moved to")
			}
		}
		if late := time.Since(k.stop()); late > time.Second {
			t.Errorf("seed 1: the last renewal was accepted %v ago", late)
		}
		<-at
	})
}

// TestSimulatedForsakenSessionEnds: nobody renews any more, and nobody waits behind it: its lease
// must not be kept alive.
func TestSimulatedForsakenSessionEnds(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, _ := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", short)
		claimed(t, l, "x")
		k := keep(t, l)
		time.Sleep(20 * time.Second)
		k.stop()
		time.Sleep(minBase * 3 / 2)
		if n := len(c.Keys("primacy/")); n != 0 {
			t.Errorf("seed 1: %d keys are left %v after the last renewal", n, minBase*3/2)
		}
	})
}

// TestSimulatedFrozenMemberCostsNoHeartbeat: the member that a session speaks to is frozen, with
// a ttl far shorter than it takes to find that out.
func TestSimulatedFrozenMemberCostsNoHeartbeat(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		a := another(c)
		s, _ := gatedAt(t, c, 0, a)
		l := granted(t, s, "a", short)
		k := keep(t, l)
		time.Sleep(2 * time.Second)
		c.Freeze(a)
		var worst time.Duration
		for range 40 {
			time.Sleep(100 * time.Millisecond)
			if l.over() {
				t.Fatal("seed 1: the session is over")
			}
			l.heartbeat.mu.Lock()
			worst = max(worst, l.heartbeat.proven.ago())
			l.heartbeat.mu.Unlock()
		}
		if worst > l.heartbeat.maxProofAge {
			t.Errorf("seed 1: the lease below was not proven for %v", worst)
		}
		if gap := time.Duration(k.gap.Load()); gap > short*6/10 {
			t.Errorf("seed 1: no renewal was accepted for %v", gap)
		}
	})
}

// TestSimulatedHeartbeatWakesNobody: its own heartbeats are no news to a session.
func TestSimulatedHeartbeatWakesNobody(t *testing.T) {
	simulated(t, func(t *testing.T, c *etcdsim.Cluster) {
		s, g := gatedAt(t, c, 0, 0)
		l := granted(t, s, "a", short)
		claimed(t, l, "x")
		keep(t, l)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { _, _ = l.News(ctx) }()
		time.Sleep(5 * time.Second)
		var reads atomic.Int32
		g.set(func() {
			g.before = func(req any) {
				if r, ok := req.(*pb.RangeRequest); ok && len(r.RangeEnd) > 0 {
					reads.Add(1)
				}
			}
		})
		time.Sleep(10 * time.Second)
		if n := reads.Load(); n > 5 {
			t.Errorf("seed 1: News read the record %d times in 10 s in which nothing happened", n)
		}
	})
}

func TestStemsOfKeys(t *testing.T) {
	s := &Store{layout: layout{"p/"}}
	for _, c := range []struct {
		key, session string
		beat         time.Duration
	}{
		{s.claimKey(seatID{Name: "a"}, 0, stemOf(0x12ab, 0)), "12ab", 0},
		{s.claimKey(seatID{Name: "a"}, 0, stemOf(0x12ab, short)), "12ab", short},
		{s.claimKey(seatID{Name: "a", Seat: "7"}, 3, stemOf(0x12ab, 2*time.Second)), "12ab", 2 * time.Second},
		{"p/a/12ab+300.x+5", "12ab", short},
		{"p/a/12ab+", "12ab", 0},
		{"p/a/host+300", "host", 0},
		{"p/a/12ab+0", "12ab", 0},
		{"p/a/12ab+-5", "12ab", 0},
		{"p/a/12ab+99999999999999999999", "12ab", 0},
		{"p/a/12ab+300001", "12ab", 0},
	} {
		if session, beat := parseStem(c.key); session != c.session || beat != c.beat {
			t.Errorf("%s: session %q with a heartbeat of %v, want %q and %v", c.key, session, beat, c.session, c.beat)
		}
		if _, session := parseClaim("p/a/", c.key); session != c.session {
			t.Errorf("%s: parseClaim has session %q", c.key, session)
		}
	}
}

// TestKeysThatAreClaims: what a store takes for a claim of its own, and not for another store's
// whose prefix begins where one of its lines does.
func TestKeysThatAreClaims(t *testing.T) {
	outer, inner := &Store{layout: layout{"p/"}}, &Store{layout: layout{"p/billing/"}}
	stem := stemOf(0x12ab, short)
	for _, id := range []seatID{{Name: "a"}, {Name: "billing"}, {Name: "a", Seat: "7"}, {Name: "a/~b@"}, {Name: ""}} {
		for _, slots := range []int{0, 3, driver.Unlimited} {
			for _, s := range []*Store{outer, inner} {
				key := s.claimKey(id, slots, stem)
				for _, by := range []*Store{outer, inner} {
					if is := by.isClaim(key); is != (by == s) {
						t.Errorf("%s: a claim for the store of %s: %v", key, by.prefix, is)
					}
					if is := by.isClaimOf(key, "12ab"); is != (by == s) {
						t.Errorf("%s: a claim of the session 12ab for the store of %s: %v", key, by.prefix, is)
					}
				}
			}
		}
	}
	for _, key := range []string{"p/", "p/12ab", "q/a/12ab", "p/@session/12ab", "p/@beat/12ab",
		"p/@session/12ab/ask/a", "p/a/b/12ab", "p/a/~x/12ab", "p/a/~1/b/12ab"} {
		if outer.isClaim(key) {
			t.Errorf("%s: taken for a claim", key)
		}
	}
}
