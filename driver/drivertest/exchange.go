package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var exchangeClauses = []Clause{
	{Name: "an exchange gives the place up and stands behind all who wait", Check: exchangeBehind},
	{Name: "an exchange while nobody waits holds under a larger token", Check: exchangeAlone},
	{Name: "an exchange can be repeated as a release and a claim", Check: exchangeRepeated},
	{Name: "an exchange under an ID that was given up does not enter", Check: exchangeSpent},
	{Name: "an exchange of a place that is gone leaves one claim at most", Check: exchangeGone},
	{Name: "an exchange that cannot be is refused and changes nothing", Check: exchangeRefused},
	{Name: "an exchange whose answer was cut off leaves nothing behind", Check: exchangeCutOff},
	{Name: "revoking a lease ends it with every claim", Check: revoked},
}

// exchanger returns the lease as one that exchanges, or skips the clause.
func exchanger(t *testing.T, l driver.Lease) driver.Exchanger {
	t.Helper()
	e, ok := l.(driver.Exchanger)
	need(t, ok, "a lease that can exchange")
	return e
}

// exchange gives p up for a claim on the other seat.
func exchange(t *testing.T, l driver.Lease, p driver.Place, seat string) driver.Place {
	t.Helper()
	c := driver.Claim{Name: p.Name, Seat: seat, ID: unique(), Value: []byte("again")}
	got, err := exchanger(t, l).Exchange(soon(t), p, c)
	if err != nil {
		t.Fatalf("Exchange: %v", err)
	}
	if got.Name != c.Name || got.Seat != c.Seat || got.ID != c.ID || got.Token <= p.Token {
		t.Fatalf("Exchange of %+v = %+v, want a place for %+v with a larger token", p, got, c)
	}
	return got
}

func exchangeBehind(t *testing.T, h Harness) {
	name := unique()
	leases, places := queue(t, h, name, 3)
	exchanger(t, leases[0])
	ch := listening(t, leases[0])
	next, last := waiting(t, leases[1], places[1]), waiting(t, leases[2], places[2])
	silent(t, "Wait returned while another holds", next)
	again := exchange(t, leases[0], places[0], "2")
	if again.Held {
		t.Errorf("the place after an exchange = %+v, want it behind those who waited", again)
	}
	(<-next).must(t)
	ln := line(t, open(t, h), name)
	if ln.Holder == nil || ln.Holder.Token != places[1].Token || len(ln.Waiters) != 2 || ln.Waiters[1].Token != again.Token || string(ln.Waiters[1].Value) != "again" {
		t.Errorf("line = %+v, want %+v behind the two who waited", ln, again)
	}
	turn := waiting(t, leases[0], again)
	release(t, leases[1], places[1])
	(<-last).must(t)
	silent(t, "Wait returned while another holds", turn)
	back := exchange(t, leases[2], places[2], "2") // another one's, behind
	(<-turn).must(t)
	silent(t, "news of what the owner did", ch)
	third := exchange(t, leases[0], again, "") // back to the first seat
	hold(t, leases[2], back)
	release(t, leases[2], back)
	hold(t, leases[0], third)
}

func exchangeAlone(t *testing.T, h Harness) {
	leases, places := queue(t, h, unique(), 1)
	p := places[0]
	for i := range 6 {
		if p = exchange(t, leases[0], p, []string{"2", ""}[i%2]); !p.Held {
			t.Fatalf("place after an exchange = %+v, want it held: nobody else waits", p)
		}
	}
	if ln := line(t, open(t, h), p.Name); ln.Holder == nil || ln.Holder.Token != p.Token || len(ln.Waiters) != 0 {
		t.Errorf("line = %+v, want %+v alone", ln, p)
	}
}

func exchangeRepeated(t *testing.T, h Harness) {
	name := unique()
	leases, places := queue(t, h, name, 2)
	again := exchange(t, leases[0], places[0], "2")
	release(t, leases[0], places[0]) // as who does not know
	if got := claim(t, leases[0], driver.Claim{Name: name, Seat: "2", ID: again.ID}); got.Token != again.Token {
		t.Errorf("Claim under the same ID = %+v, want %+v", got, again)
	}
	if got, err := exchanger(t, leases[0]).Exchange(soon(t), places[0], driver.Claim{Name: name, Seat: "2", ID: again.ID}); err != nil || got.Token != again.Token {
		t.Errorf("the same exchange again = %+v, %v, want %+v", got, err, again)
	}
	_, err := leases[0].Claim(soon(t), driver.Claim{Name: name, ID: places[0].ID})
	wantGone(t, "Claim under the ID that was exchanged", err)
	leads(t, h, places[1])
}

func exchangeSpent(t *testing.T, h Harness) {
	name := unique()
	leases, places := queue(t, h, name, 2)
	c := driver.Claim{Name: name, Seat: "2", ID: unique()}
	release(t, leases[0], driver.Place{Name: name, Seat: "2", ID: c.ID})
	_, err := exchanger(t, leases[0]).Exchange(soon(t), places[0], c)
	wantGone(t, "Exchange under an ID that was given up", err)
	release(t, leases[0], places[0])
	hold(t, leases[1], places[1])
	if ln := line(t, open(t, h), name); len(ln.Waiters) != 0 {
		t.Errorf("line = %+v, want nobody to wait", ln)
	}
}

func exchangeGone(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	name := unique()
	leases, places := queue(t, h, name, 2)
	h.Remove(t, name, places[0].Token)
	c := driver.Claim{Name: name, Seat: "2", ID: unique()}
	_, err := exchanger(t, leases[0]).Exchange(soon(t), places[0], c)
	if err != nil && !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Exchange of a place that is gone = %v, want nil or ErrGone", err)
	}
	leads(t, h, places[1])
	release(t, leases[0], places[0], driver.Place{Name: name, Seat: "2", ID: c.ID})
	if ln := line(t, open(t, h), name); len(ln.Waiters) != 0 {
		t.Errorf("line = %+v, want nothing of the exchange left", ln)
	}
}

func exchangeRefused(t *testing.T, h Harness) {
	need(t, h.Faults == nil, "answers: whoever repeats an exchange makes its halves, which are not refused")
	name := unique()
	leases, places := queue(t, h, name, 2)
	for what, c := range map[string]driver.Claim{
		"the same seat": {Name: name, ID: unique()},
		"another name":  {Name: unique(), Seat: "2", ID: unique()},
		"a try":         {Name: name, Seat: "2", ID: unique(), Try: true},
		"a reader":      {Name: name, Seat: "2", ID: unique(), Slots: driver.Unlimited},
	} {
		if _, err := exchanger(t, leases[0]).Exchange(soon(t), places[0], c); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Exchange for %s = %v, want ErrRefused", what, err)
		}
	}
	leads(t, h, places[0])
	if ln := line(t, open(t, h), name); len(ln.Waiters) != 1 {
		t.Errorf("line = %+v, want nothing changed", ln)
	}
}

func exchangeCutOff(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	name := unique()
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	ex := exchanger(t, l)
	p := enter(t, l, name)
	leases, places := queue(t, h, name, 1)
	turn := waiting(t, leases[0], places[0])
	silent(t, "Wait returned while another holds", turn)
	cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c := driver.Claim{Name: name, Seat: "2", ID: unique()}
	if _, err := ex.Exchange(ctx, p, c); err == nil || driver.IsFinal(err) {
		t.Errorf("Exchange of a client that is cut off = %v, want an error that leaves the outcome unknown", err)
	}
	cut(false)
	eventually(t, "both were given up", func() bool {
		return l.Release(soon(t), p, driver.Place{Name: name, Seat: "2", ID: c.ID}) == nil
	})
	(<-turn).must(t)
	if ln := line(t, open(t, h), name); len(ln.Waiters) != 0 {
		t.Errorf("line = %+v, want nothing of the exchange left", ln)
	}
}

func revoked(t *testing.T, h Harness) {
	s := open(t, h)
	name := unique()
	leases, places := queue(t, h, name, 2)
	other := enter(t, leases[0], unique())
	ch := listening(t, leases[0])
	turn := waiting(t, leases[1], places[1])
	silent(t, "Wait returned while another holds", turn)
	for range 2 { // what is gone already is no error
		if err := s.Revoke(soon(t), leases[0].ID()); err != nil {
			t.Fatalf("Revoke: %v", err)
		}
	}
	(<-turn).must(t)
	wantGone(t, "Renew of a lease that was revoked", leases[0].Renew(soon(t)))
	if ln := line(t, s, other.Name); ln.Holder != nil {
		t.Errorf("line = %+v, want it empty", ln)
	}
	hear(t, "that the lease is gone", ch, func(n heard) bool { return errors.Is(n.err, driver.ErrGone) })
	leads(t, h, places[1])
}
