package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/primacy-go/primacy/internal/boottime"
)

// node is one candidate of the demo: a real `primacy run` process.
type node struct {
	id    string
	start func() (*exec.Cmd, error)
	dir   string // of its state file

	mu     sync.Mutex
	cmd    *exec.Cmd
	ttl    time.Duration // of its next start
	doing  string        // for the picture
	exited chan struct{}
}

func newNode(do func(func()), self, id, dir, store string, ttl time.Duration, acts string) *node {
	n := &node{id: id, dir: filepath.Join(dir, "run"), ttl: ttl, doing: "not started"}
	n.start = func() (*exec.Cmd, error) {
		c := exec.Command(self, "run", "--store", store, "--id", id, "--ttl", n.leaseTTL().String(), demoName,
			"--", self, "worker", acts)
		c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PRIMACY_") })
		c.Env = append(c.Env, "XDG_RUNTIME_DIR="+n.dir)
		c.SysProcAttr = nodeAttr()
		log, err := os.OpenFile(filepath.Join(dir, id+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer log.Close()
		c.Stdout, c.Stderr = log, log
		do(func() { err = c.Start() })
		return c, err
	}
	return n
}

// up starts the node's process.
func (n *node) up() error {
	c, err := n.start()
	if err != nil {
		return fmt.Errorf("start %s: %w", n.id, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cmd, n.doing, n.exited = c, "waits", make(chan struct{})
	exited := n.exited
	go func() {
		_ = c.Wait()
		n.set(fmt.Sprintf("ended, exit %d", exitCode(c.ProcessState)))
		close(exited)
	}()
	return nil
}

func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

func (n *node) set(doing string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.doing = doing
}

func (n *node) say() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.doing
}

func (n *node) setTTL(ttl time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ttl = ttl
}

func (n *node) leaseTTL() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ttl
}

// pid is the process's number, 0 before the first start.
func (n *node) pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

func (n *node) signal(sig syscall.Signal) error { return n.cmd.Process.Signal(sig) }

// awaitExit waits until the process has ended, or for the limit.
func (n *node) awaitExit(limit time.Duration) bool {
	select {
	case <-n.exited: // also with a limit of 0
		return true
	default:
	}
	select {
	case <-n.exited:
		return true
	case <-time.After(limit):
		return false
	}
}

// down ends the process, thawed if it was frozen, by force if it takes too long.
func (n *node) down() {
	if n.cmd == nil {
		return
	}
	_ = n.signal(syscall.SIGCONT)
	_ = n.signal(syscall.SIGTERM)
	if !n.awaitExit(5 * time.Second) {
		_ = n.signal(syscall.SIGKILL)
		<-n.exited
	}
}

// lease reads what is left of the node's term from the file it writes for its command: the same
// that `leader --valid` reads.
func (n *node) lease() (token uint64, left time.Duration) {
	b, err := os.ReadFile(filepath.Join(n.dir, "primacy", fmt.Sprintf("%d.state", n.pid())))
	if err != nil {
		return 0, 0
	}
	var t termState
	if json.Unmarshal(b, &t) != nil {
		return 0, 0
	}
	return uint64(t.Token), max(0, t.Deadline-boottime.Now())
}

// view shows the demo: a live picture on a terminal, plain lines elsewhere.
type view struct {
	w     io.Writer
	live  bool
	width int
	began time.Time

	picture func() []string

	mu    sync.Mutex
	drawn int // lines of the picture on the screen
	wg    sync.WaitGroup
	stop  chan struct{}
}

func newView(w io.Writer, picture func() []string) *view {
	v := &view{w: w, picture: picture, began: time.Now(), stop: make(chan struct{}), width: 80}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		v.live = true
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 20 {
			v.width = cols
		}
		v.wg.Go(v.animate)
	}
	return v
}

func (v *view) animate() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			v.mu.Lock()
			v.erase()
			v.draw()
			v.mu.Unlock()
		case <-v.stop:
			return
		}
	}
}

// line prints one line of the story, above the picture.
func (v *view) line(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	s := fmt.Sprintf("%5.1fs  %s", time.Since(v.began).Seconds(), fmt.Sprintf(format, args...))
	fmt.Fprintln(v.w, v.fit(s))
	if v.live {
		v.draw()
	}
}

// close ends the picture and leaves the story on the screen.
func (v *view) close() {
	close(v.stop)
	v.wg.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.live = false
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.w, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *view) draw() {
	rows := slices.Concat([]string{""}, v.picture(), []string{""})
	for _, r := range rows {
		fmt.Fprintln(v.w, v.fit(r))
	}
	v.drawn = len(rows)
}

// leases is the picture of the demo: who has what left of its lease.
func leases(nodes []*node) []string {
	rows := []string{fmt.Sprintf("  %-8s %-20s %8s  %s", "ID", "STATE", "TOKEN", "LEASE LEFT")}
	for _, n := range nodes {
		state, tok, text := n.say(), "", ""
		if token, left := n.lease(); left > 0 {
			tok = fmt.Sprint(token)
			text = bar(left, n.leaseTTL())
			if state == "waits" {
				state = "LEADS"
			}
		}
		rows = append(rows, fmt.Sprintf("  %-8s %-20s %8s  %s", n.id, state, tok, text))
	}
	return rows
}

const barWidth = 24

// bar shows a part of a time.
func bar(part, whole time.Duration) string {
	full := min(barWidth, int(float64(part)/float64(whole)*barWidth+0.5))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full) + fmt.Sprintf(" %.1fs", part.Seconds())
}

// fit cuts a line to the terminal: a wrapped one would spoil the picture.
func (v *view) fit(s string) string {
	if r := []rune(s); v.live && len(r) > v.width-1 {
		return string(r[:v.width-2]) + "…"
	}
	return s
}
