package metrics_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	rulesFile     = "../deploy/prometheus/primacy.rules.yml"
	rulesTests    = "../deploy/prometheus/rules_test.yml"
	dashboardFile = "../deploy/grafana/primacy.json"
)

// promtool runs Prometheus' own tool.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed (Debian: prometheus)")
		}
		t.Skip("promtool is not installed (Debian: prometheus)")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err
}

func TestTheRulesAreGoodPrometheus(t *testing.T) {
	if out, err := promtool(t, "check", "rules", rulesFile); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
	if out, err := promtool(t, "test", "rules", rulesTests); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
	rules, tests := read(t, rulesFile), read(t, rulesTests)
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(alerts) < 10 {
		t.Fatalf("only %d alerts were found", len(alerts))
	}
	for _, a := range alerts {
		if !strings.Contains(tests, fmt.Sprintf(`alertname=%q`, a[1])) && !strings.Contains(tests, "alertname: "+a[1]) {
			t.Errorf("no test shows that %s fires", a[1])
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// expressions returns those of the dashboard: of its panels, its annotations, and what its variables ask for.
func expressions(t *testing.T) []string {
	t.Helper()
	type target struct {
		Expr string
	}
	var dashboard struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Annotations struct{ List []target }
		Panels      []struct {
			Title   string
			Targets []target
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &dashboard); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, g := range p.Targets {
			all = append(all, g.Expr)
		}
	}
	for _, a := range dashboard.Annotations.List {
		all = append(all, a.Expr)
	}
	for _, v := range dashboard.Templating.List {
		if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			all = append(all, fmt.Sprintf("sum by (%s) (%s)", m[2], m[1]))
		}
	}
	if len(all) < 15 {
		t.Fatalf("only %d expressions were found", len(all))
	}
	for i := range all { // as Grafana fills them in
		all[i] = strings.NewReplacer("$__rate_interval", "1m", "$election", "billing/.*|n").Replace(all[i])
	}
	return all
}

func TestTheDashboardAsksWhatPrometheusUnderstands(t *testing.T) {
	var rules []map[string]string
	for i, e := range expressions(t) {
		if strings.Contains(e, "$") {
			t.Errorf("the variable in %s is not filled in", e)
		}
		rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:%d", i), "expr": e})
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	b, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := promtool(t, "check", "rules", file); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// problems says what an expression names that is not there. Labels of the target and those that Prometheus makes are.
func problems(expr string, all map[string]exposed, recorded map[string][]string) []string {
	var found []string
	known := map[string]bool{"instance": true, "job": true, "le": true, "alertname": true}
	expr = regexp.MustCompile(`"(\\.|[^"\\])*"`).ReplaceAllString(expr, `""`)
	metric := regexp.MustCompile(`[a-zA-Z_:][\w:]*`)
	names := regexp.MustCompile(`\b(primacy|leader_election)[\w:]*(\{[^}]*\})?`)
	said := names.FindAllString(expr, -1)
	if len(said) == 0 {
		found = append(found, "it names no metric")
	}
	for _, m := range said {
		name, matchers, _ := strings.Cut(m, "{")
		labels, ok := recorded[name]
		if !ok {
			e := lookUp(all, name)
			if labels = e.labels; e.kind == "" {
				found = append(found, name+" is not exposed")
				continue
			}
		}
		for _, l := range labels {
			known[l] = true
		}
		for _, l := range metric.FindAllString(matchers, -1) {
			if !slices.Contains(labels, l) && l != "le" && l != "instance" {
				found = append(found, name+" has no label "+l)
			}
		}
	}
	for _, m := range regexp.MustCompile(`\b(by|on|ignoring|without|group_left|group_right) ?\(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
		for _, l := range metric.FindAllString(m[2], -1) {
			if !known[l] {
				found = append(found, "nothing in it has the label "+l)
			}
		}
	}
	return found
}

// lookUp finds a metric by the name of one of its series.
func lookUp(all map[string]exposed, name string) exposed {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && all[base].kind == "histogram" {
			return all[base]
		}
	}
	if all[name].kind == "histogram" {
		return exposed{} // a histogram is shown by its three kinds of series only
	}
	return all[name]
}

func TestRulesAndDashboardNameOnlyWhatIsExposed(t *testing.T) {
	all := live(t)
	recorded := map[string][]string{"primacy:leaders:count": {"election"}}
	rules := read(t, rulesFile)
	bodies := regexp.MustCompile(`(?m)expr: (?:>-\n((?:          .*\n)+)|(.*)\n)`).FindAllStringSubmatch(rules, -1)
	if len(bodies) < 11 || len(bodies) != strings.Count(rules, "expr:") {
		t.Fatalf("%d expressions were found in the rules", len(bodies))
	}
	exprs := expressions(t)
	for _, m := range bodies {
		exprs = append(exprs, m[1]+m[2])
	}
	for _, e := range exprs {
		for _, p := range problems(e, all, recorded) {
			t.Errorf("%s\n\tin %s", p, e)
		}
	}
	for name, e := range all { // Prometheus would rename them: to exported_job
		if slices.Contains(e.labels, "job") || slices.Contains(e.labels, "instance") {
			t.Errorf("%s has a label of the scraper's: %v", name, e.labels)
		}
	}
	for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(rules, -1) {
		if m[1] != "job" && !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(e exposed) bool { return slices.Contains(e.labels, m[1]) }) {
			t.Errorf("an annotation names the label %s, which nothing has", m[1])
		}
	}
	used := strings.Join(exprs, "\n")
	for name := range all { // what is not asked for by a rule or a panel would be exposed for nobody
		if !strings.Contains(used, name) && name != "leader_election_master_status" {
			t.Errorf("no rule and no panel shows %s", name)
		}
	}
}

func TestWhatIsNotExposedIsFound(t *testing.T) {
	all := map[string]exposed{"primacy_x": {kind: "gauge", labels: []string{"election"}}, "primacy_h": {kind: "histogram", labels: []string{"election"}}}
	for expr, bad := range map[string]bool{
		`sum by (election) (primacy_x{election="a"})`: false, `rate(primacy_h_bucket{le="1"}[5m])`: false,
		`sum by (elction) (primacy_x)`: true, `primacy_x{id="a"}`: true, `primacy_y`: true, `primacy_h`: true, `vector(1)`: true, `primacy_x_count`: true,
	} {
		if got := problems(expr, all, nil); len(got) > 0 != bad {
			t.Errorf("%s: %v", expr, got)
		}
	}
}
