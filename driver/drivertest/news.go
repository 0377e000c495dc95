package drivertest

import (
	"context"
	"errors"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var newsClauses = []Clause{
	{Name: "news tells a place that was removed by hand", Check: newsRemoved},
	{Name: "news tells what happened before it was asked", Check: newsBefore},
	{Name: "news tells a place that was removed while the client was cut off", Check: newsCutOff},
	{Name: "news says nothing of what the owner did", Check: newsOwn},
	{Name: "news says gone once the lease is known to be gone", Check: newsGone, slow: true},
	{Name: "news says gone when the lease is closed", Check: newsClosed},
	{Name: "a place that was removed by hand can be claimed again under a new ID", Check: removedAgain},
	{Name: "a request reaches the holder", Check: askHolder},
	{Name: "a request for a term that is over is told so", Check: askOver},
	{Name: "a request does not outlive its term", Check: askForgotten},
}

// heard is the result of one or more News.
type heard struct {
	news driver.News
	err  error
}

// listening starts to collect the news of a lease, until the test ends or the lease is gone.
func listening(t *testing.T, l driver.Lease) <-chan heard {
	ch, ctx := make(chan heard, 64), t.Context()
	go func() {
		for ctx.Err() == nil {
			news, err := News(ctx, l)
			for _, n := range news {
				ch <- heard{news: n}
			}
			if driver.IsFinal(err) {
				ch <- heard{err: err}
				return
			}
			if err != nil {
				pause(ctx)
			}
		}
	}()
	return ch
}

// hear waits for a piece of news that fits.
func hear(t *testing.T, what string, ch <-chan heard, fits func(heard) bool) {
	t.Helper()
	ctx := soon(t)
	for {
		select {
		case got := <-ch:
			if fits(got) {
				return
			}
			if got.err != nil {
				t.Fatalf("News = %v, want %s", got.err, what)
			}
		case <-ctx.Done():
			t.Fatalf("no news within %v, want %s", patience, what)
		}
	}
}

// gone fits the news that p was removed.
func gone(p driver.Place) func(heard) bool {
	return func(n heard) bool {
		return n.news.Gone && n.news.Place.Name == p.Name && n.news.Place.ID == p.ID && n.news.Place.Token == p.Token
	}
}

func newsRemoved(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	s, name := open(t, h), unique()
	leases, places := queue(t, h, name, 2)
	for i, l := range leases { // the holder first, then the one who came to hold after it
		p, ch := hold(t, l, places[i]), listening(t, l)
		h.Remove(t, name, p.Token)
		hear(t, "the place that was removed", ch, gone(p))
		if err := l.Renew(soon(t)); err != nil {
			t.Errorf("Renew after a place was removed by hand = %v, want nil: the lease lives on", err)
		}
		_, err := l.Claim(soon(t), driver.Claim{Name: name, ID: p.ID})
		wantGone(t, "Claim under the ID of the place that was removed", err)
	}
	if ln := line(t, s, name); ln.Holder != nil {
		t.Errorf("line = %+v, want it empty", ln)
	}
	if !s.Caps().FIFO {
		return
	}
	leases, places = queue(t, h, name, 2)
	ch := listening(t, leases[1])
	h.Remove(t, name, places[1].Token) // and one who waits
	hear(t, "the place that was removed while it waited", ch, gone(places[1]))
}

func newsBefore(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	s := open(t, h)
	l := grant(t, s, "a")
	p, q := enter(t, l, unique()), enter(t, l, unique())
	h.Remove(t, p.Name, p.Token)
	h.Remove(t, q.Name, q.Token)
	eventually(t, "both lines are empty", func() bool {
		return line(t, s, p.Name).Holder == nil && line(t, s, q.Name).Holder == nil
	})
	told := map[string]bool{}
	hear(t, "both places that were removed", listening(t, l), func(n heard) bool {
		told[n.news.Place.Name] = n.news.Gone
		return told[p.Name] && told[q.Name]
	})
}

func newsCutOff(t *testing.T, h Harness) {
	need(t, h.Remove != nil && h.Cut != nil, "Harness.Remove and Harness.Cut")
	far, cut := openCut(t, h)
	l := grant(t, far, "a")
	p := enter(t, l, unique())
	ch := listening(t, l)
	cut(true)
	h.Remove(t, p.Name, p.Token)
	silent(t, "news came though cut off", ch)
	cut(false)
	hear(t, "the place that was removed meanwhile", ch, gone(p))
}

func newsOwn(t *testing.T, h Harness) {
	l := grant(t, open(t, h), "a")
	ch := listening(t, l)
	name := unique()
	p := enter(t, l, name)
	if err := l.Update(soon(t), p, []byte("x")); err != nil {
		t.Fatalf("Update: %v", err)
	}
	release(t, l, p)
	enter(t, l, name)
	release(t, l, hold(t, l, enter(t, l, name)))
	silent(t, "news of what the owner did", ch)
}

func newsGone(t *testing.T, h Harness) {
	s, name := open(t, h), unique()
	l, _ := mortal(t, h, s, name)
	ch := listening(t, l)
	free(t, s, name)
	wantGone(t, "Renew of a lease that ended", l.Renew(soon(t))) // from here on it is known
	hear(t, "ErrGone", ch, func(n heard) bool { return errors.Is(n.err, driver.ErrGone) })
}

func newsClosed(t *testing.T, h Harness) {
	l := grant(t, open(t, h), "a")
	ch := listening(t, l)
	if err := l.Close(soon(t)); err != nil {
		t.Fatalf("Close: %v", err)
	}
	hear(t, "ErrGone", ch, func(n heard) bool { return errors.Is(n.err, driver.ErrGone) })
}

func removedAgain(t *testing.T, h Harness) {
	need(t, h.Remove != nil, "Harness.Remove")
	s, name := open(t, h), unique()
	l := grant(t, s, "a")
	p := enter(t, l, name)
	ch := listening(t, l)
	h.Remove(t, name, p.Token)
	hear(t, "the place that was removed", ch, gone(p))
	q := hold(t, l, enter(t, l, name))
	if s.Caps().Token != driver.TokenNone && q.Token <= p.Token {
		t.Errorf("token of the new claim = %d, want more than %d", q.Token, p.Token)
	}
	silent(t, "news that the new claim is gone", ch)
}

// asker returns the store as one that carries requests, or skips the clause.
func asker(t *testing.T, s driver.Store) driver.Asker {
	t.Helper()
	a, ok := s.(driver.Asker)
	need(t, ok, "a store that carries requests")
	return a
}

func askHolder(t *testing.T, h Harness) {
	a := asker(t, open(t, h))
	l := grant(t, open(t, h), "a")
	p := enter(t, l, unique())
	ch := listening(t, l)
	want := driver.Request{Token: p.Token, By: "ops@desk", Reason: `to patch "it"`}
	if err := a.Ask(soon(t), p.Name, want); err != nil {
		t.Fatalf("Ask: %v", err)
	}
	hear(t, "the request", ch, func(n heard) bool {
		r := n.news.Request
		return r != nil && *r == want && !n.news.Gone && n.news.Place.Name == p.Name && n.news.Place.Token == p.Token
	})
	if again := hold(t, l, p); again.Token != p.Token {
		t.Errorf("place after the request = %+v, want it as it was: the holder decides", again)
	}
}

func askOver(t *testing.T, h Harness) {
	s := open(t, h)
	a := asker(t, s)
	name := unique()
	wantGone(t, "Ask of a name never used", a.Ask(soon(t), name, driver.Request{Token: 1, By: "x"}))
	leases, places := queue(t, h, name, 2)
	wantGone(t, "Ask of one who waits", a.Ask(soon(t), name, driver.Request{Token: places[1].Token, By: "x"}))
	release(t, leases[0], places[0])
	hold(t, leases[1], places[1])
	ch := listening(t, leases[1])
	wantGone(t, "Ask of a term that is over", a.Ask(soon(t), name, driver.Request{Token: places[0].Token, By: "x"}))
	silent(t, "a request for the term before reached its successor", ch)
}

func askForgotten(t *testing.T, h Harness) {
	a := asker(t, open(t, h))
	name := unique()
	leases, places := queue(t, h, name, 2)
	if err := a.Ask(soon(t), name, driver.Request{Token: places[0].Token, By: "x"}); err != nil {
		t.Fatalf("Ask: %v", err)
	}
	release(t, leases[0], places[0]) // without ever having listened
	hold(t, leases[1], places[1])
	silent(t, "the request reached the successor", listening(t, leases[1]))
	// The same lease is its own successor, behind the other.
	next := enter(t, leases[0], name)
	release(t, leases[1], places[1])
	hold(t, leases[0], next)
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	for ctx.Err() == nil {
		news, _ := News(ctx, leases[0])
		for _, n := range news {
			if n.Request != nil {
				t.Errorf("news = %+v with request %+v, want it forgotten with its term", n, *n.Request)
			}
		}
	}
}
