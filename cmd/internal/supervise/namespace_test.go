//go:build linux

package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/servertest"
	"golang.org/x/sys/unix"
)

// newIsolating returns a Supervisor that isolates its commands. It ends a test on a machine that
// lets this process make no PID namespace.
func newIsolating(t *testing.T) *Supervisor {
	t.Helper()
	s := newSupervisor(t)
	needNamespaces(t, s)
	return s
}

func needNamespaces(t *testing.T, s *Supervisor) {
	t.Helper()
	err := s.Isolate()
	if errors.Is(err, ErrIsolate) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newIsolatedFamily is newFamily with a supervisor that isolates its commands.
func newIsolatedFamily(t *testing.T, ttl time.Duration) *family {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	needNamespaces(t, s)
	return newFamilyOf(t, ttl, func(s *setup) { s.Isolate = true })
}

// In its namespace a command is neither process 1, nor has it anybody else's process in its /proc.
// Its working directory, its environment and its exit status are what they are outside.
func TestIsolated(t *testing.T) {
	s := newIsolating(t)
	c := command(`kill -0 $$ && test -d /proc/$$ && test $$ != 1 && pwd && echo /proc/[0-9]*; exit 7`)
	c.Dir, c.Deadline, c.Grace = t.TempDir(), boottime.Now()+time.Hour, 30*time.Minute
	read := output(t, &c)
	p := start(t, s, c)
	eventually(t, "the end of an empty namespace", func() bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 7, Cause: CauseExited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	lines := strings.Split(strings.TrimSpace(read()), "\n")
	if len(lines) != 2 || lines[0] != c.Dir || len(strings.Fields(lines[1])) != 2 {
		t.Errorf("it wrote %q; want its folder %s, and two processes", lines, c.Dir)
	}
	own, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": own, "..": filepath.Dir(own)} {
		c = command("pwd")
		c.Dir = dir
		read = output(t, &c)
		start(t, s, c).Wait()
		if got := strings.TrimSpace(read()); got != want {
			t.Errorf("with Dir %q it ran in %s, want %s", dir, got, want)
		}
	}
}

// What an isolated command leaves behind gets the stop signal and the grace, as without isolation.
func TestIsolatedLeftovers(t *testing.T) {
	s := newIsolating(t)
	file := filepath.Join(t.TempDir(), "left")
	c := command(fmt.Sprintf(`
		(trap "sleep 0.1; echo stopped > %[1]s; exit" TERM; echo > %[1]s.ready; while :; do sleep 0.01; done) &
		while ! test -e %[1]s.ready; do sleep 0.01; done; exit 3`, file))
	if got, want := withoutOverrun(start(t, s, c).Wait()), (Status{Code: 3, Cause: CauseExited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if text, err := os.ReadFile(file); string(text) != "stopped\n" {
		t.Errorf("what was left wrote %q, %v", text, err)
	}
}

// Signals, ^Z and the stop signal reach an isolated command.
func TestIsolatedSignals(t *testing.T) {
	s := newIsolating(t)
	c := command(`trap "echo usr1" USR1; trap "echo term; exit 5" TERM; echo ready; while :; do sleep 0.01; done`)
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.Stdout = f
	p := start(t, s, c)
	wrote := func(want string) {
		eventually(t, "the line "+want, func() bool {
			text, _ := os.ReadFile(out)
			return strings.HasSuffix(string(text), want+"\n")
		})
	}
	wrote("ready")
	p.Signal(unix.SIGUSR1)
	wrote("usr1")
	p.Stop(10 * time.Second)
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 5, Cause: CauseStopped}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wrote("term")
}

// A command that cannot be executed is told as without isolation.
func TestIsolatedNotExecutable(t *testing.T) {
	s := newIsolating(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := command("")
	c.Args = []string{script}
	if _, err := s.Start(c); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// Where the kernel refuses the entry into a namespace, that is told, and not that the command is
// not executable.
func TestIsolatedWhereSetnsIsRefused(t *testing.T) {
	newIsolating(t)
	text, err := json.Marshal(setup{Command: command("true"), Isolate: true, Report: "/dev/null", NoSetns: true})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self(), "__supervisor", string(text)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), ErrIsolate.Error()) ||
		strings.Contains(string(out), ErrNotExecutable.Error()) {
		t.Errorf("it ended with %v and wrote %q, want: %v", err, out, ErrIsolate)
	}
}

// Supervisor and guardian are killed at one instant: with a namespace nothing is left, long before
// the deadline. (TestBothKilled: without one.)
func TestBothKilledIsolated(t *testing.T) {
	t.Parallel()
	f := newIsolatedFamily(t, 20*time.Second)
	send(t, unix.SIGSTOP, append([]int{f.supervisor, f.guardian}, f.pids()...)...) // nothing but the kernel acts
	send(t, unix.SIGKILL, f.supervisor, f.guardian)
	begin := boottime.Now()
	eventually(t, "the end of all who stamp", func() bool { return !stamping(t, f.file) })
	wantDeadBy(t, f.file, begin+5*time.Second)
}

// The other pairs, in a namespace.
func TestSupervisorAndGuardianIsolated(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	for _, pair := range [][2]unix.Signal{
		{unix.SIGKILL, unix.SIGSTOP}, {unix.SIGSTOP, unix.SIGKILL}, {unix.SIGSTOP, unix.SIGSTOP},
	} {
		t.Run(fmt.Sprint(pair), func(t *testing.T) {
			t.Parallel()
			f := newIsolatedFamily(t, ttl)
			send(t, pair[0], f.supervisor)
			sendUnlessEnded(t, pair[1], f.guardian)
			wantDeadBy(t, f.file, f.deadline)
		})
	}
}

// A cgroup freezes supervisor and guardian, and SIGCONT does not wake them: the kernel kills the
// guardian before the deadline, and the tree with it.
func TestIsolatedGuardianIsKilledByTheKernel(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	if servertest.CgroupRoot() == "" {
		t.Skip("this process cannot make cgroups of version 2")
	}
	f := newIsolatedFamily(t, 8*ttl) // the kernel has a quarter of the margin: 3 s
	servertest.NewCgroup(t, f.supervisor, f.guardian).Freeze()
	wantDeadBy(t, f.file, f.deadline)
}

// Without privileges the guardian makes a user namespace first. The command runs as the same user,
// and without the capabilities that its guardian needed.
func TestIsolatedWithoutPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("every other test runs without privileges")
	}
	if text, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || string(text) == "0\n" {
		t.Skip("this kernel lets nobody make user namespaces")
	}
	dir, err := os.MkdirTemp("", "isolated")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	c := command(fmt.Sprintf(`id -u > %s/got; grep CapEff /proc/self/status >> %s/got; test $$ -lt 100`, dir, dir))
	report := filepath.Join(dir, "report")
	cmd := supervisorCommand(t, setup{Command: c, Isolate: true, Report: report})
	cmd.Path, cmd.Args[0], cmd.Dir = program, program, dir
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := cmd.Run(); err != nil {
		t.Errorf("the supervisor: %v", err)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "got"))
	if want := "65534\nCapEff:\t0000000000000000\n"; string(got) != want {
		t.Errorf("it wrote %q, want %q", got, want)
	}
}

// A last action that takes long is not ended by the kernel with the guardian: nothing of the tree
// is left that a guardian's end would have to end.
func TestTheLastActionIsolated(t *testing.T) {
	servertest.Long(t, "race-program")
	t.Parallel()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	needNamespaces(t, s)
	var file string
	f := newFamilyOf(t, ttl, func(s *setup) {
		s.Isolate = true
		file = withLastAction(t, &s.Command, testAction{Wait: true})
		s.Command.LastAction.Limit = ttl + ttl/4 // past the deadline
	})
	send(t, unix.SIGKILL, f.supervisor)
	eventually(t, "the guardian's end", func() bool { return isDead(f.guardian) })
	if text, _ := os.ReadFile(file); !strings.Contains(string(text), "over ") {
		t.Errorf("the last action wrote %q: it was ended", text)
	}
}

// A killed process that takes its time to end, as one with much memory does, does not cost the
// guardian its life: it has killed the namespace, and reports the true status.
func TestIsolatedSlowEnd(t *testing.T) {
	servertest.Long(t, "race-program")
	s := newIsolating(t)
	c := command("sleep 1000 & wait")
	c.Grace, c.Margin = 10*time.Millisecond, ttl/4
	p := startWithin(t, s, &c, ttl)
	child := 0
	extendUntil(t, p, &c, ttl, "the command's child", func() bool {
		if children := snapshot()(p.PID()); len(children) == 1 {
			child = children[0]
		}
		return child != 0
	})
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(child); err != nil {
		t.Skip("no tracing here: ", err)
	}
	// The kernel frees a traced process when its tracer has asked how it ended.
	time.Sleep(c.Deadline + 50*time.Millisecond - boottime.Now())
	var w unix.WaitStatus
	if _, err := unix.Wait4(child, &w, unix.WALL, nil); err != nil || !w.Signaled() {
		t.Errorf("the child's end: %v, %v", w, err)
	}
	if got := p.Wait().Cause; got != CauseDeadline {
		t.Errorf("cause %s, want %s", got, CauseDeadline)
	}
}

// Who starts init by hand has not mounted a second /proc over the machine's.
func TestInitByHand(t *testing.T) {
	cmd := exec.Command(self(), GuardianArg, namespaceInitArg)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS} // if it does, then not here
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "not by hand") {
		t.Errorf("it ended with %v and wrote %q", err, out)
	}
}

// An isolated command in a chroot runs. What a privileged one mounts is mounted outside too, as
// without isolation, if the mounts there are shared; its /proc never is.
func TestIsolatedMounts(t *testing.T) {
	if !mayMakeNamespaces() {
		t.Skip("this process cannot mount")
	}
	dir := t.TempDir()
	mounted, root := filepath.Join(dir, "mounted"), filepath.Join(dir, "root")
	for _, d := range []string{mounted, root} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	supervisor := func(script string) string {
		c := command(script)
		c.Dir = "/"
		text, err := json.Marshal(setup{Command: c, Isolate: true, Report: "/dev/null"})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	inChroot := supervisor("test ! -e /proc/" + strconv.Itoa(os.Getpid()))
	for name, args := range map[string][]string{
		"mounts": {`"$0" __supervisor "$1" && mountpoint -q "$2" && test -e /proc/$PPID`,
			supervisor("mount -t tmpfs primacy " + mounted), mounted},
		"chroot": {`for from in /*; do
				if test -L "$from"; then cp -P "$from" "$2"
				elif test -d "$from"; then mkdir "$2$from" && mount --rbind "$from" "$2$from" || exit; fi
			done
			chroot "$2" "$0" __supervisor "$1"`, inChroot, root},
	} {
		t.Run(name, func(t *testing.T) {
			// Private first: nothing of this may be mounted outside this namespace.
			script := "mount --make-rshared / || exit; " + args[0]
			unshare := []string{"-m", "--propagation", "private", "sh", "-c", script, self()}
			if out, err := exec.Command("unshare", append(unshare, args[1:]...)...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// Where the kernel gives no timer, nothing would end an isolated command beside a frozen guardian.
func TestIsolatedWithoutATimer(t *testing.T) {
	newIsolating(t)
	c := command("echo it ran")
	text, err := json.Marshal(setup{Command: c, Isolate: true, Report: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("prlimit", "--sigpending=0", self(), "__supervisor", string(text)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ulimit -i") || strings.Contains(string(out), "it ran") {
		t.Errorf("it ended with %v and wrote %q", err, out)
	}
}
