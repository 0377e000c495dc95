package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

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

	maxPID int // the largest process ID. Set by New, then only read.

	// mu guards spared and commands. StartOther holds it from before the start of a child until the
	// child is in spared. So killLostTree never takes a new child for an orphan of the lost
	// guardian.
	mu sync.Mutex
	// spared are the children that killLostTree does not kill, by process ID: those from
	// StartOther, and, with nil, those that were there at New. A child's process ID is its own
	// until it is reaped: by its exec.Cmd, which knows, or by reapDead, which removes it here.
	spared map[int]*exec.Cmd
	// commands are the running commands, by process ID; their watchers keep the list. reapDead does
	// not reap them, because killLostTree needs their exit status.
	commands map[int]bool
}

// New makes this process a child subreaper, so that the processes below a lost guardian fall to it,
// and returns its Supervisor. Call it before the first signal.Notify, which forgets what was
// ignored. From then on start every other child with [Supervisor.StartOther].
func New() (*Supervisor, error) {
	// Of another PID namespace /proc shows other processes under our numbers.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, errors.New("/proc is missing, or of another PID namespace: mount that of this one " +
			"(unshare --mount-proc)")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	s := &Supervisor{ignoredSignals: ignoredSignals(), maxPID: maxPID(), spared: map[int]*exec.Cmd{},
		commands: map[int]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	// This process may have children already: another program (a shell, say) ran in it, started
	// them, and then replaced itself by this program with exec.
	for _, pid := range append(snapshot()(os.Getpid()), newChildLister()(os.Getpid())...) {
		s.spared[pid] = nil
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
	s.addLocked(cmd)
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

// addLocked adds a child to spared. It first removes those that were reaped: otherwise spared would
// grow for ever.
func (s *Supervisor) addLocked(cmd *exec.Cmd) {
	for old := range s.spared {
		if !s.isSparedLocked(old) {
			delete(s.spared, old)
		}
	}
	s.spared[cmd.Process.Pid] = cmd
}

// isSparedLocked says whether the process with this pid is in spared. It asks the exec.Cmd, not
// /proc, which may hide the process: after the child was reaped, an orphan may have its process ID.
func (s *Supervisor) isSparedLocked(pid int) bool {
	cmd, spared := s.spared[pid]
	return spared && (cmd == nil || !errors.Is(cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone))
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
	reap := func(pid int) {
		// Wait4 fails while pid is the child of another process. Later that process reaps it, or it
		// dies: then pid becomes our child, and a later round reaps it.
		var w syscall.WaitStatus
		if got, _ := syscall.Wait4(pid, &w, unix.WNOHANG|unix.WALL, nil); got > 0 && pid == command {
			wait, reaped = w, true
		}
	}
	// Two rounds in a row must find nothing. One is not enough: it can miss a child whose parent
	// dies meanwhile.
	for empty, n := 0, 0; empty < 2; n++ {
		time.Sleep(time.Duration(min(n, 20)) * time.Millisecond)
		// Parents first, and at all depths. Where the kernel lists children, this looks at our
		// descendants only: a look at all processes of a busy machine has taken longer than the
		// margin.
		for _, d := range s.descendantsToKill(self, newChildLister) {
			d.signal(self, unix.SIGKILL)
			if d.pid != guardian {
				reap(d.pid)
			}
		}
		// That may miss what /proc does not show. But whatever is left of the tree is below a child
		// of ours, and which those are the kernel says.
		empty++
		if s.killOrphans(guardian, n, reap) {
			empty = 0
		}
	}
	return wait, reaped
}

// killOrphans kills and reaps our children, but not the spared ones, and returns whether there were
// any, beside a guardian that is dead.
func (s *Supervisor) killOrphans(guardian, round int, reap func(pid int)) (found bool) {
	pids, err := readChildren(os.Getpid())
	if err != nil {
		pids = snapshot()(os.Getpid())
	}
	for _, pid := range pids {
		found = s.killOrphan(pid, guardian, reap) || found
	}
	if err == nil || found && round < 50 {
		return found
	}
	// /proc may hide some of them, and then only the kernel knows, asked for each number: up to two
	// seconds. So this comes last, unless one that it shows does not die.
	for pid := 1; pid <= s.maxPID; pid++ {
		if _, ours := ownChild(pid); ours {
			found = s.killOrphan(pid, guardian, reap) || found
		}
	}
	return found
}

// killOrphan is killOrphans for one process. Nobody reaps it meanwhile: whoever does so holds mu,
// or kills what is left of another guardian.
func (s *Supervisor) killOrphan(pid, guardian int, reap func(pid int)) (found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isSparedLocked(pid) {
		return false
	}
	dead, ours := ownChild(pid)
	if pid == guardian && (dead || !ours) {
		return false
	}
	if ours {
		_ = unix.Kill(pid, unix.SIGKILL)
		if pid != guardian {
			reap(pid)
		}
	}
	return true
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
		byExecCmd := s.spared[pid] != nil && s.isSparedLocked(pid)
		if dead, _ := ownChild(pid); dead && !s.commands[pid] && !byExecCmd {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
			delete(s.spared, pid)
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
