package redlockstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/redistest"
)

// What goes wrong in libraries of today, by their own issues, and must not here.

// redsync #186: a lock that was won on exactly a majority dies with one more server, for what was
// missing is never acquired again.
func TestAMissingServerIsAcquiredAgain(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a := grant(t, open(t, c), "a", time.Minute)
	servers[2].Kill()
	claim(t, a, "x")
	servers[2].Restart()
	err := retry(limited(t, time.Minute), func() error {
		if err := renew(t, a); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		if on := keys(servers, "x"); len(on) != 3 {
			return fmt.Errorf("it stands on the servers %v", on)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Kill() // without the third the majority would be gone
	if err = renew(t, a); err != nil {
		t.Errorf("Renew after one of the first two is dead: %v", err)
	}
}

// redsync WithSetNXOnExtend (#147, #149): A loses the lock, B locks, works and unlocks, then A
// extends it as if nothing had been.
func TestARenewalNeverSetsWhatWasLost(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	claim(t, a, "x")
	stands(t, a, servers, "x")
	for _, s := range servers {
		s.Do("DEL", "primacy:lock:x")
	}
	p := claim(t, b, "x")
	if !p.Held {
		t.Fatal("not held")
	}
	if err := retry(limited(t, time.Minute), func() error { // by a server that was slow, too
		if err := b.Release(limited(t, time.Minute), p); err != nil {
			return err
		}
		if on := keys(servers, "x"); len(on) != 0 {
			return fmt.Errorf("it stands on %v", on)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(limited(t, time.Minute)); err == nil {
		t.Error("Renew of what another has had meanwhile = nil")
	}
	if on := keys(servers, "x"); len(on) != 0 {
		t.Errorf("the renewal has set it again on %v", on)
	}
}

// stands waits until a claim of l on name stands on all servers. It is held before.
func stands(t *testing.T, l driver.Lease, servers []*redistest.Server, name string) {
	t.Helper()
	if err := retry(limited(t, time.Minute), func() error {
		_ = l.Renew(limited(t, time.Minute)) // which sets it where it is missing
		if on := keys(servers, name); len(on) != len(servers) {
			return fmt.Errorf("it stands on the servers %v", on)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The same where a minority was lost to another: it is left to him.
func TestAMinorityThatAnotherHasIsLeftToHim(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a := grant(t, open(t, c), "a", time.Minute)
	claim(t, a, "x")
	stands(t, a, servers, "x")
	servers[1].Do("SET", "primacy:lock:x", "somebody", "PX", 60000)
	for range 3 {
		if err := renew(t, a); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	if got := servers[1].Do("GET", "primacy:lock:x"); got != "somebody" {
		t.Errorf("the renewal has overwritten %v", got)
	}
}

// redsync Extend has no time limit of its own: 10 s on a silent link for a lease of 1 s.
func TestARenewalHasALimit(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	s, cut := behindProxies(t, c)
	defer s.Close()
	a := grant(t, s, "a", time.Minute)
	claim(t, a, "x")
	cut(true)
	defer cut(false)
	begun := time.Now()
	if err := a.Renew(context.Background()); err == nil || errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew over a silent link = %v, want an unknown outcome", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("Renew over a silent link returned after %v", took)
	}
}

// redsync with FailFast cancels what is in flight, and its keys stay on a minority until their ttl.
func TestATryThatFailsLeavesNoKey(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 5)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	for i := range 20 {
		name := fmt.Sprint("x", i)
		for _, s := range servers[:3] {
			s.Do("SET", "primacy:lock:"+name, "somebody", "PX", 60000)
		}
		if err := try(t, b, name, name); !errors.Is(err, driver.ErrTaken) {
			t.Fatalf("Try = %v, want ErrTaken", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		p := driver.Place{Name: "y" + name, ID: name}
		_, _ = a.Claim(ctx, driver.Claim{Name: p.Name, ID: p.ID})
		cancel()
		if err := release(t, a, p); err != nil {
			t.Fatal(err)
		}
		err := retry(limited(t, time.Minute), func() error {
			if on, more := keys(servers, name), keys(servers, p.Name); !slices.Equal(on, []int{0, 1, 2}) || len(more) > 0 {
				return fmt.Errorf("a try that failed stands on %v, one that was given up on %v", on, more)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// redsync: a SET that was given up arrives after the release, on another connection, and blocks
// everybody for a ttl. Here a frozen server has it in its buffers, and who could delete the key is
// gone.
func TestALateSetDoesNothing(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	// Several, for now and then one has a second connection, over which its release comes too.
	leases, ends := make([]driver.Lease, 5), make([]func() error, 5)
	for i := range leases {
		s := bare(t, c)
		ends[i] = s.Close
		leases[i] = grant(t, s, fmt.Sprint("a", i), time.Minute)
		claim(t, leases[i], fmt.Sprint("warm", i))
	}
	servers[2].Stop()
	for i, l := range leases {
		if err := release(t, l, claim(t, l, fmt.Sprint("x", i))); err != nil {
			t.Fatalf("Release beside a frozen server: %v", err)
		}
		_ = ends[i]()
	}
	time.Sleep(3 * time.Second) // longer than such a call may still do anything
	servers[2].Cont()
	time.Sleep(200 * time.Millisecond)
	for i := range leases {
		// One that runs may have answered its release too late for a store that is closed at once.
		if on := keys(servers, fmt.Sprint("x", i)); slices.Contains(on, 2) {
			t.Errorf("a key that was released stands on %v", on)
		}
	}
}

// The same while he who released it lives: the server gets his call too, in whatever order.
func TestAReleaseReachesAServerThatWasFrozen(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a := grant(t, open(t, c), "a", time.Minute)
	for i := range 5 {
		name := fmt.Sprint("x", i)
		servers[2].Stop()
		p := claim(t, a, name)
		if err := release(t, a, p); err != nil {
			t.Fatalf("Release beside a frozen server: %v", err)
		}
		servers[2].Cont()
		if err := retry(limited(t, time.Minute), func() error {
			if on := keys(servers, name); len(on) != 0 {
				return fmt.Errorf("a key that was released stands on %v", on)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if p := claim(t, a, "x"); !p.Held {
		t.Error("not held")
	}
}

// Release says nil only when the claim can stand on no majority.
func TestAReleaseThatDoesNotReachAMajorityIsUnknown(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a := grant(t, open(t, c), "a", time.Minute)
	p := claim(t, a, "x")
	// The third server may not have been asked: what it says does not count then.
	granted := slices.DeleteFunc(servers, func(s *redistest.Server) bool {
		return s.Do("EXISTS", "primacy:lock:x").(int64) == 0
	})
	granted[0].Stop()
	granted[1].Stop()
	if err := a.Release(limited(t, 500*time.Millisecond), p); err == nil {
		t.Error("Release that did not reach two that have granted = nil: another may find it held")
	}
	granted[0].Cont()
	if err := release(t, a, p); err != nil {
		t.Errorf("Release when a majority is back: %v", err)
	}
}

// The deadline counts from the last renewal: keys that were set by a Claim that was under way
// meanwhile must live as long.
func TestAClaimLivesAsLongAsTheRenewalBesideItSays(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	slow := c
	slow.Addrs = nil
	for _, a := range c.Addrs {
		p := newDelay(t, a, 15*time.Millisecond)
		slow.Addrs = append(slow.Addrs, p)
	}
	const ttl = 10 * time.Second
	a := grant(t, open(t, slow), "a", ttl)
	for i := range 10 {
		name := fmt.Sprint("x", i)
		renewed := make(chan time.Time)
		go func() {
			time.Sleep(time.Duration(i) * 4 * time.Millisecond)
			var at time.Time
			if err := retry(limited(t, time.Minute), func() error {
				at = time.Now()
				return a.Renew(limited(t, time.Minute))
			}); err != nil {
				at = time.Time{}
			}
			renewed <- at
		}()
		p := claim(t, a, name)
		at := <-renewed
		if !p.Held || at.IsZero() {
			t.Fatalf("held %v, renewed %v", p.Held, at)
		}
		live := 0
		for _, s := range servers {
			left := time.Duration(s.Do("PTTL", "primacy:lock:"+name).(int64)) * time.Millisecond
			if time.Now().Add(left).After(at.Add(ttl - 3*time.Millisecond)) {
				live++
			}
		}
		if live < 2 {
			t.Errorf("%s: only %d keys live as long as the renewal says", name, live)
		}
	}
}

// newDelay returns the address of a way to target that takes so long in each direction.
func newDelay(t *testing.T, target string, d time.Duration) string {
	p, err := proxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Delay(d)
	return p.Addr()
}

// rueidislock waits for Redis's own expire cycle after a crash: seconds with thousands of keys that
// expire, minutes with tens of thousands.
func TestTheNextHoldsWhenTheTTLOfADeadOneIsOver(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	for _, s := range servers {
		s.Do("EVAL", "for i = 1, 10000 do redis.call('SET', 'other' .. i, 'x', 'PX', 500 + i % 4000) end return 1", 0)
	}
	const ttl = 5 * time.Second
	b := grant(t, open(t, c), "b", time.Minute)
	dead := grant(t, open(t, c), "dead", ttl) // last, so that it lives until it has claimed
	begun := time.Now()
	claim(t, dead, "x")
	q := claim(t, b, "x")
	if _, err := wait(t, b, q, time.Minute); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < ttl-5*time.Millisecond || took > 40*time.Second {
		t.Errorf("the next holds %v after the claim of one who died, whose ttl is %v", took, ttl)
	}
}

// rueidislock hangs for ever on a free lock once a round trip takes longer than its time-out for
// the next try.
func TestAFreeLockIsTakenOverASlowLink(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	for i, a := range c.Addrs {
		c.Addrs[i] = newDelay(t, a, 15*time.Millisecond)
	}
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	p := claim(t, a, "x")
	q := claim(t, b, "x")
	time.AfterFunc(100*time.Millisecond, func() { _ = a.Release(context.Background(), p) })
	if _, err := wait(t, b, q, time.Minute); err != nil {
		t.Fatal(err)
	}
}

// No wait rests on a push: who hears nothing looks by himself.
func TestAWaitThatHearsNothingStillHolds(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	p := claim(t, a, "x")
	q := claim(t, b, "x")
	var freed sync.WaitGroup
	defer freed.Wait() // two of the servers are enough for b, and the test ends them all
	freed.Go(func() {
		time.Sleep(500 * time.Millisecond)
		for _, s := range servers { // in the server's own words, so that nothing is published
			s.Do("DEL", "primacy:lock:x")
		}
		_ = a.Release(context.Background(), p)
	})
	begun := time.Now()
	if _, err := wait(t, b, q, time.Minute); err != nil {
		t.Fatalf("%v after %v", err, time.Since(begun))
	}
}
