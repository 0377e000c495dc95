package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var recordClauses = []Clause{
	{Name: "a release leaves its record where it removed the place", Check: releaseLeaves},
	{Name: "a release leaves its record in place of one with its key", Check: releaseOverwrites},
	{Name: "a release of what is gone or of another's leaves no record", Check: releaseLeavesNone},
	{Name: "a place without a token leaves its record too", Check: releaseByIDLeaves},
	{Name: "each of many places that are released together leaves its record", Check: releaseManyLeave},
	{Name: "a transfer leaves the record of the place it gave up and none where it gave up none", Check: transferLeaves},
	{Name: "a record that cannot be kept keeps no place from being given up", Check: recordHoldsUpNothing},
	{Name: "records outlive the lease that was used beside them", Check: recordsOutlive},
	{Name: "a release whose answer was cut off has left its record once it is repeated", Check: cutReleaseLeaves},
}

// leaving returns p with a record to leave.
func leaving(p driver.Place, journal, key, value string) driver.Place {
	p.Journal, p.Record = journal, &driver.Record{Key: key, Value: []byte(value)}
	return p
}

func releaseLeaves(t *testing.T, h Harness) {
	s := open(t, h)
	j, other, name := journalsOf(t, s), journalsOf(t, open(t, h)), unique()
	l, next := grant(t, s, "a"), grant(t, s, "b")
	held, waits := enter(t, l, name), enter(t, next, name)
	value := []byte("waited")
	waits.Journal, waits.Record = name+"/of waiters", &driver.Record{Key: "k", Value: value}
	release(t, next, waits) // one that waits leaves one too
	value[0] = 'X'
	wantRecords(t, other, name+"/of waiters", "k=waited")
	wantRecords(t, j, name)
	release(t, l, leaving(held, name, "first", "one"))
	wantRecords(t, other, name, "first=one")
	for i := range 3 { // and it is safe to repeat
		release(t, l, leaving(held, name, "first", fmt.Sprint("again ", i)))
	}
	wantRecords(t, other, name, "first=one")
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after Release = %+v, want it empty", ln)
	}
}

func releaseOverwrites(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	l := grant(t, s, "a")
	add(t, j, name, "k", "begun", 9)
	add(t, j, name, "l", "another", 9)
	release(t, l, leaving(enter(t, l, name), name, "k", "begun and ended"))
	wantRecords(t, j, name, "l=another", "k=begun and ended")
	release(t, l, leaving(enter(t, l, name), name, "k", ""))
	wantRecords(t, j, name, "l=another", "k=")
}

func releaseLeavesNone(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	l, successor := grant(t, s, "same"), grant(t, open(t, h), "same")
	p := enter(t, l, name)
	release(t, l, p)
	release(t, l, leaving(p, name, "gone", "v"))
	next := hold(t, successor, enter(t, successor, name))
	release(t, l, leaving(p, name, "late", "v"))
	release(t, l, leaving(driver.Place{Name: name, ID: unique()}, name, "never was", "v"))
	release(t, l, leaving(driver.Place{Name: name, ID: unique()}, name, "never", "v"))
	if s.Caps().Token != driver.TokenNone {
		release(t, successor, leaving(driver.Place{Name: name, ID: next.ID, Token: next.Token + 1}, name, "token", "v"))
	}
	release(t, successor, leaving(driver.Place{Name: name, ID: p.ID}, name, "id", "v"))
	wantRecords(t, j, name)
	if got := holder(t, s, name); got.Token != next.Token {
		t.Errorf("holder = %+v, want token %d", got, next.Token)
	}
	if err := successor.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	release(t, successor, leaving(next, name, "ended", "v"))
	wantRecords(t, j, name)
}

func releaseByIDLeaves(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	l := grant(t, s, "a")
	p := enter(t, l, name)
	release(t, l, leaving(driver.Place{Name: name, ID: p.ID}, name, "k", "v"))
	wantRecords(t, j, name, "k=v")
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after Release = %+v, want it empty", ln)
	}
}

func releaseManyLeave(t *testing.T, h Harness) {
	s := open(t, h)
	j, base := journalsOf(t, s), unique()
	l := grant(t, s, "a")
	const many = 40
	var claims []driver.Claim
	for i := range many {
		claims = append(claims, driver.Claim{Name: fmt.Sprintf("%s/%02d", base, i), ID: unique()})
	}
	places, err := l.Claim(soon(t), claims...)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	own, shared := base+"/own", base+"/shared"
	gone := places[many-1]
	release(t, l, gone)
	var want []string
	for i := range places {
		switch key := fmt.Sprintf("%02d", i); i % 4 {
		case 0:
			places[i] = leaving(places[i], shared, key, "v") // several in one journal
		case 1:
			places[i] = leaving(places[i], own+key, "k", key)
		case 2:
			places[i] = leaving(places[i], base+"/last wins", "k", "v") // under one key
		} // and some without
	}
	places[many-1] = leaving(gone, shared, "gone", "v")
	release(t, l, places...)
	for i := many - 4; i >= 0; i -= 4 {
		want = append(want, fmt.Sprintf("%02d=v", i))
	}
	wantRecords(t, j, shared, want...)
	wantRecords(t, j, base+"/last wins", "k=v")
	names, err := j.Journals(soon(t), own)
	if err != nil || len(names) != many/4 {
		t.Errorf("Journals = %q, %v, want %d", names, err, many/4)
	}
	for _, name := range names {
		wantRecords(t, j, name, "k="+strings.TrimPrefix(name, own))
	}
	for _, c := range claims {
		if ln := line(t, s, c.Name); ln.Holder != nil {
			t.Errorf("line after Release = %+v, want it empty", ln)
		}
	}
}

func transferLeaves(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	j := journalsOf(t, s)
	leases, places := handingQueue(t, h, name, 3)
	from := transferer(t, leases[0])
	if err := from.Transfer(soon(t), leaving(places[0], name, "none", "v"), places[2].Token+1); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("Transfer to nobody = %v, want ErrNoSuccessor", err)
	}
	wantRecords(t, j, name)
	transfer(t, h, leases[0], leaving(places[0], name, "k", "handed over"), places[2].Token)
	wantRecords(t, j, name, "k=handed over")
	if got := holder(t, s, name); got.Token != places[2].Token {
		t.Errorf("holder after Transfer = %+v, want token %d", got, places[2].Token)
	}
	if err := from.Transfer(soon(t), leaving(places[0], name, "gone", "v"), places[2].Token); h.Faults == nil {
		wantGone(t, "Transfer of what was given up", err)
	}
	release(t, leases[0], leaving(places[0], name, "gone", "v"))
	wantRecords(t, j, name, "k=handed over")
}

func recordHoldsUpNothing(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	l := grant(t, s, "a")
	var claims []driver.Claim
	for i := range badRecords {
		claims = append(claims, driver.Claim{Name: fmt.Sprint(name, "/", i), ID: unique()})
	}
	for range 2 { // one by one, and together
		places, err := l.Claim(soon(t), claims...)
		if err != nil {
			t.Fatalf("Claim: %v", err)
		}
		for i := range places {
			places[i].Journal, places[i].Record = name, &badRecords[i]
			claims[i].ID = unique()
		}
		places = append(places, leaving(enter(t, l, name), "", "k", "v"))
		release(t, l, places[0])
		release(t, l, places[1:]...)
		for _, p := range places {
			if ln := line(t, s, p.Name); ln.Holder != nil {
				t.Errorf("a place with the record %.80q still stands: %+v", p.Record.Key, ln.Holder)
			}
		}
	}
	wantRecords(t, j, name)
	leases, places := handingQueue(t, h, unique(), 2)
	transfer(t, h, leases[0], leaving(places[0], name, "a/b", "v"), places[1].Token)
	hold(t, leases[1], places[1])
	wantRecords(t, j, name)
}

func recordsOutlive(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	first := open(t, h)
	l := grant(t, first, "a")
	add(t, journalsOf(t, first), name, "begun", "v", 9)
	p := enter(t, l, name)
	enter(t, l, name+"/stays")
	release(t, l, leaving(p, name, "ended", "v"))
	if err := l.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if ln := line(t, s, name+"/stays"); ln.Holder != nil {
		t.Fatalf("after the end of its lease a claim stands: %+v", ln)
	}
	wantRecords(t, j, name, "ended=v", "begun=v")
	if names, err := j.Journals(soon(t), name); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("Journals = %q, %v, want %q", names, err, name)
	}
}

func cutReleaseLeaves(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	p := leaving(enter(t, l, name), name, "k", "v")
	cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx, p); err == nil || driver.IsFinal(err) {
		t.Errorf("Release of a client that is cut off = %v, want an error that leaves the outcome unknown", err)
	}
	cut(false)
	eventually(t, "the release that was repeated", func() bool { return l.Release(soon(t), p) == nil })
	wantRecords(t, j, name, "k=v")
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line after Release = %+v, want it empty", ln)
	}
}
