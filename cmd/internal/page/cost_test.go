package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/pause"
)

// thousands is a page on a store with so many elections, which all have a leader and a history.
func thousands(tb testing.TB, n int) *Page {
	st := memstore.New(memstore.Options{})
	own, err := primacy.NewSession(st, nil)
	if err != nil {
		tb.Fatal(err)
	}
	began := time.Now().Add(-time.Hour)
	left := time.Minute
	src := top.Source{Store: "a store", List: func(context.Context) ([]primacy.State, error) {
		states := make([]primacy.State, n)
		for i := range states {
			states[i] = primacy.State{Name: fmt.Sprintf("tenant-%04d/worker", i), AsOf: time.Now(),
				Leader: &primacy.Entry{ID: "web-1", Token: primacy.Token(i + 2), Lease: "l1",
					Value: []byte("10.0.0.1:80")}}
		}
		return states, nil
	}, Leases: func(context.Context, ...string) (map[string]driver.Remaining, error) {
		left -= 2 * time.Second
		return map[string]driver.Remaining{"l1": {Left: left % time.Minute, TTL: time.Minute}}, nil
	}, History: func(_ context.Context, name string, _ int) ([]top.Term, error) {
		var i int
		_, _ = fmt.Sscanf(name, "tenant-%d/", &i)
		return []top.Term{{Token: primacy.Token(i + 2), From: began, ID: "web-1", Reason: primacy.Leads},
			{Token: 1, From: began.Add(-time.Hour), To: began, ID: "web-2", Reason: primacy.Resigned,
				Why: "resigned"}}, nil
	}}
	p := New(Options{Store: st, Session: own, Source: src})
	tb.Cleanup(p.Close)
	return p
}

// BenchmarkTick is what an open tab costs each time the store was read, but for that reading.
func BenchmarkTick(b *testing.B) {
	p := thousands(b, 2000)
	v, _ := viewAt("")
	var has known
	for b.Loop() {
		p.feed.live.Refresh(b.Context())
		p.feed.changed()
		c, err := p.content(b.Context(), v, url.Values{})
		if err == nil {
			_, _, err = has.since(c)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is what the page costs that a browser asks for.
func BenchmarkOpen(b *testing.B) {
	p := thousands(b, 2000)
	for b.Loop() {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ui/", nil))
		if w.Code != 200 {
			b.Fatal(w.Code)
		}
		b.ReportMetric(float64(w.Body.Len()), "bytes")
	}
}

// A list is not made anew while nothing changes that it is made of; with each such change it is.
func TestAListIsMadeAnewWithWhatItIsMadeOf(t *testing.T) {
	within(t, Options{Sick: func(context.Context) (map[string][]Sick, error) { return nil, nil }}, func(s *site) {
		s.stands("web-1", "billing", "")
		v, _ := viewAt("")
		shown := func() content {
			t.Helper()
			s.feed.changed()
			c, err := s.Page.content(s.Context(), v, url.Values{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		asOf := func(c content) time.Time { return c.json.(map[string]any)["as_of"].(time.Time) }
		made := func(what string, change func()) {
			t.Helper()
			shown()
			time.Sleep(10*time.Second + 123*time.Millisecond) // all that is due has been read
			synctest.Wait()
			first := shown()
			again := shown()
			if &again.parts[0] != &first.parts[0] || again.version != first.version {
				t.Errorf("before %s: it is made anew though nothing has changed", what)
			}
			change()
			if now := shown(); &now.parts[0] == &again.parts[0] || now.version == again.version {
				t.Errorf("%s: it is not made anew", what)
			}
		}
		made("one more who waits", func() {
			s.stands("web-2", "billing", "")
			s.feed.live.Refresh(s.Context())
		})
		made("a pause", func() {
			_, err := pause.Set(s.Context(), s.store, pause.Pause{Scope: "billing", By: "ops", Reason: "drill",
				Until: time.Now().Add(time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = s.standing.read(s.Context())
		})
		s.standing.mu.Lock()
		s.standing.sick = map[string][]Sick{"billing": {{ID: "web-1"}}}
		s.standing.sickAt = time.Now().Add(time.Hour)
		s.standing.mu.Unlock()
		made("its leader has recovered", func() {
			s.standing.mu.Lock()
			s.standing.sick = nil
			s.standing.mu.Unlock()
		})
		before := shown()
		time.Sleep(2 * time.Second)
		if after := shown(); !asOf(after).After(asOf(before)) {
			t.Errorf("it is still as of %v", asOf(after))
		}
	})
}
