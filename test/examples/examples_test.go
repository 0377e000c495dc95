//go:build linux

package examples

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/onethread"
	"github.com/primacy-go/primacy/internal/programtest"
)

// languages are how each example is started as a candidate.
var languages = map[string]func(name string) []string{
	"shell": func(name string) []string {
		return []string{"bash", "../../examples/shell/lead.sh", name, "../../examples/shell/step.sh"}
	},
	"python": func(name string) []string { return []string{"python3", "-B", "../../examples/python/worker.py", name} },
	"node":   func(name string) []string { return []string{"node", "../../examples/node/worker.mjs", name} },
}

func TestMain(m *testing.M) {
	code := m.Run()
	programtest.Remove()
	os.Exit(code)
}

// process is one that runs, and the lines it has printed.
type process struct {
	testing.TB
	cmd    *exec.Cmd
	exited chan struct{}

	mu    sync.Mutex
	lines []string
}

// start starts a process that lives as long as a test, which may be an outer one.
func start(t, life testing.TB, env []string, args ...string) *process {
	t.Helper()
	p := &process{TB: t, cmd: exec.Command(args[0], args[1:]...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	onethread.Do(func() { err = p.cmd.Start() })
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, sc.Text())
			p.mu.Unlock()
		}
		out.Close()
	}()
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	life.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
	return p
}

func (p *process) signal(sig syscall.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.Errorf("%v: %v", sig, err)
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// says waits until a line begins so, and returns the first that does.
func (p *process) says(prefix string) string {
	p.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		for _, l := range p.lines {
			if strings.HasPrefix(l, prefix) {
				p.mu.Unlock()
				return l
			}
		}
		p.mu.Unlock()
		if time.Now().After(end) {
			p.Fatalf("%v: waited %v for a line %q…; it said:\n%s", p.cmd.Args, patience, prefix, p.text())
		}
	}
}

// leads waits until it leads and works, and returns the token.
func (p *process) leads() uint64 {
	p.Helper()
	text := strings.TrimPrefix(p.says("leads "), "leads ")
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		p.Fatal(err)
	}
	p.says("works " + text)
	return token
}

// ends waits for the end of the process, with that status.
func (p *process) ends(want int) {
	p.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.Fatalf("%v did not end in %v; it said:\n%s", p.cmd.Args, patience, p.text())
	}
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		p.Errorf("%v ended with %d, want %d; it said:\n%s", p.cmd.Args, got, want, p.text())
	}
}

// patience is how long a process may take for what it does at once on a machine that is not busy.
const patience = time.Minute

const ttl = 6 * time.Second // a busy machine renews in time

// sidecar starts `primacy serve` on a store of its own, and returns what its clients need in their
// environment.
func sidecar(t testing.TB) (*process, []string) {
	t.Helper()
	bin, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pe") // a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	env := []string{"XDG_RUNTIME_DIR=" + dir, "PRIMACY_SOCKET="}
	p := start(t, t, env, bin, "serve", "--store", "embedded:"+filepath.Join(dir, "store"), "--ttl", ttl.String())
	p.says("primacy: serving on ")
	return p, env
}

// TestExamples plays the same with each language: two candidates, the leader is killed, the next
// resigns, the sidecar is frozen and stopped.
func TestExamples(t *testing.T) {
	t.Parallel()
	serve, env := sidecar(t)
	life := t
	last := map[string]*process{}
	var mu sync.Mutex
	t.Run("two candidates", func(t *testing.T) {
		for lang, args := range languages {
			t.Run(lang, func(t *testing.T) {
				programtest.Needs(t, "curl", args("")[0])
				t.Parallel()
				p := handOver(t, life, env, args("examples/"+lang))
				mu.Lock()
				last[lang] = p
				mu.Unlock()
			})
		}
	})
	if t.Failed() {
		return
	}
	began := time.Now()
	serve.signal(syscall.SIGSTOP)
	for lang, p := range last {
		p.TB = t
		p.ends(122) // by its own clock: nobody tells it
		t.Logf("%s: gone %v after the sidecar froze, ttl %v", lang, time.Since(began).Round(time.Millisecond), ttl)
	}
	serve.signal(syscall.SIGCONT)
	for lang := range last {
		last[lang] = start(t, t, env, languages[lang]("examples/"+lang)...)
	}
	for _, p := range last {
		p.leads()
	}
	serve.signal(syscall.SIGTERM)
	for lang, p := range last {
		p.ends(122)
		if lang != "shell" && !strings.Contains(p.text(), "shutdown") {
			t.Errorf("%s does not say why:\n%s", lang, p.text())
		}
	}
	serve.ends(0)
	for lang := range last {
		start(t, t, env, languages[lang]("examples/"+lang)...).ends(121)
	}
}

// handOver has a leader killed and the next one resign, and returns the third.
func handOver(t, life *testing.T, env, args []string) *process {
	a := start(t, life, env, args...)
	first := a.leads()
	b := start(t, life, env, args...)
	waits := start(t, life, env, args...)
	time.Sleep(700 * time.Millisecond) // long enough to work, if they did
	if text := b.text() + waits.text(); text != "" {
		t.Fatalf("%s says, while another leads: %s", args[0], text)
	}
	a.signal(syscall.SIGKILL)
	<-a.exited
	next, other := b, waits
	for end := time.Now().Add(patience); !b.hasLed() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if waits.hasLed() { // who came first is theirs to say
			next, other = waits, b
			break
		}
	}
	second := next.leads()
	if second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	next.signal(syscall.SIGTERM)
	next.ends(0)
	if third := other.leads(); third <= second {
		t.Errorf("token %d after %d", third, second)
	}
	idle := start(t, life, env, args...)
	time.Sleep(700 * time.Millisecond)
	idle.signal(syscall.SIGTERM) // while it waits
	select {
	case <-idle.exited:
		// an interpreter may have begun only just now
		if state := idle.cmd.ProcessState; state.ExitCode() != 0 && !state.Sys().(syscall.WaitStatus).Signaled() {
			t.Errorf("%v ended while it waited: %v\n%s", args, state, idle.text())
		}
	case <-time.After(patience):
		t.Errorf("%v does not end while it waits", args)
	}
	return other
}

func (p *process) hasLed() bool { return strings.HasPrefix(p.text(), "leads ") }
