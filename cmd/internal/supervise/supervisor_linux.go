package supervise

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor runs commands. A process has one. Its methods may be called from any goroutine.
type Supervisor struct {
	ignored []syscall.Signal // by this process when it began: nohup's SIGHUP stays ignored in the command

	// mu is held across every fork of this process. A child is therefore in known before anybody
	// else can find it.
	mu       sync.Mutex
	known    map[int]child // children that were started here, or were there at New; by process ID
	commands map[int]bool  // running commands: whoever kills a lost guardian's tree needs their status
}

// child is a child of this process.
type child struct {
	start   string // its start time: with the process ID, it names one process for all time
	started bool   // started by StartOther: its exec.Cmd reaps it
}

// New makes this process a child subreaper, so that the processes below a lost guardian fall to it,
// and returns its Supervisor. Call it before the first signal.Notify, which forgets what was
// ignored. From then on start every other child with [Supervisor.StartOther].
func New() (*Supervisor, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	s := &Supervisor{ignored: ignoredSignals(), known: map[int]child{}, commands: map[int]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range snapshot()(os.Getpid()) { // children of the program that exec'ed this one
		s.addLocked(pid, false)
	}
	return s, nil
}

// Signals returns what to pass on with [Process.Signal] while a command runs. SIGTSTP and SIGCONT
// are not among them: the package passes these on itself, because this process stops and continues
// together with the command (^Z, fg), and the order matters.
func Signals() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
	}
}

// StartOther starts a child that is no part of a supervised command. When a guardian is lost, every
// child of this process that was not started here is taken for one of its orphans and killed.
func (s *Supervisor) StartOther(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.addLocked(cmd.Process.Pid, true)
	return nil
}

// addLocked adds a child to known.
func (s *Supervisor) addLocked(pid int, started bool) {
	for old := range s.known { // without this, known grows, and its numbers are other processes' later
		if !s.isKnownLocked(old) {
			delete(s.known, old)
		}
	}
	if st, ok := readStat(pid); ok {
		s.known[pid] = child{st.start, started}
	}
}

// isKnownLocked says whether pid is there and is in known.
func (s *Supervisor) isKnownLocked(pid int) bool {
	c, known := s.known[pid]
	st, alive := readStat(pid)
	return known && alive && st.start == c.start
}

// commandStarted makes reapUnknown leave the command's status for killLost.
func (s *Supervisor) commandStarted(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands[pid] = true
}

func (s *Supervisor) commandGone(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.commands, pid)
}

// killLost kills a guardian that has failed and everything that was below it, and returns when
// nothing of that is left. It leaves the guardian itself for the guardian's exec.Cmd to reap. It
// returns the command's status if this process has reaped the command. The watcher calls it.
func (s *Supervisor) killLost(guardian, command int) (wait syscall.WaitStatus, reaped bool) {
	s.mu.Lock()
	delete(s.known, guardian)
	s.mu.Unlock()
	self := os.Getpid()
	// It ends after two rounds that find nothing. One is not enough: the children of a guardian
	// that died during a round come to us only after it, and a look at every process, one by one,
	// can miss a child whose parent dies meanwhile.
	for empty, round := 0, 1; empty < 2; round++ {
		empty++
		for _, d := range s.unknownDescendants(self) {
			if d.pid == guardian && isDead(guardian) {
				continue
			}
			empty = 0
			d.signal(self, unix.SIGKILL)
			if d.pid == guardian {
				continue
			}
			// This does nothing while d is another process's child. Then either that one reaps d,
			// or d becomes ours and a later round reaps it.
			var w syscall.WaitStatus
			if pid, _ := syscall.Wait4(d.pid, &w, unix.WNOHANG|unix.WALL, nil); pid == command {
				wait, reaped = w, true
			}
		}
		time.Sleep(time.Duration(min(round, 20)) * time.Millisecond)
	}
	return wait, reaped
}

// unknownDescendants lists our descendants but for the known children and all below these. It looks
// at every process of the machine: this is rare, and must not miss one.
func (s *Supervisor) unknownDescendants(self int) []descendant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return descendants(self, snapshot(), s.isKnownLocked)
}

// Reap reaps dead children that this process has not started, until ctx ends. As process 1 of a
// container it inherits every orphan of the container, and a dead one that is not reaped keeps its
// process ID for ever. Reap returns at once and works in the background.
func (s *Supervisor) Reap(ctx context.Context) {
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		defer signal.Stop(children)
		for {
			s.reapUnknown()
			select {
			case <-children:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// reapUnknown reaps each dead child but those that an exec.Cmd reaps, and the commands.
func (s *Supervisor) reapUnknown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range newChildLister()(os.Getpid()) {
		st, ok := readStat(pid)
		c, known := s.known[pid]
		if !ok || st.state != 'Z' || s.commands[pid] || known && c.started && c.start == st.start {
			continue
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
	}
}

// ignoredSignals returns what the kernel ignores for this process. (signal.Ignored knows of SIGHUP
// and SIGINT only. The Go runtime has replaced the others that it handles before any code of ours
// runs: those are lost.)
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
