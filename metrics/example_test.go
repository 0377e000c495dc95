package metrics_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

func register(session *primacy.Session) error {
	collector, err := metrics.New(session, metrics.Options{})
	if err != nil {
		return err
	}
	defer collector.Close() // before the session
	prometheus.MustRegister(collector)
	return session.Run(context.Background(), "billing/invoicer", func(context.Context, *primacy.Term) error {
		families, err := prometheus.DefaultGatherer.Gather()
		for _, f := range families {
			if f.GetName() == "primacy_is_leader" {
				fmt.Println(f.Metric[0].GetLabel()[0].GetValue(), f.Metric[0].GetGauge().GetValue())
			}
		}
		return err
	})
}

func Example() {
	session, err := primacy.NewSession(memstore.New(memstore.Options{}), nil)
	if err != nil {
		panic(err)
	}
	defer session.Close(context.Background())
	if err := register(session); err != nil {
		panic(err)
	}
	// Output: billing/invoicer 1
}
