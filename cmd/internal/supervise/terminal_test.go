//go:build linux

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// screen is a pseudo-terminal with a session on it: what a person at a terminal has before him.
type screen struct {
	keys   *os.File // the master side
	leader *exec.Cmd
	report string // of the supervisor

	mu   sync.Mutex
	text strings.Builder
	read int // how far see has looked
}

// newScreen starts a session whose leader is args. In its environment "$RUN" holds the command line
// of a supervisor for c, to be eval'ed.
func newScreen(t *testing.T, c Command, args ...string) *screen {
	t.Helper()
	return openScreen(t, setup{Command: c}, args...)
}

func openScreen(t *testing.T, run setup, args ...string) *screen {
	t.Helper()
	run.Report = filepath.Join(t.TempDir(), "report")
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{keys: os.NewFile(uintptr(fd), "ptmx"), report: run.Report}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	sup := supervisorCommand(t, run)
	s.leader = exec.Command(args[0], args[1:]...)
	s.leader.Stdin, s.leader.Stdout, s.leader.Stderr = slave, slave, slave
	s.leader.Env = append(os.Environ(),
		`RUN="$SUP" __supervisor "$CONF"`, "SUP="+self(), "CONF="+sup.Args[2], "PS1=ready> ", "ENV=")
	s.leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := s.leader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(t) })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := s.keys.Read(buf)
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// end ends the session as a closed window does, and sees everybody gone.
func (s *screen) end(t *testing.T) {
	s.leader.Process.Kill()
	s.leader.Wait()
	s.keys.Close() // hangs up: whoever is left of the session gets SIGHUP
	wantNobodyLeft(t)
}

func (s *screen) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// see waits until want comes up on the screen, after what was seen before.
func (s *screen) see(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		text := s.text.String()
		i := strings.Index(text[s.read:], want)
		if i >= 0 {
			s.read += i + len(want)
		}
		s.mu.Unlock()
		if i >= 0 {
			return
		}
	}
	t.Fatalf("waited a minute for %q on the screen:\n%s%s", want, s.text.String(), whoIsThere(os.Getpid()))
}

// front returns the group in the foreground.
func (s *screen) front(t *testing.T) int {
	t.Helper()
	raw, err := s.keys.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	group := 0
	_ = raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	if err != nil {
		t.Fatal(err)
	}
	return group
}

// reads is a command that needs its terminal: it repeats lines, and says when ^C reaches it.
const reads = `trap 'echo int-$((40+2)); exit 3' INT; echo up-$((40+2))
	while :; do read line && echo "line:$line"; done`

func inState(pid int, state byte) func() bool {
	return func() bool { s, ok := procfs.Look(pid); return ok && s.State == state }
}

// A script without job control: it depends on the terminal being given back.
func TestTerminalIsLentAndGivenBack(t *testing.T) {
	s := newScreen(t, command(reads), "sh", "-c", `eval "$RUN"; echo "status:$?"; read x; echo "read:$x"`)
	_, pid := awaitStart(t, s.report)
	s.see(t, "up-42")
	if got := s.front(t); got != pid {
		t.Errorf("in front: got group %d, want the command's %d", got, pid)
	}
	s.press(t, "hello\n")
	s.see(t, "line:hello")
	// Nobody could continue a script without a shell above it: ^Z must pass without harm.
	s.press(t, "\x1a")
	s.press(t, "there\n")
	s.see(t, "line:there")
	s.press(t, "\x03")
	s.see(t, "int-42")
	s.see(t, "status:3")
	s.press(t, "back\n")
	s.see(t, "read:back")
}

// A command that cannot be executed has got the terminal already when that comes out. The script
// has it back afterwards.
func TestTerminalAfterAStartThatFails(t *testing.T) {
	c := command("")
	c.Args = []string{filepath.Join(t.TempDir(), "garbage")}
	if err := os.WriteFile(c.Args[0], []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newScreen(t, c, "sh", "-c", `eval "$RUN"; echo "status:$?"; read x; echo "read:$x."`)
	s.see(t, ErrNotExecutable.Error())
	s.see(t, "status:99")
	s.press(t, "back\n")
	s.see(t, "read:back.")
}

// A command that runs beside another one does not get the terminal, whatever its standard input is.
func TestNoTerminalWithoutJobControl(t *testing.T) {
	c := command(`echo up-$((40+2)); while :; do sleep 1; done`)
	c.NoJobControl = true
	s := newScreen(t, c, "sh", "-c", `eval "$RUN"; exit`)
	s.see(t, "up-42")
	if got, want := s.front(t), s.leader.Process.Pid; got != want {
		t.Errorf("in front: got group %d, want the script's %d", got, want)
	}
}

func TestTerminalAfterKills(t *testing.T) {
	for _, who := range []string{"supervisor", "command"} {
		t.Run(who, func(t *testing.T) {
			c := command(`stty -echo; echo up-$((40+2)); while :; do sleep 1; done`)
			s := newScreen(t, c, "sh", "-c", `eval "$RUN"; echo "status:$?"; sleep 60`)
			s.see(t, "up-42")
			guardian, victim := awaitStart(t, s.report)
			if who == "supervisor" {
				st, _ := procfs.Look(guardian)
				victim = st.Parent
			}
			send(t, unix.SIGKILL, victim)
			s.see(t, "status:137")
			eventually(t, "the script in front again", func() bool { return s.front(t) == s.leader.Process.Pid })
			eventually(t, "echo on again", func() bool {
				raw, _ := s.keys.SyscallConn()
				on := false
				_ = raw.Control(func(fd uintptr) {
					modes, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
					on = err == nil && modes.Lflag&unix.ECHO != 0
				})
				return on
			})
		})
	}
}

// A person at a shell: ^Z, fg, ^Z, bg, fg, ^C. Once typed directly, once with a script in between.
func TestJobControl(t *testing.T) {
	for _, line := range []string{`eval "$RUN"`, `sh -c 'eval "$RUN"; exit $?'`} {
		t.Run(line, func(t *testing.T) {
			s := newScreen(t, command(reads), "sh", "-i")
			s.see(t, "ready> ")
			s.press(t, line+"\n")
			s.see(t, "up-42")
			guardian, pid := awaitStart(t, s.report)
			supervisor, _ := procfs.Look(guardian)
			for range 3 {
				s.press(t, "\x1a")
				s.see(t, "ready> ")
				eventually(t, "a stopped command", inState(pid, 'T'))
				eventually(t, "a stopped supervisor", inState(supervisor.Parent, 'T'))
				s.press(t, "fg\n")
				eventually(t, "the command in front", func() bool { return s.front(t) == pid })
				s.press(t, "again\n")
				s.see(t, "line:again")
			}
			s.press(t, "\x03")
			s.see(t, "int-42")
			s.see(t, "ready> ")
			s.press(t, "echo status:$?\n")
			s.see(t, "status:3")
		})
	}
}

// ^C reaches the command alone, since it has the terminal. A script that runs it ends with it all
// the same. After ^\, which bash is deaf to, and if the command has caught the signal, it goes on.
func TestAScriptEndsWithItsInterruptedCommand(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	for _, test := range []struct{ name, key, command, status, after string }{
		{"^C", "\x03", "echo up-$((40+2)); exec sleep 60", "status:130", ""},
		{"^\\", "\x1c", "ulimit -c 0; echo up-$((40+2)); exec sleep 60", "status:0", "after:131"},
		{"caught", "\x03", "trap 'exit 3' INT; echo up-$((40+2)); while :; do sleep 0.1; done", "status:0", "after:3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScreen(t, command(test.command), "sh", "-i")
			s.see(t, "ready> ")
			s.press(t, bash+` -c 'eval "$RUN"; echo "after":$?'`+"\n")
			s.see(t, "up-42")
			s.press(t, test.key)
			if test.after != "" {
				s.see(t, test.after)
			}
			s.see(t, "ready> ")
			s.press(t, "echo status:$?\n")
			s.see(t, test.status)
			s.mu.Lock()
			defer s.mu.Unlock()
			if test.after == "" && strings.Contains(s.text.String(), "after:") {
				t.Errorf("the script went on:\n%s", s.text.String())
			}
		})
	}
}

// bg: it runs on behind the shell, and fg hands it the terminal although it never stopped.
func TestBackground(t *testing.T) {
	// No loop of sleeps here: dash starts them with vfork, and if ^Z meets the child before its
	// exec, the shell hangs in the kernel, neither stopped nor running. (It does so under any
	// shell.)
	c := command(`trap 'echo int-$((40+2)); exit 3' INT; sleep 60 & echo up-$((40+2)); while :; do wait; done`)
	s := newScreen(t, c, "sh", "-i")
	s.see(t, "ready> ")
	s.press(t, "eval \"$RUN\"\n")
	s.see(t, "up-42")
	_, pid := awaitStart(t, s.report)
	s.press(t, "\x1a")
	s.see(t, "ready> ")
	s.press(t, "bg\n")
	eventually(t, "a running command", func() bool { return !inState(pid, 'T')() })
	if s.front(t) == pid {
		t.Error("the command took the terminal from the shell")
	}
	s.press(t, "fg\n")
	eventually(t, "the command in front", func() bool { return s.front(t) == pid })
	s.press(t, "\x03")
	s.see(t, "int-42")
}

// A process that cannot be suspended waits for a SIGCONT that never comes. With a frozen guardian
// nobody else would kill meanwhile.
func TestNoWaitForASignalOutlastsTheDeadline(t *testing.T) {
	w := &watcher{Process: &Process{plan: plan{deadline: boottime.Now() + 50*time.Millisecond}}}
	if late := w.awaitSignal(&w.gotCONT); !late {
		t.Error("the watcher has waited a second for a signal, past the deadline")
	}
	w.plan.deadline = boottime.Now() + time.Hour
	w.gotCONT = true
	if late := w.awaitSignal(&w.gotCONT); late || w.gotCONT {
		t.Errorf("a signal that has come: late %v, still noted %v", late, w.gotCONT)
	}
}

// Stopped with ^Z and forgotten: the right ends all the same.
func TestDeadlineWhileStopped(t *testing.T) {
	c := command(reads)
	c.Grace, c.Margin = 2*time.Second, 2*time.Second // this process, too, must get a processor to see the end
	hold := filepath.Join(t.TempDir(), "hold")
	s := openScreen(t, setup{Command: c, TTL: 5 * time.Second, Hold: hold}, "sh", "-i")
	s.see(t, "ready> ")
	s.press(t, "eval \"$RUN\"\n")
	s.see(t, "up-42")
	_, pid := awaitStart(t, s.report)
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deadline := awaitDeadline(t, s.report)
	s.press(t, "\x1a")
	eventually(t, "a dead command", func() bool { return isDead(pid) })
	if now := boottime.Now(); now >= deadline {
		t.Errorf("died %v after the deadline", now-deadline)
	}
}
