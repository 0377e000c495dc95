package redlockstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redlockstore"
)

// A claim is followed once and no more: whoever tries for it goes on through an outage of all
// servers, and when they are back News tells that it holds.
func TestAFollowedClaimOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	p := claim(t, a, "x")
	q := claim(t, b, "x")
	b.Follow(q)
	time.Sleep(200 * time.Millisecond)
	for _, s := range servers {
		s.Stop()
	}
	time.Sleep(4 * time.Second) // several tries fail meanwhile
	for _, s := range servers {
		s.Cont()
	}
	if err := release(t, a, p); err != nil {
		t.Fatalf("Release: %v", err)
	}
	news, err := b.News(limited(t, time.Minute))
	if err != nil || len(news) != 1 || !news[0].Held || news[0].Place.ID != q.ID {
		t.Fatalf("News: %+v, %v", news, err)
	}
	if news, err := b.News(limited(t, 1500*time.Millisecond)); err == nil {
		t.Errorf("and once more: %+v", news)
	}
}

// What came to hold and was lost before anybody asked for news is told as gone, and not as held.
func TestWhatWasLostBeforeNewsIsNotToldAsHeld(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	p := claim(t, a, "x")
	q := claim(t, b, "x")
	b.Follow(q)
	if err := release(t, a, p); err != nil {
		t.Fatal(err)
	}
	s := open(t, c)
	for ln := (driver.Line{}); ln.Holder == nil || ln.Holder.Lease != b.ID(); {
		var err error
		if ln, err = s.Line(limited(t, time.Minute), "x"); err != nil {
			t.Fatal(err)
		}
	}
	// The store's own attempt is to find that it holds, not the Claim that asks whether it did.
	time.Sleep(100 * time.Millisecond)
	if err := retry(limited(t, time.Minute), func() error { // until b knows that it holds
		got, err := b.Claim(limited(t, time.Minute), driver.Claim{Name: "x", ID: q.ID})
		if err == nil && !got[0].Held {
			err = errors.New("not held")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, v := range servers {
		v.Do("DEL", "primacy:lock:x")
	}
	var news []driver.News
	err := retry(limited(t, time.Minute), func() error { // until it has asked a majority
		if err := b.Renew(limited(t, time.Minute)); err == nil {
			t.Fatal("renewed, though a claim was lost")
		}
		var err error
		news, err = b.News(limited(t, time.Second))
		return err
	})
	if err != nil || len(news) != 1 || !news[0].Gone || news[0].Place.ID != q.ID {
		t.Errorf("News: %+v, %v", news, err)
	}
}

// Close waits for whoever tries for followed claims, and they end at once.
func TestCloseEndsWhoTries(t *testing.T) {
	t.Parallel()
	servers, c := fleet(t, 3)
	a := grant(t, open(t, c), "a", time.Minute)
	s := bare(t, c)
	b := grant(t, s, "b", time.Minute)
	for i := range 20 {
		name := fmt.Sprint("x", i)
		claim(t, a, name)
		b.Follow(claim(t, b, name))
	}
	for _, v := range servers[:2] {
		v.Stop()
	}
	defer func() {
		for _, v := range servers[:2] {
			v.Cont()
		}
	}()
	time.Sleep(100 * time.Millisecond)
	done := make(chan error)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close hangs")
	}
	b.Follow(driver.Place{Name: "x1", ID: "x1"}) // does nothing any more
	if _, err := b.Claim(context.Background(), driver.Claim{Name: "y", ID: "y"}); err == nil {
		t.Error("a claim on a closed store")
	}
}

// Nobody deletes keys once the store is closed: a release that waited for that would never end.
func TestAReleaseAfterTheStoreWasClosedEnds(t *testing.T) {
	t.Parallel()
	_, c := fleet(t, 3)
	s := bare(t, c)
	released, closed := grant(t, s, "a", time.Minute), grant(t, s, "b", time.Minute)
	p := claim(t, released, "x")
	claim(t, closed, "y")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, time.Minute) // an end of the test, not of the calls
	if err := released.Release(ctx, p); err == nil || driver.IsFinal(err) || ctx.Err() != nil {
		t.Errorf("Release after the store was closed = %v, want an error at once that is not final", err)
	}
	if err := closed.Close(ctx); err == nil || driver.IsFinal(err) || ctx.Err() != nil {
		t.Errorf("Close of a lease after that of the store = %v, want an error at once that is not final", err)
	}
}

// The user loses the right to one key while its lease waits for two. News tells so of that place,
// and goes on with the other. A key that cannot be deleted holds up no release of another.
func TestARefusedNameIsToldAlone(t *testing.T) {
	t.Parallel()
	c := redlockstore.Config{Username: "elector", Password: "sesame", MaxTTL: time.Minute, Guard: -1}
	var servers []*redistest.Server
	for range 3 {
		s := redistest.Start(t, redistest.Options{User: c.Username, Password: c.Password, Rights: rights, Young: true})
		servers, c.Addrs = append(servers, s), append(c.Addrs, s.Addr())
	}
	a, b := grant(t, open(t, c), "a", time.Minute), grant(t, open(t, c), "b", time.Minute)
	good, bad := claim(t, a, "good"), claim(t, a, "bad")
	q, refused := claim(t, b, "good"), claim(t, b, "bad")
	b.Follow(q, refused)
	for _, s := range servers {
		s.Do("ACL", "SETUSER", c.Username, "resetkeys",
			"~primacy:lock:good*", "~primacy:left:*", "~primacy:revoked:*")
	}
	news, err := b.News(limited(t, time.Minute))
	if err != nil || len(news) != 1 || news[0].Place.ID != refused.ID ||
		!errors.Is(news[0].Refused, driver.ErrRefused) {
		t.Fatalf("News = %+v, %v, want that bad is refused", news, err)
	}
	_, err = b.Claim(limited(t, time.Minute), driver.Claim{Name: "bad", ID: "again"})
	if !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Claim = %v, want it refused", err)
	}
	if err := a.Release(limited(t, 50*time.Millisecond), bad); err == nil {
		t.Error("Release of what cannot be deleted = nil")
	}
	if err := release(t, a, good); err != nil {
		t.Errorf("Release of the other = %v", err)
	}
	news, err = b.News(limited(t, time.Minute))
	if err != nil || len(news) != 1 || news[0].Place.ID != q.ID || !news[0].Held {
		t.Errorf("News = %+v, %v, want that good is held", news, err)
	}
	if err := renew(t, b); err != nil {
		t.Errorf("Renew = %v", err)
	}
	if err := release(t, b, refused, q); err != nil {
		t.Errorf("Release of what never stood, and of the other = %v", err)
	}
}
