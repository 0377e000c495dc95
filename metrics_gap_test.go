package primacy_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

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
		b.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 1, `primacy_handover_gap_seconds_sum{election="n"}`: 7})
		a.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 0})

		won := make(chan *primacy.Term, 1)
		go func() { won <- a.lead("n") }()
		synctest.Wait()
		b.resign(term)
		term = <-won
		time.Sleep(3 * time.Second)
		a.sees(map[string]float64{`primacy_handover_gap_seconds_count{election="n"}`: 1, `primacy_handover_gap_seconds_sum{election="n"}`: 0})
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
