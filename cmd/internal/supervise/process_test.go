//go:build linux

package supervise

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

func TestStatusIsTheCommands(t *testing.T) {
	s := newSupervisor(t)
	for script, want := range map[string]int{
		"exit 0": 0, "exit 7": 7, "exit 255": 255, "kill -KILL $$": 137, "kill -TERM $$": 143, "kill -USR1 $$": 138,
	} {
		got := start(t, s, command(script)).Wait()
		if want := (Status{Code: want, Cause: CauseExited}); got != want {
			t.Errorf("%s: got %+v, want %+v", script, got, want)
		}
	}
}

func TestStartErrors(t *testing.T) {
	s := newSupervisor(t)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	broken := filepath.Join(dir, "broken")
	garbage := filepath.Join(dir, "garbage")
	for file, mode := range map[string]os.FileMode{plain: 0o644, broken: 0o755, garbage: 0o755} {
		text := map[string]string{plain: "#!/bin/sh\n", broken: "#!/no/such/shell\n", garbage: "\x00\x01"}[file]
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	now := boottime.Now()
	for _, test := range []struct {
		name string
		c    Command
		want error
	}{
		{"no such name", Command{Args: []string{"no-such-command"}}, ErrNotFound},
		{"no such file", Command{Args: []string{dir + "/none"}}, ErrNotFound},
		{"no command", Command{}, ErrNotFound},
		{"not executable by path", Command{Args: []string{plain}}, ErrNotExecutable},
		{"not executable in PATH", Command{Args: []string{"plain"}}, ErrNotExecutable},
		{"directory", Command{Args: []string{dir}}, ErrNotExecutable},
		{"no interpreter", Command{Args: []string{broken}}, ErrNotFound},
		{"exec format", Command{Args: []string{garbage}}, ErrNotExecutable},
		{"deadline over", Command{Args: []string{"true"}, Deadline: now}, ErrTooLate},
		{"grace too long", Command{Args: []string{"true"}, Deadline: now + time.Second, Grace: time.Minute},
			ErrTooLate},
	} {
		if test.c.Deadline == 0 {
			test.c.Deadline = now + time.Minute
		}
		if _, err := s.Start(test.c); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
	}
	c := command("true")
	if c.Dir = dir + "/none"; true {
		if _, err := s.Start(c); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("missing directory: got %v, want an error of its own", err)
		}
	}
}

// A working directory that nobody may enter is told as that, and not as a command that is not
// executable.
func TestAForbiddenWorkingDirectory(t *testing.T) {
	dir, err := os.MkdirTemp("", "forbidden") // not t.TempDir, whose parent only its owner may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o600); err != nil {
		t.Fatal(err)
	}
	c := command("pwd")
	c.Dir = dir
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			const nobody = 65534 // of this thread alone: root may enter any directory
			unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0))
		}
		_, _, err := c.resolve(boottime.Now())
		result <- err
	}()
	err = <-result
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "working directory "+dir) {
		t.Errorf("got %v, want that nobody may enter %s", err, dir)
	}
}

// A command that has left its group, where others stay, gets its signals all the same.
func TestASignalReachesACommandThatLeftItsGroup(t *testing.T) {
	s := newSupervisor(t)
	c := command("")
	c.Args = []string{self(), "__leave"}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdout = w
	p := start(t, s, c)
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Signal(unix.SIGTERM)
	eventually(t, "the command's end", func() bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
	if got, want := withoutOverrun(p.Wait()), (Status{Code: 143, Cause: CauseExited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A file name, an argument or a variable of any bytes reaches the command as it is.
func TestAnyBytesReachTheCommand(t *testing.T) {
	s := newSupervisor(t)
	dir := filepath.Join(t.TempDir(), "d\xff")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Skip("no such name on this file system:", err)
	}
	script := filepath.Join(dir, "run\xfe")
	text := "#!/bin/sh\n" + `printf '%s|' "${0##*/}" "${PWD##*/}" "$1" "$2" "$X"`
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	c := command("")
	c.Args, c.Dir, c.Env = []string{script, "f\xe9\n", "<&>\u2028"}, dir, append(c.Env, "X=\xe4\x80 \xff")
	read := output(t, &c)
	if got := start(t, s, c).Wait(); got != (Status{Cause: CauseExited}) {
		t.Errorf("got %+v", got)
	}
	if got, want := read(), "run\xfe|d\xff|f\xe9\n|<&>\u2028|\xe4\x80 \xff|"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestDeadlineIsExtendedAndThenReached(t *testing.T) {
	s := newSupervisor(t)
	c, file := tree(t, ttl)
	p := startWithin(t, s, &c, ttl)
	first := c.Deadline
	last := first
	for len(stamps(t, file)) < 3 || boottime.Now() < first+100*time.Millisecond {
		last = boottime.Now() + ttl
		p.Extend(last)
		time.Sleep(10 * time.Millisecond) // the pace of renewals
	}
	got := withoutOverrun(p.Wait())
	if want := (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for id, at := range stamps(t, file) {
		if at < first {
			t.Errorf("%s ended %v before the first deadline, though that was extended", id, first-at)
		}
	}
	wantDeadBy(t, file, last)
}

func TestToldBeforeTheDeadline(t *testing.T) {
	s := newSupervisor(t)
	ready := filepath.Join(t.TempDir(), "ready")
	c := command("trap 'exit 5' TERM; : > " + ready + "; while :; do sleep 0.01; done")
	const left = 5 * time.Second
	c.Grace = 2 * time.Second
	p := startWithin(t, s, &c, left)
	extendUntil(t, p, &c, left, "the shell has its trap", exists(ready))
	got := p.Wait()
	if want := (Status{Code: 5, Cause: CauseDeadline}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if left := c.Deadline - boottime.Now(); left <= 0 {
		t.Errorf("ended %v after the deadline", -left)
	}
}

func TestDeaf(t *testing.T) {
	s := newSupervisor(t)
	ready := filepath.Join(t.TempDir(), "ready")
	c := command("trap '' TERM; : > " + ready + "; while :; do sleep 0.01; done")
	const left = 4 * time.Second
	c.Grace, c.Margin = 2*time.Second, 1500*time.Millisecond
	p := startWithin(t, s, &c, left)
	extendUntil(t, p, &c, left, "the shell is deaf", exists(ready))
	got := p.Wait()
	if want := (Status{Code: 137, Cause: CauseDeadline, Killed: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if left := c.Deadline - boottime.Now(); left <= 0 {
		t.Errorf("ended %v after the deadline", -left)
	}
}

func TestStop(t *testing.T) {
	const loop = "; echo; while :; do sleep 0.01; done"
	killed := Status{Code: 137, Cause: CauseStopped, Killed: true}
	for _, test := range []struct {
		name, script string
		signal       syscall.Signal
		grace        time.Duration
		want         Status
	}{
		{"heeded", "trap 'exit 9' TERM" + loop, 0, 10 * time.Second, Status{Code: 9, Cause: CauseStopped}},
		{"not caught", "echo; exec sleep 60", 0, 10 * time.Second, Status{Code: 143, Cause: CauseStopped}},
		{"other signal", "trap 'exit 8' USR2" + loop, unix.SIGUSR2, 10 * time.Second,
			Status{Code: 8, Cause: CauseStopped}},
		{"ignored", "trap '' TERM" + loop, 0, 50 * time.Millisecond, killed},
		{"no grace", "trap 'exit 9' TERM" + loop, 0, 0, killed},
		{"while suspended", "echo; kill -STOP $$; exit 3", 0, 10 * time.Second, Status{Code: 143, Cause: CauseStopped}},
		{"a grace without end", "trap 'exit 9' TERM" + loop, 0, math.MaxInt64, Status{Code: 9, Cause: CauseStopped}},
		{"no grace, while suspended", "echo; kill -STOP $$; exit 3", 0, 0, killed},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSupervisor(t)
			c := command(test.script)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			c.Stdout, c.StopSignal = w, test.signal
			p := start(t, s, c)
			w.Close()
			if _, err := r.Read(make([]byte, 1)); err != nil { // its trap is set
				t.Fatal(err)
			}
			p.Stop(test.grace)
			if got := p.Wait(); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// The end of the command is the end of the tree: what it left behind may not run on when the claim
// is given up.
func TestLeftBehind(t *testing.T) {
	s := newSupervisor(t)
	c, file := tree(t, 30*time.Second)
	c.Grace = 100 * time.Millisecond
	script := `"$1" __daemon "$2" daemon; "$1" __stamp "$2" child &
		until grep -qs daemon "$2" && grep -qs child "$2"; do sleep 0.01; done; exit 4`
	c.Args = []string{"sh", "-c", script, "sh", self(), file}
	got := start(t, s, c).Wait()
	after := boottime.Now()
	if want := (Status{Code: 4, Cause: CauseExited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(stamps(t, file)) != 2 {
		t.Errorf("got %d processes, want 2", len(stamps(t, file)))
	}
	wantDeadBy(t, file, after)
}

// A family whose members live for an instant only, each in a new session: there is never a pid to
// aim at for long.
func TestComet(t *testing.T) {
	s := newSupervisor(t)
	file := filepath.Join(t.TempDir(), "comet")
	script := `echo 'echo x >>"$1"; setsid sh "$0" "$1" & exit' >"$1.sh"
		setsid sh "$1.sh" "$1" & while :; do sleep 1; done`
	c := command("")
	c.Args = []string{"sh", "-c", script, "sh", file}
	p := start(t, s, c)
	eventually(t, "20 generations", func() bool { b, _ := os.ReadFile(file); return len(b) > 40 })
	begin := boottime.Now()
	p.Stop(0)
	if got := p.Wait(); got.Cause != CauseStopped {
		t.Errorf("got %+v, want it stopped", got)
	}
	t.Logf("gone %v after the order", boottime.Now()-begin)
	size := func() int { b, _ := os.ReadFile(file); return len(b) }
	was := size()
	time.Sleep(20 * time.Millisecond) // the time of several generations: nothing may happen
	if size() != was {
		t.Error("the comet flies on")
	}
}

func TestStdinEnvironmentAndDescriptors(t *testing.T) {
	s := newSupervisor(t)
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	c := command("cat; tr '\\0' '\\n' </proc/self/environ; ls /proc/self/fd; pwd")
	c.Env, c.Dir = []string{"A=1", "PATH=" + os.Getenv("PATH")}, "/proc"
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c.Stdin = r
	read := output(t, &c)
	p := start(t, s, c)
	if _, err := io.WriteString(w, "hello\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// dash adds PWD to what it exports; ls has the directory itself open as number 3.
	got := strings.Split(strings.ReplaceAll(read(), "PWD=/proc\n", ""), "\n")
	want := []string{"hello", c.Env[0], c.Env[1], "0", "1", "2", "3", "/proc", ""}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	p.Wait()
}

// A pipeline ends when its last writer is gone, and the guardian must not be one; nor may it steal
// standard input.
func TestGuardianHoldsNothing(t *testing.T) {
	s := newSupervisor(t)
	c := command("echo x; exec >&- 2>&- <&-; sleep 60")
	read := output(t, &c)
	c.Stderr = c.Stdout
	p := start(t, s, c)
	if got := read(); got != "x\n" { // returns at the end of file
		t.Errorf("got %q, want %q", got, "x\n")
	}
	select {
	case <-p.Done():
		t.Error("the command ended too: the test shows nothing")
	default:
	}
}

func TestSignalsGoToTheGroup(t *testing.T) {
	s := newSupervisor(t)
	for _, sig := range Signals() {
		name := strings.TrimPrefix(unix.SignalName(sig.(syscall.Signal)), "SIG")
		// Three in the group; not with "&", for then sh would ignore some signals. Two write when
		// it reaches them.
		script := `exec 3>&1 2>/dev/null; trap : ` + name + `
			f() { trap "echo $1 >&3; exit 3" ` + name + `; echo ready >&3; while :; do sleep 0.01; done; }
			f left | f right`
		c := command(script)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout = w
		p := start(t, s, c)
		w.Close()
		var got bytes.Buffer
		for sent := false; ; {
			buf := make([]byte, 100)
			n, err := r.Read(buf)
			got.Write(buf[:n])
			if err != nil {
				break
			}
			if !sent && strings.Count(got.String(), "ready") == 2 {
				sent = true
				p.Signal(sig.(syscall.Signal))
			}
		}
		r.Close()
		if !strings.Contains(got.String(), "left") || !strings.Contains(got.String(), "right") {
			t.Errorf("%s: got %q, want both to have heard it", name, got.String())
		}
		if got := p.Wait(); got.Code != 3 || got.Cause != CauseExited {
			t.Errorf("%s: got %+v, want code 3", name, got)
		}
	}
}

// These are passed on by the package itself; without a terminal the supervisor does not stop with
// its command.
func TestJobControlSignalsArePassedOn(t *testing.T) {
	s := newSupervisor(t)
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGCONT} {
		// See TestBackground for why no loop of sleeps.
		name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
		c := command("trap 'exit 3' " + name + "; sleep 60 & echo ready; while :; do wait; done")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout = w
		p := start(t, s, c)
		w.Close()
		if _, err := r.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		r.Close()
		send(t, sig, os.Getpid())
		if got, want := p.Wait(), (Status{Code: 3, Cause: CauseExited}); got != want {
			t.Errorf("%v: got %+v, want %+v", sig, got, want)
		}
	}
}

// nohup primacy run … must leave SIGHUP ignored; everything else the command finds as any child of
// a shell would.
func TestSignalDispositions(t *testing.T) {
	for _, ignore := range []string{"", "HUP", "INT TSTP TTOU"} {
		c := command("grep -E '^Sig(Blk|Ign)' /proc/self/status")
		read := output(t, &c)
		args := []string{"-c", `for s in $1; do trap '' $s; done; shift; exec "$@"`, "sh", ignore}
		sup := supervisorCommand(t, setup{Command: c, Report: filepath.Join(t.TempDir(), "report")})
		sup.Args = append(append([]string{"sh"}, args...), sup.Args...)
		sup.Path = "/bin/sh"
		if err := sup.Run(); err != nil {
			t.Fatal(err)
		}
		got := read()
		args = append(args, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
		plain, err := exec.Command("/bin/sh", args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got != string(plain) {
			t.Errorf("ignoring %q: got\n%swant\n%s", ignore, got, plain)
		}
	}
}
