package drivertest

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Times here are read from time.Now and not from the boot clock: a suspended machine need not pass,
// and a bubble of testing/synctest fakes only the former.

var leaseClauses = []Clause{
	{Name: "a lease that is not renewed ends with all its claims", Check: leaseEnds, slow: true},
	{Name: "a renewal starts the ttl afresh from the moment it was called", Check: renewCounts, slow: true},
	{Name: "a lease that is renewed lives on with all its claims", Check: renewedLives, slow: true},
	{Name: "a lease that ended never comes back", Check: neverBack, slow: true},
	{Name: "a ttl the store cannot keep is rounded up", Check: ttlRoundedUp},
	{Name: "leases have IDs of their own, which observers see beside their owner and value", Check: leaseShown},
	{Name: "closing a lease ends all its claims at once", Check: closeEnds},
	{Name: "closing a lease that is gone is no error", Check: closeTwice},
	{Name: "leases stay when the client that made them is closed", Check: leasesStay},
	{Name: "the store says what it can do, and always the same", Check: capsStay},
}

func leaseEnds(t *testing.T, h Harness) {
	dies, watches := open(t, h), open(t, h)
	names := []string{unique(), unique(), unique()}
	asked := time.Now()
	l, places := mortal(t, h, dies, names...)
	for i, name := range names {
		if ln := line(t, watches, name); standing(ln, l.ID()) != 1 && time.Since(asked) < l.TTL() {
			t.Fatalf("line of claim %d = %+v, want lease %s to hold", i, ln, l.ID())
		}
		free(t, watches, name)
		wantGone(t, "Update of a claim whose lease ended", l.Update(soon(t), places[i], nil))
	}
}

// free waits until nobody holds the name, and returns when it saw that.
func free(t *testing.T, s driver.Store, name string) time.Time {
	t.Helper()
	var after uint64
	for {
		ln, err := s.Next(soon(t), name, after)
		if err != nil {
			t.Fatalf("Next, while waiting for %q to be free: %v", name, err)
		}
		if ln.Holder == nil {
			return time.Now()
		}
		after = ln.Revision
	}
}

func renewCounts(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	for range 5 {
		name := unique()
		granted := time.Now()
		l, _ := mortal(t, h, s, name)
		time.Sleep(l.TTL() / 2) // to be told apart from the ttl that Grant began
		asked := time.Now()
		if err := l.Renew(soon(t)); err != nil {
			if time.Since(granted) < l.TTL() {
				t.Fatalf("Renew within the ttl: %v", err)
			}
			continue // the machine stalled: begin again
		}
		// Clocks of stores count milliseconds, so a hundredth is allowed; the library's drift bound
		// is ten times that.
		if lived := free(t, watches, name).Sub(asked); lived < l.TTL()-l.TTL()/100 {
			t.Errorf("the lease ended %v after Renew was called, want at least its ttl %v", lived, l.TTL())
		}
		return
	}
	t.Fatal("the machine is too slow for this ttl: raise Harness.TTL")
}

func renewedLives(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	for range 5 {
		a, b := unique(), unique()
		begun := time.Now()
		l, places := mortal(t, h, s, a, b)
		if !keepUp(t, l, begun) {
			continue
		}
		last := time.Now()
		for _, p := range places {
			if got := line(t, watches, p.Name); got.Holder == nil || got.Holder.Token != p.Token {
				if time.Since(last) < l.TTL()/2 {
					t.Errorf("the line after some renewals = %+v, want claim %+v to hold", got, p)
				}
			}
		}
		return
	}
	t.Fatal("the machine is too slow for this ttl: raise Harness.TTL")
}

// keepUp renews l for longer than its ttl, as a session does: a renewal of unknown outcome is
// repeated. It reports false if the machine stalled so that the lease could end.
func keepUp(t *testing.T, l driver.Lease, begun time.Time) bool {
	t.Helper()
	for last := begun; time.Since(begun) < l.TTL()*8/5; {
		time.Sleep(l.TTL() / 5)
		asked := time.Now()
		switch err := l.Renew(soon(t)); {
		case err == nil:
			last = asked
		case time.Since(last) >= l.TTL():
			return false
		case driver.IsFinal(err):
			t.Fatalf("Renew %v after the last one: %v", asked.Sub(last), err)
		}
	}
	return true
}

func neverBack(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	name := unique()
	l, places := mortal(t, h, s, name)
	free(t, watches, name)
	for range 2 {
		wantGone(t, "Renew of a lease that ended", l.Renew(soon(t)))
	}
	_, err := l.Claim(soon(t), driver.Claim{Name: unique(), ID: unique()})
	wantGone(t, "Claim under a lease that ended", err)
	wantGone(t, "Update under a lease that ended", l.Update(soon(t), places[0], nil))
	release(t, l, places...)
	if ln := line(t, watches, name); ln.Holder != nil {
		t.Errorf("the line after the lease ended = %+v, want it empty", ln)
	}
}

func ttlRoundedUp(t *testing.T, h Harness) {
	s := open(t, h)
	for _, ttl := range []time.Duration{h.ttl(s), h.ttl(s) + 1, h.ttl(s) + 1234567*time.Microsecond, s.Caps().MinTTL/2 + 1} {
		if got := grantFor(t, s, "a", ttl).TTL(); got < ttl || got < s.Caps().MinTTL {
			t.Errorf("Grant with ttl %v = a lease of %v, want at least that and Caps.MinTTL %v", ttl, got, s.Caps().MinTTL)
		}
	}
}

func leaseShown(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	name, value := unique(), []byte("host:1\x00\xff\n")
	l, other := grant(t, s, "owner one"), grant(t, s, "owner one")
	if l.ID() == "" || l.ID() == other.ID() {
		t.Errorf("IDs of two leases = %q and %q, want two", l.ID(), other.ID())
	}
	p := claim(t, l, driver.Claim{Name: name, ID: unique(), Value: value})
	got := holder(t, watches, name)
	if got.Owner != "owner one" || got.Lease != l.ID() || got.Token != p.Token || string(got.Value) != string(value) {
		t.Errorf("the holder as others see it = %+v, want owner one, lease %s, token %d, value %q", got, l.ID(), p.Token, value)
	}
}

func closeEnds(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	l, successor := grant(t, s, "a"), grant(t, watches, "b")
	a, b := unique(), unique()
	enter(t, l, a)
	mine := enter(t, l, b)
	next := enter(t, successor, a)
	turn := waiting(t, successor, next)
	begun := time.Now()
	if err := l.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	(<-turn).must(t)
	if ln := line(t, watches, b); ln.Holder != nil {
		t.Errorf("the line after Close = %+v, want it empty", ln)
	}
	if took := time.Since(begun); took > l.TTL()/2 {
		t.Errorf("the claims ended %v after Close, want at once", took)
	}
	wantGone(t, "Renew after Close", l.Renew(soon(t)))
	wantGone(t, "Update after Close", l.Update(soon(t), mine, nil))
	wantGone(t, "waiting after Close", (<-waiting(t, l, mine)).err)
}

func closeTwice(t *testing.T, h Harness) {
	l := grant(t, open(t, h), "a")
	for i := range 3 {
		if err := l.Close(soon(t)); err != nil {
			t.Errorf("Close number %d: %v", i+1, err)
		}
	}
}

func leasesStay(t *testing.T, h Harness) {
	leaves, watches := h.Open(t), open(t, h)
	name := unique()
	l, err := leaves.Grant(soon(t), "a", max(10*time.Second, h.ttl(leaves)))
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	p := enter(t, l, name)
	if err := leaves.Close(); err != nil {
		t.Fatalf("Store.Close: %v", err)
	}
	if got := holder(t, watches, name); got.Token != p.Token {
		t.Errorf("holder after the client was closed = %+v, want token %d", got, p.Token)
	}
}

func capsStay(t *testing.T, h Harness) {
	s := open(t, h)
	before := s.Caps()
	enter(t, grant(t, s, "a"), unique())
	after := s.Caps()
	if before.Store == "" || before.MinTTL <= 0 || before.MaxTTL < before.MinTTL {
		t.Errorf("Caps = %+v, want the store's name and 0 < MinTTL <= MaxTTL", before)
	}
	before.Warnings, after.Warnings = nil, nil
	if want, got := fmtCaps(before), fmtCaps(after); got != want {
		t.Errorf("Caps after some calls = %s, want them as they were: %s", got, want)
	}
}
