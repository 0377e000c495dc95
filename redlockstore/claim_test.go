package redlockstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/redlockstore"
)

// The ID of a Try that was taken may come again. What deletes the keys of the first call, or keeps
// its late ones out, must not meet those of the second: deleted on one server, the keys of a holder
// are no majority any more, and he hears of it too late.
func TestATryAgainUnderTheSameIDIsAnother(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	l := grant(t, open(t, c), "me", time.Minute)
	for _, s := range servers[:2] {
		s.Do("SET", "primacy:lock:x", "somebody", "PX", 60000)
	}
	servers[2].Stop()
	err := try(t, l, "x", "1")
	time.Sleep(100 * time.Millisecond) // for the call that takes it back to be on its way
	servers[2].Cont()
	if !errors.Is(err, driver.ErrTaken) {
		t.Fatalf("Claim = %v, want ErrTaken", err)
	}
	time.Sleep(300 * time.Millisecond) // the key that came late on the third server is taken back
	for _, s := range servers[:2] {
		s.Do("DEL", "primacy:lock:x")
	}
	if err := try(t, l, "x", "1"); err != nil {
		t.Fatalf("Claim of what is free = %v", err)
	}
	if err := retry(limited(t, time.Minute), func() error {
		if on := keys(servers, "x"); len(on) != 3 {
			return fmt.Errorf("it stands on the servers %v", on)
		}
		return nil
	}); err != nil {
		t.Errorf("%v: what was meant for the first call met the second", err)
	}
}

// Of two calls of one Try beside each other the one must not be told that its claim was given up
// because the other found the name taken.
func TestTwoCallsOfOneTryAreBothToldThatItIsTaken(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	claim(t, a, "x")
	for n := range 100 {
		answers := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := b.Claim(limited(t, time.Minute), driver.Claim{Name: "x", ID: fmt.Sprint(n), Try: true})
				answers <- err
			}()
		}
		for range 2 {
			// On a busy machine a majority may not answer in time: then the outcome is unknown.
			if err := <-answers; err == nil || driver.IsFinal(err) && !errors.Is(err, driver.ErrTaken) {
				t.Fatalf("call %d = %v, want ErrTaken", n, err)
			}
		}
	}
}

// Who hears that one of two claims was given up believes that neither stands.
func TestAClaimBesideOneThatWasGivenUpIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 1)
	l, other := grant(t, open(t, c), "me", time.Minute), grant(t, open(t, c), "other", time.Minute)
	servers[0].Stop()
	answer := make(chan error, 1)
	go func() {
		for {
			_, err := l.Claim(limited(t, time.Minute), driver.Claim{Name: "a", ID: "1"}, driver.Claim{Name: "b",
				ID: "2"})
			// Else it is repeated, as the library does.
			if err == nil || driver.IsFinal(err) || t.Context().Err() != nil {
				answer <- err
				return
			}
		}
	}()
	time.Sleep(100 * time.Millisecond)
	released := make(chan error, 1)
	go func() { released <- release(t, l, driver.Place{Name: "a", ID: "1"}) }()
	time.Sleep(100 * time.Millisecond)
	servers[0].Cont()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Claim = %v, want ErrGone", err)
	}
	if err := retry(limited(t, time.Minute), func() error {
		_, err := other.Claim(limited(t, time.Minute), driver.Claim{Name: "b", ID: "3", Try: true})
		return err
	}); err != nil {
		t.Errorf("Claim of what nobody believes to hold = %v", err)
	}
}

func TestNoPasswordOfAnAddressIsTold(t *testing.T) {
	t.Parallel()
	_, err := redlockstore.Open(context.Background(), redlockstore.Config{Addrs: []string{"a:1", "user:hunter2@b:2"}})
	if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Open = %v", err)
	}
}

// A plain key that is one of our marks would end another's lease.
func TestAPlainNameIsNoMark(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 1)
	c.Plain = true
	victim, l := grant(t, open(t, c), "victim", time.Minute), grant(t, open(t, c), "me", time.Minute)
	for _, name := range []string{"primacy:revoked:" + victim.ID(), "primacy:left:x"} {
		if _, err := l.Claim(limited(t, time.Minute), driver.Claim{Name: name, ID: name}); !errors.Is(err,
			driver.ErrRefused) {
			t.Errorf("Claim(%s) = %v, want ErrRefused", name, err)
		}
	}
	if err := renew(t, victim); err != nil {
		t.Errorf("Renew = %v", err)
	}
}
