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

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// Supervisor runs commands. A process has one. Its methods may be called from any goroutine. Reap
// and [Signals] are for the program: nothing in this package calls them.
type Supervisor struct {
	// ignoredSignals are those that this process ignored when it began. The command must ignore
	// them too: under nohup that is SIGHUP. Set by New, then only read.
	ignoredSignals []syscall.Signal
	// isolate: commands run in PID namespaces. Set by Isolate, then only read.
	isolate bool

	// mu guards spared and commands. StartOther holds it from before the start of a child until the
	// child is in spared. So killLostTree never takes a new child for an orphan of the lost
	// guardian.
	mu sync.Mutex
	// spared are the children that killLostTree does not kill, by process ID: those from
	// StartOther, and those that were there at New.
	spared map[int]child
	// commands are the running commands, by process ID; their watchers keep the list. reapDead does
	// not reap them, because killLostTree needs their exit status.
	commands map[int]bool
}

// child is a child of this process.
type child struct {
	start string // its start time: with the process ID, it names one process for all time
	// byStartOther: its exec.Cmd reaps it. Otherwise reapDead does, if the program has called Reap.
	byStartOther bool
}

// New makes this process a child subreaper, so that the processes below a lost guardian fall to it,
// and returns its Supervisor. Call it before the first signal.Notify, which forgets what was
// ignored. From then on start every other child with [Supervisor.StartOther].
func New() (*Supervisor, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	s := &Supervisor{ignoredSignals: ignoredSignals(), spared: map[int]child{}, commands: map[int]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	// This process may have children already: another program (a shell, say) ran in it, started
	// them, and then replaced itself by this program with exec.
	for _, pid := range snapshot()(os.Getpid()) {
		s.addLocked(pid, false)
	}
	return s, nil
}

// Signals returns what to pass on with [Process.Signal] while a command runs. SIGTSTP and SIGCONT
// are not among them: the package passes these on itself, because this process is suspended
// and continued together with the command (^Z, fg), and the order matters.
func Signals() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
	}
}

// StartOther starts a child that is no part of a supervised command: a guardian, or a process that
// the program needs besides. When a guardian is lost, every child of this process that was not
// started here is taken for an orphan of the lost guardian, and killed.
func (s *Supervisor) StartOther(cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.addLocked(cmd.Process.Pid, true)
	return nil
}

// Isolate makes every command that is started later run in a PID namespace of its own. The kernel
// then ends the command and all it started with the guardian, whatever ends that: also when
// supervisor and guardian are killed at one instant, or are frozen by a cgroup. In the namespace
// processes have other numbers than outside, and /proc shows those of the namespace only.
//
// It runs this program once in a namespace, and returns an error that wraps [ErrIsolate] if the
// machine does not let it. After an error too, Start runs no command without a namespace. Call it
// before the first Start.
func (s *Supervisor) Isolate() error {
	s.isolate = true
	p, err := s.Start(Command{
		// A guardian exits at once on this argument.
		Args: []string{"/proc/self/exe", GuardianArg, checkIsolateArg}, NoJobControl: true,
		Deadline: boottime.Now() + checkLimit, Grace: time.Second,
	})
	if err != nil {
		return err
	}
	p.Wait()
	return nil
}

const (
	checkIsolateArg = "check"          // the second argument of the program that Isolate runs
	checkLimit      = 30 * time.Second // how long that may take
)

// addLocked adds a child to spared. It first removes the dead: otherwise spared would grow for
// ever, and a dead child's process ID may belong to another process later.
func (s *Supervisor) addLocked(pid int, byStartOther bool) {
	for old := range s.spared {
		if !s.isSparedLocked(old) {
			delete(s.spared, old)
		}
	}
	if st, ok := procfs.Look(pid); ok {
		s.spared[pid] = child{st.Start, byStartOther}
	}
}

// isSparedLocked says whether the process with this pid exists and is in spared.
func (s *Supervisor) isSparedLocked(pid int) bool {
	c, spared := s.spared[pid]
	st, alive := procfs.Look(pid)
	return spared && alive && st.Start == c.start
}

// commandStarted keeps reapDead from reaping the command. A watcher calls it when its guardian has
// reported the command's process ID, and commandGone when nothing of the command is left.
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

// killLostTree kills a lost guardian and everything that was below it, and returns when none of
// them lives. If it reaped the command itself, it returns the command's status. The watcher of that
// guardian calls it, in finish.
//
// It does not reap the guardian. finish does, unless the goroutine of Reap comes first: from here
// on the guardian is not in spared.
func (s *Supervisor) killLostTree(guardian, command int) (wait syscall.WaitStatus, reaped bool) {
	s.mu.Lock()
	delete(s.spared, guardian)
	s.mu.Unlock()
	self := os.Getpid()
	round := func(lister func() childLister) (found bool) {
		for _, d := range s.descendantsToKill(self, lister) {
			if d.pid == guardian && isDead(guardian) {
				continue
			}
			found = true
			d.signal(self, unix.SIGKILL)
			if d.pid == guardian {
				continue
			}
			// Wait4 fails while d is the child of another process. Later that process reaps d, or
			// it dies: then d becomes our child, and a later round reaps it.
			var w syscall.WaitStatus
			if pid, _ := syscall.Wait4(d.pid, &w, unix.WNOHANG|unix.WALL, nil); pid > 0 && pid == command {
				wait, reaped = w, true
			}
		}
		return found
	}
	// Where the kernel lists children, this looks at our descendants only: a look at all processes
	// of a busy machine has taken longer than the margin.
	round(newChildLister)
	// A snapshot of all processes finds more. Two rounds in a row must find nothing. One is not
	// enough. A guardian may die during a round, and its children become ours only after that. And
	// a snapshot, which reads one process after the other, can miss a child whose parent dies
	// meanwhile.
	for empty, n := 0, 0; empty < 2; n++ {
		time.Sleep(time.Duration(min(n, 20)) * time.Millisecond)
		empty++
		if round(snapshot) {
			empty = 0
		}
	}
	return wait, reaped
}

// descendantsToKill lists our descendants, but not the spared children and nothing below them.
func (s *Supervisor) descendantsToKill(self int, lister func() childLister) []descendant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return descendants(self, lister(), s.isSparedLocked)
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
			s.reapDead()
			select {
			case <-children:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// reapDead reaps the dead children, but not those that an exec.Cmd reaps, and not the commands.
// Only the goroutine of Reap calls it.
func (s *Supervisor) reapDead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range newChildLister()(os.Getpid()) {
		st, ok := procfs.Look(pid)
		c, spared := s.spared[pid]
		byExecCmd := spared && c.byStartOther && c.start == st.Start
		if ok && st.State == 'Z' && !s.commands[pid] && !byExecCmd {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
		}
	}
}

// ignoredSignals returns the signals that this process ignores. Of those that the Go runtime
// handles it returns SIGHUP and SIGINT only: the runtime leaves these two ignored, and has replaced
// the others before any code of ours runs. (signal.Ignored knows of SIGHUP and SIGINT only.)
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
