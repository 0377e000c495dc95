package memstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
)

// grant returns a lease of ten seconds that has entered the line of name.
func grant(t *testing.T, s *Store, owner, name string) (driver.Lease, driver.Place) {
	t.Helper()
	l, err := s.Grant(t.Context(), owner, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	places, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: owner + "-1"})
	if err != nil {
		t.Fatal(err)
	}
	return l, places[0]
}

func TestALeaseEndsAfterTTLOnTheStoresClock(t *testing.T) {
	for _, rate := range []float64{0, 0.5, 0.95, 1, 1.05, 2} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{Rate: rate})
			holder, _ := grant(t, s, "a", "n")
			time.Sleep(3 * time.Second)
			if err := holder.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			waiter, place := grant(t, s, "b", "n")
			// The waiter's lease must outlive the holder's: it is renewed a moment later.
			time.Sleep(time.Millisecond)
			if err := waiter.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			renewed := time.Now().Add(-time.Millisecond)
			if _, err := drivertest.Await(t.Context(), waiter, place); err != nil {
				t.Fatal(err)
			}
			real := rate
			if real == 0 {
				real = 1
			}
			got, want := time.Since(renewed), time.Duration(float64(10*time.Second)/real)
			if got != want {
				t.Errorf("rate %v: the lease ended %v after its renewal, want %v", rate, got, want)
			}
			if err := holder.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
				t.Errorf("rate %v: Renew of an ended lease = %v, want ErrGone", rate, err)
			}
		})
	}
}

func TestAPartitionedOwnerHangsUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		l, p := grant(t, s, "a", "n")
		s.Partition("a", true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Renew(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Renew = %v, want the context's error", err)
		}
		// The other owner is served, and comes to hold when the lease of the first ends.
		other, q := grant(t, s, "b", "n")
		if _, err := drivertest.Await(t.Context(), other, q); err != nil {
			t.Errorf("Wait of an owner who is not cut off: %v", err)
		}
		// A call that hangs when the network heals arrives late; here it finds the lease gone.
		late := make(chan error)
		go func() { late <- l.Release(t.Context(), p) }()
		synctest.Wait()
		s.Partition("a", false)
		if err := <-late; err != nil {
			t.Errorf("late Release = %v, want nil", err)
		}
		if err := l.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
			t.Errorf("Renew after the ttl = %v, want ErrGone", err)
		}
	})
}

func TestExpireAndRemove(t *testing.T) {
	s := New(Options{})
	l, p := grant(t, s, "a", "n")
	if s.Remove("n", p.Token+1) || s.Expire("other") {
		t.Error("Remove or Expire of what does not stand = true, want false")
	}
	if !s.Remove("n", p.Token) {
		t.Fatal("Remove of the holder = false, want true")
	}
	news, err := l.News(t.Context())
	if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.Token != p.Token {
		t.Errorf("News = %+v, %v, want the place that was removed", news, err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew after Remove = %v, want nil: only the claim is gone", err)
	}
	if _, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "a-2"}); err != nil {
		t.Fatal(err)
	}
	if !s.Expire("n") {
		t.Error("Expire of the holder = false, want true")
	}
	if err := l.Renew(t.Context()); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew after Expire = %v, want ErrGone", err)
	}
}

func TestNewRefusesOptionsThatContradictEachOther(t *testing.T) {
	for _, o := range []Options{{Rate: -1}, {MinTTL: -1}, {MinTTL: 2, MaxTTL: 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New(%+v) did not panic", o)
				}
			}()
			New(o)
		}()
	}
	s := New(Options{MinTTL: time.Second, MaxTTL: time.Minute})
	if _, err := s.Grant(t.Context(), "a", time.Hour); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Grant above MaxTTL = %v, want ErrRefused", err)
	}
	l, err := s.Grant(t.Context(), "a", time.Millisecond)
	if err != nil || l.TTL() != time.Second {
		t.Errorf("Grant below MinTTL: %v, want a lease of MinTTL", err)
	}
}

func TestARenewalWinsAgainstATimerThatFiredAlready(t *testing.T) {
	l, _ := grant(t, New(Options{}), "a", "n")
	l.(*lease).expire() // as if it had waited for the mutex while Renew had it
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew after the timer of an earlier renewal = %v, want nil", err)
	}
}

func TestATryOfAClaimThatWaitsTakesItOutOfTheLine(t *testing.T) {
	s := New(Options{})
	grant(t, s, "a", "n")
	l, p := grant(t, s, "b", "n")
	_, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: p.ID, Try: true})
	if !errors.Is(err, driver.ErrTaken) {
		t.Errorf("Claim = %v, want ErrTaken", err)
	}
	ln, err := s.Line(t.Context(), "n")
	if err != nil || len(ln.Waiters) != 0 {
		t.Errorf("line = %+v, %v, want nobody waiting: the one who tried believes that he does not", ln, err)
	}
}

func TestTheStoreSharesNoMemoryWithItsCallers(t *testing.T) {
	s := New(Options{})
	l, err := s.Grant(t.Context(), "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	value := []byte("one")
	places, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: "1", Value: value})
	if err != nil {
		t.Fatal(err)
	}
	shown := func(want string) {
		t.Helper()
		value[0] = 'X'
		ln, err := s.Line(t.Context(), "n")
		if err != nil || string(ln.Holder.Value) != want {
			t.Errorf("the holder's value is %q, %v, want %q as it was handed in", ln.Holder.Value, err, want)
		}
		ln.Holder.Value[0] = 'Y'
	}
	shown("one")
	shown("one")
	value = []byte("two")
	if err := l.Update(t.Context(), places[0], value); err != nil {
		t.Fatal(err)
	}
	shown("two")
	shown("two")
}
