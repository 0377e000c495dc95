//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
)

const (
	workerEnv = "PEERS_WORKER" // this binary runs as a worker
	testTTL   = 3 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// group is workers of one kind, each with a way of its own to one etcd.
type group struct {
	testing.TB
	kind, dir string
	sink      *sink
	workers   []*worker
}

type worker struct {
	id     string
	proxy  *etcdtest.Proxy
	cmd    *exec.Cmd
	log    *bytes.Buffer
	exited chan struct{}
}

func newGroup(t testing.TB, kind string, etcd *etcdtest.Server, n int) *group {
	t.Helper()
	a := &group{TB: t, kind: kind, dir: t.TempDir()}
	a.sink = newSink(t, filepath.Join(a.dir, "sink"))
	for i := range n {
		w := &worker{id: fmt.Sprintf("w%d", i), proxy: etcdtest.NewProxy(t, etcd.Addr())}
		a.workers = append(a.workers, w)
		a.start(w)
	}
	return a
}

func (a *group) start(w *worker) {
	a.Helper()
	cmd := exec.Command(os.Args[0], "--kind", a.kind, "--endpoints", w.proxy.Addr(), "--name", "job", "--id", w.id,
		"--ttl", testTTL.String(),
		"--acts", a.path("acts"), "--writes", a.path("writes"), "--sink", a.path("sink"))
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	w.log = &bytes.Buffer{}
	cmd.Stderr = w.log
	if err := cmd.Start(); err != nil {
		a.Fatal(err)
	}
	w.cmd, w.exited = cmd, make(chan struct{})
	go func() { _ = cmd.Wait(); close(w.exited) }()
	a.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-w.exited
		if a.Failed() {
			a.Logf("%s's log:\n%s", w.id, w.log.String())
		}
	})
}

func (a *group) path(name string) string { return filepath.Join(a.dir, name) }

// end sends SIGTERM and checks that the worker exits as it must.
func (a *group) end(w *worker) {
	a.Helper()
	begin := time.Now()
	a.signal(w, syscall.SIGTERM)
	select {
	case <-w.exited:
	case <-time.After(5 * time.Second):
		a.Fatalf("%s runs 5 s after SIGTERM", w.id)
	}
	if code := w.cmd.ProcessState.ExitCode(); code != 0 {
		a.Errorf("%s: exit status %d after SIGTERM, want 0", w.id, code)
	}
	a.Logf("%s %s ended %v after SIGTERM", a.kind, w.id, time.Since(begin).Round(time.Millisecond))
}

func (a *group) signal(w *worker, s syscall.Signal) {
	a.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		a.Fatal(err)
	}
}

// record returns the lines of a file, without one that is being written.
func (a *group) record(name string) []string {
	a.Helper()
	text, err := os.ReadFile(a.path(name))
	if err != nil && !os.IsNotExist(err) {
		a.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// act is a line of the acts file.
type act struct {
	at    int64
	token uint64
	id    string
}

func (a *group) acts() []act {
	a.Helper()
	var all []act
	for _, line := range a.record("acts") {
		var x act
		if _, err := fmt.Sscanf(line, "%d %d %s", &x.at, &x.token, &x.id); err != nil {
			a.Fatalf("acts: %q: %v", line, err)
		}
		all = append(all, x)
	}
	return all
}

// leader waits until a worker acts that is not the one given, from now on, and returns it and its
// token.
func (a *group) leader(not *worker, limit time.Duration) (*worker, uint64) {
	a.Helper()
	now := bootTime()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		acts := a.acts()
		if len(acts) == 0 {
			continue
		}
		last := acts[len(acts)-1]
		for _, w := range a.workers {
			if w != not && w.id == last.id && last.at >= now {
				return w, last.token
			}
		}
	}
	a.Fatalf("nobody leads after %v", limit)
	return nil, 0
}

// terms returns who acted from when to when.
func (a *group) terms() []safety.Interval {
	a.Helper()
	terms, err := safety.Read("job", strings.NewReader(strings.Join(append(a.record("acts"), ""), "\n")))
	if err != nil {
		a.Fatal(err)
	}
	return terms
}

// sink is a resource behind a fence: it refuses a token smaller than one it has seen.
type sink struct {
	mu      sync.Mutex
	largest uint64
	applied map[string]bool // "token id seq"
	refused int
	asked   int
	silent  bool
}

func newSink(t testing.TB, path string) *sink {
	t.Helper()
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	s := &sink{applied: map[string]bool{}}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *sink) serve(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		reply := s.answer(lines.Text())
		if reply == "" {
			continue
		}
		if _, err := fmt.Fprintln(conn, reply); err != nil {
			return
		}
	}
}

func (s *sink) answer(line string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var token, seq uint64
	var id string
	var at int64
	s.asked++
	switch _, err := fmt.Sscanf(line, "%d %s %d %d", &token, &id, &seq, &at); {
	case err != nil:
		return fmt.Sprintf("bad %q", line)
	case s.silent:
		return ""
	case token < s.largest:
		s.refused++
		return fmt.Sprintf("stale %d", s.largest)
	}
	s.largest = token
	s.applied[fmt.Sprintf("%d %s %d", token, id, seq)] = true
	return "ok"
}
