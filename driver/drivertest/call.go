package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/safety"
)

var callClauses = []Clause{
	{Name: "a call whose context has ended returns at once", Check: contextEnded},
	{Name: "a call that blocks returns as soon as its context ends", Check: blockedGivenUp},
	{Name: "every call obeys its context also when packets vanish, and its outcome is unknown", Check: cutObeyed},
	{Name: "a claim whose answer was cut off finds its place again", Check: cutClaim},
	{Name: "a release whose answer was cut off can be repeated", Check: cutRelease},
	{Name: "a lease is served by many goroutines at once", Check: manyAtOnce},
	{Name: "what is repeated under one claim ID until it is final leaves nothing behind", Check: chaosLeavesNothing},
	{Name: "one leads at a time while the losers come again and again", Check: contention},
}

var restartClauses = []Clause{
	{Name: "tokens go on growing after the store was restarted", Check: restartTokens, alone: true},
	{Name: "a wait that began before the store was restarted still comes to hold", Check: restartWait, alone: true},
}

// openCut returns a client that can be cut off.
func openCut(t *testing.T, h Harness) (driver.Store, func(bool)) {
	t.Helper()
	s, cut := h.Cut(t)
	if h.Faults != nil {
		s = stubborn(Faulty(s, *h.Faults))
	}
	t.Cleanup(func() {
		cut(false)
		_ = s.Close()
	})
	return s, cut
}

// call is one method with everything but its context.
type call struct {
	name string
	do   func(ctx context.Context) error
}

// calls returns every method of s, of l and of a place that l has.
func calls(s driver.Store, l driver.Lease, p driver.Place) []call {
	all := []call{
		{"Grant", func(ctx context.Context) error { _, err := s.Grant(ctx, "x", l.TTL()); return err }},
		{"Line", func(ctx context.Context) error { _, err := s.Line(ctx, p.Name); return err }},
		{"Next", func(ctx context.Context) error { _, err := s.Next(ctx, p.Name, 0); return err }},
		{"Lines", func(ctx context.Context) error { _, err := s.Lines(ctx, p.Name); return err }},
		{"Revoke", func(ctx context.Context) error { return s.Revoke(ctx, l.ID()) }},
		{"Renew", func(ctx context.Context) error { return l.Renew(ctx) }},
		{"Claim", func(ctx context.Context) error {
			_, err := l.Claim(ctx, driver.Claim{Name: unique(), ID: unique()})
			return err
		}},
		{"Follow", func(context.Context) error {
			l.Follow(p)
			return errors.New("Follow answers by News")
		}},
		{"Update", func(ctx context.Context) error { return l.Update(ctx, p, nil) }},
		{"Release", func(ctx context.Context) error { return l.Release(ctx, p) }},
		{"News", func(ctx context.Context) error { _, err := l.News(ctx); return err }},
		{"Close", func(ctx context.Context) error { return l.Close(ctx) }},
	}
	if a, ok := s.(driver.Asker); ok {
		r := driver.Request{Token: p.Token, By: "x"}
		all = append(all, call{"Ask", func(ctx context.Context) error { return a.Ask(ctx, p.Name, r) }})
	}
	if h, ok := l.(driver.Transferer); ok {
		all = append(all, call{"Transfer", func(ctx context.Context) error { return h.Transfer(ctx, p, p.Token+1) }})
	}
	if e, ok := l.(driver.Exchanger); ok {
		all = append(all, call{"Exchange", func(ctx context.Context) error {
			_, err := e.Exchange(ctx, p, driver.Claim{Name: p.Name, Seat: "x", ID: unique()})
			return err
		}})
	}
	return all
}

// slack is how soon after the end of its context a call has to return, besides the time for which
// the machine stood still. Who waits for a time-out of the network takes longer.
const slack = 2 * time.Second

const stallStep = 5 * time.Millisecond // in which stalls of the machine are measured

// promptly runs every call at once under a context that ends after d, and fails the test where one
// does not return soon after that. Each gets a lease of its own, because Close ends it.
func promptly(t *testing.T, s driver.Store, d time.Duration, between func(), want func(c call, err error)) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	n := len(calls(s, grant(t, s, "x"), driver.Place{}))
	var ready []call
	for i := range n {
		l := grant(t, s, "x")
		ready = append(ready, calls(s, l, enter(t, l, unique()))[i])
	}
	between()
	late := map[string]time.Duration{}
	stalls := safety.WatchStalls(stallStep)
	for _, c := range ready {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			begun := time.Now()
			err := c.do(ctx)
			mu.Lock()
			defer mu.Unlock()
			late[c.name] = time.Since(begun) - d
			want(c, err)
		})
	}
	all.Wait()
	_, stood := stalls()
	for name, by := range late {
		if by > slack+stood {
			t.Errorf("%s returned %v after the end of its context; this machine stood still for %v", name, by, stood)
		}
	}
}

func contextEnded(t *testing.T, h Harness) {
	s := open(t, h)
	promptly(t, s, 0, func() {}, func(c call, err error) {
		if driver.IsFinal(err) {
			t.Errorf("%s under a context that has ended = %v, want no answer of the store", c.name, err)
		}
	})
}

func blockedGivenUp(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	enter(t, grant(t, s, "a"), name)
	l := grant(t, s, "b")
	p := enter(t, l, name)
	now := line(t, s, name).Revision
	l.Follow(p)
	for _, c := range []call{
		{"Next", func(ctx context.Context) error { _, err := s.Next(ctx, name, now); return err }},
		{"News", func(ctx context.Context) error { _, err := l.News(ctx); return err }},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.do(ctx) }()
		silent(t, c.name+" returned though nothing happened", done)
		begun, stalls := time.Now(), safety.WatchStalls(stallStep)
		cancel()
		select {
		case err := <-done:
			if err == nil || driver.IsFinal(err) {
				t.Errorf("%s that was given up = %v, want the context's error", c.name, err)
			}
			by := time.Since(begun)
			if _, stood := stalls(); by > slack+stood {
				t.Errorf("%s returned %v after its context's end; this machine stood still for %v", c.name, by, stood)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s did not return within a minute of its context's end", c.name)
		}
	}
}

func cutObeyed(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	far, cut := openCut(t, h)
	promptly(t, far, 300*time.Millisecond, func() { cut(true); far.Caps() }, func(c call, err error) {
		if err == nil || driver.IsFinal(err) {
			t.Errorf("%s of a client that is cut off = %v, want an error that leaves the outcome unknown", c.name, err)
		}
	})
	cut(false)
	l := grant(t, far, "a") // the same client serves again
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew after the cut was healed: %v", err)
	}
}

func cutClaim(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	s := open(t, h)
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	c := driver.Claim{Name: unique(), ID: unique()}
	cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.Claim(ctx, c); err == nil || driver.IsFinal(err) {
		t.Errorf("Claim of a client that is cut off = %v, want an error that leaves the outcome unknown", err)
	}
	cut(false)
	var p driver.Place
	eventually(t, "the claim that was repeated", func() bool {
		places, err := l.Claim(soon(t), c)
		if err == nil {
			p = places[0]
		}
		return err == nil
	})
	ln := line(t, s, c.Name)
	if ln.Holder == nil || ln.Holder.Token != p.Token || standing(ln, l.ID()) != 1 {
		t.Errorf("line = %+v, want one claim, with token %d", ln, p.Token)
	}
}

func cutRelease(t *testing.T, h Harness) {
	need(t, h.Cut != nil, "Harness.Cut")
	s := open(t, h)
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	p := enter(t, l, unique())
	cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.Release(ctx, p); err == nil || driver.IsFinal(err) {
		t.Errorf("Release of a client that is cut off = %v, want an error that leaves the outcome unknown", err)
	}
	cut(false)
	eventually(t, "the release that was repeated", func() bool { return l.Release(soon(t), p) == nil })
	if ln := line(t, s, p.Name); ln.Holder != nil {
		t.Errorf("line = %+v, want it empty", ln)
	}
}

func manyAtOnce(t *testing.T, h Harness) {
	s := open(t, h)
	l := grant(t, s, "a")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 4 {
				if err := life(soon(t), s, l, unique()); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			}
		})
	}
	for range 10 { // one Renew at a time, beside all others
		if err := l.Renew(soon(t)); err != nil {
			t.Errorf("Renew: %v", err)
		}
	}
	all.Wait()
}

// life is one claim from its beginning to its end. It reports an error and does not end the test,
// for it runs beside it.
func life(ctx context.Context, s driver.Store, l driver.Lease, name string) error {
	places, err := l.Claim(ctx, driver.Claim{Name: name, ID: unique()})
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	p, err := Await(ctx, l, places[0])
	if err != nil {
		return err
	}
	if err := l.Update(ctx, p, []byte(p.ID)); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	ln, err := s.Line(ctx, name)
	if err != nil || ln.Holder == nil || string(ln.Holder.Value) != p.ID {
		return fmt.Errorf("line = %+v, %v, want the value %q", ln, err, p.ID)
	}
	return l.Release(ctx, p)
}

func restartTokens(t *testing.T, h Harness) {
	need(t, h.Restart != nil, "Harness.Restart")
	s, name := open(t, h), unique()
	need(t, s.Caps().Token == driver.TokenDurable, "a store with durable tokens")
	l := grant(t, s, "a")
	p := enter(t, l, name)
	release(t, l, p)
	h.Restart(t)
	after := grant(t, open(t, h), "b")
	if q := hold(t, after, enter(t, after, name)); q.Token <= p.Token {
		t.Errorf("token after the restart = %d, want more than %d", q.Token, p.Token)
	}
}

func restartWait(t *testing.T, h Harness) {
	need(t, h.Restart != nil, "Harness.Restart")
	leases, places := queue(t, h, unique(), 2)
	// Longer than one call, since the restart is part of it; not as long as a lease lives unrenewed.
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	turn := waitingIn(ctx, leases[1], places[1])
	silent(t, "told while another holds", turn)
	h.Restart(t)
	eventually(t, "the release after the restart", func() bool { return leases[0].Release(soon(t), places[0]) == nil })
	(<-turn).must(t)
}
