package supervise

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor runs commands. A process has one.
type Supervisor struct {
	ignored []syscall.Signal // when this process began: nohup's SIGHUP stays ignored in the command

	// Held across every fork, so that a sweep never meets a child that it has not heard of.
	mu     sync.Mutex
	spared map[int]child // children that are no part of a lost tree
	work   map[int]bool  // commands whose guardian may be lost: whoever sweeps up after it asks for their status
}

// child is one of ours, by its process ID.
type child struct {
	start string // its start time: with the process ID, it names it for good
	own   bool   // started by StartOther: its exec.Cmd waits for it
}

// New makes this process a child subreaper, so that a guardian's orphans fall to it, and returns its Supervisor.
// Call it before the first signal.Notify, which forgets what was ignored. From then on start other children with
// [Supervisor.StartOther] only.
func New() (*Supervisor, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	s := &Supervisor{ignored: ignoredSignals(), spared: map[int]child{}, work: map[int]bool{}}
	for _, pid := range snapshot()(os.Getpid()) { // left by whoever exec'ed us
		s.spare(pid, false)
	}
	return s, nil
}

// Signals returns what to pass on with [Process.Signal] while a command runs. SIGTSTP and SIGCONT are not among them:
// the package passes them on itself, because their order with our own stopping matters (^Z, fg).
func Signals() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
	}
}

// StartOther starts a child that is no part of a supervised command (a hook, say). If a guardian is lost, every other
// child of this process is taken for one of its orphans and killed.
func (s *Supervisor) StartOther(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.spare(cmd.Process.Pid, true)
	return nil
}

// spare excepts a child from sweeps; s.mu is held, or nobody knows s yet.
func (s *Supervisor) spare(pid int, own bool) {
	for old := range s.spared { // numbers come back
		if !s.isSpared(old) {
			delete(s.spared, old)
		}
	}
	if st, ok := readStat(pid); ok {
		s.spared[pid] = child{st.start, own}
	}
}

func (s *Supervisor) isSpared(pid int) bool {
	c, known := s.spared[pid]
	st, alive := readStat(pid)
	return known && alive && st.start == c.start
}

// sweep kills a lost guardian and everything that was below it, and returns when nothing is left. The guardian itself
// is left for its exec.Cmd to reap. It returns the command's status, if that fell to us to reap.
func (s *Supervisor) sweep(guardian, command int) (wait syscall.WaitStatus, known bool) {
	s.mu.Lock()
	delete(s.spared, guardian)
	s.mu.Unlock()
	self := os.Getpid()
	// Two quiet rounds: a guardian that died in this one leaves its children to us only afterwards, and a look at
	// every process, one by one, can miss a child whose parent dies meanwhile.
	for quiet, round := 0, 1; quiet < 2; round++ {
		quiet++
		for _, m := range s.strays(self) {
			if m.pid == guardian && dead(guardian) {
				continue
			}
			quiet = 0
			m.kill(self, unix.SIGKILL)
			var w syscall.WaitStatus
			if m.pid == guardian {
				continue
			}
			// No child of ours (yet): its parent reaps it, or it falls to us.
			if pid, _ := syscall.Wait4(m.pid, &w, unix.WNOHANG|unix.WALL, nil); pid == command {
				wait, known = w, true
			}
		}
		time.Sleep(time.Duration(min(round, 20)) * time.Millisecond)
	}
	return wait, known
}

// strays lists our descendants without the spared ones. From a look at every process: this is rare, and must be right.
func (s *Supervisor) strays(self int) []member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return descendants(self, snapshot(), s.isSpared)
}

// dead says whether a process is a zombie, or gone.
func dead(pid int) bool {
	s, ok := readStat(pid)
	return !ok || s.state == 'Z' || s.state == 'X'
}

// ignoredSignals reads what the kernel ignores for us. (signal.Ignored knows of SIGHUP and SIGINT only. The Go runtime
// has replaced the others it handles before any code of ours runs: those are lost.)
func ignoredSignals() []syscall.Signal {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return nil
	}
	defer f.Close()
	var ignored []syscall.Signal
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, ok := strings.CutPrefix(lines.Text(), "SigIgn:")
		if !ok {
			continue
		}
		mask, _ := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		for n := range 31 {
			if mask&(1<<n) != 0 {
				ignored = append(ignored, syscall.Signal(n+1))
			}
		}
	}
	return ignored
}

// openFDs yields the descriptors of this process.
func openFDs() []int {
	entries, _ := os.ReadDir("/proc/self/fd")
	var fds []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}
