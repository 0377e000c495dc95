// Package telemetry is what the program's /metrics shows: its session, what its cron jobs did, and
// the process itself.
package telemetry

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/metrics"
)

// Telemetry is one registry. Close it before the session.
type Telemetry struct {
	Session  *metrics.Collector // of the session
	Cron     *metrics.CronRuns  // nil where Options.Jobs are
	Registry *prometheus.Registry
}

// Options of telemetry. The zero value works.
type Options struct {
	metrics.Options
	Jobs []string // of cron; not nil where the program runs some, though there may be none yet
}

// New returns what /metrics shows of a session, which begins to be counted now. More sessions, as
// of clients, are added with Session.Add: what they did stays counted when they are closed.
func New(s *primacy.Session, o Options) (*Telemetry, error) {
	session, err := metrics.New(s, o.Options)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{Session: session, Registry: prometheus.NewRegistry()}
	all := []prometheus.Collector{session, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})}
	if o.Jobs != nil {
		t.Cron = metrics.NewCronRuns(o.Jobs...)
		all = append(all, t.Cron)
	}
	for _, c := range all {
		if err := t.Registry.Register(c); err != nil {
			session.Close()
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return t, nil
}

// Handler answers a scrape, in the format that the scraper asks for. It makes no call on the store.
// Names of elections and IDs are in it, and nothing of values, addresses or passwords.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.Registry, promhttp.HandlerOpts{Registry: t.Registry, EnableOpenMetrics: true,
		MaxRequestsInFlight: 4})
}

// Close stops counting.
func (t *Telemetry) Close() { t.Session.Close() }
