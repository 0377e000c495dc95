//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// stands has a candidate of this process stand, and stop as soon as it is asked to.
func (w *world) stands(id, name string) {
	w.Helper()
	s := w.session(id)
	go func() {
		for {
			term, err := s.Election(name).Campaign(w.Context(), &primacy.CampaignOptions{Value: []byte(id)})
			if err != nil {
				return
			}
			<-term.Context().Done()
			_ = term.Resign(w.Context())
		}
	}()
}

// awaitStanding waits until so many stand for a name, whatever its letters.
func (w *world) awaitStanding(name string, n int) {
	w.Helper()
	s := w.session("looks")
	w.eventually(fmt.Sprintf("%d stand for %s", n, name), func() bool {
		st, err := s.Election(name).State(w.Context())
		return err == nil && st.Leader != nil && 1+len(st.Waiting) == n
	})
}

// top starts the page in the terminal and returns its process.
func (m *tmux) top(args string) int {
	m.Helper()
	m.clears()
	m.types("primacy top "+args, "Enter")
	m.shows("HEALTH")
	return m.find("primacy\x00top")
}

// find returns the process that was started with these arguments.
func (m *tmux) find(cmdline string) int {
	m.Helper()
	for _, link := range m.processes() {
		dir := filepath.Dir(link)
		if b, _ := os.ReadFile(filepath.Join(dir, "cmdline")); strings.HasPrefix(string(b), cmdline) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				m.Fatal(err)
			}
			return pid
		}
	}
	m.Fatalf("no process %q", cmdline)
	return 0
}

// sane checks that the terminal is as it was: its modes, its cursor, and the screen that was there
// before.
func (m *tmux) sane(modes string) {
	m.Helper()
	m.eventually("the page is gone", func() bool { return !strings.Contains(m.screen(), "HEALTH") })
	if got := m.shell("stty -g"); got != modes {
		m.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
	if got := strings.TrimSpace(m.do("display-message", "-p",
		"#{cursor_flag}#{alternate_on}#{wrap_flag}")); got != "101" {
		m.Errorf("cursor, other screen, wrapping: %s, want 101", got)
	}
}

func TestTopByKeys(t *testing.T) {
	w := newWorld(t)
	w.stands("web-1", "billing/invoicer")
	w.awaitStanding("billing/invoicer", 1)
	w.stands("web-2", "billing/invoicer")
	w.awaitStanding("billing/invoicer", 2)
	w.stands("web-3", "billing/invoicer")
	w.awaitStanding("billing/invoicer", 3)
	w.stands("web-1", "cron")
	w.awaitStanding("cron", 1)
	w.stands("web-4", "cron")
	w.awaitStanding("cron", 2)
	m := newTmux(w)
	modes := m.shell("stty -g")
	m.do("resize-window", "-x", "80", "-y", "24")
	m.top("")
	m.eventually("two rows with leases, and the line", func() bool {
		s := m.screen()
		return strings.Contains(s, ">● ok           billing/invoicer web-1 ") && strings.Contains(s, "█") &&
			strings.Contains(s, " 2 web-3") && strings.Contains(s, "of 30s left")
	})
	m.types("t", "Down", "Enter")
	m.types("kernel", "Enter")
	m.shows("to do it, type the name: billing/invoicer")
	m.types("billing/invoicer", "Enter")
	m.shows("billing/invoicer: web-3 leads now under token")
	m.shows("billing/invoicer web-3 ")
	m.shows("LINE (2 waiting)")
	m.types("d")
	m.shows("drain: move all")
	chosen := func() string { return regexp.MustCompile(`> web-\d`).FindString(m.screen()) }
	for now := chosen(); now != "> web-1"; now = chosen() {
		m.types("", "Down")
		m.eventually("the next one is chosen", func() bool { return chosen() != now })
	}
	m.types("", "Enter")
	m.types("", "Enter")
	m.shows("to do it, type the ID: web-1")
	m.types("web-1", "Enter")
	m.shows("web-1: all 1 that it led have moved")
	m.shows("cron             web-4 ")
	w.awaitStanding("cron", 2) // web-1 stands again
	m.types("jr", "Enter")
	m.types("cron", "Enter")
	m.shows("cron: web-1 leads now under token")
	// A small window, and a large one.
	m.do("resize-window", "-x", "30", "-y", "8")
	m.eventually("a small page", func() bool {
		return strings.Contains(m.screen(), "billing") && !strings.Contains(m.screen(), "LEASE")
	})
	m.do("resize-window", "-x", "110", "-y", "40")
	m.shows("LINE (1 waiting)")
	m.types("q")
	if got := m.status(); got != 0 {
		t.Errorf("exit %d", got)
	}
	m.sane(modes)
}

func TestTopGivesTheTerminalBack(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	w.stands("web-1", "n")
	w.awaitStanding("n", 1)
	m := newTmux(w)
	modes := m.shell("stty -g")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		pid := m.top("")
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		if got := m.status(); got != 0 {
			t.Errorf("exit %d after %v", got, sig)
		}
		m.sane(modes)
	}
	for _, stop := range []func(pid int){
		func(int) { m.types("", "C-z") },
		func(pid int) { _ = syscall.Kill(-pid, syscall.SIGTSTP) },
	} {
		pid := m.top("")
		stop(pid)
		m.status()
		m.shows("Stopped")
		m.sane(modes)
		m.types("fg", "Enter")
		m.shows(">● ok           n ")
		m.types("", "C-c")
		if got := m.status(); got != 0 {
			t.Errorf("exit %d after ^C", got)
		}
		m.sane(modes)
	}
}

// Without colours, without UTF-8, and on a store that goes away.
func TestTopOnAPoorTerminal(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	w.stands("web-1", "grün")
	w.awaitStanding("grün", 1)
	m := newTmux(w)
	m.do("set-option", "-g", "default-terminal", "vt100")
	m.top("--no-color; true")
	m.shows("grün")
	if s := m.do("capture-pane", "-p", "-e"); regexp.MustCompile(`\x1b\[([0-9;]*;)?3[0-7]m`).MatchString(s) {
		t.Errorf("colours: %q", s)
	}
	m.types("q")
	m.status()
	m.types("LC_ALL=C NO_COLOR=1 primacy top", "Enter")
	m.shows(">* ok           gr.n ")
	m.types("q")
	m.status()
	// A dumb one, none at all, and --once: a table.
	m.types("TERM=dumb primacy top >out; primacy top --once", "Enter")
	m.shows("as read at")
	m.status()
	b, _ := os.ReadFile(filepath.Join(w.dir, "out"))
	if !strings.Contains(string(b), "HEALTH") || strings.Contains(string(b), "\x1b") {
		t.Errorf("%q", b)
	}
}

func TestTopOnce(t *testing.T) {
	w := newWorld(t)
	w.start("top").ends(0).says("nobody leads or waits")
	if got := w.start("top", "-o", "json").ends(0).out.String(); got != "[]\n" {
		t.Errorf("got %q", got)
	}
	w.stands("web-1", "a\u202eb")
	w.awaitStanding("a\u202eb", 1)
	w.stands("web-2", "billing")
	w.awaitStanding("billing", 1)
	w.with("LC_ALL=C.UTF-8").start("top").ends(0).says("HEALTH", "ok", "a·b", "of 30s", "as read at")
	p := w.start("top", "bil", "-o", "ndjson").ends(0)
	row := decode[top.Shown](w, p.out.String())
	if row.Name != "billing" || row.Leader.ID != "web-2" || row.Health != "ok" || row.Trouble || row.LeftMS == nil ||
		*row.TTLMS != 30000 || *row.LeftMS > 30000 {
		t.Errorf("%+v", row)
	}
	w.start("top", "a", "b").ends(exitUsage).inOneLine()
	w.start("top", "--every", "1ms").ends(exitUsage).inOneLine().complains("at least 100ms")
	w.with("PRIMACY_STORE=etcd://"+silent(t)).start("top", "--timeout", "1s").ends(exitUnreachable).inOneLine()
}

// The store goes away and comes back: meanwhile the page says so.
func TestTopWithoutTheStore(t *testing.T) {
	t.Parallel()
	shared.start(t)
	server := etcdtest.Start(t, etcdtest.Options{})
	w := newWorldOn(t, server)
	w.stands("web-1", "n")
	w.awaitStanding("n", 1)
	m := newTmux(w)
	m.top("")
	m.shows(">● ok           n ")
	server.Stop()
	m.shows("STALE: as it was at ")
	m.shows(">? was ok ")
	if s := m.screen(); strings.Contains(s, "●") || strings.Contains(s, "█") {
		t.Errorf("it looks live:\n%s", s)
	}
	server.Cont()
	m.shows(">● ok           n ")
	m.types("q")
	m.status()
}
