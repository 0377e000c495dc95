//go:build linux

package torture

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
)

// The kinds of candidates.
const (
	kindRun     = "run"     // `primacy run` and a command
	kindPrimacy = "primacy" // a process that uses the library
	kindForeign = "foreign" // TORTURE_WORKER
	kindLocks   = "locks"   // a process whose goroutines contend for several locks: TestLockHistories
)

// candidate is one place in a line: a process that is started again whenever it has ended, as any
// service would be.
type candidate struct {
	line   *line
	id     string
	kind   string
	store  *installed
	worker string // the program of a worker; "": this one
	dir    string
	env    []string
	links  []*etcdtest.Proxy // to each server of the store
	meters []*etcdtest.Meter // behind them

	faultMu sync.Mutex // held by a fault that works on its processes

	mu     sync.Mutex
	cmd    *exec.Cmd
	starts int
	ends   map[int]time.Duration // when each start was seen to have ended
	over   bool
	done   chan struct{}
	sent   [][]int64 // what the meters said, the newest last
	tails  map[string]*tail
	acts   []sight
}

// sight is one act as its file has it.
type sight struct {
	at    time.Duration
	token uint64
}

// tail is how far a file with acts has been read.
type tail struct{ read int64 }

func newCandidate(t testing.TB, l *line, id, kind string, store *installed) *candidate {
	t.Helper()
	c := &candidate{line: l, id: id, kind: kind, store: store, dir: filepath.Join(l.dir, id), done: make(chan struct{}),
		ends: map[int]time.Duration{}, tails: map[string]*tail{}}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, addr := range store.servers {
		meter := etcdtest.NewMeter(t, addr)
		c.meters = append(c.meters, meter)
		c.links = append(c.links, etcdtest.NewProxy(t, meter.Addr()))
	}
	return c
}

// command returns what to start.
func (c *candidate) command() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, l := range c.links {
		addrs = append(addrs, l.Addr())
	}
	ttl := c.line.ttl.String()
	env := append(os.Environ(), c.env...)
	if c.kind == kindRun {
		cmd := exec.Command(c.line.program, "run", "--store", c.store.url(addrs), "--id", c.id, "--ttl", ttl,
			c.line.name, "--", self)
		env = append(env, "XDG_RUNTIME_DIR="+c.dir, helperEnv+"=command", dirEnv+"="+c.dir,
			sinkEnv+"="+c.line.sink.path)
		cmd.Env = env
		return cmd, nil
	}
	program, kind := cmp.Or(c.worker, self), c.kind
	if c.kind == kindForeign {
		program, kind = os.Getenv("TORTURE_WORKER"), os.Getenv("TORTURE_KIND")
	}
	cmd := exec.Command(program, "--kind", kind, "--endpoints", strings.Join(addrs, ","), "--name", c.line.name,
		"--id", c.id, "--ttl", ttl,
		"--acts", c.actsFile(c.starts), "--writes", filepath.Join(c.dir, fmt.Sprintf("writes-%d", c.starts)),
		"--sink", c.line.sink.path)
	env = append(env, helperEnv+"=worker", storeEnv+"="+c.store.url(addrs))
	cmd.Env = env
	return cmd, nil
}

// actsFile is where a worker writes its acts, for each start another.
func (c *candidate) actsFile(start int) string {
	return filepath.Join(c.dir, fmt.Sprintf("acts-%d", start))
}

// keep runs the process, again and again, until down.
func (c *candidate) keep(rng *rand.Rand) error {
	defer close(c.done)
	log, err := appendTo(filepath.Join(c.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	for {
		c.mu.Lock()
		if c.over {
			c.mu.Unlock()
			return nil
		}
		c.starts++
		cmd, err := c.command()
		if err == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
			cmd.Stdout, cmd.Stderr = log, log
			onethread.Do(func() { err = cmd.Start() })
		}
		if err != nil {
			c.mu.Unlock()
			return fmt.Errorf("%s: %w", c.id, err)
		}
		c.cmd = cmd
		c.mu.Unlock()
		err = cmd.Wait()
		c.mu.Lock()
		c.cmd, c.ends[c.starts] = nil, boottime.Now()
		over := c.over
		c.mu.Unlock()
		fmt.Fprintf(log, "--- ended at %d: %v\n", boottime.Now().Nanoseconds(), err)
		if !over {
			time.Sleep(time.Duration(50+rng.IntN(500)) * time.Millisecond)
		}
	}
}

// down ends the process for good. It returns an error if that takes more than SIGTERM.
func (c *candidate) down() error {
	c.mu.Lock()
	c.over = true
	cmd := c.cmd
	c.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(time.Minute):
	}
	if cmd != nil {
		_ = cmd.Process.Kill()
	}
	<-c.done
	return fmt.Errorf("%s did not end on SIGTERM; its log ends with:\n%s", c.id, c.logTail())
}

// main returns the candidate's process: the worker, or the supervisor of a command.
func (c *candidate) main() (proc, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return proc{}, false
	}
	role := "worker"
	if c.kind == kindRun {
		role = "supervisor"
	}
	return procOf(c.cmd.Process.Pid, role)
}

func procOf(pid int, role string) (proc, bool) {
	st, ok := statOf(pid)
	return proc{pid, role, st.start, pid}, ok
}

// parts returns the processes of a `primacy run` that leads: supervisor, guardian, command.
func (c *candidate) parts() (supervisor, guardian, command proc, ok bool) {
	supervisor, ok = c.main()
	if !ok || c.kind != kindRun {
		return supervisor, guardian, command, false
	}
	pid, ok := childOf(supervisor.pid, "__guardian")
	if !ok {
		return supervisor, guardian, command, false
	}
	if guardian, ok = procOf(pid, "guardian"); !ok {
		return supervisor, guardian, command, false
	}
	self, _ := os.Executable()
	if pid, ok = childOf(guardian.pid, self); !ok {
		return supervisor, guardian, command, false
	}
	command, ok = procOf(pid, "command")
	return supervisor, guardian, command, ok
}

// poll reads what the candidate has written since.
func (c *candidate) poll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := filepath.Glob(filepath.Join(c.dir, "acts-*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if c.tails[f] == nil {
			c.tails[f] = &tail{}
		}
		if err := c.more(f, c.tails[f]); err != nil {
			return err
		}
	}
	return nil
}

// more reads the whole lines that a file has beyond what was read.
func (c *candidate) more(path string, t *tail) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() == t.read {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text := make([]byte, info.Size()-t.read)
	n, _ := f.ReadAt(text, t.read)
	text = text[:bytes.LastIndexByte(text[:n], '\n')+1]
	t.read += int64(len(text))
	for line := range bytes.Lines(text) {
		var s sight
		var id string
		if _, err := fmt.Sscanf(string(line), "%d %d %s", &s.at, &s.token, &id); err != nil || id != c.id {
			return fmt.Errorf("%s: %q is no act of %s: %v", path, line, c.id, err)
		}
		c.acts = append(c.acts, s)
	}
	return nil
}

// last returns the newest act read so far.
func (c *candidate) last() (sight, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.acts) == 0 {
		return sight{}, false
	}
	return c.acts[len(c.acts)-1], true
}

// meter notes what was sent to each member so far.
func (c *candidate) meter() {
	var now []int64
	for _, m := range c.meters {
		now = append(now, m.Sent())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, now)
	if len(c.sent) > meterMemory {
		c.sent = c.sent[1:]
	}
}

// member returns the member to which the candidate has sent most of late.
func (c *candidate) member() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := 0
	if len(c.sent) == 0 {
		return best
	}
	first, last := c.sent[0], c.sent[len(c.sent)-1]
	for i := range last {
		if last[i]-first[i] > last[best]-first[best] {
			best = i
		}
	}
	return best
}

func (c *candidate) logTail() string {
	b, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}
