//go:build linux

package supervise

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// A deadline that comes when the tree is to be killed moves nothing: the killing would stop half
// way, beside the next leader.
func TestNoDeadlineComesAfterTheKill(t *testing.T) {
	now := boottime.Now()
	for _, test := range []struct {
		name   string
		plan   plan
		killed bool
	}{
		{"in time", plan{deadline: now + time.Hour, margin: time.Minute}, false},
		{"within the margin", plan{deadline: now + time.Minute, margin: time.Hour}, true},
		{"past the deadline", plan{deadline: now - 1}, true},
		{"the grace is over", plan{deadline: now + time.Hour, ending: true, graceEnd: now - 1}, true},
	} {
		p := &Process{plan: test.plan, eventFD: -1, wakeSender: make(chan struct{}, 1)}
		p.Extend(now + 2*time.Hour)
		if moved := p.plan.deadline != test.plan.deadline; moved == test.killed {
			t.Errorf("%s: the deadline moved: %v", test.name, moved)
		}
	}
}

// Who stops a command whose guardian is frozen does not wait for the deadline: the supervisor kills
// the tree soon after the grace.
func TestStopBesideAFrozenGuardian(t *testing.T) {
	s := newSupervisor(t)
	c := command("trap '' TERM; while :; do sleep 0.01; done")
	c.Deadline = boottime.Now() + 5*time.Minute
	p := start(t, s, c)
	send(t, unix.SIGSTOP, p.guardian.Process.Pid)
	p.Stop(10 * time.Millisecond)
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Error("a minute after the stop nobody has killed the command")
		send(t, unix.SIGCONT, p.guardian.Process.Pid)
	}
}

// Who reads the command's standard error to its end does not wait for a last action that takes
// long: of the command nothing is left.
func TestALongLastActionHoldsNoPipe(t *testing.T) {
	c, file := tree(t, 60*time.Second)
	read, write := ends(t, "pipe", "")
	c.Grace, c.Stderr = 50*time.Millisecond, write
	done := withLastAction(t, &c, testAction{Hang: time.Hour})
	c.LastAction.Limit = time.Hour
	guardian := orphan(t, c, file, write)
	awaitAction(t, done)
	_ = read.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadAll(read); err != nil || isDead(guardian) {
		t.Errorf("the end of the standard error: %v; the guardian is dead: %v", err, isDead(guardian))
	}
	send(t, unix.SIGKILL, guardian)
	wantNobodyLeft(t)
}

// A last action that has something to say does not wait for a reader: the name that it is to give
// back would stay taken.
func TestAFullPipeHoldsUpNoLastAction(t *testing.T) {
	c, file := tree(t, 60*time.Second)
	_, write := ends(t, "pipe", "")
	c.Grace, c.Stderr = 50*time.Millisecond, write
	done := withLastAction(t, &c, testAction{Say: "the last words\n"})
	c.LastAction.Limit = time.Hour
	fd := int(write.Fd()) // which makes it block
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 4096); ; {
		if _, err := unix.Write(fd, full); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	guardian := orphan(t, c, file, write)
	defer unix.Kill(guardian, unix.SIGKILL)
	awaitAction(t, done)
	eventually(t, "the guardian's end", func() bool { return isDead(guardian) })
	wantNobodyLeft(t)
}

// orphan starts a command under a supervisor of its own, kills that, and returns the guardian.
func orphan(t *testing.T, c Command, file string, stderr *os.File) (guardian int) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report")
	sup := supervisorCommand(t, setup{Command: c, Report: report})
	sup.Stderr = stderr
	if err := sup.Start(); err != nil {
		t.Fatal(err)
	}
	guardian, _ = awaitStart(t, report)
	waitTree(t, file)
	stderr.Close()
	_ = sup.Process.Kill()
	_ = sup.Wait()
	return guardian
}

// newChild starts a child that is not known to the Supervisor.
func newChild(t *testing.T, script string) (pid int) {
	t.Helper()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// The exit status of a command whose guardian is lost is the watcher's to read: Reap leaves it.
func TestReapLeavesTheCommands(t *testing.T) {
	s := newSupervisor(t)
	pid := newChild(t, "exit 7")
	s.commandStarted(pid)
	eventually(t, "the command's end", func() bool { return isDead(pid) })
	s.reapDead()
	var w syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &w, unix.WNOHANG, nil); got != pid || w.ExitStatus() != 7 {
		t.Errorf("the command's status after Reap: %d, %d, %v", got, w.ExitStatus(), err)
	}
	s.commandGone(pid)
	other := newChild(t, "exit 7")
	eventually(t, "the other's end", func() bool { s.reapDead(); _, ok := procfs.Look(other); return !ok })
}

// The kernel gives the process ID of a child that has ended to another process. If that is an
// orphan of a lost guardian, it is not spared.
func TestARecycledProcessIDIsNotSpared(t *testing.T) {
	s := newSupervisor(t)
	pid := newChild(t, "exec sleep 60")
	defer func() {
		send(t, unix.SIGKILL, pid)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}()
	alive, ended := exec.Command("sleep", "60"), exec.Command("true")
	for _, cmd := range []*exec.Cmd{alive, ended} {
		if err := s.StartOther(cmd); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = alive.Process.Kill(); _ = alive.Wait() }()
	if err := ended.Wait(); err != nil {
		t.Fatal(err)
	}
	for cmd, spared := range map[*exec.Cmd]bool{alive: true, ended: false} {
		s.mu.Lock()
		s.spared[pid] = cmd
		s.mu.Unlock()
		if found := len(s.descendantsToKill(os.Getpid(), snapshot)) > 0; found == spared {
			t.Errorf("a child under the number of one that lives (%v) is to be killed: %v", spared, found)
		}
	}
}

// A process is signalled only as the child of whom it was found under, or of the one that inherits
// orphans: its process ID may be another's by now.
func TestASignalMeetsTheProcessThatWasFound(t *testing.T) {
	newSupervisor(t)
	pid := newChild(t, "exec sleep 60")
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}()
	const another = 1 << 30 // no process
	descendant{pid, another}.signal(another, unix.SIGKILL)
	descendant{pid, another}.signal(os.Getpid(), unix.SIGSTOP) // it is an orphan, and ours by now
	eventually(t, "the second signal, or the first", func() bool {
		st, ok := procfs.Look(pid)
		return !ok || st.State == 'T' || st.State == 'Z'
	})
	if isDead(pid) {
		t.Error("a process with another parent got the signal")
	}
}
