package primacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

// shown is a session in fake time and what Prometheus sees of it. skew moves its boot clock without
// any timer running, as SIGSTOP and suspend do.
type shown struct {
	t *testing.T
	*primacy.Session
	collector *metrics.Collector
	registry  *prometheus.Registry
	skew      *atomic.Int64
}

type opener func(id string, on driver.Store, o metrics.Options) *shown

// fleet runs f in fake time, with a way to open sessions that are scraped.
func fleet(t *testing.T, f func(t *testing.T, store *memstore.Store, open opener)) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f(t, memstore.New(memstore.Options{}), func(id string, on driver.Store, o metrics.Options) *shown {
			w := &shown{t: t, registry: prometheus.NewRegistry(), skew: new(atomic.Int64)}
			clock := func() time.Duration { return time.Since(start) + time.Hour + time.Duration(w.skew.Load()) }
			var err error
			if w.Session, err = primacy.NewSessionAt(on,
				primacy.Options{ID: id, TTL: 10 * time.Second, Overrun: primacy.OverrunWait}, clock); err != nil {
				t.Fatal(err)
			}
			if w.collector, err = metrics.New(w.Session, o); err != nil {
				t.Fatal(err)
			}
			w.registry.MustRegister(w.collector)
			t.Cleanup(func() {
				w.collector.Close()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = w.Close(ctx)
				time.Sleep(time.Minute) // leases that were left to run out end their goroutines
			})
			return w
		})
	})
}

// scrape returns all series and their values; of a histogram _count and _sum.
func (w *shown) scrape() map[string]float64 {
	w.t.Helper()
	synctest.Wait() // what has happened has been counted
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := "{" + strings.Join(labels, ",") + "}"
			if h := m.Histogram; h != nil {
				all[f.GetName()+"_count"+key], all[f.GetName()+"_sum"+key] = float64(h.GetSampleCount()),
					h.GetSampleSum()
				continue
			}
			all[f.GetName()+key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// sees holds one scrape to what it must show; "-" before a series says that it must not be there.
func (w *shown) sees(want map[string]float64) {
	w.t.Helper()
	got := w.scrape()
	for series, v := range want {
		if gone, ok := strings.CutPrefix(series, "-"); ok {
			for s := range got {
				if strings.HasPrefix(s, gone) {
					w.t.Errorf("%s is still there, with %v", s, got[s])
				}
			}
			continue
		}
		if is, ok := got[series]; !ok || is != v {
			w.t.Errorf("%s is %v (there: %v), want %v", series, is, ok, v)
		}
	}
}

func (w *shown) lead(name string) *primacy.Term {
	w.t.Helper()
	t, err := w.Election(name).Campaign(w.t.Context(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *shown) resign(t *primacy.Term) {
	w.t.Helper()
	if err := t.Resign(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func term(name, id string, t *primacy.Term) string {
	return fmt.Sprintf(`primacy_term_info{election=%q,id=%q,token="%d"}`, name, id, t.Token())
}

func TestMetricsOfAWinARenewalAndAResignation(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{ClientGo: true}), open("b", store, metrics.Options{})
		a.sees(map[string]float64{"-primacy_is_leader": 0, "-primacy_store_up": 0,
			`primacy_overruns_total{election=""}`: 0, `primacy_elections{state="leader"}`: 0})
		first := a.lead("n")
		a.sees(map[string]float64{
			`primacy_is_leader{election="n"}`: 1, term("n", "a", first): 1,
			`leader_election_master_status{name="n"}`: 1, `primacy_elections{state="leader"}`: 1,
			`primacy_lease_remaining_seconds{election="n"}`: 9, `primacy_lease_ttl_seconds{election="n"}`: 10,
			`primacy_transitions_total{election="n",reason="elected",to="leader"}`:   1,
			`primacy_transitions_total{election="n",reason="expired",to="follower"}`: 0,
			`primacy_renewals_total{election="n",result="ok"}`:                       0,
			`primacy_overruns_total{election="n"}`:                                   0,
			`primacy_store_up{store="memory"}`:                                       1,
			`primacy_acquire_wait_seconds_count{election="n"}`:                       1,
			`primacy_stop_duration_seconds_count{election="n",how="term"}`:           0,
		})
		won := make(chan *primacy.Term, 1)
		go func() { won <- b.lead("n") }()
		b.sees(map[string]float64{
			`primacy_is_leader{election="n"}`: 0, "-primacy_term_info": 0, "-primacy_lease": 0,
			`primacy_elections{state="candidate"}`:                                 1,
			`primacy_transitions_total{election="n",reason="elected",to="leader"}`: 0,
			`primacy_acquire_wait_seconds_count{election="n"}`:                     0,
		})
		time.Sleep(7 * time.Second) // a renews every two seconds, b, which holds nothing, every four
		for w, n := range map[*shown]float64{a: 3, b: 1} {
			w.sees(map[string]float64{`primacy_renewals_total{election="n",result="ok"}`: n,
				`primacy_renew_duration_seconds_count{election="n"}`:  n,
				`primacy_renewals_total{election="n",result="late"}`:  0,
				`primacy_renewals_total{election="n",result="error"}`: 0})
		}
		a.resign(first)
		second := <-won
		a.sees(map[string]float64{
			"-primacy_is_leader": 0, "-primacy_term_info": 0, "-leader_election_master_status": 0, "-primacy_lease": 0,
			`primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 1,
			`primacy_stop_duration_seconds_count{election="n",how="term"}`:            1,
		})
		b.sees(map[string]float64{
			`primacy_is_leader{election="n"}`: 1, term("n", "b", second): 1,
			`primacy_acquire_wait_seconds_count{election="n"}`: 1,
			`primacy_acquire_wait_seconds_sum{election="n"}`:   7,
		})
		time.Sleep(4 * time.Second)
		// a stands no more, though its lease lives; b made up for a renewal as it won
		a.sees(map[string]float64{`primacy_renewals_total{election="n",result="ok"}`: 3})
		b.sees(map[string]float64{`primacy_renewals_total{election="n",result="ok"}`: 4})
	})
}

// silent is a store whose calls for leases answer nothing, or an error, while told to.
type silent struct {
	*memstore.Store
	mute   atomic.Bool
	broken atomic.Bool
}

type silentLease struct {
	driver.Lease
	s *silent
}

var errBroken = errors.New("broken")

func (s *silent) wait(ctx context.Context) error {
	switch {
	case s.broken.Load():
		return errBroken
	case s.mute.Load():
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *silent) Grant(ctx context.Context, owner string, ttl time.Duration) (driver.Lease, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	l, err := s.Store.Grant(ctx, owner, ttl)
	return &silentLease{l, s}, err
}

func (l *silentLease) Renew(ctx context.Context) error {
	if err := l.s.wait(ctx); err != nil {
		return err
	}
	return l.Lease.Renew(ctx)
}

func TestMetricsOfMissedRenewalsAndALeaseThatRunsOut(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		bad := &silent{Store: store}
		a := open("a", bad, metrics.Options{})
		a.lead("n")
		bad.broken.Store(true)
		time.Sleep(2500 * time.Millisecond)
		got := a.scrape()
		if got[`primacy_renewals_total{election="n",result="error"}`] == 0 ||
			got[`primacy_store_up{store="memory"}`] != 0 || got[`primacy_store_errors_total{store="memory"}`] == 0 {
			t.Errorf("a store that fails: %v", got)
		}
		bad.broken.Store(false)
		time.Sleep(2 * time.Second)
		a.sees(map[string]float64{`primacy_store_up{store="memory"}`: 1, `primacy_is_leader{election="n"}`: 1})
		bad.mute.Store(true)
		time.Sleep(20 * time.Second)
		a.sees(map[string]float64{"-primacy_is_leader": 0, "-primacy_term_info": 0,
			`primacy_store_up{store="memory"}`:                                        0,
			`primacy_transitions_total{election="n",reason="expired",to="follower"}`:  1,
			`primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 0})
		if late := a.scrape()[`primacy_renewals_total{election="n",result="late"}`]; late < 2 {
			t.Errorf("%v renewals are late, want at least two", late)
		}
		failed := a.scrape()[`primacy_store_errors_total{store="memory"}`]
		go func() { _, _ = a.Election("n").Campaign(t.Context(), nil) }()
		time.Sleep(10 * time.Second)
		// it stands, without a lease
		a.sees(map[string]float64{`primacy_is_leader{election="n"}`: 0, `primacy_elections{state="candidate"}`: 1})
		if now := a.scrape()[`primacy_store_errors_total{store="memory"}`]; now <= failed {
			t.Error("no lease is granted, and the store's errors do not grow")
		}
		bad.mute.Store(false)
		time.Sleep(30 * time.Second)
		a.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1, `primacy_store_up{store="memory"}`: 1})
	})
}

// A process that was frozen past its deadline has run no timer when it is scraped: the scrape
// itself must see it.
func TestMetricsOfAFrozenLeader(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{ClientGo: true})
		first := a.lead("n")
		a.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1})
		a.skew.Store(int64(9 * time.Second))
		families, err := a.registry.Gather() // at this instant: nothing of the session has run
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range families {
			switch f.GetName() {
			case "primacy_is_leader", "leader_election_master_status":
				if seen++; f.Metric[0].GetGauge().GetValue() != 0 {
					t.Errorf("%s says %v", f.GetName(), f.Metric)
				}
			case "primacy_term_info", "primacy_lease_remaining_seconds":
				t.Errorf("%s is still there: %v", f.GetName(), f.Metric)
			}
		}
		if seen != 2 {
			t.Errorf("%d of the two gauges were there", seen)
		}
		if first.Check() == nil {
			t.Error("the scrape says no, and Check yes")
		}
	})
}

func TestMetricsOfEachReason(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		ended := func(reason string, n float64) {
			t.Helper()
			a.sees(map[string]float64{`primacy_transitions_total{election="n",reason="` + reason +
				`",to="follower"}`: n})
		}
		term := a.lead("n")
		store.Remove("n", uint64(term.Token()))
		synctest.Wait()
		ended("deposed", 1)

		term = a.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- b.lead("n") }()
		synctest.Wait()
		if err := term.Transfer(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		ended("transferred", 1)
		ended("resigned", 0)
		b.resign(<-won)

		fails := errors.New("the work failed")
		if err := a.Run(t.Context(), "n", func(context.Context, *primacy.Term) error {
			return fails
		}); !errors.Is(err, fails) {
			t.Fatal(err)
		}
		ended("failed", 1)

		term = a.lead("n")
		closed := make(chan error, 1)
		go func() { closed <- a.Close(context.Background()) }()
		<-term.Context().Done()
		a.resign(term)
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		ended("shutdown", 1)
		a.sees(map[string]float64{`primacy_transitions_total{election="n",reason="elected",to="leader"}`: 4,
			"-primacy_is_leader": 0})
	})
}

func TestMetricsOfWorkThatStopsLateAndOfWorkThatWasKilled(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{})
		go func() {
			_ = a.Run(context.Background(), "n", func(ctx context.Context, term *primacy.Term) error {
				<-ctx.Done()
				time.Sleep(30 * time.Second) // deaf
				return nil
			})
		}()
		synctest.Wait()
		store.Expire("n")
		time.Sleep(29 * time.Second)
		a.sees(map[string]float64{`primacy_overruns_total{election="n"}`: 1, `primacy_overruns_total{election=""}`: 0})
		m := a.Mutex("m", nil)
		go func() {
			_ = m.Do(context.Background(), func(ctx context.Context, _ *primacy.Term) error {
				time.Sleep(40 * time.Second)
				return nil
			})
		}()
		synctest.Wait()
		store.Expire("m")
		time.Sleep(20 * time.Second)
		a.sees(map[string]float64{`primacy_overruns_total{election=""}`: 1})
		for series := range a.scrape() {
			if strings.Contains(series, `election="m"`) {
				t.Errorf("a lock has the series %s", series)
			}
		}

		term := a.lead("k")
		won := slices.Contains(a.Names(), "k")
		if !won {
			t.Errorf("it stands for %v", a.Names())
		}
		if _, err := a.Election("k").Ask(t.Context(), primacy.Request{Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		<-term.Context().Done()
		time.Sleep(3 * time.Second)
		a.collector.Killed(term)
		a.resign(term)
		a.sees(map[string]float64{`primacy_stop_duration_seconds_count{election="k",how="kill"}`: 1,
			`primacy_stop_duration_seconds_sum{election="k",how="kill"}`:   3,
			`primacy_stop_duration_seconds_count{election="k",how="term"}`: 0})
	})
}

func TestMetricsOfCandidatesAreAsOldAsTheLastLook(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		bad := &muteLine{Store: store}
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		o := open("observer", bad, metrics.Options{LookEvery: 10 * time.Second, Observe: []string{"n", "nobody"}})
		a.lead("n")
		go func() { _, _ = b.Election("n").Campaign(t.Context(), nil) }()
		time.Sleep(11 * time.Second)
		o.sees(map[string]float64{`primacy_candidates{election="n"}`: 2, `primacy_candidates{election="nobody"}`: 0,
			"-primacy_is_leader": 0})
		bad.mute.Store(true)
		time.Sleep(20 * time.Second)
		o.sees(map[string]float64{`primacy_candidates{election="n"}`: 2})
		time.Sleep(20 * time.Second)
		o.sees(map[string]float64{"-primacy_candidates": 0}) // what is old is not shown
		bad.mute.Store(false)
		time.Sleep(30 * time.Second)
		o.sees(map[string]float64{`primacy_candidates{election="n"}`: 2})
		a.sees(map[string]float64{"-primacy_candidates": 0}) // nobody asked it to look
	})
}

// The terms of all processes are counted, also those that were over before this one began.
func TestMetricsOfTheHistoryOutliveTheProcess(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		gone := open("gone", store, metrics.Options{})
		for range 43 {
			term := gone.lead("n")
			term.Explain("status 1", true)
			_ = term.Resign(t.Context())
		}
		_ = gone.Close(t.Context())
		look := metrics.Options{LookEvery: 10 * time.Second, Observe: []string{"n", "nobody"}}
		a := open("a", store, look)
		time.Sleep(time.Second)
		a.sees(map[string]float64{`primacy_history_terms_total{election="n",reason="failed"}`: 43,
			`primacy_history_terms_total{election="n",reason="expired"}`:     0,
			`primacy_history_terms_total{election="nobody",reason="failed"}`: 0,
			"-primacy_transitions_total":                                     0})
		_ = open("b", store, metrics.Options{}).lead("n").Resign(t.Context())
		time.Sleep(11 * time.Second)
		a.sees(map[string]float64{`primacy_history_terms_total{election="n",reason="failed"}`: 43,
			`primacy_history_terms_total{election="n",reason="resigned"}`: 1})
	})
}

// A history that cannot be read takes no candidates away, neither of its name nor of another.
func TestMetricsOfCandidatesDoNotNeedTheHistory(t *testing.T) {
	for what, unread := range map[string]error{"silent": nil, "refused": driver.ErrRefused} {
		t.Run(what, func(t *testing.T) {
			fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
				open("a", store, metrics.Options{}).lead("n")
				bad := &muteHistory{Store: store, err: unread}
				bad.mute.Store(true)
				look := metrics.Options{LookEvery: 10 * time.Second, Observe: []string{"n", "nobody"}}
				o := open("observer", bad, look)
				time.Sleep(11 * time.Second)
				o.sees(map[string]float64{`primacy_candidates{election="n"}`: 1,
					`primacy_candidates{election="nobody"}`: 0, "-primacy_history_terms_total": 0})
				bad.mute.Store(false)
				time.Sleep(21 * time.Second)
				o.sees(map[string]float64{`primacy_candidates{election="n"}`: 1,
					`primacy_history_terms_total{election="n",reason="failed"}`: 0})
			})
		})
	}
}

// muteHistory is a store that shows no history while told to: it refuses with err, or says nothing.
type muteHistory struct {
	*memstore.Store
	mute atomic.Bool
	err  error
}

func (m *muteHistory) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if !m.mute.Load() {
		return m.Store.Records(ctx, name, before, limit)
	}
	if m.err == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, m.err
}

// muteLine is a store that shows no lines while told to.
type muteLine struct {
	*memstore.Store
	mute atomic.Bool
}

func (m *muteLine) Line(ctx context.Context, name string) (driver.Line, error) {
	if m.mute.Load() {
		<-ctx.Done()
		return driver.Line{}, ctx.Err()
	}
	return m.Store.Line(ctx, name)
}

func TestMetricsOfTheGapBeforeATerm(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a, b := open("a", store, metrics.Options{}), open("b", store, metrics.Options{})
		term := a.lead("n")
		time.Sleep(20 * time.Second)
		a.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 0}) // the first term of all
		a.resign(term)
		time.Sleep(7 * time.Second)
		term = b.lead("n")
		time.Sleep(3 * time.Second)
		b.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 1,
			`primacy_handover_gap_seconds_sum{election="n"}`: 7})
		a.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 0})

		won := make(chan *primacy.Term, 1)
		go func() { won <- a.lead("n") }()
		synctest.Wait()
		b.resign(term)
		term = <-won
		time.Sleep(3 * time.Second)
		a.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 1,
			`primacy_handover_gap_seconds_sum{election="n"}`: 0})
		a.resign(term)
	})
}

// Who asks for events hears of what happens from that moment on, whenever he begins to read.
func TestEventsAreThoseSinceTheCall(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		a := open("a", store, metrics.Options{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		events := a.Events(ctx)
		a.resign(a.lead("n"))
		var kinds []primacy.EventKind
		for e := range events {
			if kinds = append(kinds, e.Kind); e.Kind == primacy.WorkStopped {
				break
			}
		}
		if len(kinds) < 4 || kinds[0] != primacy.CampaignBegun {
			t.Errorf("heard of %v", kinds)
		}
	})
}

// A sidecar has a session for each of its clients: they come and go, and what they did stays
// counted.
func TestMetricsOfSeveralSessions(t *testing.T) {
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		own, x, y := open("own", store, metrics.Options{}), open("x", store, metrics.Options{}),
			open("y", store, metrics.Options{})
		for _, s := range []*primacy.Session{x.Session, y.Session} {
			own.collector.Add(s)
		}
		first := x.lead("n")
		won := make(chan *primacy.Term, 1)
		go func() { won <- y.lead("n") }()
		time.Sleep(5 * time.Second)
		own.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1, term("n", "x", first): 1,
			`primacy_elections{state="leader"}`: 1, `primacy_elections{state="candidate"}`: 0,
			`primacy_renewals_total{election="n",result="ok"}`: 3}) // two of x, one of y, which holds nothing
		x.resign(first)
		second := <-won
		if err := x.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		own.sees(map[string]float64{`primacy_is_leader{election="n"}`: 1, term("n", "y", second): 1,
			"-" + term("n", "x", first): 0,
			`primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 1,
			`primacy_transitions_total{election="n",reason="elected",to="leader"}`:    2,
			`primacy_renewals_total{election="n",result="ok"}`:                        3,
			`primacy_acquire_wait_seconds_count{election="n"}`:                        2})
		y.resign(second)
		if err := y.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		own.sees(map[string]float64{"-primacy_is_leader": 0, "-primacy_term_info": 0,
			`primacy_transitions_total{election="n",reason="resigned",to="follower"}`: 2})
		own.collector.Close()
		own.collector.Add(y.Session) // too late, and harmless
		own.collector.Close()
	})
}

// Ten thousand elections won at once are more events than wait for a reader: what is counted
// exactly stays exact, and what is not is told.
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
			`primacy_is_leader{election="y"}`: 1, `-primacy_is_leader{election="z1"}`: 0,
			`-primacy_term_info{election="z1"`: 0, `-primacy_is_leader{election=""}`: 0,
			`primacy_transitions_total{election="",reason="elected",to="leader"}`:  3,
			`primacy_transitions_total{election="x",reason="elected",to="leader"}`: 1,
			`primacy_elections{state="leader"}`:                                    5,
			`primacy_renewals_total{election="",result="ok"}`:                      1,
			`primacy_acquire_wait_seconds_count{election=""}`:                      3,
		})
		for _, name := range []string{"z1", "z2", "x"} {
			a.resign(terms[name])
		}
		a.lead("z1") // the room of x is not given to another: no counter goes back
		a.sees(map[string]float64{
			`primacy_transitions_total{election="",reason="resigned",to="follower"}`:  2,
			`primacy_transitions_total{election="",reason="elected",to="leader"}`:     4,
			`primacy_transitions_total{election="x",reason="resigned",to="follower"}`: 1,
			`primacy_elections{state="leader"}`:                                       3,
			`-primacy_is_leader{election="x"}`:                                        0,
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

// promtool returns where Prometheus' own tool is.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed (Debian: prometheus)")
		}
		t.Skip("promtool is not installed (Debian: prometheus)")
	}
	return path
}

// scraper is a Prometheus in fake time: every 15 seconds it asks each process that runs.
type scraper struct {
	scrapes int
	targets map[string]*shown
	series  map[string][]string // in promtool's notation, one value a scrape
}

// run scrapes so many times.
func (p *scraper) run(times int) {
	for range times {
		time.Sleep(15 * time.Second)
		seen := map[string]bool{}
		for instance, w := range p.targets {
			synctest.Wait()
			page := httptest.NewRecorder()
			promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{}).ServeHTTP(page,
				httptest.NewRequest(http.MethodGet, "/metrics", nil))
			for line := range strings.Lines(page.Body.String()) {
				if !strings.HasPrefix(line, "#") {
					seen[p.sample(instance, strings.TrimSpace(line))] = true
				}
			}
		}
		for series, values := range p.series {
			if seen[series] {
				continue
			}
			gone := "stale" // as Prometheus marks what it finds no more
			if before := values[len(values)-1]; before == "stale" || before == "_" {
				gone = "_"
			}
			p.series[series] = append(values, gone)
		}
		p.scrapes++
	}
}

// sample keeps one line of a page and returns its series.
func (p *scraper) sample(instance, line string) string {
	at := strings.LastIndexByte(line, ' ')
	name, labels, _ := strings.Cut(line[:at], "{")
	series := fmt.Sprintf("%s{instance=%q,%s", name, instance, labels)
	if labels == "" {
		series = fmt.Sprintf("%s{instance=%q}", name, instance)
	}
	values, known := p.series[series]
	if !known {
		values = slices.Repeat([]string{"_"}, p.scrapes)
	}
	p.series[series] = append(values, line[at+1:])
	return series
}

// fired returns which alerts Prometheus' own engine fires, at any time, over what was scraped.
func (p *scraper) fired(t *testing.T) []string {
	t.Helper()
	rules, err := filepath.Abs("deploy/prometheus/primacy.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var input []map[string]string
	for _, series := range slices.Sorted(maps.Keys(p.series)) {
		input = append(input, map[string]string{"series": series, "values": strings.Join(p.series[series], " ")})
	}
	last := fmt.Sprintf("%ds", 15*(p.scrapes-1))
	test, err := json.Marshal(
		map[string]any{"rule_files": []string{rules}, "evaluation_interval": "15s", "tests": []any{map[string]any{
			"interval": "15s", "input_series": input, "promql_expr_test": []any{map[string]any{
				"expr": fmt.Sprintf(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[%s]))`,
					last),
				"eval_time": last, "exp_samples": []any{}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yml")
	if err := os.WriteFile(file, test, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(promtool(t), "test", "rules", file).CombinedOutput()
	var names []string
	for _, m := range regexp.MustCompile(`alertname="(\w+)"`).FindAllSubmatch(out, -1) {
		names = append(names, string(m[1]))
	}
	if err != nil && len(names) == 0 {
		t.Fatalf("promtool: %v: %s", err, out)
	}
	slices.Sort(names)
	return names
}

// watched runs a fleet of processes that stand for one election, under a Prometheus, and returns
// the alerts that fire.
func watched(t *testing.T, f func(p *scraper, bad *silent, start func(instance string) (stop func()))) []string {
	t.Helper()
	p := &scraper{targets: map[string]*shown{}, series: map[string][]string{}}
	fleet(t, func(t *testing.T, store *memstore.Store, open opener) {
		bad, started := &silent{Store: store}, 0
		f(p, bad, func(instance string) func() {
			started++
			w := open(fmt.Sprintf("%s-%d", instance, started), driver.Store(bad),
				metrics.Options{LookEvery: 15 * time.Second})
			p.targets[instance] = w
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = w.Run(ctx, "billing/invoicer", func(ctx context.Context, _ *primacy.Term) error {
					<-ctx.Done()
					return nil
				})
			}()
			return func() {
				delete(p.targets, instance)
				cancel()
				<-done
				w.collector.Close()
				_ = w.Close(context.Background())
			}
		})
	})
	return p.fired(t)
}

func TestNoAlertFiresOnHandOversAndARollingRestart(t *testing.T) {
	promtool(t)
	fired := watched(t, func(p *scraper, _ *silent, start func(string) func()) {
		instances := []string{"pod-0", "pod-1", "pod-2"}
		stop := map[string]func(){}
		for _, i := range instances {
			stop[i] = start(i)
		}
		p.run(80)
		for _, i := range instances { // one after the other, each away for half a minute
			stop[i]()
			p.run(2)
			stop[i] = start(i)
			p.run(6)
		}
		p.run(80)
		for _, i := range instances {
			_, _ = p.targets[i].Election("billing/invoicer").Ask(context.Background(),
				primacy.Request{To: p.targets["pod-1"].ID()})
			p.run(40)
		}
		for _, s := range stop {
			s()
		}
	})
	if len(fired) != 0 {
		t.Errorf("%v fired", fired)
	}
}

func TestAlertsFireWhenTheStoreIsGoneAndWhenProcessesAre(t *testing.T) {
	promtool(t)
	fired := watched(t, func(p *scraper, bad *silent, start func(string) func()) {
		a, b := start("pod-0"), start("pod-1")
		p.run(20)
		bad.mute.Store(true)
		p.run(20)
		bad.mute.Store(false)
		p.run(60)
		a()
		p.run(80) // one is left
		b()
		p.run(100)
	})
	want := []string{"ElectionDisappeared", "ElectionHasNoLeader", "NoStandby", "StoreUnreachable"}
	if !slices.Equal(fired, want) {
		t.Errorf("%v fired, want %v", fired, want)
	}
}
