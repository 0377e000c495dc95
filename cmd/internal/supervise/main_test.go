//go:build linux

package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// TestMain makes the test binary every process of these tests: guardian, supervisor, and commands
// that sh cannot be.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case GuardianArg:
			GuardianMain(testHandler)
		case "__supervisor":
			supervisorMain(os.Args[2])
		case "__stamp":
			stampMain(os.Args[2], os.Args[3], os.Args[4:])
		case "__daemon":
			daemonMain(os.Args[2], os.Args[3])
		case "__hidden":
			hiddenMain(os.Args[2])
		case "__leave":
			leaveMain()
		}
	}
	// Whatever any test leaves behind falls to us, where wantNobodyLeft meets it.
	check(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	os.Exit(m.Run())
}

// setup is what a supervisor process is told, as JSON in its argument.
type setup struct {
	Command Command
	Isolate bool
	Report  string        // file for "started GUARDIAN COMMAND", "deadline NS" and "ended STATUS"
	TTL     time.Duration // if set, the deadline: so long after now, again and again until the file Hold exists
	Hold    string
	Orders  string // a named pipe: see obeyOrders
	NoSetns bool   // the kernel refuses setns, as under a container's seccomp profile
}

// supervisorMain does what the primacy program does around a command, but for the election.
func supervisorMain(text string) {
	var s setup
	check(json.Unmarshal([]byte(text), &s))
	if s.NoSetns {
		refuseSetns()
	}
	sup, err := New()
	check(err)
	if s.Isolate {
		check(sup.Isolate())
	}
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, Signals()...)
	out, err := os.OpenFile(s.Report, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	deadline := &s.Command.Deadline
	if s.TTL != 0 {
		*deadline = boottime.Now() + s.TTL
	}
	p, err := sup.Start(s.Command)
	// On a busy machine the guardian may start it too late for its grace, or not by the deadline.
	for s.TTL != 0 && (errors.Is(err, ErrTooLate) || err != nil && boottime.Now() >= *deadline) {
		*deadline = boottime.Now() + s.TTL
		p, err = sup.Start(s.Command)
	}
	check(err)
	fmt.Fprintf(out, "started %d %d\n", p.guardian.Process.Pid, p.PID())
	if s.Orders != "" {
		go obeyOrders(s.Orders, p, out)
	}
	renewals := time.NewTicker(10 * time.Millisecond)
	for {
		select {
		case <-renewals.C:
			if _, err := os.Stat(s.Hold); s.TTL == 0 || err == nil {
				renewals.Stop()
				fmt.Fprintf(out, "deadline %d\n", *deadline)
				continue
			}
			*deadline = boottime.Now() + s.TTL
			p.Extend(*deadline)
		case sig := <-sigs:
			p.Signal(sig.(syscall.Signal))
		case <-p.Done():
			st, _ := json.Marshal(p.Wait())
			fmt.Fprintf(out, "ended %s\n", st)
			if sig := p.Wait().Interrupted; sig != 0 {
				DieOf(sig)
			}
			os.Exit(p.Wait().Code)
		}
	}
}

// obeyOrders calls the methods of p that the lines of a named pipe name: "bind LEFT", "unbind",
// "extend LEFT", "action JSON". It reports the results of the first three as "did DEADLINE ERROR".
// Bind and Unbind have 20 ms if the line ends in "shortly".
func obeyOrders(pipe string, p *Process, out io.Writer) {
	in, err := os.Open(pipe)
	check(err)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		order, shortly := strings.CutSuffix(lines.Text(), " shortly")
		what, arg, _ := strings.Cut(order, " ")
		ctx, cancel := context.WithCancel(context.Background())
		if shortly {
			ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
		}
		left, _ := time.ParseDuration(arg)
		deadline := boottime.Now() + left
		switch what {
		case "bind":
			fmt.Fprintf(out, "did %d %v\n", deadline, p.Bind(ctx, deadline))
		case "unbind":
			fmt.Fprintf(out, "did 0 %v\n", p.Unbind(ctx))
		case "extend":
			p.Extend(deadline)
			fmt.Fprintf(out, "did %d <nil>\n", deadline)
		case "action":
			var a *LastAction
			check(json.Unmarshal([]byte(arg), &a))
			p.SetLastAction(a)
		}
		cancel()
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(99)
	}
}

// stampMain writes "ID TIME" to file every millisecond, deaf to SIGTERM. "tree": it first starts a
// child and, by a double fork with setsid, a great-grandchild that do the same.
func stampMain(file, id string, args []string) {
	signal.Ignore(unix.SIGTERM, unix.SIGHUP)
	if slices.Contains(args, "tree") {
		check(exec.Command(self(), "__stamp", file, "child").Start())
		daemon := exec.Command(self(), "__daemon", file, "daemon")
		daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		check(daemon.Start())
		go daemon.Wait()
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	check(unix.Flock(int(f.Fd()), unix.LOCK_SH)) // until it is dead: see stamping
	for {
		fmt.Fprintf(f, "%s %d\n", id, boottime.Now())
		time.Sleep(time.Millisecond)
	}
}

// daemonMain leaves a stamping process behind in a session of its own.
func daemonMain(file, id string) {
	cmd := exec.Command(self(), "__stamp", file, id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(cmd.Start())
	os.Exit(0)
}

// leaveMain is a command that leaves its group, in which a child of it stays, says so, and waits.
func leaveMain() {
	check(exec.Command("sleep", "60").Start())
	other := exec.Command("sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(other.Start())
	check(syscall.Setpgid(0, other.Process.Pid))
	fmt.Println("ready")
	time.Sleep(time.Minute)
	os.Exit(0)
}

// refuseSetns makes setns fail with EPERM in this process and in all that it starts.
func refuseSetns() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SETNS, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	check(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		check(errno)
	}
}

func self() string {
	exe, err := os.Executable()
	check(err)
	return exe
}

// newSupervisor returns a Supervisor in the test's own process, and at the end of the test checks
// that it left neither a process nor a descriptor behind.
func newSupervisor(t *testing.T) *Supervisor {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if left := snapshot()(os.Getpid()); len(left) != 0 {
		t.Fatalf("an earlier test left processes: %v", left)
	}
	fds := len(openFDs())
	t.Cleanup(func() {
		eventually(t, "no child left", func() bool { return len(snapshot()(os.Getpid())) == 0 })
		eventually(t, "no descriptor left", func() bool { return len(openFDs()) <= fds })
	})
	return s
}

// wantNobodyLeft reaps orphans until this process has no child at all.
func wantNobodyLeft(t *testing.T) {
	t.Helper()
	eventually(t, "nobody left of the family", func() bool {
		for {
			pid, err := syscall.Wait4(-1, nil, unix.WNOHANG, nil)
			if err != nil || pid == 0 {
				return err == unix.ECHILD
			}
		}
	})
}

// eventually polls for a condition. Nothing in these tests sleeps in the hope that something has
// happened.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited a minute for: %s%s", what, whoIsThere(os.Getpid()))
}

// whoIsThere describes every process below pid, for a test that failed.
func whoIsThere(pid int) string {
	var b strings.Builder
	for _, m := range descendants(pid, snapshot(), nil) {
		s, _ := procfs.Look(m.pid)
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", m.pid))
		where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", m.pid))
		group, _ := unix.Getpgid(m.pid)
		fmt.Fprintf(&b, "\n%d parent %d group %d state %c in %s: %.80q",
			m.pid, s.Parent, group, max(s.State, ' '), where, args)
	}
	return b.String()
}

// command is a shell script that may run for a while.
func command(script string) Command {
	return Command{
		Args: []string{"sh", "-c", script}, Env: os.Environ(),
		Deadline: boottime.Now() + 5*time.Minute, Grace: 10 * time.Second,
	}
}

func start(t *testing.T, s *Supervisor, c Command) *Process {
	t.Helper()
	p, err := s.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // also after a failure: nothing may run on
		p.Stop(0)
		p.Wait()
	})
	return p
}

// startWithin starts a command that has left until its deadline, again if a busy machine has not
// started it before that.
func startWithin(t *testing.T, s *Supervisor, c *Command, left time.Duration) *Process {
	t.Helper()
	for {
		c.Deadline = boottime.Now() + left
		p, err := s.Start(*c)
		if errors.Is(err, ErrTooLate) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // also after a failure: nothing may run on
			p.Stop(0)
			p.Wait()
		})
		return p
	}
}

// extendUntil keeps the deadline so far away until a condition holds. The last one is in c.
func extendUntil(t *testing.T, p *Process, c *Command, left time.Duration, what string, ok func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		c.Deadline = boottime.Now() + left
		p.Extend(c.Deadline)
		return ok()
	})
}

// exists is a condition: there is such a file.
func exists(file string) func() bool {
	return func() bool { _, err := os.Stat(file); return err == nil }
}

// output gives c a pipe for its standard output; the returned function reads it to the end.
func output(t *testing.T, c *Command) func() string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout = w
	got := make(chan string, 1)
	t.Cleanup(func() { w.Close(); r.Close() })
	return func() string {
		w.Close() // ours
		go func() {
			var b strings.Builder
			buf := make([]byte, 4096)
			for {
				n, err := r.Read(buf)
				b.Write(buf[:n])
				if err != nil {
					got <- b.String()
					return
				}
			}
		}()
		select {
		case s := <-got:
			return s
		case <-time.After(time.Minute):
			t.Fatal("the output does not end")
			return ""
		}
	}
}

// stamps returns the last stamp of each process that writes to file.
func stamps(t *testing.T, file string) map[string]time.Duration {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	last := map[string]time.Duration{}
	for line := range strings.Lines(string(text)) {
		id, ns, ok := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(ns, 10, 64); ok && err == nil {
			last[id] = time.Duration(n)
		}
	}
	return last
}

// tree is a running command with a child and a great-grandchild that has escaped into a session of
// its own; all three write stamps and are deaf to SIGTERM.
func tree(t *testing.T, left time.Duration) (Command, string) {
	file := filepath.Join(t.TempDir(), "stamps")
	return Command{
		Args: []string{self(), "__stamp", file, "command", "tree"},
		// The race detector lingers for a second at exit otherwise.
		Env:      append(os.Environ(), "GORACE=atexit_sleep_ms=0"),
		Deadline: boottime.Now() + left, Grace: left / 8 * 3, Margin: left / 8 * 3,
	}, file
}

func waitTree(t *testing.T, file string) {
	t.Helper()
	eventually(t, "three processes that stamp", func() bool { return len(stamps(t, file)) == 3 })
}

// stamping says whether a process lives that writes to file.
func stamping(t *testing.T, file string) bool {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// wantDeadBy fails unless every process of the tree stopped stamping before the deadline, and is
// dead. One that is suspended, and that nobody kills, has stopped too, but not for good.
func wantDeadBy(t *testing.T, file string, deadline time.Duration) {
	t.Helper()
	eventually(t, "the end of all who stamp", func() bool { return !stamping(t, file) })
	for id, last := range stamps(t, file) {
		if last >= deadline {
			t.Errorf("%s still ran %v after the deadline", id, last-deadline)
		}
		t.Logf("%s: last stamp %v before the deadline", id, deadline-last)
	}
}
