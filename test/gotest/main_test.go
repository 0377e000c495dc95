package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

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
