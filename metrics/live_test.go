package metrics_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
	"github.com/primacy-go/primacy/pause"
)

// exposed is one metric as a registry shows it.
type exposed struct {
	kind   string
	labels []string // sorted
	help   string
}

// live returns all that a leader's collector and a cron's counter show.
func live(t *testing.T) map[string]exposed {
	t.Helper()
	store := memstore.New(memstore.Options{})
	s, err := primacy.NewSession(store, &primacy.Options{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	c, err := metrics.New(s, metrics.Options{ClientGo: true, LookEvery: time.Second, Observe: []string{"n"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := primacy.NewHealth(s, func(context.Context) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pause.Set(t.Context(), store, pause.Pause{Scope: "n", By: "ann", Reason: "drill"}); err != nil {
		t.Fatal(err)
	}
	term, err := s.Election("n").Campaign(t.Context(), &primacy.CampaignOptions{Health: h})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = term.Resign(context.Background()) }()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c, metrics.NewCronRuns("nightly"))
	for wait := time.Millisecond; ; wait *= 2 { // what others have to do first
		all := gather(t, registry)
		_, paused := all["primacy_election_paused_seconds"] // it is looked for with primacy_candidates
		_, checked := all["primacy_healthy"]
		if paused && checked && all["primacy_store_up"].kind != "" || wait > 10*time.Second {
			return all
		}
		time.Sleep(wait)
	}
}

func gather(t *testing.T, registry prometheus.Gatherer) map[string]exposed {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]exposed{}
	for _, f := range families {
		labels := map[string]bool{}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				labels[l.GetName()] = true
			}
		}
		all[f.GetName()] = exposed{strings.ToLower(f.GetType().String()), slices.Sorted(maps.Keys(labels)), f.GetHelp()}
	}
	return all
}

// values returns those of the labels that have a fixed set.
func values(t *testing.T) []string {
	t.Helper()
	s, err := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	c, err := metrics.New(s, metrics.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := s.Run(t.Context(), "n", func(context.Context, *primacy.Term) error { return nil }); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c, metrics.NewCronRuns("nightly"))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if slices.Contains([]string{"result", "reason", "how", "state"}, l.GetName()) {
					seen[l.GetValue()] = true
				}
			}
		}
	}
	if len(seen) != 3+7+2+2+2 { // "ok" and "failed" are values of two labels
		t.Errorf("the values are %v", slices.Sorted(maps.Keys(seen)))
	}
	return slices.Collect(maps.Keys(seen))
}
