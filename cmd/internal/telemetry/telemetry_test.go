package telemetry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

func session(t *testing.T, id string) *primacy.Session {
	t.Helper()
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func scrape(t *testing.T, at *Telemetry) string {
	t.Helper()
	server := httptest.NewServer(at.Handler())
	defer server.Close()
	r, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: %s", r.StatusCode, err, page)
	}
	return string(page)
}

func TestAScrapeShowsTheSessionItsClientsTheJobsAndTheProcess(t *testing.T) {
	own, client := session(t, "own"), session(t, "client")
	at, err := New(own, Options{Options: metrics.Options{Version: "v1.2.3", ClientGo: true}, Jobs: []string{"nightly"}})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	at.Session.Add(client)
	at.Cron.Add("nightly", metrics.CronFailed)
	at.Cron.Add("added-later", metrics.CronOK)
	term, err := client.Election("n").Campaign(t.Context(), &primacy.CampaignOptions{Value: []byte("secret")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = term.Resign(context.Background()) }()
	page := scrape(t, at)
	for _, line := range []string{`primacy_is_leader{election="n"} 1`, `id="client"`,
		`leader_election_master_status{name="n"} 1`,
		`version="v1.2.3"`, "go_goroutines ", "process_cpu_seconds_total ",
		`primacy_cron_runs_total{cronjob="nightly",result="failed"} 1`,
		`primacy_cron_runs_total{cronjob="nightly",result="ok"} 0`,
		`primacy_cron_runs_total{cronjob="added-later",result="ok"} 1`} {
		if !strings.Contains(page, line) {
			t.Errorf("the page does not have %s", line)
		}
	}
	if strings.Contains(page, "secret") {
		t.Error("a value is on the page")
	}
}

func TestWithoutCronThereIsNoCounterOfItsJobs(t *testing.T) {
	at, err := New(session(t, "a"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if page := scrape(t, at); at.Cron != nil || strings.Contains(page, "primacy_cron") ||
		strings.Contains(page, "leader_election") {
		t.Errorf("the page has what nobody asked for:\n%s", page)
	}
}

func TestOptionsThatCannotWorkAreTold(t *testing.T) {
	for _, o := range []metrics.Options{{LookEvery: 1}, {Observe: []string{"n"}}, {LookEvery: -1},
		{LookEvery: 1e9, Observe: []string{""}}} {
		if _, err := New(session(t, "a"), Options{Options: o}); !errors.Is(err, primacy.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
