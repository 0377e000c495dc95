//go:build linux

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
	"golang.org/x/sys/unix"
)

// withoutOverrun forgets the overrun of a command that is this binary: built with -race its memory
// takes so long to tear down that it counts as there when it has long ceased to run. The stamps
// tell of that; TestDeaf checks overruns.
func withoutOverrun(s Status) Status {
	s.Overrun = 0
	return s
}

// supervisorCommand is a supervisor process for s, not yet started.
func supervisorCommand(t *testing.T, s setup) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(self())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if s.Command.Stdout != nil {
		cmd.Stdout = s.Command.Stdout
	}
	s.Command.Stdin, s.Command.Stdout, s.Command.Stderr = nil, nil, nil // given as its own
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append(cmd.Args, "__supervisor", string(text))
	return cmd
}

// family is a supervisor in a process of its own, its guardian, and a tree of three.
type family struct {
	cmd        *exec.Cmd
	supervisor int
	guardian   int
	command    int
	report     string
	file       string        // stamps
	all        []int         // the guardian and the tree
	deadline   time.Duration // what the last renewal made it
}

// newFamily returns when the whole tree runs and the deadline is not extended any more, a ttl
// before it ends.
func newFamily(t *testing.T, ttl time.Duration) *family {
	t.Helper()
	return newFamilyOf(t, ttl, func(*setup) {})
}

// newFamilyWith is newFamily with a command that was changed.
func newFamilyWith(t *testing.T, ttl time.Duration, change func(*Command)) *family {
	t.Helper()
	return newFamilyOf(t, ttl, func(s *setup) { change(&s.Command) })
}

// newFamilyOf is newFamily with a setup that was changed.
func newFamilyOf(t *testing.T, ttl time.Duration, change func(*setup)) *family {
	t.Helper()
	c, file := tree(t, ttl)
	dir := t.TempDir()
	f := &family{report: filepath.Join(dir, "report"), file: file}
	hold := filepath.Join(dir, "hold")
	s := setup{Command: c, TTL: ttl, Hold: hold, Report: f.report}
	change(&s)
	f.cmd = supervisorCommand(t, s)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a test that has failed leaves nobody behind either
		for _, pid := range f.all {
			if t.Failed() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	t.Cleanup(func() { // with the supervisor dead nobody may be left
		_ = f.cmd.Process.Kill()
		_ = f.cmd.Wait()
		f.wantNobodyLeft(t)
	})
	f.supervisor = f.cmd.Process.Pid
	f.guardian, f.command = awaitStart(t, f.report)
	waitTree(t, file)
	want := 3
	if s.Isolate {
		want++ // the first process of the namespace
	}
	eventually(t, "the daemon's parent gone", func() bool { return len(f.pids()) == want })
	f.all = append(f.pids(), f.guardian)
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.deadline = awaitDeadline(t, f.report)
	return f
}

func awaitStart(t *testing.T, report string) (guardian, command int) {
	t.Helper()
	eventually(t, "the start", func() bool {
		text, _ := os.ReadFile(report)
		n, _ := fmt.Sscanf(string(text), "started %d %d\n", &guardian, &command)
		return n == 2
	})
	return guardian, command
}

func awaitDeadline(t *testing.T, report string) (deadline time.Duration) {
	t.Helper()
	eventually(t, "the last deadline", func() bool {
		text, _ := os.ReadFile(report)
		_, after, _ := strings.Cut(string(text), "deadline ")
		n, _ := fmt.Sscanf(after, "%d\n", &deadline)
		return n == 1
	})
	return deadline
}

// pids returns the tree, guardian and supervisor excluded.
func (f *family) pids() []int {
	var pids []int
	for _, m := range descendants(f.guardian, snapshot(), nil) {
		pids = append(pids, m.pid)
	}
	return pids
}

// wantNobodyLeft reaps what has fallen to this process of the family, until nothing of it is left.
// Other families may run beside it.
func (f *family) wantNobodyLeft(t *testing.T) {
	t.Helper()
	eventually(t, "nobody left of the family", func() bool {
		gone := true
		for _, pid := range f.all { // all: the end of a namespace waits until its other zombies are reaped
			_, _ = syscall.Wait4(pid, nil, unix.WNOHANG, nil)
			_, there := procfs.Look(pid)
			gone = gone && !there
		}
		return gone
	})
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

// sendUnlessEnded is send to processes that the supervisor, or the guardian, may have ended by now:
// whoever loses one of the others ends them at once.
func sendUnlessEnded(t *testing.T, sig unix.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatalf("signal %v to %d: %v", sig, pid, err)
		}
	}
}

// awaitFrozen returns when no thread of these processes runs.
func awaitFrozen(t *testing.T, pids ...int) {
	t.Helper()
	eventually(t, "all frozen", func() bool {
		for _, pid := range pids {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
			for _, thread := range threads {
				id, _ := strconv.Atoi(filepath.Base(thread))
				if s, ok := procfs.Look(id); ok && s.State != 'T' { // a thread has a folder of its own in /proc
					return false
				}
			}
		}
		return true
	})
}

// ttl leaves a margin of one and a half seconds (tree): machines on which other tests run need some
// of it.
const ttl = 4 * time.Second

func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	f := newFamily(t, ttl)
	send(t, unix.SIGKILL, f.supervisor)
	wantDeadBy(t, f.file, f.deadline)
}

func TestSupervisorFrozen(t *testing.T) {
	t.Parallel()
	f := newFamily(t, ttl)
	send(t, unix.SIGSTOP, f.supervisor)
	wantDeadBy(t, f.file, f.deadline)
	send(t, unix.SIGCONT, f.supervisor)
	if got, want := f.status(t), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("after the thaw: got %+v, want %+v", got, want)
	}
}

func TestGuardianKilled(t *testing.T) {
	t.Parallel()
	f := newFamily(t, 20*time.Second)
	begin := boottime.Now()
	send(t, unix.SIGKILL, f.guardian)
	got := f.status(t)
	if want := (Status{Code: 137, Cause: CauseGuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// At once, not only at the deadline: nobody watches the command now.
	wantDeadBy(t, f.file, begin+10*time.Second)
}

func TestGuardianFrozen(t *testing.T) {
	t.Parallel()
	f := newFamily(t, ttl)
	send(t, unix.SIGSTOP, f.guardian)
	wantDeadBy(t, f.file, f.deadline)
	if got, want := f.status(t), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A guardian that no alarm wakes, as in a frozen cgroup: it is suspended again as soon as it runs.
func TestGuardianFrozenForGood(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	f := newFamily(t, ttl)
	over := make(chan struct{})
	var freezer sync.WaitGroup
	freezer.Go(func() {
		for tick := time.NewTicker(100 * time.Microsecond); ; {
			select {
			case <-tick.C:
				_ = unix.Kill(f.guardian, unix.SIGSTOP)
			case <-over:
				return
			}
		}
	})
	wantDeadBy(t, f.file, f.deadline)
	if got := f.status(t); got.Code != 137 || !got.Killed {
		t.Errorf("got %+v", got)
	}
	close(over)
	freezer.Wait()
}

// Whichever two of the three are killed or frozen, nothing of the tree acts after the deadline. A
// supervisor and a guardian that are frozen are woken by the kernel. One pair is TestBothKilled's.
func TestTwoKilledOrFrozen(t *testing.T) {
	t.Parallel()
	signals := map[string]unix.Signal{"killed": unix.SIGKILL, "frozen": unix.SIGSTOP}
	for _, who := range [][2]string{{"supervisor", "guardian"}, {"supervisor", "command"}, {"guardian", "command"}} {
		for first, firstSignal := range signals {
			for second, secondSignal := range signals {
				if who[1] == "guardian" && first == "killed" && second == "killed" {
					continue
				}
				t.Run(who[0]+" "+first+", "+who[1]+" "+second, func(t *testing.T) {
					t.Parallel()
					f := newFamily(t, ttl)
					pids := map[string]int{"supervisor": f.supervisor, "guardian": f.guardian, "command": f.command}
					send(t, firstSignal, pids[who[0]])
					sendUnlessEnded(t, secondSignal, pids[who[1]])
					wantDeadBy(t, f.file, f.deadline)
				})
			}
		}
	}
}

// All are frozen at once, as a whole, and nobody thaws them: the kernel wakes the guardian, which
// kills the tree while that is still suspended. Nothing of it acts again.
func TestAllFrozen(t *testing.T) {
	t.Parallel()
	f := newFamily(t, ttl)
	all := append([]int{f.supervisor, f.guardian}, f.pids()...)
	send(t, unix.SIGSTOP, all...)
	awaitFrozen(t, all...)
	frozen := boottime.Now()
	if got, want := f.status(t), (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantDeadBy(t, f.file, f.deadline)
	for id, last := range stamps(t, f.file) {
		if last > frozen {
			t.Errorf("%s acted %v after it was frozen", id, last-frozen)
		}
	}
}

// A guardian that is frozen while the deadline moves on is woken at the last one that it knew, and
// goes on.
func TestAFrozenGuardianWakesAndGoesOn(t *testing.T) {
	s := newSupervisor(t)
	c := command("while :; do sleep 0.05; done")
	c.Grace, c.Margin = 100*time.Millisecond, 200*time.Millisecond
	p := startWithin(t, s, &c, ttl)
	send(t, unix.SIGSTOP, p.guardian.Process.Pid)
	awaitFrozen(t, p.guardian.Process.Pid)
	for end := c.Deadline + time.Second; boottime.Now() < end; time.Sleep(10 * time.Millisecond) {
		p.Extend(boottime.Now() + 10*time.Second)
	}
	eventually(t, "a guardian that runs", func() bool {
		s, ok := procfs.Look(p.guardian.Process.Pid)
		return ok && s.State != 'T'
	})
	p.Stop(time.Second)
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 143, Cause: CauseStopped}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Both at the same instant: only PDEATHSIG is left, and it reaches the command alone. Documented,
// and held here so that the documentation stays true.
func TestBothKilled(t *testing.T) {
	t.Parallel()
	f := newFamily(t, 20*time.Second)
	pids := f.pids()
	send(t, unix.SIGSTOP, f.supervisor, f.guardian)
	send(t, unix.SIGKILL, f.supervisor, f.guardian)
	eventually(t, "the command's end", func() bool { return isDead(f.command) })
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
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 137, Cause: CauseGuardianLost, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantDeadBy(t, file, boottime.Now())
	for _, pid := range []int{hook.Process.Pid, other.PID(), other.guardian.Process.Pid} {
		if isDead(pid) {
			t.Errorf("process %d was killed with it", pid)
		}
	}
}

// A suspended command that is stopped without a grace is killed as it is. SIGCONT would let it act
// before SIGKILL reaches it, while somebody else may lead already.
func TestAStopWithoutGraceContinuesNobody(t *testing.T) {
	newSupervisor(t)
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "kill -STOP $$; sleep 60"},
		&syscall.ProcAttr{Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a suspended command", inState(pid, 'T'))
	now := boottime.Now()
	g := &guardian{
		pid: pid, plan: plan{deadline: now + time.Hour}, alarm: &alarm{}, killAlarm: &alarm{},
		command: startOrder{StopSignal: unix.SIGTERM, Grace: time.Minute},
	}
	grace := time.Duration(0)
	g.obey(order{StopGrace: &grace}, now)
	if st, ok := procfs.Look(pid); !ok || st.State != 'T' {
		t.Errorf("before it was killed: %+v, %v, want it suspended", st, ok)
	}
	g.act(now) // in the same round of the loop
	eventually(t, "the command's end", func() bool { return isDead(pid) })
	if g.observe(); !g.reapTree() || g.waitStatus.Signal() != unix.SIGKILL || g.cause != CauseStopped {
		t.Errorf("it ended with %v, cause %q, want it killed because it was stopped", g.waitStatus, g.cause)
	}
}
