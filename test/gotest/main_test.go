package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestLeftOut: what skips itself is noted with its reason, and what passes only where it says that
// it left something out.
func TestLeftOut(t *testing.T) {
	r := &run{running: map[string]time.Time{}, output: map[string]*bytes.Buffer{}}
	does := func(test, action string, output ...string) {
		t.Helper()
		events := []event{{Action: "run", Package: "m/p", Test: test}}
		for _, text := range output {
			events = append(events, event{Action: "output", Package: "m/p", Test: test, Output: text + "\n"})
		}
		for _, e := range append(events, event{Action: action, Package: "m/p", Test: test}) {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			r.take(line)
		}
	}
	does("TestA", "skip", "=== RUN   TestA", "    a_test.go:7: seed 3", "    a_test.go:9: no tmux here",
		"--- SKIP: TestA (0.00s)")
	does("TestB", "skip", "--- SKIP: TestB (0.00s)")
	does("TestC", "pass", "    c_test.go:1: seed 3", "--- PASS: TestC (0.00s)")
	does("TestD", "pass", "    d_test.go:1: WITHOUT network namespaces", "    d_test.go:2: done")
	does("TestE/f", "skip", "    e_test.go:1: no tmux here")
	want := map[string][]string{"no tmux here": {"p.TestA", "p.TestE/f"}, "": {"p.TestB"},
		"WITHOUT network namespaces": {"p.TestD"}}
	if !maps.EqualFunc(r.leftOut, want, slices.Equal[[]string]) {
		t.Errorf("left out: %q, want %q", r.leftOut, want)
	}
}

// TestWithFiles: the arguments are other ones as soon as a file has changed, come or gone, and no
// sooner.
func TestWithFiles(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	with := func(args ...string) []string {
		t.Helper()
		args, err := withFiles(args, dir)
		if err != nil {
			t.Fatal(err)
		}
		return args
	}
	put("a", "1")
	before := with("-short", "./...")
	if again := with("-short", "./..."); !slices.Equal(again, before) {
		t.Errorf("%q, and of the same files %q", before, again)
	}
	seen := []string{before[1]}
	for _, c := range []struct {
		what   string
		change func()
	}{
		{"another text", func() { put("a", "2") }},
		{"a new file", func() { put("b", "") }},
		{"another name", func() { _ = os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "c")) }},
		{"a file less", func() { _ = os.Remove(filepath.Join(dir, "a")) }},
	} {
		c.change()
		now := with("-short", "./...")[1]
		if slices.Contains(seen, now) {
			t.Errorf("with %s the arguments are those of before", c.what)
		}
		seen = append(seen, now)
	}
	if got := with("-skip", "X", "./..."); len(got) != 3 || got[1] != "X|"+seen[len(seen)-1] {
		t.Errorf("with -skip X: %q", got)
	}
}
