//go:build linux

package torture

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/open"
)

// helperEnv says that this binary runs as one of the helper processes below.
const helperEnv = "TORTURE_HELPER"

func TestMain(m *testing.M) {
	open.Kubeconfig = readKubeconfig
	switch os.Getenv(helperEnv) {
	case "act":
		check(actMain())
	case "pause":
		check(pauseMain())
	case "worker":
		check(workerMain())
	case "clock":
		check(clockMain())
	case "shards":
		check(shardMemberMain())
	case "command":
		check(commandMain())
	case "":
		flag.Parse()
		if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n > 2 {
			check(flag.Set("test.parallel", "2")) // each keeps a cluster and its clients busy
		}
		code := m.Run()
		programtest.Remove()
		os.Exit(code)
	}
	os.Exit(0)
}

// check is how helper processes fail.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture helper:", err)
		os.Exit(99)
	}
}

// briefly is a default that is less in a short run.
func briefly[V any](short, otherwise V) V {
	if testing.Short() {
		return short
	}
	return otherwise
}

func knob(t testing.TB, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1", name, text)
	}
	return n
}

// onlyInVerify leaves a test to make verify (its part torture-each): make test runs with -short.
func onlyInVerify(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make verify VERIFY=torture-each")
	}
}

// rounds is how many rounds a test does: short, or as many as asked for.
func rounds(t testing.TB, short int) int { return knob(t, "TORTURE_LONG", short) }

// eventually polls for a condition, and fails the test if it does not come.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !within(limit, ok) {
		t.Fatalf("waited %v for: %s", limit, what)
	}
}

func within(limit time.Duration, ok func() bool) bool {
	for end := boottime.Now() + limit; !ok(); time.Sleep(time.Millisecond) {
		if boottime.Now() > end {
			return false
		}
	}
	return true
}

// waitUntil returns at that instant of the boot clock.
func waitUntil(at time.Duration) {
	for now := boottime.Now(); now < at; now = boottime.Now() {
		time.Sleep(at - now)
	}
}

func openSession(t testing.TB, o primacy.Options, endpoints ...string) *primacy.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	s, err := primacy.NewSession(store, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return s
}

// campaign wins the election, or fails the test after the limit.
func campaign(t testing.TB, e *primacy.Election, limit time.Duration) *primacy.Term {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	term, err := e.Campaign(ctx, nil)
	if err != nil {
		t.Fatalf("campaign: %v", err)
	}
	return term
}

// spread is what was measured, as text.
type spread []time.Duration

func (s spread) String() string {
	if len(s) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(s))
	ms := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %v, max %v (%d)", ms(sorted[(len(sorted)-1)/2]), ms(sorted[len(sorted)-1]), len(sorted))
}
