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

// harness is a test that plays the harness: it writes what it was told into the result.
const harness = `package torture

import (
	"fmt"
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
	overlaps := 0
	if os.Getenv("TORTURE_WORKER") != "" {
		overlaps = len(os.Getenv("TORTURE_KIND"))
	}
	if os.Getenv("TORTURE_KIND") == "etcd-mutex" {
		t.Fatal("it broke")
	}
	text := fmt.Sprintf("{\"faults\":12,\"terms\":34,\"overlaps\":%d,\"longest_overlap_ms\":%d,\"overlapped_ms\":%d.5,\"longest_gap_ms\":3456}", overlaps, overlaps, overlaps)
	if os.Getenv("TORTURE_FOR") != "7s" || os.Getenv("TORTURE_SEED") != "9" || os.Getenv("GOWORK") != "" {
		t.Fatal("wrong environment")
	}
	if err := os.WriteFile(os.Getenv("TORTURE_JSON"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("TORTURE_KIND") == "client-go" || os.Getenv("FAIL_OURS") != "" {
		t.Error("two leaders")
	}
}
`

func fakeHarness(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module harness\n\ngo 1.26\n", "torture/torture_test.go": harness} {
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
	o := options{lasting: 7 * time.Second, seed: 9, cmd: fakeHarness(t), keep: t.TempDir()}
	for _, c := range []struct {
		kind     string
		overlaps int
		wrong    string
		failOurs string
	}{
		{kind: ours},
		{kind: "etcd-election", overlaps: len("etcd-election")},
		{kind: "client-go", overlaps: len("client-go")}, // its run fails, and has a result
		{kind: "etcd-mutex", wrong: "no result"},
		{kind: ours, wrong: "failed, see", failOurs: "yes"},
	} {
		t.Setenv("FAIL_OURS", c.failOurs)
		r, err := torture(context.Background(), o, c.kind, "/the/worker")
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: got %v, want an error with %q", c.kind, err, c.wrong)
			}
			continue
		}
		if err != nil || r.Overlaps != c.overlaps || r.Faults != 12 || r.Terms != 34 || r.LongestGapMs != 3456 {
			t.Errorf("%s: got %+v, %v, want %d overlaps", c.kind, r, err, c.overlaps)
		}
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
	if _, err := torture(ctx, options{lasting: time.Minute, seed: 9, cmd: fakeHarness(t), keep: t.TempDir()}, ours, ""); err == nil {
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
	all := 4321.0
	got := table([]result{
		{kind: ours, Faults: 80, Terms: 61, OverlappedMs: new(float64), LongestGapMs: 4100},
		{kind: "client-go", Faults: 79, Terms: 40, Overlaps: 3, LongestOverlapMs: 0.2, OverlappedMs: &all, StaleUnfenced: 5, LongestGapMs: 812},
		{kind: "etcd-mutex", failed: fmt.Errorf("no")},
	})
	for _, want := range []string{
		"| Primacy | 80 | 61 | 0 | 0 | 0 | 0 | 0 | 4.10 s |\n",
		"| client-go `leaderelection` | 79 | 40 | 3 | < 1 ms | 4.32 s | 5 | 0 | 812 ms |\n",
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
	if o, err := parse([]string{"-cmd", dir, "-for", "5s", "-kinds", "client-go"}); err != nil || o.lasting != 5*time.Second || len(o.kinds) != 1 || o.seed == 0 {
		t.Errorf("got %+v, %v", o, err)
	}
}
