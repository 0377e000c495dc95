package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

const (
	patience = 3 * time.Minute        // after which a call that should have returned is a failure
	quiet    = 150 * time.Millisecond // for which we watch that nothing happens. Too short hides a bug, but never invents one
	steady   = 5 * time.Minute        // ttl of leases that must outlive their clause without a renewal
)

// open returns a client of the storage, closed at the end of the test.
func open(t *testing.T, h Harness) driver.Store {
	t.Helper()
	s := h.Open(t)
	if h.Faults != nil {
		s = stubborn(Faulty(s, *h.Faults))
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Store.Close: %v", err)
		}
	})
	return s
}

// need skips a clause that the store or its harness cannot run.
func need(t *testing.T, ok bool, what string) {
	t.Helper()
	if !ok {
		t.Skip("needs " + what)
	}
}

// soon returns a context for a call that must not hang.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// grant makes a lease that lives as long as the clause and is closed with it.
func grant(t *testing.T, s driver.Store, owner string) driver.Lease {
	t.Helper()
	return grantFor(t, s, owner, longTTL(s))
}

// longTTL returns the ttl of leases that are not meant to end.
func longTTL(s driver.Store) time.Duration {
	caps := s.Caps()
	return min(max(steady, caps.MinTTL), caps.MaxTTL)
}

// grantFor is grant with a ttl.
func grantFor(t *testing.T, s driver.Store, owner string, ttl time.Duration) driver.Lease {
	t.Helper()
	asked := time.Now()
	l, err := s.Grant(soon(t), owner, ttl)
	for tries := 1; errors.Is(err, driver.ErrGone) && time.Since(asked) >= ttl/2 && tries < 5; tries++ {
		asked = time.Now() // the machine stalled for as long as the lease lasts: begin again
		l, err = s.Grant(soon(t), owner, ttl)
	}
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended by now. The result does not matter: it may be ended or
		// cut off.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// ttl returns the ttl of leases that are meant to end.
func (h Harness) ttl(s driver.Store) time.Duration {
	ttl := h.TTL
	if ttl == 0 {
		ttl = 2 * time.Second
	}
	return max(ttl, s.Caps().MinTTL)
}

// mortal makes a lease with claims on names that will end if nobody renews it.
func mortal(t *testing.T, h Harness, s driver.Store, names ...string) (driver.Lease, []driver.Place) {
	t.Helper()
	var claims []driver.Claim
	for _, n := range names {
		claims = append(claims, driver.Claim{Name: n, ID: unique()})
	}
	for range 5 {
		asked := time.Now()
		l := grantFor(t, s, "mortal", h.ttl(s))
		places, err := l.Claim(soon(t), claims...)
		if err == nil && time.Since(asked) < l.TTL()/2 {
			return l, places
		}
		if err != nil && time.Since(asked) < l.TTL() {
			t.Fatalf("Claim: %v", err)
		}
		_ = l.Close(soon(t)) // the machine stalled, which is not the store's fault: begin again
	}
	t.Fatal("the machine is too slow for this ttl: raise Harness.TTL")
	return nil, nil
}

// unique returns a name or claim ID that was never used.
func unique() string { return rand.Text() }

// enter claims one name under a new ID and returns the place.
func enter(t *testing.T, l driver.Lease, name string) driver.Place {
	t.Helper()
	return claim(t, l, driver.Claim{Name: name, ID: unique()})
}

// claim makes one claim and returns its place.
func claim(t *testing.T, l driver.Lease, c driver.Claim) driver.Place {
	t.Helper()
	places, err := l.Claim(soon(t), c)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if len(places) != 1 || places[0].Name != c.Name || places[0].Seat != c.Seat || places[0].Slots != c.Slots || places[0].ID != c.ID {
		t.Fatalf("Claim of %q under %q = %+v, want its one place", c.Name, c.ID, places)
	}
	return places[0]
}

// release gives places up.
func release(t *testing.T, l driver.Lease, places ...driver.Place) {
	t.Helper()
	if err := l.Release(soon(t), places...); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// hold waits until the place is held.
func hold(t *testing.T, l driver.Lease, p driver.Place) driver.Place {
	t.Helper()
	return (<-waiting(t, l, p)).must(t)
}

// line returns the line of name.
func line(t *testing.T, s driver.Store, name string) driver.Line {
	t.Helper()
	ln, err := s.Line(soon(t), name)
	if err != nil {
		t.Fatalf("Line: %v", err)
	}
	return ln
}

// holder returns who holds the name, and fails if nobody does.
func holder(t *testing.T, s driver.Store, name string) driver.Entry {
	t.Helper()
	ln := line(t, s, name)
	if ln.Holder == nil {
		t.Fatalf("the line of %q has no holder: %+v", name, ln)
	}
	return *ln.Holder
}

// standing counts the claims of a lease in a line.
func standing(ln driver.Line, lease string) (n int) {
	if ln.Holder != nil && ln.Holder.Lease == lease {
		n++
	}
	for _, w := range ln.Waiters {
		if w.Lease == lease {
			n++
		}
	}
	return n
}

// waited is what became of a place that was followed.
type waited struct {
	place driver.Place
	err   error
}

// must fails the test unless the place is held.
func (w waited) must(t *testing.T) driver.Place {
	t.Helper()
	if w.err != nil {
		t.Fatalf("waiting: %v, want the place held", w.err)
	}
	if !w.place.Held {
		t.Fatalf("news told %+v, want it held", w.place)
	}
	return w.place
}

// waiting follows a place until News has told what became of it. It ends by itself with the test.
func waiting(t *testing.T, l driver.Lease, p driver.Place) <-chan waited {
	return waitingIn(soon(t), l, p)
}

func waitingIn(ctx context.Context, l driver.Lease, p driver.Place) <-chan waited {
	done := make(chan waited, 1)
	go func() {
		got, err := Await(ctx, l, p)
		done <- waited{got, err}
	}()
	return done
}

// wantOver fails the test unless p no longer stands: an Update of it is told so, and nothing is
// told when it is followed.
func wantOver(t *testing.T, what string, l driver.Lease, p driver.Place) {
	t.Helper()
	wantGone(t, "Update of "+what, l.Update(soon(t), p, nil))
	silent(t, "news of "+what+", which was followed", waiting(t, l, p))
}

// pause waits a little between two tries.
func pause(ctx context.Context) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
	}
}

// eventually polls until ok, and fails the test if that does not come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for ctx := soon(t); !ok(); pause(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("did not come within %v: %s", patience, what)
		}
	}
}

// silent fails the test if something arrives on ch that should not.
func silent[T any](t *testing.T, what string, ch <-chan T) {
	t.Helper()
	select {
	case got := <-ch:
		t.Fatalf("%s: got %+v", what, got)
	case <-time.After(quiet):
	}
}

// wantGone fails the test unless err is ErrGone.
func wantGone(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrGone) {
		t.Errorf("%s = %v, want ErrGone", what, err)
	}
}
