package drivertest

import (
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var updateClauses = []Clause{
	{Name: "an update replaces the value that observers see", Check: updateSeen},
	{Name: "an update of a place that waits is told to who follows the line, and moves nobody", Check: updateWaiting},
	{Name: "the same claim ID entered again leaves an updated value alone", Check: updateKept},
	{Name: "an update of a place that is gone is told so", Check: updateGone},
}

func updateSeen(t *testing.T, h Harness) {
	name := unique()
	leases, places := queue(t, h, name, 2)
	watches := open(t, h)
	before := line(t, watches, name)
	for _, value := range []string{"one", "", "two\x00\xfe"} {
		if err := leases[0].Update(soon(t), places[0], []byte(value)); err != nil {
			t.Fatalf("Update: %v", err)
		}
		ln := line(t, watches, name)
		if ln.Holder == nil || string(ln.Holder.Value) != value || ln.Holder.Token != places[0].Token {
			t.Errorf("line after Update = %+v, want value %q under token %d", ln, value, places[0].Token)
		}
		if ln.Revision <= before.Revision {
			t.Errorf("revision after Update = %d, want more than %d", ln.Revision, before.Revision)
		}
		before = ln
	}
	if err := leases[1].Update(soon(t), places[1], []byte("next")); err != nil {
		t.Errorf("Update of a place that waits: %v", err)
	}
	release(t, leases[0], places[0])
	hold(t, leases[1], places[1])
	if got := holder(t, watches, name); string(got.Value) != "next" {
		t.Errorf("value of the new holder = %q, want what it set while it waited", got.Value)
	}
}

func updateWaiting(t *testing.T, h Harness) {
	need(t, open(t, h).Caps().FIFO, "a store with a line")
	name := unique()
	leases, places := queue(t, h, name, 3)
	watches := open(t, h)
	at := line(t, watches, name)
	told := waiting(t, leases[1], places[1])
	for _, value := range []string{"one", "", "two\x00\xfe"} {
		from := at.Revision
		if err := leases[1].Update(soon(t), places[1], []byte(value)); err != nil {
			t.Fatalf("Update of a place that waits: %v", err)
		}
		at = (<-following(t, watches, name, from)).newer(t, from)
		for len(at.Waiters) == 2 && string(at.Waiters[0].Value) != value { // an update that was repeated is told twice
			at = (<-following(t, watches, name, at.Revision)).newer(t, at.Revision)
		}
		if at.Holder == nil || at.Holder.Token != places[0].Token || len(at.Waiters) != 2 ||
			at.Waiters[0].Token != places[1].Token || at.Waiters[1].Token != places[2].Token {
			t.Fatalf("line after Update of its second = %+v, want the tokens %d, %d, %d", at, places[0].Token,
				places[1].Token, places[2].Token)
		}
	}
	silent(t, "news of a place whose value was replaced", told)
	release(t, leases[0], places[0])
	if p := (<-told).must(t); p.Token != places[1].Token {
		t.Errorf("the place that was updated is held under token %d, want %d", p.Token, places[1].Token)
	}
	if err := leases[1].Update(soon(t), places[1], []byte("held")); err != nil {
		t.Errorf("Update of a place that waited when it was last told: %v", err)
	}
	if got := holder(t, watches, name); string(got.Value) != "held" {
		t.Errorf("value of the holder = %q, want its last", got.Value)
	}
}

func updateKept(t *testing.T, h Harness) {
	name := unique()
	s := open(t, h)
	first, second := grant(t, s, "a"), grant(t, s, "b")
	c := driver.Claim{Name: name, ID: unique(), Value: []byte("old")}
	d := driver.Claim{Name: name, ID: unique(), Value: []byte("old")}
	p, q := claim(t, first, c), claim(t, second, d)
	for _, l := range []struct {
		driver.Lease
		p driver.Place
	}{{first, p}, {second, q}} {
		if err := l.Update(soon(t), l.p, []byte("new")); err != nil {
			t.Fatalf("Update: %v", err)
		}
	}
	claim(t, first, c)
	claim(t, second, d)
	if got := holder(t, s, name); string(got.Value) != "new" {
		t.Errorf("value of the holder after its claim was entered again = %q, want it as updated", got.Value)
	}
	release(t, first, p)
	hold(t, second, q)
	if got := holder(t, s, name); string(got.Value) != "new" {
		t.Errorf("value of the next holder, whose claim was entered again = %q, want it as updated", got.Value)
	}
}

func updateGone(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l, successor := grant(t, s, "a"), grant(t, s, "b")
	p := claim(t, l, driver.Claim{Name: name, ID: unique(), Value: []byte("old")})
	release(t, l, p)
	claim(t, successor, driver.Claim{Name: name, ID: unique(), Value: []byte("new")})
	wantGone(t, "Update of a place that was released", l.Update(soon(t), p, []byte("late")))
	never := driver.Place{Name: name, ID: unique()}
	wantGone(t, "Update of a place that never was", l.Update(soon(t), never, []byte("late")))
	if got := holder(t, s, name); string(got.Value) != "new" {
		t.Errorf("value = %q, want the successor's", got.Value)
	}
}
