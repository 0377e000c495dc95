package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// need skips a test where spin is missing, but never in CI: a claim that nobody has checked is
// none.
func need(t *testing.T) {
	t.Helper()
	if err := tools(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

var small = limits{Megabytes: 1500, Time: 5 * time.Minute}

// runCut runs the searches that are small, each a subtest.
func runCut(t *testing.T, list []search, cut func(search) bool) {
	need(t)
	n := 0
	for _, s := range list {
		if !cut(s) {
			continue
		}
		n++
		t.Run(s.Model+" "+s.Name+": "+s.Says, func(t *testing.T) {
			t.Parallel()
			r := s.run(t.Context(), small)
			if r.Problem != nil {
				t.Errorf("%v\n%s", r.Problem, timeline(r.Story))
			}
			t.Logf("%d states, depth %d, %.1f s of CPU", r.States, r.Depth, r.CPU.Seconds())
		})
	}
	if n < len(models) {
		t.Fatalf("only %d searches", n)
	}
}

// With all rules nothing is violated, in the whole of a small state space; make spec searches
// larger ones.
func TestAllRulesHold(t *testing.T) {
	runCut(t, bases, func(s search) bool { return s.Cut })
}

func TestEveryRuleIsNeeded(t *testing.T) {
	runCut(t, options, func(search) bool { return true })
}

func TestWhatTheModelsShowIsNotEmpty(t *testing.T) {
	runCut(t, reachable(), func(s search) bool { return s.Cut })
}

// The runner must not take a wrong answer, or half an answer, for a right one.
func TestTheRunnerBites(t *testing.T) {
	need(t)
	tiny := search{Model: "observed", Name: "tiny", Define: []string{"TOKENS=1"}}
	if r := tiny.run(t.Context(), small); r.Problem != nil || r.States < 100 {
		t.Fatalf("the tiny search does not hold: %v", r.Problem)
	}
	for _, c := range []struct {
		what  string
		s     search
		l     limits
		wants string
	}{
		{"a base model with an error", search{Model: "observed", Define: []string{"FLAG"}}, small,
			"there is a counterexample: VIOLATED one leader"},
		{"an option without a counterexample",
			search{Model: "observed", Name: "NO_SUCH_RULE", Define: []string{"TOKENS=1"}, Want: oneLeader}, small,
			"no counterexample"},
		{"a counterexample to something else", search{Model: "observed", Name: "FLAG", Want: fenced}, small, "ends in"},
		{"an event that cannot happen", search{Model: "observed", Define: []string{"TOKENS=1", "REACH=99"},
			Want: reached}, small, "cannot happen"},
		{"a search that ran out of memory", search{Model: "lease"}, limits{Megabytes: 66, Time: time.Minute},
			"not complete"},
		{"a search that ran out of time", search{Model: "lease"},
			limits{Megabytes: 1500, Time: 10 * time.Millisecond}, "not complete"},
		{"a model that is none", search{Model: "lease", Define: []string{"T=)"}}, small, "spin"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := c.s.run(t.Context(), c.l)
			if r.Problem == nil || !strings.Contains(r.Problem.Error(), c.wants) {
				t.Errorf("problem = %v, want %q", r.Problem, c.wants)
			}
			var b bytes.Buffer
			if report(&b, []result{r}, 0) != 1 || !strings.Contains(b.String(), "WRONG") {
				t.Errorf("the report does not count it:\n%s", b.String())
			}
		})
	}
}

// Every option that a model knows is searched, and README and the model's head say what it takes
// out.
func TestEveryOptionIsSearchedAndExplained(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	own := []string{"T", "E", "TOKENS", "CLAIMS", "TERMS", "LEASES", "ONLY", "REACH", "WRITES", "ENTERING", "BASE", "P",
		"COMMITS", "K", "CHANGES", "WIPES", "ONE_VOTER", "BEHIND"}
	for _, m := range models {
		src, err := sources.ReadFile(m + ".pml")
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(src), "*/")
		known := 0
		for _, x := range regexp.MustCompile(`(?:#ifn?def |defined\()(\w+)`).FindAllStringSubmatch(string(src), -1) {
			if slices.Contains(own, x[1]) {
				continue
			}
			known++
			if !slices.ContainsFunc(options, func(s search) bool { return s.Model == m && s.Name == x[1] }) {
				t.Errorf("%s: nobody searches %s", m, x[1])
			}
		}
		for _, s := range options {
			if s.Model == m && (!strings.Contains(head, s.Name) || !bytes.Contains(readme, []byte(s.Name)) ||
				!strings.Contains(string(src), "def "+s.Name) && !strings.Contains(string(src), "defined("+s.Name)) {
				t.Errorf("%s: %s is not explained in the model's head and in README, or does nothing", m, s.Name)
			}
		}
		if known < 5 {
			t.Errorf("%s: only %d options found", m, known)
		}
	}
}

func TestTimeline(t *testing.T) {
	got := timeline([]string{"Client 0 asks.", "tick, which both clients' clocks miss", "Client 1 leads."})
	want := "    0  Client 0 asks.\n    1  ──── a tick, which both clients' clocks miss\n    1  Client 1 leads.\n"
	if got != want {
		t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
	}
}
