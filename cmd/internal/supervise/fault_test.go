//go:build linux

package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// withoutOverrun forgets the overrun of a command that is this binary: built with -race its memory takes so long to
// tear down that it counts as there when it has long ceased to run. The stamps tell of that; TestDeaf checks overruns.
func withoutOverrun(s Status) Status {
	s.Overrun = 0
	return s
}

// supervisorCommand is a supervisor process for c, not yet started.
func supervisorCommand(t *testing.T, c Command) *exec.Cmd {
	t.Helper()
	s := setup{Command: c, Report: filepath.Join(t.TempDir(), "report")}
	s.Command.Stdin, s.Command.Stdout, s.Command.Stderr = nil, nil, nil // given as its own
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self(), "__supervisor", string(text))
	cmd.Env = append(os.Environ(), "REPORT="+s.Report)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	return cmd
}

// family is a supervisor in a process of its own, its guardian, and a tree of three.
type family struct {
	cmd        *exec.Cmd
	supervisor int
	guardian   int
	command    int
	report     string
	file       string // stamps
	deadline   time.Duration
}

func newFamily(t *testing.T, left time.Duration) *family {
	t.Helper()
	c, file := tree(t, left)
	cmd := supervisorCommand(t, c)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f := &family{cmd: cmd, supervisor: cmd.Process.Pid, file: file, deadline: c.Deadline}
	f.report = strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "REPORT=")
	eventually(t, "the start", func() bool {
		text, _ := os.ReadFile(f.report)
		n, _ := fmt.Sscanf(string(text), "started %d %d\n", &f.guardian, &f.command)
		return n == 2
	})
	t.Cleanup(func() { f.end(t) })
	waitTree(t, file)
	if now := boottime.Now(); now > c.Deadline-c.Grace {
		t.Fatalf("this machine is too slow for a deadline of %v", left)
	}
	return f
}

// end kills the supervisor: after that nobody may be left.
func (f *family) end(t *testing.T) {
	_ = f.cmd.Process.Kill()
	_ = f.cmd.Wait()
	wantNobodyLeft(t)
}

// pids returns the tree, guardian and supervisor excluded.
func (f *family) pids() []int {
	var pids []int
	for _, m := range descendants(f.guardian, snapshot(), func(int) bool { return false }) {
		pids = append(pids, m.pid)
	}
	return pids
}

func (f *family) status(t *testing.T) Status {
	t.Helper()
	var s Status
	eventually(t, "the status", func() bool {
		text, _ := os.ReadFile(f.report)
		_, after, ok := strings.Cut(string(text), "ended ")
		return ok && json.Unmarshal([]byte(after), &s) == nil
	})
	return withoutOverrun(s)
}

func send(t *testing.T, sig unix.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatalf("signal %v to %d: %v", sig, pid, err)
		}
	}
}

const ttl = 800 * time.Millisecond

func TestSupervisorKilled(t *testing.T) {
	f := newFamily(t, ttl)
	send(t, unix.SIGKILL, f.supervisor)
	wantDeadBy(t, f.file, f.deadline)
}

func TestSupervisorFrozen(t *testing.T) {
	f := newFamily(t, ttl)
	send(t, unix.SIGSTOP, f.supervisor)
	wantDeadBy(t, f.file, f.deadline)
	send(t, unix.SIGCONT, f.supervisor)
	if got, want := f.status(t), (Status{Code: 137, By: Deadline, Killed: true}); got != want {
		t.Errorf("after the thaw: got %+v, want %+v", got, want)
	}
}

func TestGuardianKilled(t *testing.T) {
	f := newFamily(t, 20*time.Second)
	begin := boottime.Now()
	send(t, unix.SIGKILL, f.guardian)
	got := f.status(t)
	if want := (Status{Code: 137, By: GuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// At once, not only at the deadline: nobody watches the command now.
	wantDeadBy(t, f.file, begin+2*time.Second)
}

func TestGuardianFrozen(t *testing.T) {
	f := newFamily(t, ttl)
	send(t, unix.SIGSTOP, f.guardian)
	wantDeadBy(t, f.file, f.deadline)
	if got, want := f.status(t), (Status{Code: 137, By: GuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The whole machine stands still past the deadline. What is thawed first is the command: nobody can do better than to
// kill it as soon as the guardian runs again.
func TestAllFrozen(t *testing.T) {
	f := newFamily(t, ttl)
	var pids []int
	eventually(t, "the daemon's parent gone", func() bool { pids = f.pids(); return len(pids) == 3 })
	all := append(pids, f.guardian, f.supervisor)
	send(t, unix.SIGSTOP, all...)
	eventually(t, "the deadline", func() bool { return boottime.Now() > f.deadline+20*time.Millisecond })
	thaw := boottime.Now()
	send(t, unix.SIGCONT, all...)
	f.status(t)
	for id, last := range stamps(t, f.file) {
		t.Logf("%s: last stamp %v after the thaw", id, last-thaw)
		if last-thaw > 50*time.Millisecond {
			t.Errorf("%s ran on for %v after the thaw", id, last-thaw)
		}
	}
}

// Both at the same instant: only PDEATHSIG is left, and it reaches the command alone. Documented, and held here so that
// the documentation stays true.
func TestBothKilled(t *testing.T) {
	f := newFamily(t, 20*time.Second)
	pids := f.pids()
	send(t, unix.SIGSTOP, f.supervisor, f.guardian)
	send(t, unix.SIGKILL, f.supervisor, f.guardian)
	eventually(t, "the command's end", func() bool { return dead(f.command) })
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // none is reaped yet: they are ours, or a killed one's
	}
}

// Guardian lost beside other children of the supervisor: they are none of its business.
func TestOthersAreSpared(t *testing.T) {
	s := newSupervisor(t)
	hook := exec.Command("sleep", "60")
	if err := s.StartOther(hook); err != nil {
		t.Fatal(err)
	}
	defer func() { hook.Process.Kill(); hook.Wait() }()
	other := start(t, s, command("sleep 60"))
	c, file := tree(t, 30*time.Second)
	p := start(t, s, c)
	waitTree(t, file)
	send(t, unix.SIGKILL, p.guardian.Process.Pid)
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 137, By: GuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantDeadBy(t, file, boottime.Now())
	for _, pid := range []int{hook.Process.Pid, other.PID(), other.guardian.Process.Pid} {
		if dead(pid) {
			t.Errorf("process %d was killed with it", pid)
		}
	}
}
