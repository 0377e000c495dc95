//go:build linux

package failover

import (
	"fmt"
	"maps"
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

// node is one machine's `primacy run`, which is started again when it ends, as a service manager
// does.
type node struct {
	testing.TB
	id   string
	dir  string
	args []string // the whole command
	env  []string

	mu      sync.Mutex
	cmd     *exec.Cmd
	stopped bool
	ends    map[int]int // how often it ended, by status
	done    chan struct{}
}

// newNode starts one. wrap puts a command on the node's machine.
func newNode(t testing.TB, id, store, service, status string, ttl time.Duration, wrap func([]string) []string) *node {
	t.Helper()
	bin, err := programtest.Program()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{TB: t, id: id, dir: t.TempDir(), ends: map[int]int{}, done: make(chan struct{})}
	n.args = wrap([]string{bin, "run", "--store", store, "--id", id, "--ttl", ttl.String(), "--timeout", "30s",
		"--status", status, "billing", "--", self})
	n.env = append(os.Environ(), listenEnv+"="+service, "XDG_RUNTIME_DIR="+n.dir)
	t.Cleanup(n.down)
	go n.keep()
	return n
}

func (n *node) keep() {
	defer close(n.done)
	for n.once() {
		time.Sleep(100 * time.Millisecond)
	}
}

// once runs it once, and says whether it is to run again.
func (n *node) once() bool {
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.Error(err)
		return false
	}
	defer log.Close()
	cmd := exec.Command(n.args[0], n.args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	n.mu.Lock()
	if n.stopped {
		n.mu.Unlock()
		return false
	}
	onethread.Do(func() { err = cmd.Start() })
	n.cmd = cmd
	n.mu.Unlock()
	if err != nil {
		n.Error(err)
		return false
	}
	_ = cmd.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	n.ends[code]++
	return !n.stopped
}

func (n *node) ended() map[int]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.ends)
}

// down ends it for good.
func (n *node) down() {
	n.mu.Lock()
	n.stopped = true
	if n.cmd != nil && n.cmd.Process != nil {
		_ = n.cmd.Process.Signal(syscall.SIGCONT)
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
	}
	n.mu.Unlock()
	select {
	case <-n.done:
	case <-time.After(10 * time.Second):
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}

func (n *node) logTail() string {
	b, _ := os.ReadFile(filepath.Join(n.dir, "log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// parts returns supervisor, guardian and service.
func (n *node) parts() (supervisor, guardian, service int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil || n.cmd.Process == nil {
		return 0, 0, 0, false
	}
	supervisor = n.cmd.Process.Pid
	for _, child := range children(supervisor) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); strings.Contains(string(line),
			"__guardian") {
			guardian = child
		}
	}
	if guardian == 0 {
		return 0, 0, 0, false
	}
	for _, child := range children(guardian) {
		service = child
	}
	return supervisor, guardian, service, service != 0
}

func children(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		text, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// send signals processes that may have ended meanwhile; those of a node that has not been waited
// for keep their numbers.
func send(sig syscall.Signal, pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}
