//go:build linux

package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
	"golang.org/x/sys/unix"
)

// testAction is what testHandler gets.
type testAction struct {
	File  string // it writes here "gone NS", "variables N", "over NS"
	Panic bool
	Hang  time.Duration // it takes so long, whatever the context says
	Wait  bool          // it takes as long as it may
	Say   string
}

func testHandler(ctx context.Context, text []byte, messages io.Writer) {
	var w testAction
	if json.Unmarshal(text, &w) != nil {
		return
	}
	f, err := os.OpenFile(w.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintf(f, "gone %d\nvariables %d\n", boottime.Now(), len(os.Environ()))
	if w.Panic {
		panic("as a client of a store may, or the runtime where it gets no thread")
	}
	_, _ = io.WriteString(messages, w.Say)
	time.Sleep(w.Hang)
	if w.Wait {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		fmt.Fprintf(f, "over %d\n", boottime.Now())
	}
}

// withLastAction gives a command a last action and returns the handler's file.
func withLastAction(t *testing.T, c *Command, w testAction) string {
	t.Helper()
	w.File = filepath.Join(t.TempDir(), "action")
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	c.LastAction = &LastAction{Payload: text, Limit: 5 * time.Second}
	c.Grace = min(c.Grace, 100*time.Millisecond) // these commands are deaf to the stop signal
	return w.File
}

// actionDone returns when the handler was called; false: it was not.
func actionDone(file string) (at time.Duration, ok bool) {
	text, _ := os.ReadFile(file)
	_, after, found := bytes.Cut(text, []byte("gone "))
	n, _ := fmt.Sscanf(string(after), "%d\n", &at)
	return at, found && n == 1
}

func awaitAction(t *testing.T, file string) (at time.Duration) {
	t.Helper()
	eventually(t, "the last action", func() (ok bool) { at, ok = actionDone(file); return ok })
	return at
}

// overlap returns for how long the tree went on after that instant; negative: it had ended so long
// before.
func overlap(t *testing.T, file string, at time.Duration) (worst time.Duration) {
	t.Helper()
	worst = -1 << 62
	for _, last := range stamps(t, file) {
		worst = max(worst, last-at)
	}
	return worst
}

func TestTheWillOfAKilledSupervisor(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		var file string
		f := newFamilyWith(t, ttl, func(c *Command) { file = withLastAction(t, c, testAction{}) })
		if i%2 == 1 { // frozen before it died, and the command with it
			send(t, unix.SIGSTOP, f.supervisor, f.command)
		}
		send(t, unix.SIGKILL, f.supervisor)
		at := awaitAction(t, file)
		eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
		if d := overlap(t, f.file, at); d >= 0 {
			t.Errorf("the command went on for %v after the last action", d)
		} else {
			t.Logf("the last action was done %v after the last stamp, %v before the deadline", -d, f.deadline-at)
		}
	}
}

// A handler that panics takes the guardian with it, but not before all is dead that the guardian
// guards: also what has left the command's session.
func TestAnExecutorThatPanics(t *testing.T) {
	t.Parallel()
	var file string
	f := newFamilyWith(t, ttl, func(c *Command) { file = withLastAction(t, c, testAction{Panic: true}) })
	send(t, unix.SIGKILL, f.supervisor)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	f.wantNobodyLeft(t)
	wantDeadBy(t, f.file, f.deadline)
	if at := awaitAction(t, file); overlap(t, f.file, at) >= 0 {
		t.Error("the handler was called while the command ran")
	}
}

// The handler has no variables of the supervisor's or the command's environment: they are in no
// file under /proc of a process that may outlive both.
func TestAnExecutorHasNoEnvironment(t *testing.T) {
	t.Setenv("PRIMACY_TEST_SECRET", "secret")
	var file string
	f := newFamilyWith(t, ttl, func(c *Command) { file = withLastAction(t, c, testAction{}) })
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", f.guardian)); err != nil || len(env) > 0 {
		t.Errorf("the guardian's environment: %q, %v", env, err)
	}
	send(t, unix.SIGKILL, f.supervisor)
	awaitAction(t, file)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "variables 0\n") {
		t.Errorf("the handler had an environment: %q", text)
	}
}

// The end of the socket alone is not the supervisor's death: it may live on with a fault in it, and
// what it supervises is its own to give up.
func TestASupervisorThatLivesWithoutItsSocket(t *testing.T) {
	t.Parallel()
	for _, lives := range []bool{true, false} {
		g := &guardian{orderReader: lineReader{closed: true}, goneReported: true,
			command: startOrder{SupervisorPID: os.Getppid()}}
		if !lives {
			g.command.SupervisorPID = 1 << 30 // no process has that number
		}
		g.lastAction = lastActionRunner{action: &LastAction{Payload: []byte("payload"), Limit: 5 * time.Second},
			stderr: &stderrCopy{fd: -1}}
		g.afterGone(0)
		if g.lastAction.due == lives || !g.endLoop {
			t.Errorf("the supervisor lives: %v; the last action is due: %v; the loop ends: %v", lives, g.lastAction.due,
				g.endLoop)
		}
	}
}

// Something runs that no look into /proc has found: the command is reaped, but not all is gone.
func TestWhatTheGuardianHasNotSeenIsNotGone(t *testing.T) {
	newSupervisor(t) // no child is left of an earlier test, which wait4 would reap here
	pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "60"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	g := &guardian{commandExited: true, reaped: true}
	if g.reapTree() {
		t.Error("gone, while a child runs")
	}
	send(t, unix.SIGKILL, pid)
	eventually(t, "the end of the child", g.reapTree)
}

// A frozen supervisor has not died, however long it is frozen; and after the deadline its last
// action is not run any more.
func TestAFrozenSupervisorLeavesNothing(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	var file string
	f := newFamilyWith(t, ttl, func(c *Command) { file = withLastAction(t, c, testAction{}) })
	send(t, unix.SIGSTOP, f.supervisor)
	wantDeadBy(t, f.file, f.deadline)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	send(t, unix.SIGKILL, f.supervisor)
	if text, err := os.ReadFile(file); err == nil {
		t.Errorf("the handler was called: %q", text)
	}
}

// While the supervisor is frozen, its command ends by itself, and then it dies: nothing of the
// command is left, and the guardian knows.
func TestASupervisorThatDiesAfterItsCommand(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	var file string
	f := newFamilyWith(t, 20*time.Second, func(c *Command) { file = withLastAction(t, c, testAction{}) })
	send(t, unix.SIGSTOP, f.supervisor)
	begin := boottime.Now()
	for _, pid := range f.pids() {
		_ = unix.Kill(pid, unix.SIGKILL) // the guardian, too, ends the others once the command is dead
	}
	eventually(t, "the command's end", func() bool { return len(f.pids()) == 0 })
	if isDead(f.guardian) {
		t.Fatal("the guardian ended before its supervisor")
	}
	if _, ok := actionDone(file); ok {
		t.Error("the last action of a supervisor that lives was run")
	}
	send(t, unix.SIGKILL, f.supervisor)
	if at := awaitAction(t, file); at < begin || overlap(t, f.file, at) >= 0 {
		t.Error("the last action ran before the command was gone")
	}
}

func TestTheWillOfTheLivingIsNotOpened(t *testing.T) {
	s := newSupervisor(t)
	for _, script := range []string{"exit 3", "sleep 60"} {
		c := command(script)
		done := withLastAction(t, &c, testAction{})
		p := start(t, s, c)
		if script != "exit 3" {
			p.Stop(0)
		}
		p.Wait()
		if text, err := os.ReadFile(done); err == nil {
			t.Errorf("%s: the handler was called: %q", script, text)
		}
	}
}

// Killed together with its guardian: nobody is left to run the last action.
func TestTheWillDiesWithTheGuardian(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	var file string
	f := newFamilyWith(t, 20*time.Second, func(c *Command) { file = withLastAction(t, c, testAction{}) })
	pids := f.pids()
	send(t, unix.SIGSTOP, f.supervisor, f.guardian)
	send(t, unix.SIGKILL, f.supervisor, f.guardian)
	eventually(t, "the command's end", func() bool { return isDead(f.command) })
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if text, err := os.ReadFile(file); err == nil {
		t.Errorf("the handler was called: %q", text)
	}
}

// A handler that does not come to an end is left behind when its limit is over.
func TestAnExecutorThatHangs(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	var file string
	f := newFamilyWith(t, ttl, func(c *Command) {
		file = withLastAction(t, c, testAction{Hang: time.Hour})
		c.LastAction.Limit = 50 * time.Millisecond
	})
	send(t, unix.SIGKILL, f.supervisor)
	awaitAction(t, file)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	f = newFamilyWith(t, ttl, func(c *Command) {
		file = withLastAction(t, c, testAction{Hang: 500 * time.Millisecond})
		c.LastAction.Limit = 50 * time.Millisecond
	})
	send(t, unix.SIGKILL, f.supervisor)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "over ") {
		t.Errorf("the context did not end: %q", text)
	}
}

// What the handler says goes where the command's errors went, whatever that is; nobody is kept
// waiting for the end of it.
func TestMessagesOfAnExecutor(t *testing.T) {
	dir := t.TempDir()
	for _, kind := range []string{"file", "pipe", "socket", "pipe without a reader", "closed"} {
		t.Run(kind, func(t *testing.T) {
			read, write := ends(t, kind, dir)
			c, file := tree(t, 20*time.Second)
			c.Grace = 50 * time.Millisecond
			c.Stderr = write
			done := withLastAction(t, &c, testAction{Say: "the last words\n"})
			report := filepath.Join(t.TempDir(), "report")
			sup := supervisorCommand(t, setup{Command: c, Report: report})
			sup.Stderr = write
			if err := sup.Start(); err != nil {
				t.Fatal(err)
			}
			guardian, _ := awaitStart(t, report)
			waitTree(t, file)
			if write != nil {
				write.Close()
			}
			if kind == "pipe without a reader" {
				read.Close()
			}
			_ = sup.Process.Kill()
			_ = sup.Wait()
			awaitAction(t, done)
			eventually(t, "the guardian's end", func() bool { return isDead(guardian) })
			wantNobodyLeft(t)
			if kind == "file" || kind == "pipe" || kind == "socket" {
				_ = read.SetReadDeadline(time.Now().Add(time.Minute))
				if got, err := io.ReadAll(read); err != nil || string(got) != "the last words\n" {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
}

// ends returns both ends of a kind of standard error.
func ends(t *testing.T, kind, dir string) (read, write *os.File) {
	t.Helper()
	var err error
	switch kind {
	case "closed":
		return nil, nil
	case "file":
		if write, err = os.Create(filepath.Join(dir, "file")); err == nil {
			read, err = os.Open(write.Name())
		}
	case "socket":
		var pair [2]int
		pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			read, write = os.NewFile(uintptr(pair[0]), "read"), os.NewFile(uintptr(pair[1]), "write")
		}
	default:
		read, write, err = os.Pipe()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return read, write
}
