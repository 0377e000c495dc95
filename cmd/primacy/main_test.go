//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
)

// limit bounds what must happen soon. Generous: the machine may be busy, and nobody waits for it
// when all is well.
const limit = time.Minute

// prompt bounds what is to happen at once, and what would else take much longer, or for ever. A
// busy machine needs some of it.
const prompt = 30 * time.Second

// beProgram makes the test binary the program itself. A guardian has no environment, but its
// argument.
const beProgram = "TEST_BE_PRIMACY"

func TestMain(m *testing.M) {
	if os.Getenv(beProgram) != "" || len(os.Args) > 1 && os.Args[1] == supervise.GuardianArg {
		main()
	}
	heed()
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() != "1" {
		_ = f.Value.Set(strconv.Itoa(sideBySide()))
	}
	code := m.Run()
	shared.close()
	programtest.Remove()
	os.Exit(code)
}

// sideBySide returns how many of these tests run at a time. They mostly wait, but each of them
// starts the program some ten times, each time with two or three processes. That takes 10 ms of a
// processor here and 80 ms there: on some virtual machines each new page of memory costs tens of
// microseconds. Were the number the same everywhere, tests would meet their time limits on those.
func sideBySide() int {
	const fewest, most, each = 4, 16, 80 * time.Millisecond
	exe, err := os.Executable()
	if err != nil {
		return fewest
	}
	cost := time.Duration(math.MaxInt64)
	for range 3 { // the first one reads the program from the disk
		version := exec.Command(exe, "version")
		version.Env = []string{beProgram + "=1"}
		if err := version.Run(); err != nil {
			return fewest
		}
		cost = min(cost, version.ProcessState.UserTime()+version.ProcessState.SystemTime())
	}
	return max(fewest, min(most, int(time.Duration(runtime.NumCPU())*each/max(cost, 1))))
}

// heed makes this process catch the signals that it was started to ignore: SIGHUP by nohup, SIGINT
// and SIGQUIT in the background of a script. The programs of the tests would ignore them too.
func heed() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGPIPE} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// shared is what all tests use: one etcd server, and a folder with the program under its name.
var shared sharedServer

type sharedServer struct {
	testing.TB // of the first test that needs it, for its messages
	once       sync.Once
	server     *etcdtest.Server
	dir        string
	cleanups   []func()
}

// These make it outlive that first test.
func (s *sharedServer) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }
func (s *sharedServer) Failed() bool     { return false }
func (s *sharedServer) TempDir() string  { return s.mkdir("etcd-") }

func (s *sharedServer) mkdir(name string) string {
	dir, err := os.MkdirTemp(s.dir, name)
	if err != nil {
		s.Fatal(err)
	}
	return dir
}

func (s *sharedServer) start(t *testing.T) {
	s.once.Do(func() {
		s.TB = t
		s.dir = s.mkdir("primacy-test-")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, filepath.Join(s.dir, "primacy")); err != nil {
			t.Fatal(err)
		}
		s.server = etcdtest.Start(s, etcdtest.Options{})
	})
	if s.server == nil {
		t.Fatal("the shared etcd did not start: see the first test")
	}
}

func (s *sharedServer) close() {
	slices.Reverse(s.cleanups)
	for _, f := range s.cleanups {
		f()
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
}

// world is where a test runs the program: a store of its own and folders of its own. Tests in one
// run in parallel.
type world struct {
	*testing.T
	server *etcdtest.Server
	prefix string // of its keys in etcd
	store  string // the URL
	dir    string
	env    []string
	attr   *syscall.SysProcAttr // of the programs it starts; nil: none
}

// newWorld returns a world on a prefix of its own in the shared etcd. Its leases are long: where a
// test is not about losing one, a busy machine must not lose it.
func newWorld(t *testing.T) *world {
	t.Parallel()
	shared.start(t)
	return newWorldOn(t, shared.server).with("PRIMACY_TTL=30s")
}

// newWorldOn returns a world on another server.
func newWorldOn(t *testing.T, server *etcdtest.Server) *world {
	w := plainWorld(t)
	w.server = server
	w.prefix = "t/" + filepath.Base(w.dir) + "/"
	w.store = "etcd://" + server.Addr() + "/" + w.prefix
	w.env = append(w.env, "PRIMACY_STORE="+w.store)
	return w
}

// plainWorld returns a world without a server: with nothing set, the store is the embedded one.
func plainWorld(t *testing.T) *world {
	shared.start(t)
	w := &world{T: t}
	// A short name: a unix socket's path is limited.
	w.dir = shared.mkdir("w")
	t.Cleanup(func() {
		w.eventually("every process of this test is gone", func() bool { return len(w.processes()) == 0 })
		os.RemoveAll(w.dir)
	})
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PRIMACY_") &&
			!strings.HasPrefix(name, "XDG_") && name != "PATH" && name != "GORACE" {
			w.env = append(w.env, kv)
		}
	}
	w.env = append(w.env, beProgram+"=1", "PATH="+shared.dir+":"+os.Getenv("PATH"), "TMPDIR="+w.dir,
		"XDG_RUNTIME_DIR="+w.dir, "XDG_STATE_HOME="+filepath.Join(w.dir, "state"),
		"GORACE=atexit_sleep_ms=0") // else each program ends a second late under the race detector
	return w
}

// processes returns what runs in the test's folder, as everything does that it started: guardians,
// commands and their children.
func (w *world) processes() []string {
	found, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		w.Fatal(err)
	}
	return slices.DeleteFunc(found, func(link string) bool {
		dir, err := os.Readlink(link)
		return err != nil || dir != w.dir
	})
}

// killAll kills what runs in the test's folder, and would for a while: again, as long as something
// does, for a command may start a child between the look and its end.
func (w *world) killAll() {
	w.Helper()
	w.eventually("nothing runs that was killed", func() bool {
		links := w.processes()
		for _, link := range links {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		return len(links) == 0
	})
}

// prog is one run of the program.
type prog struct {
	*world
	args     []string
	cmd      *exec.Cmd
	out      buffer
	err      messages
	exited   chan struct{}
	took     time.Duration
	patience time.Duration
	waitErr  error
}

// buffer is a bytes.Buffer that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// messages is what a program says to people, without what it says because the machine is busy.
type messages struct{ buffer }

var storeIsSlow = regexp.MustCompile(`primacy: the store does not answer yet; ` +
	`waiting for the store for up to (\S+) \(--timeout\)\n`)

// String leaves out that the store did not answer within a second, where the program waits for it
// for so long that no test means that word.
func (m *messages) String() string {
	return storeIsSlow.ReplaceAllStringFunc(m.buffer.String(), func(line string) string {
		if d, err := time.ParseDuration(storeIsSlow.FindStringSubmatch(line)[1]); err == nil && d >= 5*time.Second {
			return ""
		}
		return line
	})
}

// with returns the world with more in its environment; the later of two counts.
func (w *world) with(env ...string) *world {
	n := *w
	n.env = append(slices.Clip(w.env), env...)
	return &n
}

// without returns the world without a variable in its environment.
func (w *world) without(name string) *world {
	n := *w
	n.env = slices.DeleteFunc(slices.Clone(w.env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return &n
}

// start runs the program; what is left of it at the end of the test is killed.
func (w *world) start(args ...string) *prog {
	w.Helper()
	return w.startWith(nil, args...)
}

func (w *world) startWith(stdin io.Reader, args ...string) *prog {
	w.Helper()
	p := &prog{world: w, args: args, exited: make(chan struct{}), patience: limit}
	program := filepath.Join(shared.dir, "primacy")
	if w.attr != nil { // another user cannot enter that folder
		program = "/proc/self/exe"
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env, p.cmd.Dir, p.cmd.SysProcAttr = w.env, w.dir, w.attr
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, &p.out, &p.err
	p.cmd.WaitDelay = prompt // then somebody still holds its output: that is an error
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() {
		p.waitErr = p.cmd.Wait()
		p.took = time.Since(began)
		close(p.exited)
	}()
	w.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.exited
		if w.Failed() {
			w.Logf("%v\nstdout: %s\nstderr: %s", p, clip(p.out.String()), clip(p.err.String()))
		}
	})
	return p
}

func (p *prog) String() string { return clip("primacy " + strings.Join(p.args, " ")) }

// wait waits for its end and returns the exit code as a shell tells it.
func (p *prog) wait() int {
	p.Helper()
	select {
	case <-p.exited:
	case <-time.After(p.patience):
		p.Fatalf("%v still runs after %v", p, p.patience)
	}
	var exit *exec.ExitError
	if p.waitErr != nil && !errors.As(p.waitErr, &exit) {
		p.Errorf("%v: %v", p, p.waitErr)
	}
	if s := p.err.String(); strings.Contains(s, "DATA RACE") || strings.Contains(s, "goroutine ") ||
		strings.Contains(s, "panic:") {
		p.Errorf("%v: stderr has a stack trace:\n%s", p, clip(s))
	}
	return exitCode(p.cmd.ProcessState)
}

// within says how long it may take at most.
func (p *prog) within(d time.Duration) *prog {
	p.patience = d
	return p
}

// ends waits for its end and checks the exit code.
func (p *prog) ends(code int) *prog {
	p.Helper()
	if got := p.wait(); got != code {
		p.Fatalf("%v: exit %d, want %d; stdout %q, stderr %q", p, got, code, clip(p.out.String()), clip(p.err.String()))
	}
	return p
}

// says checks that stdout has each text.
func (p *prog) says(texts ...string) *prog {
	p.Helper()
	for _, s := range texts {
		if !strings.Contains(p.out.String(), s) {
			p.Errorf("%v: stdout %q lacks %q", p, clip(p.out.String()), s)
		}
	}
	return p
}

// complains checks that stderr has each text.
func (p *prog) complains(texts ...string) *prog {
	p.Helper()
	for _, s := range texts {
		if !strings.Contains(p.err.String(), s) {
			p.Errorf("%v: stderr %q lacks %q", p, clip(p.err.String()), s)
		}
	}
	return p
}

// inOneLine checks that stderr is one line of ours, and nothing on stdout.
func (p *prog) inOneLine() *prog {
	p.Helper()
	s := p.err.String()
	if !strings.HasPrefix(s, "primacy: ") || strings.Count(s, "\n") != 1 || !strings.HasSuffix(s, "\n") ||
		len(s) > 500 {
		p.Errorf("%v: stderr %q, want one line of at most 500 bytes", p, clip(s))
	}
	if p.out.String() != "" {
		p.Errorf("%v: stdout %q, want nothing", p, clip(p.out.String()))
	}
	return p
}

// prints waits until stdout has the text.
func (p *prog) prints(text string) *prog {
	p.Helper()
	p.until(func() bool { return strings.Contains(p.out.String(), text) }, "prints %q", text)
	return p
}

// tells waits until stderr has the text.
func (p *prog) tells(text string) *prog {
	p.Helper()
	p.until(func() bool { return strings.Contains(p.err.String(), text) }, "tells %q", text)
	return p
}

func (p *prog) until(ok func() bool, format string, args ...any) {
	p.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.exited:
			if ok() {
				return
			}
			p.Fatalf("%v: ended with %d before it %s; stdout %q, stderr %q", p, p.wait(),
				fmt.Sprintf(format, args...), clip(p.out.String()), clip(p.err.String()))
		default:
		}
		if time.Now().After(end) {
			p.Fatalf("%v: %s: not within %v; stdout %q, stderr %q", p, fmt.Sprintf(format, args...), limit,
				clip(p.out.String()), clip(p.err.String()))
		}
	}
}

func (p *prog) signal(sig syscall.Signal) *prog {
	p.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.Fatal(err)
	}
	return p
}

// eventually polls until ok. It sleeps for as long as a look takes, at least: what takes long, such
// as a run of the program, would otherwise keep the machine busy.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	w.within(limit, what, ok)
}

// within is eventually with a limit of its own.
func (w *world) within(limit time.Duration, what string, ok func() bool) {
	w.Helper()
	for began := time.Now(); ; {
		looked := time.Now()
		if ok() {
			return
		}
		if time.Since(began) > limit {
			w.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(max(10*time.Millisecond, time.Since(looked)))
	}
}

// decode reads JSON that the program printed.
func decode[T any](w *world, text string) T {
	w.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		w.Fatalf("%v in %q", err, clip(text))
	}
	return v
}
