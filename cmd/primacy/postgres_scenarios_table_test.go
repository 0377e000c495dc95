package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTheTableOfPatronisScenarios: what the page says is played is played, in that test, and
// nothing else. Its sums are right.
func TestTheTableOfPatronisScenarios(t *testing.T) {
	text, err := os.ReadFile("../../docs/postgres-scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("postgres_scenarios*_linux_test.go")
	if err != nil {
		t.Fatal(err)
	}
	played := map[string]string{} // the test, by the scenario
	call := regexp.MustCompile(`(?s)\nfunc (Test\w+)\(|p\.scenario\("([^"]*)"(?:\s*\+\s*"([^"]*)")?,`)
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in := ""
		for _, m := range call.FindAllStringSubmatch(string(code), -1) {
			if m[1] != "" {
				in = m[1]
			} else {
				played[m[2]+m[3]] = in
			}
		}
	}
	sums := map[string]int{}
	row := regexp.MustCompile("(?m)^\\| (\\w+) \\| ([^|]*) \\| (holds|differs|not offered)\\b[^|]* \\|" +
		"(?: `(\\w+)`)? \\|$")
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		name, n := m[1]+": "+m[2], 1
		if some := regexp.MustCompile(`^(?:all )?(\d+)(?: more)?$`).FindStringSubmatch(m[2]); some != nil {
			n, _ = strconv.Atoi(some[1])
		}
		sums[m[3]] += n
		if played[name] != m[4] {
			t.Errorf("the page says that %s is played in %q, and it is in %q", name, m[4], played[name])
		}
		if m[3] == "holds" && m[4] == "" {
			t.Errorf("the page says without a test: %s holds", name)
		}
		delete(played, name)
	}
	for name, in := range played {
		t.Errorf("the page does not tell of %s, which %s plays", name, in)
	}
	if rows := strings.Count(string(text), "\n| ") - 1; rows != len(row.FindAllString(string(text), -1)) {
		t.Errorf("the page has %d rows, and not all can be read", rows)
	}
	holds, differs, not := sums["holds"], sums["differs"], sums["not offered"]
	want := fmt.Sprintf("Of the %d, %d hold, %d differ by design, and %d are", holds+differs+not, holds, differs, not)
	if !strings.Contains(string(text), want) ||
		!strings.Contains(string(text), fmt.Sprint(holds+differs+not)+" scenarios") {
		t.Errorf("the page does not say: %s", want)
	}
}
