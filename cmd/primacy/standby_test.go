//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// read returns what stands in a file of the test's folder.
func (w *world) read(name string) string {
	w.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil && !os.IsNotExist(err) {
		w.Fatal(err)
	}
	return string(b)
}

// touch makes a file that a command waits for.
func (w *world) touch(name string) {
	w.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), nil, 0o600); err != nil {
		w.Fatal(err)
	}
}

func (w *world) lines(name string) []string {
	w.Helper()
	return strings.Split(strings.TrimSuffix(w.read(name), "\n"), "\n")
}

// writes waits until a file has the text.
func (w *world) writes(name, text string) {
	w.Helper()
	w.eventually(name+" has "+text, func() bool { return strings.Contains(w.read(name), text) })
}

// A standby that does not want to end, with a child in a session of its own: all of it is gone
// before the command starts.
func TestTheStandbyIsGoneBeforeTheCommandStarts(t *testing.T) {
	w := newWorld(t)
	first := w.start("run", "n", "sleep", "1000").tells("leads n")
	next := w.start("run", "--stop-timeout", "300ms", "--standby",
		`trap '' TERM
		setsid sh -c 'trap "" TERM; while :; do echo $PRIMACY_ROLE-$PRIMACY_TOKEN >>log; sleep 0.01; done' &
		wait; sleep 1000`,
		"n", "sh", "-c", "cp log seen; sleep 0.3; cmp log seen && echo $PRIMACY_ROLE")
	w.writes("log", "standby-\n")
	first.signal(syscall.SIGTERM).ends(143)
	next.ends(0).says("leader\n")
}

// Lost, the command is stopped, the standby comes back, and leads again under a larger token. A
// SIGTERM ends it for good.
func TestRecampaign(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	p := w.start("run", "--on-lost", "recampaign", "--standby", "echo standby >>log; exec sleep 1000", "n", "sh",
		"-c", "echo $PRIMACY_TOKEN >>log; exec sleep 1000").tells("leads n")
	first := w.awaitLine("n", 1)[0]
	w.writes("log", first.CreateRevision)
	other := w.start("run", "n", "sh", "-c", "echo other >>log; exec sleep 1000").tells("waits for n")
	w.awaitLine("n", 2)
	standbys := func() int { return strings.Count(w.read("log"), "standby\n") }
	before := standbys()
	w.revoke(first.Lease)
	p.tells("stopping the command")
	w.writes("log", "other\n")
	w.eventually("the standby is back", func() bool { return standbys() > before })
	w.awaitLine("n", 2)
	other.signal(syscall.SIGTERM).ends(143)
	w.eventually("it leads again", func() bool { return strings.Count(p.err.String(), "leads n") == 2 })
	again := w.awaitLine("n", 1)[0].CreateRevision
	w.writes("log", "\n"+again+"\n")
	if again == first.CreateRevision {
		t.Errorf("the token is %s again", again)
	}
	// Resigned by an operator, it stands again too.
	w.start("resign", "n").ends(0)
	w.eventually("it leads for the third time", func() bool { return strings.Count(p.err.String(), "leads n") == 3 })
	p.signal(syscall.SIGTERM).ends(143)
	w.awaitLine("n", 0)
	// A command that ends by itself is the end, too.
	w.start("run", "--on-lost", "recampaign", "n", "sh", "-c", "exit 5").ends(5)
}

// Signals reach the standby, but for those that end the wait: then it is gone before we are.
func TestSignalsWithAStandby(t *testing.T) {
	w := newWorld(t)
	first := w.start("run", "n", "sh", "-c", upAndSleep).prints("up")
	p := w.start("run", "--standby",
		`trap 'echo usr1 >>log' USR1; trap 'echo bye >>log; exit' TERM; echo up >>log; while :; do sleep 0.02; done`,
		"n", "true")
	w.writes("log", "up")
	p.signal(syscall.SIGUSR1)
	w.writes("log", "usr1")
	p.signal(syscall.SIGINT).ends(130)
	if got := w.read("log"); got != "up\nusr1\nbye\n" {
		t.Errorf("got %q", got)
	}
	if n := len(w.processes()); n != 2 { // the first one and its command: a guardian stands in no folder
		t.Errorf("%d processes are left, want 2", n)
	}
	// Killed, its guardian ends the standby.
	p = w.start("run", "--standby", "echo again >>log; exec sleep 1000", "n", "true")
	w.writes("log", "again")
	p.signal(syscall.SIGKILL)
	<-p.exited
	w.eventually("the standby is gone", func() bool { return len(w.processes()) == 2 })
	first.signal(syscall.SIGTERM).ends(143)
}

// A standby that ends is started again, and one that cannot start does not keep us from leading.
func TestAStandbyThatEnds(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	first := w.start("run", "n", "sleep", "1000").tells("leads n")
	p := w.start("run", "--standby", "echo up >>log; exit 9", "n", "true").tells("the standby ended with status 9")
	w.writes("log", "up\nup")
	first.signal(syscall.SIGTERM).ends(143)
	p.ends(0)
}

func TestBackoff(t *testing.T) {
	onlyInVerify(t)
	var b backoff
	for i, c := range []struct{ ran, want time.Duration }{
		{0, 1}, {time.Second, 2}, {0, 4}, {0, 8}, {0, 16}, {0, 30}, {29 * time.Second, 30}, {31 * time.Second, 1},
		{0, 2},
	} {
		if got := b.after(c.ran); got != c.want*time.Second {
			t.Errorf("%d: got %v, want %v", i, got, c.want*time.Second)
		}
	}
}

// ^Z stops a candidate with its standby, fg continues both, ^C ends it; the command has the
// keyboard as without a standby.
func TestJobControlWithAStandby(t *testing.T) {
	onlyInVerify(t)
	m := newTmux(newWorld(t))
	first := m.start("run", "n", "sleep", "1000").tells("leads n")
	m.types(`primacy run -q --ttl 60s --standby 'exec primacy worker log' n cat`, "Enter")
	m.writes("log", "\n") // it does not fork: a shell between vfork and exec cannot be stopped
	for range 2 {
		m.stops()
		before := m.read("log")
		time.Sleep(200 * time.Millisecond)
		if m.read("log") != before {
			t.Error("the standby ran on after ^Z")
		}
		m.types("fg", "Enter")
		m.eventually("the standby goes on", func() bool { return m.read("log") != before })
	}
	first.signal(syscall.SIGTERM).ends(143)
	m.eventually("the command has the terminal", func() bool { return len(m.awaitLine("n", 1)) == 1 })
	m.types("hello", "Enter")
	m.eventually("cat writes what was typed", func() bool { return strings.Count(m.screen(), "hello") == 2 })
	m.stops()
	m.types("fg", "Enter")
	m.shows("n cat\n") // nothing is typed ahead
	m.types("again", "Enter")
	m.shows("again\nagain")
	m.types("", "C-d")
	if got := m.status(); got != 0 {
		t.Errorf("exit %d", got)
	}
	// ^C while it waits.
	first = m.start("run", "n", "sleep", "1000").tells("leads n")
	m.types(`rm log; primacy run -q --standby 'echo up >>log; exec sleep 1000' n cat`, "Enter")
	m.writes("log", "up")
	m.types("", "C-c")
	if got := m.status(); got != 130 {
		t.Errorf("exit %d after ^C", got)
	}
	first.signal(syscall.SIGTERM).ends(143)
}

// Its input elsewhere, the command is in the background for the terminal; ^Z must stop the job all
// the same, or the shell gets no control back and the command stands still under a lease that is
// renewed for ever.
func TestJobControlWithoutTheKeyboard(t *testing.T) {
	m := newTmux(newWorld(t))
	m.types(`primacy run -q --ttl 60s n primacy worker log </dev/null`, "Enter")
	m.writes("log", "\n")
	for range 2 {
		m.stops()
		before := m.read("log")
		m.types("fg", "Enter")
		m.eventually("the command goes on", func() bool { return m.read("log") != before })
	}
	m.types("", "C-c")
	if got := m.status(); got != 130 {
		t.Errorf("exit %d after ^C", got)
	}
}
