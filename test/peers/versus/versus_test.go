//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// harness is a test that plays the harness: it prints a table like its own, after checking what it
// was told.
const harness = `package torture

import (
	"os"
	"strconv"
	"testing"
)

func TestTorture(t *testing.T) {
	if file := os.Getenv("HANG"); file != "" {
		if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	if os.Getenv("TORTURE_FOR") != "7s" || os.Getenv("TORTURE_SEED") != "9" || os.Getenv("GOWORK") != "" {
		t.Fatal("wrong environment")
	}
	if (os.Getenv("TORTURE_WORKER") == "") != (os.Getenv("TORTURE_KIND") == "") {
		t.Fatal("a kind without a worker, or the other way round")
	}
	text, err := os.ReadFile(os.Getenv("PRINT"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + string(text))
	if os.Getenv("FAIL") != "" {
		t.Error("two leaders")
	}
}
`

// tableOf is what the harness prints at its end, for two lines of candidates.
const tableOf = `Primacy, seed 9, ttl 3s, 24 faults of 23 kinds

fault                                                             times  longest time without a leader, p50 and max
SIGKILL of the leader's worker                                        1  p50 5.15866s, max 5.15866s (1)
not counted, 2 times: claim removed by hand: nobody to inject it into

line "torture": 4 candidates map[foreign:4]
  terms                                              9
  processes started                                  6
  acts                                               3281
  two leaders at once (overlaps)                     2
  longest overlap                                    878.843ms
  fenced writes acknowledged                         614
  of these lost                                      0
  writes of unknown outcome                          2
  stale writes, taken without a fence                200
  stale writes, refused by the fence                 200
  acts after an operator had removed the claim       719, for 2.993s at most
  longest time without a leader                      2.528s
  overlap: two leaders for 878.843048ms: foreign2 led "torture" under token 17 in [29, 31) ns, and foreign3 led "torture" under token 30 in [3, 4) ns
    after: requests held; quorum lost
  overlap: two leaders for 0s: foreign2 led "torture" under token 7 in [1, 2) ns, and foreign3 led "torture" under token 9 in [1, 2) ns

line "torture/library": 3 candidates map[primacy:3]
  terms                                              5
  two leaders at once (overlaps)                     1
  longest overlap                                    1.5s
  of these lost                                      3
  stale writes, taken without a fence                7
  longest time without a leader                      3.25s
  overlap: two leaders for 1.5s: a led "torture" under token 7 in [1, 2) ns, and b led "torture" under token 9 in [1, 2) ns
`

func fakeHarness(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module harness\n\ngo 1.26\n",
		"torture/torture_test.go": harness} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTorture(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("TORTURE_KIND", "left over")
	file := filepath.Join(t.TempDir(), "table")
	t.Setenv("PRINT", file)
	o := options{lasting: 7 * time.Second, seed: 9, cmd: fakeHarness(t), keep: t.TempDir()}
	for _, c := range []struct{ name, kind, text, fail, wrong string }{
		{"ours", ours, tableOf, "", ""},
		{"a peer", "etcd-election", tableOf, "", ""},
		{"a peer whose run fails", "client-go", tableOf, "yes", ""},
		{"ours fails", ours, tableOf, "yes", "failed, see"},
		{"nothing printed", "etcd-mutex", "", "", "no result, see"},
	} {
		t.Setenv("FAIL", c.fail)
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := torture(context.Background(), o, c.kind, "/the/worker")
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: got %v, want an error with %q", c.name, err, c.wrong)
			}
			continue
		}
		if err != nil || r.overlaps != 3 || r.kind != c.kind {
			t.Errorf("%s: got %+v, %v, want 3 overlaps", c.name, r, err)
		}
	}
}

func TestRead(t *testing.T) {
	r := result{kind: "client-go"}
	if err := r.read("noise\n" + tableOf); err != nil {
		t.Fatal(err)
	}
	want := result{kind: "client-go", faults: 24, kinds: 23, terms: 14, overlaps: 3, longest: 1500 * time.Millisecond,
		total: 2378843048, stale: 207,
		lost: 3, gap: 3250 * time.Millisecond, deaf: 2993 * time.Millisecond, lines: 2, rowsHad: 12}
	if r != want {
		t.Errorf("got %+v, want %+v", r, want)
	}
	for _, c := range []struct{ text, want string }{
		{"", "no table"},
		{strings.Replace(tableOf, "of these lost ", "of these gone ", 1),
			"the harness's table has changed: got 11 of 12 rows"},
		{strings.Replace(tableOf, "878.843ms", "soon", 1), "invalid duration"},
		{strings.Replace(tableOf, "24 faults", "0 faults", 1), "prove nothing"},
	} {
		if err := new(result).read(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
	more := result{}
	if err := more.read(tableOf + "  … and 4 more\n"); err != nil || !more.more {
		t.Errorf("overlaps that are not listed: got %+v, %v", more, err)
	}
}

// TestInterrupt: a run that is given up leaves no process behind.
func TestInterrupt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	t.Setenv("HANG", file)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var pid int
	go func() {
		defer cancel()
		for range 1000 {
			time.Sleep(50 * time.Millisecond)
			if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
				pid, _ = strconv.Atoi(string(text))
				return
			}
		}
	}()
	if _, err := torture(ctx, options{lasting: time.Minute, seed: 9, cmd: fakeHarness(t), keep: t.TempDir()}, ours,
		""); err == nil {
		t.Error("got no error")
	}
	<-ctx.Done()
	if pid == 0 {
		t.Fatal("the harness did not start")
	}
	for range 100 {
		if syscall.Kill(pid, 0) != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("the harness (%d) still runs", pid)
}

func TestTable(t *testing.T) {
	got := table([]result{
		{kind: ours, faults: 80, terms: 61, deaf: time.Second, gap: 4100 * time.Millisecond},
		{kind: "client-go", faults: 79, terms: 40, overlaps: 3, longest: 200 * time.Microsecond,
			total: 4321 * time.Millisecond, more: true, stale: 5,
			gap: 812 * time.Millisecond},
		{kind: "etcd-mutex", failed: fmt.Errorf("no")},
	})
	for _, want := range []string{
		"| Primacy | 80 | 61 | 0 | 0 | 0 | 0 | 0 | 1.00 s | 4.10 s |\n",
		"| client-go `leaderelection` | 79 | 40 | 3 | < 1 ms | > 4.32 s | 5 | 0 | – | 812 ms |\n",
		"| etcd `concurrency.Mutex` | no result |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%swant a line %q", got, want)
		}
	}
}

func TestUsage(t *testing.T) {
	dir := fakeHarness(t)
	for _, c := range []struct{ args, want string }{
		{"-kinds raft", "want some of primacy,etcd-election,etcd-mutex,plain-keepalive,client-go"},
		{"-for 0s", "want a duration"},
		{"-seed 0", "want a number from 1"},
		{"-cmd /nowhere", "no harness there"},
		{"more", "unexpected argument"},
	} {
		_, err := parse(append([]string{"-cmd", dir}, strings.Fields(c.args)...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.args, err, c.want)
		}
	}
	if o, err := parse([]string{"-cmd", dir, "-for", "5s", "-kinds", "client-go"}); err != nil ||
		o.lasting != 5*time.Second || len(o.kinds) != 1 || o.seed == 0 {
		t.Errorf("got %+v, %v", o, err)
	}
}
