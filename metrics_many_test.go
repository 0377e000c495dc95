package primacy_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

// A sidecar has a session for each of its clients: they come and go, and what they did stays counted.
func TestMetricsOfSeveralSessions(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		own, x, y := open("own", store, metrics.Options{}), open("x", store, metrics.Options{}), open("y", store, metrics.Options{})
		for _, s := range []*primacy.Session{x.Session, y.Session} {
			own.collector.Add(s)
		}
		first := x.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- y.lead("n") }()
		time.Sleep(3 * time.Second)
		own.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1, term("n", "x", first): 1,
			`primacy_elections{state="leader"}`: 1, `primacy_elections{state="candidate"}`: 0,
			`primacy_renewals_total{election="n",result="ok"}`: 2}) // of both
		x.resign(first)
		second := <-won
		if err := x.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		own.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1, term("n", "y", second): 1, "-" + term("n", "x", first): 0,
			`primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 1, `primacy_transitions_total{election="n",reason="elected",to="leader"}`: 2,
			`primacy_renewals_total{election="n",result="ok"}`: 2, `primacy_acquire_wait_seconds_count{election="n"}`: 2})
		y.resign(second)
		if err := y.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		own.sees(map[string]float64{"-primacy_is_leader": 0, "-primacy_term_info": 0, `primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 2})
		own.collector.Close()
		own.collector.Add(y.Session) // too late, and harmless
		own.collector.Close()
	})
}

// Ten thousand elections won at once are more events than wait for a reader: what is counted exactly stays exact, and what is not is told.
func TestMetricsOfMoreEventsThanThereIsRoomFor(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		const n = 10_000
		a := open("a", driver.Store(store), metrics.Options{MaxElections: 10})
		es := a.Elections(nil)
		names := make([]string, n)
		for i := range names {
			names[i] = "n" + strconv.Itoa(i)
		}
		if err := es.Stand(names...); err != nil {
			t.Fatal(err)
		}
		won := 0
		for term, err := range es.Terms(t.Context()) {
			if err != nil || term == nil {
				t.Fatal(err)
			}
			if won++; won == n {
				break
			}
		}
		got := a.scrape()
		sum := got[`primacy_transitions_total{election="",reason="elected",to="leader"}`]
		for _, name := range names {
			sum += got[`primacy_transitions_total{election="`+name+`",reason="elected",to="leader"}`]
		}
		if sum != n || got[`primacy_elections{state="leader"}`] != n {
			t.Errorf("%v of %d terms were counted, %v lead", sum, n, got[`primacy_elections{state="leader"}`])
		}
		waits := got[`primacy_acquire_wait_seconds_count{election=""}`]
		for _, name := range names {
			waits += got[`primacy_acquire_wait_seconds_count{election="`+name+`"}`]
		}
		if lost := got["primacy_events_lost_total{}"]; waits < n && lost < n-waits {
			t.Errorf("%v waits were counted of %d, and only %v events are said to be lost", waits, n, lost)
		}
		if err := es.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMetricsOfMoreElectionsThanHaveSeries(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{MaxElections: 2})
		terms := map[string]*primacy.Term{}
		for _, name := range []string{"x", "y", "z1", "z2", "z3"} {
			terms[name] = a.lead(name)
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		a.sees(map[string]float64{
			`primacy_is_leader{election="y"}`: 1, `-primacy_is_leader{election="z1"}`: 0, `-primacy_term_info{election="z1"`: 0, `-primacy_is_leader{election=""}`: 0,
			`primacy_transitions_total{election="",reason="elected",to="leader"}`: 3, `primacy_transitions_total{election="x",reason="elected",to="leader"}`: 1,
			`primacy_elections{state="leader"}`: 5, `primacy_renewals_total{election="",result="ok"}`: 1, `primacy_acquire_wait_seconds_count{election=""}`: 3,
		})
		for _, name := range []string{"z1", "z2", "x"} {
			a.resign(terms[name])
		}
		a.lead("z1") // the room of x is not given to another: no counter goes back
		a.sees(map[string]float64{
			`primacy_transitions_total{election="",reason="resigned",to="follower"}`: 2, `primacy_transitions_total{election="",reason="elected",to="leader"}`: 4,
			`primacy_transitions_total{election="x",reason="resigned",to="follower"}`: 1, `primacy_elections{state="leader"}`: 3, `-primacy_is_leader{election="x"}`: 0,
		})
	})
}

func TestMetricsPassTheLinter(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{ClientGo: true, LookEvery: time.Second})
		a.registry.MustRegister(metrics.NewCronRuns("nightly"))
		a.lead("n")
		time.Sleep(3 * time.Second)
		problems, err := testutil.GatherAndLint(a.registry)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}
