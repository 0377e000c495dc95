package leaderelection

import (
	"sync"

	orig "k8s.io/client-go/tools/leaderelection"
)

// LeaderMetric is client-go's.
type LeaderMetric = orig.LeaderMetric

// MetricsProvider is client-go's.
type MetricsProvider = orig.MetricsProvider

// SetProvider has electors that are made from now on report to metrics of mp. Only the first call
// has an effect. It is apart from client-go's own provider.
func SetProvider(mp MetricsProvider) {
	globalMetricsFactory.once.Do(func() { globalMetricsFactory.provider = mp })
}

var globalMetricsFactory metricsFactory

type metricsFactory struct {
	once     sync.Once
	provider MetricsProvider
}

func (f *metricsFactory) newLeaderMetrics() LeaderMetric {
	if f.provider == nil {
		return noMetric{}
	}
	return f.provider.NewLeaderMetric()
}

type noMetric struct{}

func (noMetric) On(string)                {}
func (noMetric) Off(string)               {}
func (noMetric) SlowpathExercised(string) {}
