//go:build linux

package torture

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/onethread"
)

// node is one candidate: a `primacy run` process that reaches the store through proxies of its own.
type node struct {
	id       string
	dir      string
	bin      string
	url      string            // of the store behind the proxies
	links    []*etcdtest.Proxy // to each of its servers
	untold   bool              // the store gives terms no token
	isolated bool              // --isolate pid

	cmd    *exec.Cmd
	exited chan struct{}
}

// up starts the process; env is for the command.
func (n *node) up(t testing.TB, name string, ttl time.Duration, env ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := appendTo(filepath.Join(n.dir, n.id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := []string{"run", "--store", n.url, "--id", n.id, "--ttl", ttl.String()}
	if n.isolated {
		args = append(args, "--isolate", "pid")
	}
	cmd := exec.Command(n.bin, append(args, name, "--", self)...)
	cmd.Env = append(os.Environ(), append(env, "XDG_RUNTIME_DIR="+n.runDir(), helperEnv+"=act")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = log, log
	onethread.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	n.cmd, n.exited = cmd, exited
}

func (n *node) runDir() string { return filepath.Join(n.dir, "run-"+n.id) }

func (n *node) running() bool {
	select {
	case <-n.exited:
		return false
	default:
		return n.cmd != nil
	}
}

// exit waits for the end of the process and returns its exit status, 128+n for signal n.
func (n *node) exit(t testing.TB) int {
	t.Helper()
	select {
	case <-n.exited:
	case <-time.After(time.Minute):
		t.Fatalf("%s (%d) does not exit; its log ends with:\n%s", n.id, n.cmd.Process.Pid, n.logTail())
	}
	w := n.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}

// down ends the process, whatever state it is in.
func (n *node) down() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGCONT)
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.exited:
	case <-time.After(5 * time.Second):
		_ = n.cmd.Process.Kill()
		<-n.exited
	}
}

// hold lets nothing pass to or from the store, or in one direction.
func (n *node) hold(dirs ...etcdtest.Dir) {
	for _, l := range n.links {
		l.Hold(dirs...)
	}
}

func (n *node) heal() {
	for _, l := range n.links {
		l.Heal()
	}
}

func (n *node) logTail() string {
	b, _ := os.ReadFile(filepath.Join(n.dir, n.id+".log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// right is what a supervisor has told its command: until when it may act.
type right struct {
	Token    uint64        `json:"token,string"`
	Deadline time.Duration `json:"deadline_boot_ns,string"`
	age      time.Duration // of the file
}

// right reads the state file of a process of this node.
func (n *node) right(pid int) (right, bool) {
	path := filepath.Join(n.runDir(), "primacy", fmt.Sprintf("%d.state", pid))
	var r right
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &r) != nil {
		return right{}, false
	}
	info, err := os.Stat(path)
	if err != nil {
		return right{}, false
	}
	r.age = time.Since(info.ModTime())
	return r, true
}

// victim is a leader and its processes.
type victim struct {
	*node
	token      uint64
	supervisor proc
	guardian   proc
	members    []proc // the command and its child
	watch      *rightWatch
}

// lastActs returns when each member acted last.
func (v *victim) lastActs(t testing.TB, own string) map[proc]time.Duration {
	t.Helper()
	last := map[proc]time.Duration{}
	for _, m := range v.members {
		acts := readActs(t, v.ownFile(own, m))
		if len(acts) == 0 {
			t.Fatalf("%v wrote nothing", m)
		}
		last[m] = acts[len(acts)-1].at
	}
	return last
}

func (v *victim) ownFile(own string, m proc) string {
	return filepath.Join(own, fmt.Sprintf("%d.%s.%d", v.token, m.role, m.number))
}

// rightWatch follows a supervisor's state file, which is gone when its command has ended.
type rightWatch struct {
	stop chan struct{}
	last chan right
}

func (n *node) watchRight(pid int) *rightWatch {
	w := &rightWatch{make(chan struct{}), make(chan right, 1)}
	go func() {
		var last right
		for {
			if r, ok := n.right(pid); ok {
				last = r
			}
			select {
			case <-w.stop:
				w.last <- last
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return w
}

// end returns the last right seen.
func (w *rightWatch) end() right {
	close(w.stop)
	return <-w.last
}

// aim waits until the supervisor has renewed and then for a part of the time to its next renewal,
// so that faults meet every moment of it, also that of a renewal in flight. False: its term is
// over.
func (v *victim) aim(t testing.TB, part float64, every time.Duration) bool {
	t.Helper()
	before, _ := v.right(v.supervisor.pid)
	at := boottime.Now()
	eventually(t, time.Minute, "a renewal", func() bool {
		now, ok := v.right(v.supervisor.pid)
		at = boottime.Now()
		return !ok || now.Deadline != before.Deadline
	})
	waitUntil(at + time.Duration(part*float64(every)))
	return v.stands()
}

// stands says whether the victim's term goes on: its command runs, and has the right to.
func (v *victim) stands() bool {
	r, ok := v.right(v.supervisor.pid)
	return ok && (v.untold || r.Token == v.token) && boottime.Now() < r.Deadline
}

// bound returns by when the command of a supervisor that was hit just now must be gone: the
// deadline it wrote last. Where a renewal may have been under way, it may have told the guardian of
// the new deadline and not yet have written it. That one is counted from before the fault, too.
func (v *victim) bound(t testing.TB, ttl time.Duration) time.Duration {
	t.Helper()
	hit := boottime.Now()
	r, ok := v.right(v.supervisor.pid)
	if !ok || !v.untold && r.Token != v.token {
		t.Fatalf("the state file of %v: got %+v, %v, want token %d", v.supervisor, r, ok, v.token)
	}
	if r.age < ttl/5*3/4 {
		return r.Deadline
	}
	return max(r.Deadline, hit+ttl*9/10)
}
