//go:build linux

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hiddenMain is a process in a session of its own, deaf to SIGTERM, that /proc may hide from other
// processes of its user, as it does ssh-agent. It writes its process ID to file.
func hiddenMain(file string) {
	check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	_, err := unix.Setsid()
	check(err)
	signal.Ignore(unix.SIGTERM)
	check(os.WriteFile(file+".new", []byte(strconv.Itoa(os.Getpid())), 0o600))
	check(os.Rename(file+".new", file))
	time.Sleep(time.Hour)
}

// pidOf returns the process ID in a file, 0 if there is none yet.
func pidOf(file string) int {
	text, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// Where /proc shows each user only what is his (hidepid), it hides some processes of his too. The
// command's end, and that of its guardian, are the end of these.
func TestWhatProcHidesIsKilled(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || !mayMakeNamespaces() {
		t.Skip("this process cannot mount, or not become another user's")
	}
	binary, err := os.ReadFile(self())
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"the guardian is killed": `"$0" __hidden "$1" & wait`,
		"the command exits":      `"$0" __hidden "$1" & until [ -e "$1" ]; do sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			const nobody = 65534
			dir, err := os.MkdirTemp("", "hidden")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			program, file := filepath.Join(dir, "program"), filepath.Join(dir, "pid")
			report := filepath.Join(dir, "report")
			if os.WriteFile(program, binary, 0o755) != nil || os.Chown(dir, nobody, nobody) != nil {
				t.Fatal("no folder of another user's")
			}
			c := command(script)
			c.Args, c.Grace = append(c.Args, program, file), 50*time.Millisecond
			sup := supervisorCommand(t, setup{Command: c, Report: report})
			sup.Dir, sup.Path = dir, "/bin/sh"
			// Linux before 5.8 does not know the word, and would hide them from all the machine.
			sup.Args = append([]string{"sh", "-c", `mount -t proc -o hidepid=invisible proc /proc || exit 77
				exec "$0" --reuid 65534 --regid 65534 --clear-groups "$@"`, setpriv, program}, sup.Args[1:]...)
			sup.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
			if err := sup.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { defer close(ended); _ = sup.Wait() }()
			over := func() bool {
				select {
				case <-ended:
					return true
				default:
					return false
				}
			}
			hidden := 0
			defer func() { _ = unix.Kill(hidden, unix.SIGKILL); _ = sup.Process.Kill(); <-ended; wantNobodyLeft(t) }()
			eventually(t, "the hidden process", func() bool { hidden = pidOf(file); return hidden != 0 || over() })
			if over() && sup.ProcessState.ExitCode() == 77 {
				t.Skip("no /proc that hides processes")
			}
			if guardian, _ := awaitStart(t, report); name == "the guardian is killed" {
				send(t, unix.SIGKILL, guardian)
			}
			eventually(t, "the supervisor's end", over)
			if !isDead(hidden) {
				t.Error("it ended, and a process of the command lives")
			}
		})
	}
}

// A supervisor that has no descriptor left cannot read /proc. It does not take that for the end of
// a command whose guardian was killed.
func TestALostTreeWithoutDescriptors(t *testing.T) {
	s := newSupervisor(t)
	file := filepath.Join(t.TempDir(), "pid")
	p := start(t, s, command(fmt.Sprintf("sleep 300 & echo $! >%[1]s.new; mv %[1]s.new %[1]s; wait", file)))
	child := 0
	eventually(t, "the command's child", func() bool { child = pidOf(file); return child != 0 })
	defer unix.Kill(child, unix.SIGKILL)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 256, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	var open []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		open = append(open, fd)
	}
	killErr := unix.Kill(p.guardian.Process.Pid, unix.SIGKILL)
	st := p.Wait()
	alive := unix.Kill(child, 0) == nil
	for _, fd := range open {
		unix.Close(fd)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: old.Cur, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	if killErr != nil || alive || st.Cause != CauseGuardianLost {
		t.Errorf("the kill: %v; Wait says %+v, and the command's child lives: %v", killErr, st, alive)
	}
}

// The numbers in the /proc of another PID namespace are those of other processes.
func TestTheProcOfAnotherNamespaceIsRefused(t *testing.T) {
	if !mayMakeNamespaces() {
		t.Skip("this process cannot make a PID namespace")
	}
	sup := supervisorCommand(t, setup{Command: command("true"), Report: "/dev/null"})
	sup.Stdout, sup.Stderr = nil, nil
	sup.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := sup.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/proc is missing, or of another PID namespace") {
		t.Errorf("it ended with %v and wrote %q", err, out)
	}
}
