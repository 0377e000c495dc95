//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/memstore"
	"github.com/primacy-go/primacy/open"
)

// demoPatience is the most that a demo takes which ends well: it begins anew with a longer ttl
// where the machine is too busy for the present one.
const demoPatience = 3*demoLimit + 20*time.Second

func TestDemoEndsWellAndLeavesNothing(t *testing.T) {
	t.Parallel()
	oneDemo(t)
	// What a user has set for his own runs is not the candidates' business, nor the store he has.
	w := plainWorld(t).with("PRIMACY_STORE=etcd://127.0.0.1:1", "PRIMACY_ID=x", "PRIMACY_TTL=20s")
	p := w.start("demo").within(demoPatience)
	p.ends(0)
	p.says("SIGKILL to node-", "SIGSTOP to node-", "is asked to resign", "ended, exit 122",
		"\ntokens that did not grow: 0\n", "\ninstants with two leaders: 0\n")
	if s := p.out.String(); strings.ContainsAny(s, "\x1b\r█") {
		t.Errorf("no terminal, and yet: %q", s)
	}
	// Four periods, each of which has acted; more if a leader lost its term on a busy machine.
	if rows := regexp.MustCompile(`(?m)^\d+ +node-\d +\d[0-9.ms]* +[1-9]\d* +\S+$`).FindAllString(p.out.String(),
		-1); len(rows) < 4 {
		t.Errorf("the table has %d rows:\n%s", len(rows), p.out.String())
	}
	noDemoIn(w)
}

func TestDemoGoesOnWithoutTheLeaderItWasToKill(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	w := plainWorld(t)
	p := w.start("demo").within(demoPatience).prints("leads under token")
	id := regexp.MustCompile(`node-\d leads`).FindString(p.out.String())[:len("node-1")]
	killNodes(w, id)
	late := strings.Contains(p.out.String(), "SIGKILL to")
	p.ends(0).says("SIGKILL to node-", "SIGSTOP to node-", "is asked to resign", "\ninstants with two leaders: 0\n")
	if late {
		t.Log("the demo had killed its leader before this test did")
	} else {
		p.says(id + " has lost its term under token ")
	}
	noDemoIn(w)
}

// On a busy machine every node may lose its term and end. The demo starts them again.
func TestDemoGoesOnWithoutAnyNode(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	w := plainWorld(t)
	p := w.start("demo").within(demoPatience).prints("leads under token")
	killNodes(w, "node-1", "node-2", "node-3")
	p.ends(0).says("SIGKILL to node-", "SIGSTOP to node-", "is asked to resign", "\ninstants with two leaders: 0\n")
	noDemoIn(w)
}

// A machine that loses terms of 3 s before their work has begun gets longer ones, and a frozen node
// is left alone.
func TestDemoTakesALongerTTLOnABusyMachine(t *testing.T) {
	var out strings.Builder
	d := &demo{ttl: demoTTL, limit: time.NewTimer(demoLimit), view: newView(&out, nil)}
	started := map[string]string{}
	for _, id := range []string{"node-1", "node-2"} {
		n := &node{id: id, ttl: d.ttl}
		n.start = func() (*exec.Cmd, error) {
			started[n.id] += " " + n.leaseTTL().String()
			c := exec.Command("sleep", "600")
			return c, c.Start()
		}
		if err := n.up(); err != nil {
			t.Fatal(err)
		}
		defer n.down()
		d.nodes = append(d.nodes, n)
	}
	d.frozen = d.nodes[1]
	for range 3 {
		if err := d.slower(); err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]string{"node-1": " 3s 6s 12s", "node-2": " 3s"}; !maps.Equal(started, want) {
		t.Errorf("started with the TTLs %v, want %v", started, want)
	}
	if got := d.frozen.leaseTTL(); got != demoLongestTTL {
		t.Errorf("the frozen node will start with %v", got)
	}
	if n := strings.Count(out.String(), "this machine is busy"); n != 2 {
		t.Errorf("told %d times:\n%s", n, &out)
	}
}

// On a busy machine a worker may need longer to begin than the demo waits at a time.
func TestDemoWaitsForAWorkerThatBeginsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := primacy.NewSession(memstore.New(memstore.Options{}), &primacy.Options{ID: "node-1", TTL: demoTTL})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(context.Background())
		term, err := s.Election(demoName).Campaign(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = term.Unlock() }()
		d := &demo{e: s.Election(demoName), acts: filepath.Join(t.TempDir(), "acts"), ttl: demoTTL,
			nodes: []*node{{id: "node-1"}}, view: newView(io.Discard, nil)}
		if n, err := d.nextWithin(t.Context(), time.Second); n != nil || err != nil {
			t.Fatalf("before the worker has acted: %v, %v", n, err)
		}
		act := fmt.Sprintf("1 %d node-1\n", uint64(term.Token()))
		if err := os.WriteFile(d.acts, []byte(act), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := d.nextWithin(t.Context(), time.Second); n != d.nodes[0] || err != nil {
			t.Errorf("once it has acted: %v, %v", n, err)
		}
	})
}

// killNodes kills the nodes of a demo that have these IDs. Their guardians live on.
func killNodes(w *world, ids ...string) {
	w.Helper()
	for _, link := range w.processes() {
		cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		for _, id := range ids {
			if !strings.Contains(string(cmdline), "run\x00--store") ||
				!strings.Contains(string(cmdline), "\x00"+id+"\x00") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil {
				w.Fatal(err)
			}
		}
	}
}

// onlyInVerify leaves a test to make verify (its part race-program): make test runs with -short.
func onlyInVerify(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
}

// few leaves cases of a table to make verify (its part race-program): with -short a test runs every
// nth of those that the program is started for one by one.
func few(n, i int) bool { return testing.Short() && i%n != 0 }

var demos sync.Mutex

// oneDemo lets one demo run at a time: each is a dozen processes with short leases.
func oneDemo(t *testing.T) {
	demos.Lock()
	t.Cleanup(demos.Unlock)
}

// noDemoIn checks that a demo left nothing in the folder for temporary files.
func noDemoIn(w *world) {
	w.Helper()
	if found, _ := filepath.Glob(filepath.Join(w.dir, "primacy-demo-*")); len(found) > 0 {
		w.Errorf("left behind: %q", found)
	}
	if n := w.processes(); len(n) > 0 {
		for _, link := range n {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			w.Errorf("still runs: %s %q", link, cmdline)
		}
	}
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	w := plainWorld(t)
	w.start("demo").prints("SIGKILL to node-").signal(syscall.SIGTERM).ends(130)
	// The guardian of the node that was killed may still look for the store, for as long as the
	// lease could live.
	w.eventually("no process of the demo is left", func() bool { return len(w.processes()) == 0 })
	noDemoIn(w)
	w.start("demo", "surplus").ends(exitUsage).inOneLine()
}

// A pipe whose reader is gone ends it as ^C does: SIGPIPE would leave its folder, and all nodes.
func TestADemoThatNobodyReadsLeavesNothing(t *testing.T) {
	t.Parallel()
	oneDemo(t)
	w := plainWorld(t)
	w.startShell("primacy demo | head -n 1").ends(0).says("an embedded store is running")
	w.eventually("no process of the demo is left", func() bool { return len(w.processes()) == 0 })
	noDemoIn(w)
}

// The servers that a demo kills leave it connections that nobody reads.
func TestAKilledServerDoesNotInterruptADemo(t *testing.T) {
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGPIPE, syscall.SIGHUP)
	defer signal.Stop(arrived)
	ctx, stop := untilInterrupted(t.Context())
	defer stop()
	for _, s := range []syscall.Signal{syscall.SIGPIPE, syscall.SIGHUP} {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		<-arrived // so they come in this order
	}
	<-ctx.Done()
	if got := context.Cause(ctx).Error(); got != syscall.SIGHUP.String() {
		t.Errorf("ended by %q", got)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if unread(w) {
		t.Error("a pipe is read")
	}
	r.Close()
	if !unread(w) {
		t.Error("nobody reads the pipe")
	}
}

func TestDevIsAStoreForOthers(t *testing.T) {
	t.Parallel()
	w := plainWorld(t)
	dir := filepath.Join(w.dir, "a@b c")
	dev := w.start("dev", "--store", "embedded:"+dir).prints("\n")
	line := strings.TrimSpace(dev.out.String())
	url := "etcd+unix://" + w.dir + "/a%40b%20c/etcd.sock"
	if line != "PRIMACY_STORE="+url {
		t.Fatalf("dev prints %q", line)
	}
	w.with(line).start("run", "-q", "n", "true").ends(0)
	library, err := open.Open(t.Context(), url) // what a program does that is built with the library
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	if lines, err := library.Lines(t.Context(), ""); err != nil || len(lines) != 0 {
		t.Errorf("the library sees %v, %v", lines, err)
	}
	if err := library.Close(); err != nil {
		t.Error(err)
	}
	dev.signal(syscall.SIGINT).ends(0)

	long := "embedded:" + filepath.Join(w.dir, strings.Repeat("long", 30))
	// No socket has a path so long: this program finds the store by its folder.
	w.start("dev", "--store", long, "--", "primacy", "run", "-q", "n", "sh", "-c", "echo $PRIMACY_STORE").ends(0).
		says(long + "\n")

	// With a command: its status is ours, and the store is in its environment.
	store := []string{"dev", "--store", "embedded:" + dir, "--"}
	p := w.start(append(store, "sh", "-c",
		`primacy run -q n sh -c 'echo $PRIMACY_STORE'; primacy leader n; exit 5`)...).ends(5)
	if p.out.String() != url+"\n" {
		t.Errorf("got %q", p.out.String())
	}
	p.complains("nobody leads n")
	w.start(append(store, "ls", "-d", "/")...).ends(0).says("/\n")
	w.start(append(store, "sh", "-c", "kill -KILL $$")...).ends(128 + 9)
	w.start(append(store, "nosuchcommand")...).ends(127).inOneLine().complains("nosuchcommand")
	w.start(append(store, "/etc")...).ends(126).inOneLine().complains("/etc")
	for script, code := range map[string]int{"trap 'exit 0' TERM": 0, "trap 'exit 4' TERM": 4, ":": 128 + 15} {
		p := w.start(append(store, "sh", "-c", script+"; echo up; while :; do sleep 0.05; done")...).prints("up")
		if p.signal(syscall.SIGTERM).ends(code); p.err.String() != "" {
			t.Errorf("%s: stderr %q", script, p.err.String())
		}
	}
}

func TestHelpNamesTheVerbsButNotTheWorker(t *testing.T) {
	w := newWorld(t)
	p := w.start("--help").ends(0).says("run ", "leader ", "observe ", "resign ", "status ", "dev ", "demo ", "121")
	if strings.Contains(p.out.String(), "worker") {
		t.Error("the worker is not hidden")
	}
	for _, verb := range []string{"run", "leader", "observe", "resign", "transfer", "drain", "lock", "status", "dev",
		"demo", "doctor"} {
		w.start(verb, "--help").ends(0).says("Usage:\n  primacy "+verb, "--store")
	}
	if p := w.start().ends(0); !strings.Contains(p.out.String(), "primacy demo") {
		t.Errorf("without arguments: %q", p.out.String())
	}
	// By hand, the guardian's argument leads nowhere.
	w.start("__guardian").ends(exitUsage).inOneLine().complains("not by hand")
}

func TestTheWorkerWritesUntilItIsTold(t *testing.T) {
	w := newWorld(t).with("PRIMACY_TOKEN=7", "PRIMACY_ID=me")
	file := filepath.Join(w.dir, "acts")
	p := w.start("worker", file)
	w.eventually("ten acts", func() bool {
		r, err := readPeriods(file)
		return err == nil && len(r) == 1 &&
			r[0].acts >= 10
	})
	p.signal(syscall.SIGTERM).ends(0)
	r, err := readPeriods(file)
	if err != nil || len(r) != 1 || r[0].token != 7 || r[0].id != "me" {
		t.Errorf("got %+v, %v", r, err)
	}
	w.start("worker", w.dir).ends(exitUsage).inOneLine().complains(w.dir)
}
