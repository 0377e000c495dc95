package patroni

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	rulesFile     = "../../../../deploy/prometheus/primacy-postgres.rules.yml"
	rulesTests    = "../../../../deploy/prometheus/postgres_rules_test.yml"
	dashboardFile = "../../../../deploy/grafana/primacy-postgres.json"
)

func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool is not installed (Debian: prometheus)")
		}
		t.Skip("NOT TESTED: promtool is not installed (Debian: prometheus)")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", args[0], err, out)
	}
}

func contents(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestThePostgresRulesAreGoodPrometheus(t *testing.T) {
	rules, tests := contents(t, rulesFile), contents(t, rulesTests)
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(alerts) < 10 {
		t.Fatalf("only %d alerts were found", len(alerts))
	}
	for _, a := range alerts {
		if !regexp.MustCompile(`alertname(=|: )"?` + a[1] + `\b`).MatchString(tests) {
			t.Errorf("no test shows that %s fires", a[1])
		}
	}
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", rulesTests)
}

// queries returns those of the dashboard, as Grafana fills them in.
func queries(t *testing.T) (all []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(contents(t, dashboardFile)), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, x := range p.Targets {
			all = append(all, strings.NewReplacer("$__rate_interval", "1m", "$scope", ".*").Replace(x.Expr))
		}
	}
	return all
}

func TestThePostgresDashboardAsksWhatPrometheusUnderstands(t *testing.T) {
	var rules []map[string]string
	for i, q := range queries(t) {
		if strings.Contains(q, "$") {
			t.Errorf("the variable in %s is not filled in", q)
		}
		rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:%d", i), "expr": q})
	}
	b, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// A name that is misspelt in a rule or a panel would be an alert that never fires. What neither
// shows is exposed for nobody, but for Patroni's own.
func TestPostgresRulesAndDashboardNameOnlyWhatIsExposed(t *testing.T) {
	exposed := map[string]bool{}
	for _, f := range append(append([]figure{}, theirs...), ours...) {
		exposed[f.name] = true
	}
	for _, f := range oursLabelled {
		exposed[f.name] = true
	}
	exprs := strings.Join(queries(t), "\n")
	for _, m := range regexp.MustCompile(`(?m)expr: (?:>-\n((?:          .*\n)+)|(.*)\n)`).
		FindAllStringSubmatch(contents(t, rulesFile), -1) {
		exprs += "\n" + m[1] + m[2]
	}
	used := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(patroni|primacy)_\w+`).FindAllString(exprs, -1) {
		if used[name] = true; !exposed[name] {
			t.Errorf("%s is not exposed", name)
		}
	}
	for name := range exposed {
		if strings.HasPrefix(name, "primacy_") && !used[name] {
			t.Errorf("no rule and no panel shows %s", name)
		}
	}
}
