package primacy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Who wins 10,000 elections writes as many records. What bounds them is counted in requests that
// the server has answered, from the first win until the last record is there. On a quiet machine
// they are a quarter of the limits: on a busy one fewer calls travel together. A request for each
// record is several times the limits.
func TestTheRecordsOfManyWinsTravelTogether(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 2000
	}
	for _, c := range []struct {
		what string
		win  func(*testing.T, *Session, []string)
		most int
	}{
		{"Elections", func(t *testing.T, s *Session, names []string) {
			es := s.Elections(nil)
			_ = es.Stand(names...)
			takeTerms(es, len(names))
		}, 2000},
		{"Campaign", func(t *testing.T, s *Session, names []string) {
			var all sync.WaitGroup
			defer all.Wait()
			next := make(chan string)
			defer close(next)
			for range 64 {
				all.Go(func() {
					for name := range next {
						if _, err := s.Election(name).Campaign(context.Background(), nil); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for _, name := range names {
				next <- name
			}
		}, 4000},
	} {
		t.Run(c.what, func(t *testing.T) {
			srv := etcdtest.Start(t, etcdtest.Options{})
			s, reader := onEtcdFor(t, srv, "a", time.Minute), onEtcdFor(t, srv, "r", time.Minute)
			if err := s.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := requests(t, srv)
			c.win(t, s, manyNames(n))
			won := since(requests(t, srv), before)
			reads, deadline := 0, time.Now().Add(2*time.Minute)
			for there := 0; there < n; time.Sleep(100 * time.Millisecond) {
				all, err := reader.Store().(driver.Journal).Journals(t.Context(), historyPrefix)
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("%d of %d records are there, %v", there, n, err)
				}
				there, reads = len(all), reads+max(1, (len(all)+499)/500) // 500 to a request
			}
			all := since(requests(t, srv), before)
			all["Range"] -= reads
			sum := 0
			for _, n := range all {
				sum += n
			}
			t.Logf("%d requests: %v; until all was won: %v; %v proposals", sum, all, won,
				srv.Metric(t, "etcd_server_proposals_committed_total"))
			if most := c.most * (n + 2000) / 12_000; sum > most { // some are the same for any number
				t.Errorf("%d requests, want %d at most: %v", sum, most, all)
			}
		})
	}
}

// requests returns how many unary requests the server has answered, by method.
func requests(t *testing.T, srv *etcdtest.Server) map[string]int {
	t.Helper()
	all := map[string]int{}
	for _, m := range srv.Metrics(t) {
		if m.Name == "grpc_server_handled_total" && m.Label("grpc_type") == "unary" {
			all[m.Label("grpc_method")] += int(m.Value)
		}
	}
	return all
}

func since(now, before map[string]int) map[string]int {
	d := maps.Clone(now)
	for _, method := range slices.Collect(maps.Keys(now)) {
		if d[method] -= before[method]; d[method] == 0 {
			delete(d, method)
		}
	}
	return d
}
