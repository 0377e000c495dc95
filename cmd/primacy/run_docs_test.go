//go:build linux

package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestTheRunPageHolds types every command of docs/run.md.
func TestTheRunPageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`^(before\nleader under token \d+\nafter: exited\n)$`,
		`^billing/invoicer for 15000 ms at a time\nbilling/invoicer for 20000 ms at a time\nalso under billing/invoicer\n$`,
		`^candidate elected started exited resigned released finished $`,
		`^200\n$`,
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != len(want) {
		t.Fatalf("the page has %d blocks, this test knows %d", len(blocks), len(want))
	}
	w := newWorld(t)
	for i, b := range blocks {
		c := exec.Command("sh", "-c", b[1])
		c.Env, c.Dir = w.env, w.dir
		out, err := c.CombinedOutput()
		if err != nil || !regexp.MustCompile(want[i]).Match(out) {
			t.Errorf("%s\n%v, printed\n%s", b[1], err, out)
		}
	}
	// Each flag that the page names is one of run's.
	_, verb := verbOf(t, "run")
	for _, m := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		if verb.Flags().Lookup(m[1]) == nil && verb.InheritedFlags().Lookup(m[1]) == nil {
			t.Errorf("the page has --%s, run has not", m[1])
		}
	}
	// What the page says of signals and reasons is what the program knows.
	for _, word := range []string{"renew_late", "standby_exited"} {
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("the page lacks %s", word)
		}
	}
}
