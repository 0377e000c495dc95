package drivertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var releaseClauses = []Clause{
	{Name: "a release frees the name at once", Check: releaseFrees},
	{Name: "several places are released together", Check: releaseMany},
	{Name: "releasing what is gone is no error", Check: releaseGone},
	{Name: "releasing what is gone with its lease is no error", Check: releaseEnded, slow: true},
	{Name: "a late release with an old token does not hurt the successor", Check: lateRelease},
	{Name: "a release under another token leaves the claim alone", Check: wrongToken},
	{Name: "a place without a token is released by its claim ID", Check: releaseByID},
	{Name: "a release by claim ID leaves a claim under another ID alone", Check: otherID},
	{Name: "a claim ID that was released does not enter afterwards", Check: released},
	{Name: "a claim ID that was released does not push out the claim that stands now", Check: releasedPushes},
	{Name: "a claim that was given up on its way and released does not enter later", Check: straggler},
	{Name: "a claim that begins while its ID is given up does not enter", Check: givenUpMeanwhile},
}

func releaseFrees(t *testing.T, h Harness) {
	s, watches := open(t, h), open(t, h)
	l, name := grant(t, s, "a"), unique()
	p := enter(t, l, name)
	release(t, l, p)
	if ln := line(t, watches, name); ln.Holder != nil {
		t.Errorf("line after Release = %+v, want it empty", ln)
	}
	if next := enter(t, grant(t, watches, "b"), name); !next.Held {
		t.Errorf("the next claim = %+v, want it held at once", next)
	}
	wantGone(t, "Update after Release", l.Update(soon(t), p, nil))
}

func releaseMany(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	var places []driver.Place
	for range 5 {
		places = append(places, enter(t, l, unique()))
	}
	release(t, l, places[:4]...)
	for i, p := range places {
		if got := line(t, s, p.Name).Holder != nil; got != (i == 4) {
			t.Errorf("place %d still stands = %v, want only the last to", i, got)
		}
	}
	release(t, l) // nothing
}

func releaseGone(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	p := enter(t, l, unique())
	release(t, l, p)
	release(t, l, p, driver.Place{Name: unique(), ID: unique()})
	if err := l.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	release(t, l, p)
	release(t, l, driver.Place{Name: unique(), ID: unique()})
}

func releaseEnded(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l, places := mortal(t, h, s, name)
	free(t, s, name)
	release(t, l, places...)
	release(t, l, driver.Place{Name: name, ID: places[0].ID})
}

func lateRelease(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	// The owners have one identity, as one machine has before and after a restart.
	l, successor := grant(t, s, "same"), grant(t, open(t, h), "same")
	p := enter(t, l, name)
	release(t, l, p)
	next := hold(t, successor, enter(t, successor, name))
	release(t, l, p)
	if got := holder(t, s, name); got.Token != next.Token || got.Lease != successor.ID() {
		t.Errorf("holder after a late Release = %+v, want token %d of the successor", got, next.Token)
	}
	release(t, successor, next)
	again := hold(t, l, enter(t, l, name)) // and the same lease may be its own successor
	release(t, l, p)
	if got := holder(t, s, name); got.Token != again.Token {
		t.Errorf("holder after a late Release = %+v, want token %d of the same lease's new term", got, again.Token)
	}
}

func wrongToken(t *testing.T, h Harness) {
	s := open(t, h)
	need(t, s.Caps().Token != driver.TokenNone, "a store with tokens")
	l, name := grant(t, s, "a"), unique()
	p := enter(t, l, name)
	release(t, l, driver.Place{Name: p.Name, ID: p.ID, Token: p.Token + 1})
	if got := holder(t, s, name); got.Token != p.Token {
		t.Errorf("holder after a Release under another token = %+v, want token %d", got, p.Token)
	}
}

func releaseByID(t *testing.T, h Harness) {
	name := unique()
	leases, places := queue(t, h, name, 2)
	watches := open(t, h)
	release(t, leases[1], driver.Place{Name: name, ID: places[1].ID})
	release(t, leases[0], driver.Place{Name: name, ID: places[0].ID})
	if ln := line(t, watches, name); ln.Holder != nil || len(ln.Waiters) != 0 {
		t.Errorf("line after both were released by claim ID = %+v, want it empty", ln)
	}
}

func otherID(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l := grant(t, s, "a")
	p := enter(t, l, name)
	release(t, l, driver.Place{Name: name, ID: unique()})
	if got := holder(t, s, name); got.Token != p.Token {
		t.Errorf("holder after another claim ID was released = %+v, want token %d", got, p.Token)
	}
}

// released is the straggler in slow motion: the Claim reaches the store after the Release. Its
// answer is of no interest; that nothing stands is.
func released(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l := grant(t, s, "a")
	c := driver.Claim{Name: name, ID: unique()}
	release(t, l, driver.Place{Name: name, ID: c.ID})
	if _, err := l.Claim(soon(t), c); err == nil {
		t.Error("Claim of an ID that was released = nil, want an error")
	}
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line = %+v, want it empty: nobody would ever release this claim", ln)
	}
	if p := enter(t, l, name); !p.Held {
		t.Errorf("Claim under a new ID = %+v, want it held", p)
	}
}

// releasedPushes is the straggler that comes still later, when its lease stands for the name under
// a new ID. To the store it looks like the newer one. Its own claim was released before the new one
// entered; or was displaced by it, and released after that.
func releasedPushes(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	for _, displaced := range []bool{false, true} {
		name := unique()
		c := driver.Claim{Name: name, ID: unique()}
		first := claim(t, l, c)
		if !displaced {
			// By ID, as one does whose Claim got no answer at first.
			release(t, l, driver.Place{Name: name, ID: c.ID})
		}
		p := enter(t, l, name)
		if displaced {
			release(t, l, first)
		}
		for _, c.Try = range []bool{false, true} {
			if _, err := l.Claim(soon(t), c); err == nil {
				t.Errorf("Claim of a released ID (try %v, displaced %v) = nil, want an error", c.Try, displaced)
			}
		}
		if got := holder(t, s, name); got.Token != p.Token {
			t.Errorf("holder = %+v, want token %d of the claim under the new ID", got, p.Token)
		}
		if again := hold(t, l, p); again.Token != p.Token {
			t.Errorf("Wait = %+v, want token %d", again, p.Token)
		}
	}
}

func straggler(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	var names []string
	var timers sync.WaitGroup
	for range 20 {
		c := driver.Claim{Name: unique(), ID: unique()}
		ctx, cancel := context.WithCancel(t.Context())
		timers.Go(func() {
			time.Sleep(rand.N(2 * time.Millisecond)) // about as long as a Claim takes, to give it up anywhere on its way
			cancel()
		})
		_, _ = l.Claim(ctx, c) // whether it came through is what the caller does not know
		release(t, l, driver.Place{Name: c.Name, ID: c.ID})
		names = append(names, c.Name)
	}
	timers.Wait()
	for _, late := range []time.Duration{0, quiet} { // the second look is for those that come late
		time.Sleep(late)
		for _, name := range names {
			if ln := line(t, s, name); ln.Holder != nil {
				t.Fatalf("line = %+v, want it empty after the Release", ln)
			}
		}
	}
}

// givenUpMeanwhile is a straggler that begins during the Release. Neither knows of an earlier
// Claim: a store that forgets a try which found its name taken does not either.
func givenUpMeanwhile(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	var both sync.WaitGroup
	var names []string
	for range 50 {
		c := driver.Claim{Name: unique(), ID: unique(), Try: true}
		names = append(names, c.Name)
		both.Go(func() {
			if err := l.Release(soon(t), driver.Place{Name: c.Name, ID: c.ID}); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
		both.Go(func() { _, _ = l.Claim(soon(t), c) })
		both.Wait()
	}
	for _, name := range names {
		if ln := line(t, s, name); ln.Holder != nil {
			t.Fatalf("line = %+v, want it empty after the Release", ln)
		}
	}
}
