package metrics_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../docs/metrics.md"

// The table of the documentation is what a live collector shows: each name, type and label, and nothing else.
func TestTheDocumentedMetricsAreThoseThatAreExposed(t *testing.T) {
	all := live(t)
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (gauge|counter|histogram) \\| ([a-z, ]*)\\| (.*) \\|$").FindAllStringSubmatch(read(t, page), -1) {
		name, kind, labels := row[1], row[2], strings.Split(strings.TrimSpace(row[3]), ", ")
		if labels[0] == "" {
			labels = nil
		}
		slices.Sort(labels)
		documented[name] = true
		if e := all[name]; e.kind != kind || !slices.Equal(e.labels, labels) {
			t.Errorf("%s is documented as a %s with the labels %v, and shown as a %q with %v", name, kind, labels, e.kind, e.labels)
		}
	}
	for name := range all {
		if !documented[name] {
			t.Errorf("%s is not documented", name)
		}
	}
	if len(documented) < 20 {
		t.Errorf("only %d rows were read", len(documented))
	}
}

// Each value of a label is in the table.
func TestTheDocumentedValuesOfLabelsAreThoseThatAreExposed(t *testing.T) {
	text := read(t, page)
	for _, value := range values(t) {
		if !strings.Contains(text, "`"+value+"`") {
			t.Errorf("the value %q of a label is not documented", value)
		}
	}
}

// Each alert is explained.
func TestTheAlertsAreDocumented(t *testing.T) {
	text, alerts := read(t, page), regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(read(t, rulesFile), -1)
	for _, a := range alerts {
		if !strings.Contains(text, "| `"+a[1]+"` |") {
			t.Errorf("%s is not explained", a[1])
		}
	}
	if rows := regexp.MustCompile("(?m)^\\| `[A-Z]\\w+` \\|").FindAllString(text, -1); len(rows) != len(alerts) {
		t.Errorf("%d alerts are explained, there are %d", len(rows), len(alerts))
	}
}

func TestTheCommandsOfThePageWork(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(read(t, page), -1)
	if len(blocks) == 0 {
		t.Fatal("no commands were found")
	}
	_, _ = promtool(t, "--version") // or skip
	for _, b := range blocks {
		cmd := exec.Command("sh", "-e", "-c", b[1])
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", b[1], err, out)
		}
	}
}

// The Go of the page is that of the examples, which are compiled.
func TestTheGoOfThePageIsThatOfTheExamples(t *testing.T) {
	examples := strings.ReplaceAll(read(t, "example_test.go")+read(t, "../trace/example_test.go"), "\t", "")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, page), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d blocks were found", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples, strings.ReplaceAll(b[1], "\t", "")) {
			t.Errorf("no example has\n%s", b[1])
		}
	}
}

// Each message that a session logs is in the table, and no other.
func TestTheDocumentedLogLinesAreThoseThatAreWritten(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(read(t, page), "## Logs")
	said := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`log\.log\([\w.() ]+, "([^"]+)"`).FindAllStringSubmatch(read(t, file), -1) {
			said[m[1]] = true
			if !strings.Contains(text, "`"+m[1]+"`") {
				t.Errorf("%s logs %q, which is not documented", file, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| (`.*`) \\| (?:Info|Warn|Error|Debug) ").FindAllStringSubmatch(text, -1) {
		for msg := range strings.SplitSeq(m[1], ", ") {
			if msg = strings.Trim(msg, "`"); !said[msg] {
				t.Errorf("%q is documented, and never logged", msg)
			}
		}
	}
	if len(said) < 12 {
		t.Errorf("only %d messages were found", len(said))
	}
}
