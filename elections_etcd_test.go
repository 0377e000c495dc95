package primacy

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// onEtcd returns a session on a server.
func onEtcd(tb testing.TB, srv *etcdtest.Server, id string) *Session {
	tb.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	store, err := etcdstore.New(context.Background(), client, etcdstore.Options{Prefix: "many/"})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := NewSession(store, &Options{ID: id, TTL: 20 * time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
		_ = store.Close()
		_ = client.Close()
	})
	return s
}

// metric reads a number that the server tells about itself.
func metric(tb testing.TB, srv *etcdtest.Server, name string) float64 {
	tb.Helper()
	resp, err := http.Get(srv.Endpoint() + "/metrics")
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		f, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			tb.Fatal(err)
		}
		sum += f
	}
	return sum
}

// One process stands second in 10,000 elections on etcd, on a fixed number of goroutines and watches, and takes them all over.
func TestManyElectionsOnEtcd(t *testing.T) {
	const n = 10_000
	srv := etcdtest.Start(t, etcdtest.Options{})
	names := manyNames(n)
	first := onEtcd(t, srv, "a")
	es1 := first.Elections(nil)
	_ = es1.Stand(names...)
	held := takeTerms(es1, n)
	tokens := map[string]Token{}
	for _, term := range held {
		tokens[term.Name()] = term.Token()
	}
	goroutines, watches := runtime.NumGoroutine(), metric(t, srv, "etcd_debugging_mvcc_watcher_total")
	second := onEtcd(t, srv, "b")
	es2 := second.Elections(nil)
	_ = es2.Stand(names...)
	for deadline := time.Now().Add(time.Minute); phases(second)[core.Waiting] < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d stand", phases(second)[core.Waiting], n)
		}
	}
	time.Sleep(time.Second) // watches are opened
	if more := runtime.NumGoroutine() - goroutines; more > 40 {
		t.Errorf("%d more goroutines while it stands second", more)
	}
	if more := metric(t, srv, "etcd_debugging_mvcc_watcher_total") - watches; more > 3 {
		t.Errorf("%v more watches while it stands second", more)
	}
	if err := es1.Resign(context.Background(), held...); err != nil {
		t.Fatal(err)
	}
	for _, term := range takeTerms(es2, n) {
		if term.Check() != nil || term.Token() <= tokens[term.Name()] {
			t.Fatalf("%s: %v, token %d after %d", term.Name(), term.Check(), term.Token(), tokens[term.Name()])
		}
	}
	if leases := first.Stats().Leases + second.Stats().Leases; leases != 2 {
		t.Errorf("%d leases, want 2", leases)
	}
}

// BenchmarkOnEtcd is what 10,000 elections cost one process on a real server.
func BenchmarkOnEtcd(b *testing.B) {
	const n = 10_000
	srv := etcdtest.Start(b, etcdtest.Options{})
	names := manyNames(n)
	first, second := onEtcd(b, srv, "a"), onEtcd(b, srv, "b")
	if err := first.Ready(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := second.Ready(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Run("win-and-take-over", func(b *testing.B) {
		for b.Loop() {
			es1, es2 := first.Elections(nil), second.Elections(nil)
			began := time.Now()
			_ = es1.Stand(names...)
			held := takeTerms(es1, n)
			won := time.Now()
			_ = es2.Stand(names...)
			for phases(second)[core.Waiting] < n {
				time.Sleep(10 * time.Millisecond)
			}
			stood := time.Now()
			time.Sleep(time.Second)
			gone := time.Now()
			_ = es1.Resign(context.Background(), held...)
			resigned := time.Now()
			next := takeTerms(es2, n)
			b.ReportMetric(won.Sub(began).Seconds(), "s/win")
			b.ReportMetric(stood.Sub(won).Seconds(), "s/stand-second")
			b.ReportMetric(resigned.Sub(gone).Seconds(), "s/resign")
			b.ReportMetric(time.Since(gone).Seconds(), "s/resign-to-last-won")
			_ = es2.Resign(context.Background(), next...)
		}
	})
	for _, callers := range []int{64, 256} {
		b.Run("campaign-"+strconv.Itoa(callers), func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				held := campaignAll(first, names, callers)
				b.ReportMetric(time.Since(began).Seconds(), "s/win")
				_ = first.Elections(nil).Resign(context.Background(), held...)
			}
		})
	}
}
