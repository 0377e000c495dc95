//go:build linux

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
)

// each runs the test for every kind, on one etcd.
func each(t *testing.T, test func(t *testing.T, kind string, etcd *etcdtest.Server)) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(kind, func(t *testing.T) { test(t, kind, etcd) })
	}
}

// TestQuiet has three workers hand the leadership on without any fault: then every kind must have
// one leader at a time, and what they wrote must be well-formed.
func TestQuiet(t *testing.T) {
	each(t, func(t *testing.T, kind string, etcd *etcdtest.Server) {
		a := newGroup(t, kind, etcd, 3)
		var before uint64
		for range 2 {
			w, token := a.leader(nil, 10*time.Second)
			if token <= before {
				t.Errorf("token %d after %d: tokens must grow", token, before)
			}
			before = token
			time.Sleep(500 * time.Millisecond)
			a.end(w)
			a.leader(w, 10*time.Second)
			a.start(w)
		}
		time.Sleep(500 * time.Millisecond)
		for _, w := range a.workers {
			a.end(w)
		}
		terms := a.terms()
		if err := safety.Check(terms); err != nil {
			t.Error(err)
		}
		if len(terms) < 3 {
			t.Errorf("got %d terms, want 3 at least", len(terms))
		}
		var led time.Duration
		for _, term := range terms {
			led += term.To - term.From
		}
		if n := len(a.acts()); n < int(led/actEvery/3) {
			t.Errorf("got %d acts in %v, want about one every %v", n, led, actEvery)
		}
		a.checkWrites(t)
		if a.sink.refused != 0 {
			t.Errorf("the fence refused %d writes, want none", a.sink.refused)
		}
	})
}

// checkWrites checks every line against the sink's own account.
func (a *group) checkWrites(t *testing.T) {
	t.Helper()
	oks, unknown := 0, 0
	for _, line := range a.record("writes") {
		var call, back int64
		var token, seq uint64
		var id, outcome string
		if _, err := fmt.Sscanf(line, "%d %d %d %s %d %s", &call, &back, &token, &id, &seq, &outcome); err != nil ||
			len(strings.Fields(line)) != 6 {
			t.Fatalf("writes: %q: %v", line, err)
		}
		if call <= 0 || back < call {
			t.Errorf("%q: returned before it was called", line)
		}
		switch outcome {
		case "ok":
			oks++
			if !a.sink.applied[fmt.Sprintf("%d %s %d", token, id, seq)] {
				t.Errorf("%q: the sink has not applied it", line)
			}
		case "unknown": // it may have been applied, for example if the worker was frozen before it read the reply
			if a.sink.applied[fmt.Sprintf("%d %s %d", token, id, seq)] {
				unknown++
			}
		case "stale":
		default:
			t.Errorf("%q: no such outcome", line)
		}
	}
	if oks+unknown != len(a.sink.applied) {
		t.Errorf("%d writes are recorded as ok and %d that were applied as unknown, the sink applied %d", oks,
			unknown, len(a.sink.applied))
	}
	if oks == 0 {
		t.Error("no write was recorded")
	}
}

// TestOutage freezes etcd for longer than the TTL: the worker stops to act, goes on to stand, leads
// again after the thaw, and exits in time although etcd is frozen again.
func TestOutage(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t, etcdtest.Options{})
			a := newGroup(t, kind, etcd, 2)
			_, token := a.leader(nil, 10*time.Second)
			etcd.Stop()
			time.Sleep(3 * testTTL)
			acts := a.acts()
			if last := acts[len(acts)-1]; bootTime()-last.at < int64(time.Second) {
				t.Errorf("%s acts under token %d although etcd is frozen for %v", last.id, last.token, 3*testTTL)
			}
			etcd.Cont()
			_, next := a.leader(nil, 20*time.Second)
			t.Logf("%s: token %d before, %d after", kind, token, next)
			if next < token {
				t.Errorf("token %d after %d", next, token)
			}
			etcd.Stop()
			for _, w := range a.workers {
				a.end(w)
			}
			etcd.Cont()
		})
	}
}

// TestSilentSink: writes that are not answered are unknown, and the worker acts on.
func TestSilentSink(t *testing.T) {
	etcd := etcdtest.Start(t, etcdtest.Options{})
	a := newGroup(t, "plain-keepalive", etcd, 1)
	a.leader(nil, 10*time.Second)
	a.sink.mu.Lock()
	a.sink.silent = true
	a.sink.mu.Unlock()
	before := len(a.acts())
	time.Sleep(2*sinkLimit + time.Second)
	if n := len(a.acts()) - before; n < 100 {
		t.Errorf("got %d acts while the sink was silent for %v", n, 2*sinkLimit+time.Second)
	}
	a.end(a.workers[0])
	unknown := 0
	for _, line := range a.record("writes") {
		if strings.HasSuffix(line, " unknown") {
			unknown++
		}
	}
	if unknown < 2 {
		t.Errorf("got %d unknown writes, want 2 at least", unknown)
	}
	a.checkWrites(t)
}

// TestKilled: a worker that dies is followed by another, under a larger token.
func TestKilled(t *testing.T) {
	each(t, func(t *testing.T, kind string, etcd *etcdtest.Server) {
		t.Parallel()
		a := newGroup(t, kind, etcd, 2)
		w, token := a.leader(nil, 10*time.Second)
		begin := bootTime()
		a.signal(w, syscall.SIGKILL)
		_, next := a.leader(w, 15*time.Second)
		if next <= token {
			t.Errorf("token %d after %d", next, token)
		}
		t.Logf("%s: followed after %v", kind, time.Duration(bootTime()-begin).Round(time.Millisecond))
	})
}

func TestUsage(t *testing.T) {
	good := map[string]string{"--kind": "etcd-mutex", "--endpoints": "127.0.0.1:1", "--name": "n", "--id": "i",
		"--ttl":  "3s",
		"--acts": t.TempDir() + "/a", "--writes": t.TempDir() + "/w", "--sink": "s"}
	for _, bad := range []struct{ option, value, want string }{
		{"--kind", "raft", "want one of client-go, etcd-election, etcd-mutex, plain-keepalive"},
		{"--ttl", "1s", "want whole seconds, from 2s"},
		{"--ttl", "2500ms", "want whole seconds, from 2s"},
		{"--id", "a b", "want a word"},
		{"--sink", "", "must be given"},
		{"--acts", "/no/such/folder/a", "no such file or directory"},
	} {
		options := maps.Clone(good)
		options[bad.option] = bad.value
		var args []string
		for k, v := range options {
			args = append(args, k, v)
		}
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), workerEnv+"=1")
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(out.String(), bad.want) {
			t.Errorf("%s %q: %v, %q; want exit status %d and %q", bad.option, bad.value, err, out.String(), exitUsage,
				bad.want)
		}
	}
}
