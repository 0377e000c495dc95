//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var shown = regexp.MustCompile(`^The lease acknowledged at [\d.]+ s was gone at [\d.]+ s: it lasted ([\d.]+) s of its ttl of (\d+) s\.$`)

// Each fault is shown, or the tool says why not: on a busy machine the timing may not come about.
// Nothing is left either way.
func TestEachFaultIsShownOrToldWhyNot(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	if _, err := server(t.Context(), newest, os.Stderr); err != nil {
		t.Fatal(err)
	}
	t.Run("each", func(t *testing.T) {
		for name := range faults {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var out, problems bytes.Buffer
				code := command(t.Context(), []string{name, "-for", "12s"}, &out, &problems)
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				last := lines[len(lines)-1]
				m := shown.FindStringSubmatch(last)
				switch {
				case code == 0 && m != nil:
					lasted, _ := strconv.ParseFloat(m[1], 64)
					if ttl, _ := strconv.ParseFloat(m[2], 64); lasted < 0 || lasted >= ttl {
						t.Errorf("that is no fault: %s", last)
					}
				case code == 3 && strings.HasPrefix(last, "not shown in 12s: ") && len(last) > len("not shown in 12s: "):
					t.Log(last)
				default:
					t.Errorf("exit code %d\n%s%s", code, &out, &problems)
				}
			})
		}
	})
	nothingLeft(t, dir)
}

func TestInterruptedItLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan bool, 100)
	done := make(chan int)
	var problems bytes.Buffer
	go func() { done <- command(ctx, []string{"woken"}, signals(begun), &problems) }()
	select {
	case <-begun: // the servers run
	case code := <-done:
		t.Fatalf("exit code %d: %s", code, &problems)
	}
	cancel()
	select {
	case code := <-done:
		if code != 1 || !strings.Contains(problems.String(), "interrupted") {
			t.Errorf("exit code %d: %s", code, &problems)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	nothingLeft(t, dir)
}

// signals tells of each write.
type signals chan<- bool

func (s signals) Write(b []byte) (int, error) {
	if !bytes.HasPrefix(b, []byte("building")) {
		s <- true
	}
	return len(b), nil
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(dir, "etcdleases-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	args, _ := filepath.Glob("/proc/[0-9]*/cmdline") // on Linux
	for _, file := range args {
		if text, _ := os.ReadFile(file); bytes.Contains(text, []byte(filepath.Join(dir, "etcdleases-"))) {
			t.Errorf("still runs: %s", bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
		}
	}
}

func TestOddArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{nil, {"none"}, {"woken", "more"}, {"woken", "-none"}} {
		var problems bytes.Buffer
		if code := command(t.Context(), args, &problems, &problems); code != 2 || problems.Len() == 0 {
			t.Errorf("%v: exit code %d, %s", args, code, &problems)
		}
	}
}
