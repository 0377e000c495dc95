package metrics_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

// What a scrape costs a process that leads ten thousand elections: a thousand with series of their own, all of them, and none.
func BenchmarkScrape(b *testing.B) {
	for name, limit := range map[string]int{"own=1000": 0, "own=10000": 10_000, "own=0": -1} {
		b.Run(name, func(b *testing.B) { benchScrape(b, metrics.Options{MaxElections: limit}) })
	}
}

func benchScrape(b *testing.B, o metrics.Options) {
	const n = 10_000
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		b.Fatal(err)
	}
	c, err := metrics.New(s, o)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	es := s.Elections(nil)
	defer es.Close(context.Background())
	var names []string
	for i := range n {
		names = append(names, "service/shard-"+strconv.Itoa(i))
	}
	if err := es.Stand(names...); err != nil {
		b.Fatal(err)
	}
	won := 0
	for range es.Terms(b.Context()) {
		if won++; won == n {
			break
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	page := httptest.NewRecorder()
	handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for b.Loop() {
		handler.ServeHTTP(discard{}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	}
	b.ReportMetric(float64(page.Body.Len())/1e6, "MB")
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) WriteHeader(int)             {}
func (discard) Write(b []byte) (int, error) { return io.Discard.Write(b) }
