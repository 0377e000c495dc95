package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// machine is a service manager that starts `primacy run` again and again, a moment after it ended.
type machine struct {
	*world
	id     string
	status string // where its /metrics are, while it runs
	shell  *exec.Cmd
	said   buffer
}

// machine starts one. Its command fails as long as there is a file "bad".
func (w *world) machine(id string) *machine {
	w.Helper()
	dir := filepath.Join(w.dir, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.Fatal(err)
	}
	m := &machine{world: w.with("XDG_RUNTIME_DIR="+dir, "TMPDIR="+dir), id: id,
		status: "127.0.0.1:" + servertest.FreePort(w)}
	m.shell = exec.Command("sh", "-c", `while :; do primacy run --id "$0" --status "$1" --backoff 8s night/pay -- `+
		`sh -c 'test ! -e bad || exit 1; echo up; exec sleep 1000'; sleep 1; done`, id, m.status)
	m.shell.Env, m.shell.Dir, m.shell.Stdout, m.shell.Stderr = m.env, w.dir, &m.said, &m.said
	m.shell.WaitDelay = prompt
	if err := m.shell.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(m.destroy)
	return m
}

// parents returns the children of each process of this computer.
func parents() map[int][]int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || len(fields) < 2 {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	return children
}

// tree returns the processes of the machine, parents first.
func (m *machine) tree() []int {
	children := parents()
	all := []int{m.shell.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// stop ends the shell, and asks the program to end: a term that is under way goes on to its end.
func (m *machine) stop() {
	shell := m.shell.Process.Pid
	if err := syscall.Kill(shell, syscall.SIGSTOP); err != nil { // from here on it starts nothing
		m.Fatal(err)
	}
	m.eventually(m.id+"'s shell is stopped", func() bool { return servertest.Halted(shell) })
	below := m.tree()[1:]
	children := parents()[shell]
	_ = syscall.Kill(shell, syscall.SIGKILL)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	m.eventually(m.id+" is gone", func() bool { return !slices.ContainsFunc(below, alive) })
}

// alive says whether a process runs: a zombie does not.
func alive(pid int) bool { return !ended(pid) }

// destroy kills all of it, its shell first.
func (m *machine) destroy() {
	if m.shell.ProcessState != nil {
		return
	}
	for range 100 {
		all := m.tree()
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(all) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = m.shell.Wait()
	if m.Failed() {
		m.Logf("%s said:\n%s", m.id, m.said.String())
	}
}

// question asks the program and returns its answer; the time of all of them is added up.
func (w *world) question(took *time.Duration, args ...string) string {
	w.Helper()
	p := w.start(args...)
	p.wait()
	*took += p.took
	return p.out.String()
}

// The bad night of an operator: the machine of the leader is frozen, the store is down, leaders are
// asked to resign, and a bad deploy crashes on every machine. What happened is read from the
// program's answers alone, in some seconds.
func TestTheBadNight(t *testing.T) {
	onlyInVerify(t)
	const ttl = 5 * time.Second
	frozen, down, crashing := 14*time.Second, 25*time.Second, 20*time.Second
	if testing.Short() {
		frozen, down, crashing = 8*time.Second, 10*time.Second, 8*time.Second
	}
	t.Parallel()
	shared.start(t)
	server := etcdtest.Start(t, etcdtest.Options{})
	w := newWorldOn(t, server).with("PRIMACY_TTL=" + ttl.String())
	machines := map[string]*machine{}
	for _, id := range []string{"web-1", "web-2", "web-3"} {
		machines[id] = w.machine(id)
	}
	// steady waits for another leader than that of the term before, which is in the history.
	steady := func(before shown.Term) (now shown.Term) {
		w.eventually("somebody leads, and is in the history", func() bool {
			p := w.start("history", "-o", "json", "night/pay")
			if p.wait() != 0 {
				return false
			}
			now = decode[[]shown.Term](w, p.out.String())[0]
			return now.Leads && !now.From.IsZero() && now.Token != before.Token
		})
		return now
	}

	first := steady(shown.Term{})
	froze := time.Now()
	for _, pid := range machines[first.ID].tree() {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	frozeBy := time.Now() // a busy machine takes its time
	time.Sleep(frozen)
	for _, pid := range machines[first.ID].tree() {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}

	steady(first)
	time.Sleep(2 * time.Second)
	second := steady(first) // whoever leads when the store falls: a busy machine may have cost the term before
	fell := time.Now()
	server.Kill()
	fellBy := time.Now()
	time.Sleep(down)
	server.Restart()
	rose := time.Now()
	third := steady(second)
	w.start("resign", "night/pay", "--reason", "deploy 4711").ends(0)
	steady(third)
	if err := os.WriteFile(filepath.Join(w.dir, "bad"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start("resign", "night/pay", "--reason", "the bad one").ends(0)
	w.eventually("several crashes", func() bool {
		return strings.Contains(w.start("history", "night/pay").done(), "×")
	})
	time.Sleep(crashing)
	w.eventually("three crashes of whom crashed first", func() bool {
		ends := crashesOf(decode[[]shown.Term](w, w.start("history", "-o", "json", "--limit", "0", "night/pay").done()))
		return len(ends) >= 3
	})
	crashed := scrapedCrashes(w, machines)
	for _, m := range machines {
		m.stop()
	}
	w.eventually("nobody stands any more", func() bool {
		p := w.start("status", "-o", "json")
		return p.wait() == 0 && !strings.Contains(p.done(), "night/pay")
	})

	// The questions.
	var took time.Duration
	status, top := w.question(&took, "status"), w.question(&took, "top", "--once")
	table := w.question(&took, "history", "night/pay")
	all := decode[[]shown.Term](w, w.question(&took, "history", "-o", "json", "--limit", "0", "night/pay"))
	t.Logf("in %v:\n%s\n%s\n%s", took, status, top, table)
	if took > 4*prompt/3 { // four, and a store that has to be waited for costs each a minute
		t.Errorf("the answers took %v", took)
	}
	slices.Reverse(all) // the oldest first
	find := func(what string, ok func(r shown.Term) bool) shown.Term {
		t.Helper()
		i := slices.IndexFunc(all, ok)
		if i < 0 {
			t.Fatalf("the history does not tell of %s", what)
		}
		return all[i]
	}

	// 1 to 3: who led under which token, why each term ended, and when.
	ice := find("the frozen leader", func(r shown.Term) bool {
		return r.Token == first.Token && r.Reason == primacy.Expired
	})
	if paused, _ := strconv.Atoi(ice.Paused); ice.Token == 0 || paused < 1500 ||
		ice.To.Before(froze.Add(-ttl)) || ice.To.After(frozeBy.Add(ttl+time.Second)) {
		t.Errorf("frozen at %v: %+v", froze, ice)
	}
	out := find("the outage", func(r shown.Term) bool { return r.Token == second.Token && !r.DownFrom.IsZero() })
	if out.Reason != primacy.Expired || out.To.Before(fell.Add(-ttl)) || out.To.After(fellBy.Add(ttl+time.Second)) {
		t.Errorf("the store was down from %v to %v: %+v", fell, rose, out)
	}
	asked := find("who asked", func(r shown.Term) bool { return r.Text == "deploy 4711" })
	user, host, ok := strings.Cut(asked.By, "@")
	if !ok || user == "" || host == "" || asked.Reason != primacy.Resigned {
		t.Errorf("asked by %q: %+v", asked.By, asked)
	}
	crash := find("the crash", func(r shown.Term) bool { return r.Reason == primacy.Failed })
	if crash.Text != "the command ended with status 1" {
		t.Errorf("%+v", crash)
	}

	// 4: for how long nobody led. Somebody who waited, or comes back, tells of the outage.
	after := all[slices.IndexFunc(all, func(r shown.Term) bool { return r.Token == out.Token })+1]
	gap, _ := strconv.Atoi(after.Gap)
	d := time.Duration(gap) * time.Millisecond
	if d < down-ttl-time.Second || d > time.Since(fell) || after.ID != third.ID {
		t.Errorf("nobody led for %v, the store was down for %v; then %s: %+v", d, rose.Sub(fell), third.ID, after)
	}

	// 5: what outlived its right, in the history as it was on stderr.
	var said, told []string
	for _, past := range regexp.MustCompile(`alive (\S+) after its lease deadline`).
		FindAllStringSubmatch(machines[first.ID].said.String(), -1) {
		by, err := time.ParseDuration(past[1])
		if err != nil {
			t.Error(err)
		}
		said = append(said, strconv.FormatInt(by.Milliseconds(), 10))
	}
	for _, r := range all {
		if r.ID == first.ID && r.Outlived != "" {
			told = append(told, r.Outlived)
		}
	}
	if !slices.Equal(said, told) {
		t.Errorf("the command outlived its right by %s ms, the history says %s", said, told)
	}

	// 6: the crash loop is one line, and its starts come ever more seldom. On a busy machine one
	// crash may come before the term that was asked to end.
	loop := regexp.MustCompile(`(?m)^(\d+)\.\.(\d+) .*failed: the command ended with status 1 ×(\d+) +-$`).
		FindStringSubmatch(table)
	n := 0
	for _, r := range all {
		if r.Reason == primacy.Failed {
			n++
		}
	}
	slices.Reverse(all)
	ends := crashesOf(all)
	// The newest term may be that of a command which was stopped as it crashed.
	inRow := all[slices.IndexFunc(all, func(r shown.Term) bool { return r.Reason == primacy.Failed }):]
	row := slices.IndexFunc(inRow, func(r shown.Term) bool { return r.Reason != primacy.Failed })
	if loop == nil || loop[3] != strconv.Itoa(row) {
		t.Errorf("%d crashes in a row, told as %q in\n%s", row, loop, table)
	}
	for i := 1; i < len(ends); i++ { // a busy machine makes it longer
		if least := min(time.Second<<(i-1), 8*time.Second) - 100*time.Millisecond; ends[i].Sub(ends[i-1]) < least {
			t.Errorf("%s crashed at %v: after %d crashes it stood again within %v", crash.ID, ends, i, least)
		}
	}

	// 7: nobody stands, and status and top tell of it.
	for what, said := range map[string]string{"status": status, "top": top} {
		if !strings.Contains(said, "night/pay") || !strings.Contains(said, "the command ended with status 1") {
			t.Errorf("%s says\n%s", what, said)
		}
	}

	// 8: counters that outlive the process that a scrape met.
	if crashed < 3 || crashed > n {
		t.Errorf("%d crashes were counted, there were %d", crashed, n)
	}
}

// crashesOf returns when whom a history, the newest first, has crash first crashed, the oldest
// first.
func crashesOf(all []shown.Term) (ends []time.Time) {
	id := ""
	for _, r := range slices.Backward(all) {
		if r.Reason != primacy.Failed || id != "" && r.ID != id {
			continue
		}
		id, ends = r.ID, append(ends, r.To)
	}
	return ends
}

// scrapedCrashes returns how many crashes /metrics of some machine counts: each of them knows of
// all.
func scrapedCrashes(w *world, machines map[string]*machine) (n int) {
	series := regexp.MustCompile(`(?m)^primacy_history_terms_total\{election="night/pay",reason="failed"\} (\d+)`)
	w.eventually("the crashes are in the metrics", func() bool {
		for _, m := range machines {
			answer, err := http.Get("http://" + m.status + "/metrics")
			if err != nil {
				continue // it is between two starts
			}
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if found := series.FindSubmatch(body); found != nil {
				n, _ = strconv.Atoi(string(found[1]))
			}
		}
		return n >= 3
	})
	return n
}

// done waits for its end and returns what it said.
func (p *prog) done() string { p.wait(); return p.out.String() }
