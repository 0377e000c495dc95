//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// tmux is a real terminal with a shell in it.
type tmux struct {
	*world
	bin, socket string
	prompts     int // that have been waited for
}

func newTmux(w *world) *tmux {
	w.Helper()
	bin, err := exec.LookPath("tmux")
	if err != nil {
		if os.Getenv("CI") == "true" {
			w.Fatal(err)
		}
		w.Skip("tmux is not installed: apt-get install tmux")
	}
	m := &tmux{world: w.with("PS1=$ ", "PROMPT_COMMAND=echo $? >>prompts", "TERM=xterm-256color", "LC_ALL=C.UTF-8"),
		bin: bin, socket: filepath.Join(w.dir, "tmux")}
	m.do("-f", "/dev/null", "new-session", "-d", "-x", "110", "-y", "40", "-c", w.dir, "bash", "--norc", "--noprofile")
	w.Cleanup(func() {
		if w.Failed() {
			w.Logf("the terminal:\n%s", strings.TrimSpace(m.screen()))
		}
		_ = m.command("kill-server").Run()
	})
	m.status()
	return m
}

func (m *tmux) command(args ...string) *exec.Cmd {
	c := exec.Command(m.bin, append([]string{"-u", "-S", m.socket}, args...)...)
	c.Env, c.Dir = m.env, m.dir
	return c
}

func (m *tmux) do(args ...string) string {
	m.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// screen is what one would see.
func (m *tmux) screen() string { return m.do("capture-pane", "-p") }

func (m *tmux) shows(text string) {
	m.Helper()
	m.eventually(fmt.Sprintf("the terminal shows %q", text), func() bool { return strings.Contains(m.screen(), text) })
}

// types types text and presses the keys: Enter, C-c, …
func (m *tmux) types(text string, keys ...string) {
	m.Helper()
	if text != "" {
		m.do("send-keys", "-l", text)
	}
	if len(keys) > 0 {
		m.do(append([]string{"send-keys"}, keys...)...)
	}
}

// shell runs a line in the shell and returns what it writes to out.
func (m *tmux) shell(line string) string {
	m.Helper()
	_ = os.Remove(filepath.Join(m.dir, "out")) // it is not to be read before this line has written it
	m.types(line+" >out", "Enter")
	m.status()
	b, err := os.ReadFile(filepath.Join(m.dir, "out"))
	if err != nil {
		m.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// status waits until the shell prompts again, and returns $? then. Nothing is typed ahead: who
// would read it is not sure.
func (m *tmux) status() int {
	m.Helper()
	var codes []string
	m.eventually("the shell prompts again", func() bool {
		b, _ := os.ReadFile(filepath.Join(m.dir, "prompts"))
		codes = strings.Fields(string(b))
		return strings.HasSuffix(string(b), "\n") && len(codes) > m.prompts
	})
	m.prompts++
	code, err := strconv.Atoi(codes[m.prompts-1])
	if err != nil {
		m.Fatal(err)
	}
	return code
}

// clears empties the screen, so that what is awaited is not what was there.
func (m *tmux) clears() {
	m.Helper()
	m.types("clear", "Enter")
	m.status()
	m.eventually("the screen is empty", func() bool { return strings.TrimSpace(m.screen()) == "$" })
}

func TestTheCommandGetsTheKeyboard(t *testing.T) {
	m := newTmux(newWorld(t))
	modes := m.shell("stty -g")
	m.clears()
	m.types("primacy run -q n cat", "Enter")
	m.awaitLine("n", 1)
	m.types("hello there", "Enter")
	m.eventually("cat writes what was typed", func() bool { return strings.Count(m.screen(), "hello there") == 2 })
	m.types("", "C-d")
	if got := m.status(); got != 0 {
		t.Errorf("exit %d after ^D", got)
	}
	// ^C is the command's: once, and it decides.
	m.types(`primacy run -q n sh -c 'trap "echo got int; exit 6" INT; echo up; while :; do sleep 0.1; done'`, "Enter")
	m.eventually("the command runs", func() bool { return regexp.MustCompile(`(?m)^up$`).MatchString(m.screen()) })
	m.types("", "C-c")
	if got := m.status(); got != 6 {
		t.Errorf("exit %d after ^C", got)
	}
	if n := len(regexp.MustCompile(`(?m)^(\^C)?got int$`).FindAllString(m.screen(), -1)); n != 1 {
		t.Errorf("^C arrived %d times:\n%s", n, m.screen())
	}
	m.types("primacy run -q n cat", "Enter")
	m.awaitLine("n", 1)
	m.types("again", "Enter")
	m.shows("again\nagain")
	m.types("", "C-c")
	if got := m.status(); got != 130 {
		t.Errorf("exit %d after ^C", got)
	}
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
}

// ^C is the command's alone, which dies of it. That ends the run, whatever --on-exit says, and the
// script around it.
func TestAnInterruptedCommandIsNotStartedAgain(t *testing.T) {
	m := newTmux(newWorld(t))
	m.types(`bash -c 'primacy run -q --on-exit restart n cat; echo goes on >>log'`, "Enter")
	m.awaitLine("n", 1)
	m.types("typed", "Enter")
	m.shows("typed\ntyped")
	m.types("", "C-c")
	if got := m.status(); got != 130 {
		t.Errorf("exit %d after ^C", got)
	}
	if log := m.read("log"); log != "" {
		t.Errorf("the script %s", log)
	}
}

func TestJobControl(t *testing.T) {
	jobControl(t, newWorld(t), "")
}

func TestJobControlIsolated(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	needIsolation(w)
	jobControl(t, w, " --isolate pid")
}

// jobControl stops and continues a run with these flags from a shell.
func jobControl(t *testing.T, w *world, flags string) {
	t.Helper()
	m := newTmux(w)
	modes := m.shell("stty -g")
	m.clears()
	line := "primacy run -q" + flags + " --ttl 120s n cat"
	m.types(line, "Enter")
	m.awaitLine("n", 1)
	m.types("before", "Enter")
	m.shows("before\nbefore")
	for range 2 {
		m.stops()
		if got := m.shell("jobs -s | wc -l"); got != "1" {
			t.Errorf("%s jobs are stopped", got)
		}
		m.types("fg", "Enter")
		m.shows(line + "\n")
		m.types("after", "Enter")
		m.shows("after\nafter")
	}
	m.types("", "C-d")
	if got := m.status(); got != 0 {
		t.Errorf("exit %d", got)
	}
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
}

// stops presses ^Z, and clears the screen.
func (m *tmux) stops() {
	m.Helper()
	m.types("", "C-z")
	if got := m.status(); got != 128+int(syscall.SIGTSTP) && got != 128+int(syscall.SIGSTOP) {
		m.Errorf("status %d after ^Z", got)
	}
	m.shows("Stopped")
	m.clears()
}

// A job that was stopped (^Z) for longer than its lease: the kernel wakes its supervisor at the
// deadline, which ends with the status of a loss. Nothing of it is there when the next one leads.
func TestAJobThatIsStoppedTooLongHasLost(t *testing.T) {
	onlyInVerify(t)
	m := newTmux(newWorld(t))
	modes := m.shell("stty -g")
	m.types(`primacy run -q --ttl 15s n sh -c 'stty raw -echo; echo up; sleep 1000'`, "Enter")
	m.eventually("the command runs", func() bool { return regexp.MustCompile(`(?m)^ *up$`).MatchString(m.screen()) })
	// In raw mode ^Z is a character; it is stopped from elsewhere, as a whole job.
	next := m.start("run", "-q", "n", "sh", "-c", "echo next; exec sleep 2000")
	m.awaitLine("n", 2)
	m.stopJob("primacy\x00run\x00-q\x00--ttl\x0015s\x00")
	m.status()
	m.shows("Stopped")
	next.prints("next")
	if s := m.commandLines(); strings.Contains(s, "\nsleep 1000") || strings.Contains(s, "\nsh -c stty") {
		t.Errorf("while the next one led there were:\n%s", s)
	}
	m.shows("(this process did")
	m.eventually("the end of the job", func() bool {
		return !strings.Contains(m.commandLines(), "\nprimacy run -q --ttl 15s")
	})
	next.signal(syscall.SIGTERM).ends(128 + 15)
	m.eventually("the shell tells how it ended", func() bool { // before a prompt, once the kernel has told the shell
		m.types("", "Enter")
		m.status()
		return strings.Contains(m.screen(), fmt.Sprintf("Exit %d", exitLost))
	})
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
}

// commandLines returns what runs in the test's folder, a line each.
func (w *world) commandLines() string {
	lines := ""
	for _, link := range w.processes() {
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		lines += "\n" + strings.ReplaceAll(string(b), "\x00", " ")
	}
	return lines
}

// stopJob sends SIGTSTP to the process group of the program that was started with these arguments.
func (m *tmux) stopJob(cmdline string) {
	m.Helper()
	for _, link := range m.processes() {
		b, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil &&
			strings.HasPrefix(string(b), cmdline) {
			group, err := syscall.Getpgid(pid)
			if err == nil {
				err = syscall.Kill(-group, syscall.SIGTSTP)
			}
			if err != nil {
				m.Fatal(err)
			}
			return
		}
	}
	m.Fatalf("no process %q", cmdline)
}

// A command that leaves the terminal raw and is killed: the shell finds it as it was.
func TestTheTerminalIsSaneAfterALoss(t *testing.T) {
	onlyInVerify(t)
	m := newTmux(newWorld(t))
	modes := m.shell("stty -g")
	m.types(`primacy run -q n sh -c 'trap "" TERM; stty raw -echo; echo up; while :; do sleep 0.1; done'`, "Enter")
	m.eventually("the command runs", func() bool { return regexp.MustCompile(`(?m)^ *up$`).MatchString(m.screen()) })
	m.revoke(m.awaitLine("n", 1)[0].Lease)
	if got := m.status(); got != exitLost {
		t.Errorf("exit %d", got)
	}
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
}

func TestDemoIsAPictureOnATerminal(t *testing.T) {
	t.Parallel()
	oneDemo(t)
	w := plainWorld(t)
	m := newTmux(w)
	modes := m.shell("stty -g")
	m.clears()
	m.types("primacy demo --keep", "Enter")
	m.within(demoPatience, "a picture of three", func() bool {
		s := m.screen()
		return strings.Contains(s, "LEASE LEFT") && strings.Contains(s, "LEADS") && strings.Contains(s, "█") &&
			strings.Contains(s, "node-3")
	})
	for _, text := range []string{"frozen", "has woken", "instants with two leaders: 0", "Stop with ^C."} {
		m.within(demoPatience, "the terminal shows "+text, func() bool { return strings.Contains(m.screen(), text) })
	}
	if s := m.screen(); strings.Contains(s, "LEASE LEFT") || strings.Contains(s, "░") {
		t.Errorf("the picture is left on the screen:\n%s", s)
	}
	// It goes on: another terminal sees it.
	store := regexp.MustCompile(`PRIMACY_STORE=(\S+)`).FindStringSubmatch(strings.ReplaceAll(m.screen(), "\n", ""))
	if store == nil {
		t.Fatalf("no store on the screen")
	}
	found, _ := filepath.Glob(filepath.Join(w.dir, "primacy-demo-*", "store"))
	if len(found) != 1 {
		t.Fatalf("stores: %q", found)
	}
	out := w.with("PRIMACY_STORE=embedded:"+found[0]).start("status", "demo").ends(0).says("leads",
		"waits 1").out.String()
	w.with("PRIMACY_STORE=embedded:"+found[0]).start("resign", "demo").ends(0)
	if again := w.with("PRIMACY_STORE=embedded:"+found[0]).start("status", "demo").ends(0).out.String(); again == out {
		t.Errorf("the same leader after a resign: %s", again)
	}
	m.types("", "C-c")
	if got := m.status(); got != 0 {
		t.Errorf("exit %d after ^C", got)
	}
	if left, _ := filepath.Glob(filepath.Join(w.dir, "primacy-demo-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
}
