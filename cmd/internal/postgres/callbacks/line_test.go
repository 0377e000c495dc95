//go:build linux

package callbacks

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
)

// TestWhatACommandHas: its arguments, and nothing of ours.
func TestWhatACommandHas(t *testing.T) {
	inherited, err := unix.Dup(0) // as a descriptor that the agent was started with
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	b := newBench(t, (*exec.Cmd).Start)
	b.do(`for f in /proc/$$/fd/*; do readlink $f; done; echo "args $@"; cut -d" " -f5,6 /proc/$$/stat; echo err >&2`,
		"on_start", "replica", "my orders")
	var lines []string
	for line := ""; line != "a callback is done"; {
		line = b.hears("")
		lines = append(lines, line)
	}
	if len(lines) != 7 || lines[0] != "/dev/null" || !strings.HasPrefix(lines[1], "pipe:") || lines[2] != lines[1] ||
		lines[3] != "args on_start replica my orders" || lines[5] != "err" {
		t.Errorf("it says %q", lines)
	}
	group, session, _ := strings.Cut(lines[4], " ")
	ours, err := unix.Getsid(0)
	if err != nil || session == strconv.Itoa(ours) || group == strconv.Itoa(unix.Getpgrp()) {
		t.Errorf("it is in group %s of session %s, and we in %d of %d (%v)", group, session, unix.Getpgrp(), ours, err)
	}
}

// lives says whether a process is there. What died and was not buried is not.
func lives(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestANewerCallbackEndsTheOneThatRuns, and all that it has started, before it begins.
func TestANewerCallbackEndsTheOneThatRuns(t *testing.T) {
	b := newBench(t, (*exec.Cmd).Start)
	b.do(`trap "" TERM; (sleep 1000 & echo $!; wait) & setsid sleep 1000 & echo $$ $!; wait`)
	pids := append(strings.Fields(b.hears("")), strings.Fields(b.hears(""))...)
	if len(pids) != 3 {
		t.Fatalf("processes %q", pids)
	}
	t.Cleanup(func() { // where this test fails its processes would go on for long
		for _, pid := range pids {
			if n, err := strconv.Atoi(pid); t.Failed() && err == nil && lives(t, pid) {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	})
	b.do(`for pid in "$@"; do test -e /proc/$pid && echo left $pid; done; echo second`, pids...)
	if how := b.hears("a callback failed: "); !strings.Contains(how, "newer") {
		t.Errorf("the first was ended: %s", how)
	}
	if line := b.hears(""); line != "second" {
		t.Error(line)
	}
	b.hears("a callback is done")
}

// TestAThirdCallbackBegins: it comes while the first is being ended for the second. What the
// first has started is ended to its last process.
func TestAThirdCallbackBegins(t *testing.T) {
	for gap := range 12 {
		b := newBench(t, (*exec.Cmd).Start)
		b.do(`sh -c "sh -c 'sh -c \"echo up; sleep 1000; true\"; true'; true"; true`)
		b.hears("up")
		b.do("echo second")
		time.Sleep(time.Duration(gap) * 3 * time.Millisecond) // it is to meet each moment of that
		b.do("echo third")
		b.hears("third")
		b.hears("a callback is done")
	}
}

// TestWhatIsLeftRunningGoesOn: a command that has ended is not ended by a newer one.
func TestWhatIsLeftRunningGoesOn(t *testing.T) {
	b := newBench(t, (*exec.Cmd).Start)
	b.do(`sleep 1000 & echo pid $!`)
	pid := b.hears("pid")
	b.hears("a callback is done")
	b.do("echo second")
	b.hears("second")
	b.hears("a callback is done")
	if !lives(t, pid) {
		t.Error("what was left in the background was ended")
	}
	n, _ := strconv.Atoi(pid)
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestTheNewestAloneWaits: while the keeper of the first is being started.
func TestTheNewestAloneWaits(t *testing.T) {
	starts, goOn := make(chan struct{}), make(chan struct{})
	b := newBench(t, func(cmd *exec.Cmd) error {
		starts <- struct{}{}
		<-goOn
		return cmd.Start()
	})
	b.do("sleep 1000")
	<-starts
	b.do("echo second")
	b.do("echo third")
	b.hears("a callback was not called: a newer one came")
	goOn <- struct{}{}
	<-starts
	goOn <- struct{}{}
	b.hears("a callback failed")
	if line := b.hears(""); line != "third" {
		t.Errorf("after the first: %s", line)
	}
	<-b.begun()
}

// TestACommandThatFails is one line.
func TestACommandThatFails(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"data": "x", "bad": "#!/no/such/interpreter\n"} {
		mode := os.FileMode(0o644)
		if name == "bad" {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	b := newBench(t, (*exec.Cmd).Start)
	log := slog.New(watched(func(line string) { b.logged <- line }))
	for _, x := range [][2]string{{"missing", "no such file"}, {"data", "permission denied"},
		{"bad", "no such file"}} {
		b.call([]string{filepath.Join(dir, x[0])}, log)
		line := b.hears("")
		if !strings.HasPrefix(line, "a callback cannot be started: ") || !strings.Contains(line, x[1]) {
			t.Errorf("%s: %s", x[0], line)
		}
		<-b.begun()
	}
	b.do("exit 3")
	if how := b.hears("a callback failed: "); how != "exit status 3" {
		t.Error(how)
	}
	b.do("kill -KILL $$")
	if how := b.hears("a callback failed: "); !strings.Contains(how, "killed") {
		t.Error(how)
	}
	b.line.cfg.Start = func(*exec.Cmd) error { return errors.New("no processes") }
	b.do("echo")
	b.hears("a callback cannot be started: no processes")
}

// TestACommandThatPrintsForEver: the log has a bounded part of it, and no line without an end.
func TestACommandThatPrintsForEver(t *testing.T) {
	b := newBench(t, (*exec.Cmd).Start)
	b.do(`head -c 5000 /dev/zero | tr '\0' x; echo; yes`)
	first := b.hears("")
	b.hears("a callback says more")
	if len(first) > longestLine {
		t.Errorf("a line of %d bytes", len(first))
	}
	b.do("echo second")
	b.hears("a callback failed")
	b.hears("second")
}

// TestAHangingCallbackKeepsNothing: the member ends, nobody waits for what it had open, and the
// command goes on, though nobody hears it.
func TestAHangingCallbackKeepsNothing(t *testing.T) {
	dir := t.TempDir()
	gate, out := filepath.Join(dir, "gate"), filepath.Join(dir, "out")
	if err := errors.Join(unix.Mkfifo(gate, 0o600), unix.Mkfifo(out, 0o600)); err != nil {
		t.Fatal(err)
	}
	member := exec.Command("/proc/self/exe", memberArg,
		fmt.Sprintf(`read x < %s; echo one; echo two; echo three && echo "$@ went on" > %s`, gate, out))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	member.ExtraFiles = []*os.File{w}
	ended := make(chan error, 1)
	go func() {
		text, err := member.CombinedOutput() // until nobody has its output open
		w.Close()
		if err == nil && len(text) > 0 {
			err = errors.New(string(text))
		}
		_, also := io.ReadAll(r) // until nobody has what it was started with
		ended <- errors.Join(err, also)
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(limit):
		t.Fatal("the member does not end")
	}
	opened := make(chan string, 1)
	go func() {
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			opened <- err.Error()
			return
		}
		text, err := os.ReadFile(out)
		opened <- string(text) + fmt.Sprint(err)
	}()
	select {
	case text := <-opened:
		if text != "on_stop replica orders went on\n<nil>" {
			t.Errorf("the command says %s", text)
		}
	case <-time.After(limit):
		t.Fatal("the command did not go on")
	}
}

// TestTheMemberWaitsForNoStart: of a command on a file system that hangs.
func TestTheMemberWaitsForNoStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		logged := make(chan string, 10)
		m := &shown{}
		c := New(Config{Commands: map[Action][]string{OnStart: shell("true"), OnStop: shell("true")},
			Log: slog.New(watched(func(line string) { logged <- line })),
			Start: func(*exec.Cmd) error {
				<-hangs
				return errors.New("hung")
			}})
		c.Follow(m)
		m.show(agent.Snapshot{PID: 1, Up: true})
		time.Sleep(time.Second) // it is called
		m.show(agent.Snapshot{})
		began := time.Now()
		c.End()
		if took := time.Since(began); took > begunLimit {
			t.Errorf("the end took %v", took)
		}
		close(hangs)
		synctest.Wait()
		close(logged)
		if all := slices.Collect(func(yield func(string) bool) {
			for line := range logged {
				yield(line)
			}
		}); !slices.Contains(all, "the last callback was not called: the one before does not end") {
			t.Errorf("logged: %q", all)
		}
	})
}

// TestReloadsAreBesideTheOthers: one ends no other command, and is not ended by one. What is called
// for nothing ends nothing either.
func TestReloadsAreBesideTheOthers(t *testing.T) {
	logged := make(chan string, 100)
	b := &bench{T: t, logged: logged}
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := os.OpenFile(gate, os.O_RDWR, 0) // so that nobody waits for the other end
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	m := &shown{}
	c := New(Config{Cluster: "orders", Primary: "master", Start: (*exec.Cmd).Start,
		Log: slog.New(watched(func(line string) { logged <- line })),
		Commands: map[Action][]string{OnStart: shell("echo $@; read x < " + gate + "; echo start goes on"),
			OnReload: shell("echo $@")}})
	c.Follow(m)
	defer c.End()
	s := agent.Snapshot{PID: 1, Up: true}
	m.show(s)
	b.hears("on_start replica orders")
	s.Reloads++
	m.show(s)
	b.hears("on_reload replica orders")
	m.show(agent.Snapshot{}) // there is no on_stop
	if _, err := opened.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	b.hears("start goes on")
}
