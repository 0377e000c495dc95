package drivertest_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/memstore"
)

// runBroken makes a child process of this test run the suite on the broken stores.
const runBroken = "DRIVERTEST_RUN_BROKEN"

// TestTheSuiteBites runs the suite on stores that each break one clause, and wants that very clause
// to fail. The suite fails its process by nature, so it runs in a child.
func TestTheSuiteBites(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenStores$", "-test.v")
	cmd.Env = append(os.Environ(), runBroken+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the suite passed broken stores")
	}
	if strings.Contains(string(out), "panic:") {
		t.Fatalf("the child broke off:\n%s", out)
	}
	failed := map[string]bool{}
	for _, m := range regexp.MustCompile(`--- FAIL: TestBrokenStores/(\S+)`).FindAllStringSubmatch(string(out), -1) {
		failed[m[1]] = true
	}
	for _, b := range allBreaks() {
		clause := strings.ReplaceAll(b.clause, " ", "_")
		if !failed[strings.ReplaceAll(b.name, " ", "_")+"/"+clause] {
			t.Errorf("a store that %s passes %q", b.name, b.clause)
		}
	}
	// And the unbroken one passes, or the failures above say nothing.
	for name := range failed {
		if strings.HasPrefix(name, "nothing/") {
			t.Errorf("the store in which nothing is broken fails %s", name)
		}
	}
}

// TestEachClauseIsBroken: a clause that no store breaks may check nothing, and nobody would see. A
// new clause gets a store that breaks it, in allBreaks.
func TestEachClauseIsBroken(t *testing.T) {
	is := map[string]bool{}
	for _, b := range allBreaks() {
		is[b.clause] = true
	}
	for _, c := range drivertest.Clauses() {
		if !is[c.Name] {
			t.Errorf("no store breaks %q", c.Name)
		}
		delete(is, c.Name)
	}
	for name := range is {
		t.Errorf("a store breaks %q, which is no clause", name)
	}
}

func TestBrokenStores(t *testing.T) {
	if os.Getenv(runBroken) == "" {
		t.Skip("runs as a child of TestTheSuiteBites")
	}
	for _, b := range append(allBreaks(), broken{name: "nothing"}) {
		t.Run(strings.ReplaceAll(b.name, " ", "_"), func(t *testing.T) {
			for _, c := range drivertest.Clauses() {
				if b.clause != "" && c.Name != b.clause {
					continue
				}
				t.Run(c.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { c.Check(t, brokenHarness(b)) })
				})
			}
		})
	}
}

// brokenHarness is memstore with one thing broken.
func brokenHarness(b broken) drivertest.Harness {
	s := memstore.New(memstore.Options{})
	open := func(testing.TB) driver.Store {
		if b.store != nil {
			return b.store(s)
		}
		return brokenStore{s, b.lease}
	}
	return drivertest.Harness{
		Open:    open,
		TTL:     10 * time.Second,
		Remove:  func(_ testing.TB, name string, token uint64) { s.Remove(name, token) },
		Restart: func(testing.TB) { restarted.Store(s) },
		Cut: func(t testing.TB) (driver.Store, func(bool)) {
			f := drivertest.Faulty(s, drivertest.Faults{})
			return brokenStore{f, b.lease}, f.Hang
		},
	}
}
