package primacy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/metrics"
)

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
