package supervise

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// Process is a command that runs under a guardian. Its methods may be called from any goroutine of
// the supervisor. Three goroutines of its own work for it: sendOrders, and run and noteSignals of
// its watcher.
type Process struct {
	// Set by Start before it starts the goroutines, then only read.
	supervisor *Supervisor
	guardian   *exec.Cmd
	socket     *os.File      // our end, to the guardian
	terminal   *terminal     // nil: the command's standard input is not our terminal
	jobControl bool          // this process is suspended and continued with the command (^Z, fg)
	grace      time.Duration // the command's; plan.grace is 0
	margin     time.Duration // the command's; plan.margin is three quarters of it

	// The watcher sets pid, the command's process ID, and then sends the one result of the start to
	// Start. Nobody else reads pid before that.
	pid         int
	startResult chan error
	wakeSender  chan struct{} // wakes sendOrders when there is an order to send

	rebindTurn chan struct{} // has one place: who puts something in it may rebind

	mu    sync.Mutex // guards all of this group
	plan  plan       // when the supervisor kills the tree itself, if the guardian has not
	queue []order    // to be sent; takeQueue adds the order for a deadline that Extend has moved
	// orderedDeadline is that of the newest order in the queue or sent. The guardian has it when it
	// has read them all.
	orderedDeadline time.Duration
	rebinds         uint64 // how many rebind orders there were
	// unconfirmed is the last call of Bind or Unbind that has given its order, unless it has
	// succeeded. While it is there, Extend moves no deadline: it is unknown which one the guardian
	// keeps. After an Unbind whose answer nobody has read it keeps none. If this process died then,
	// nobody would end the command by a deadline that Extend had moved.
	unconfirmed *rebindCall
	gotTSTP     bool // this process got SIGTSTP, which the watcher has not handled yet
	gotCONT     bool // the same for SIGCONT
	// eventFD is an eventfd that wakes the watcher; -1 when the watcher has ended. Start sets it
	// before it starts the goroutines. Only the watcher changes it, so it reads it without mu.
	eventFD int

	done   chan struct{} // the watcher closes it when nothing of the command is left
	status Status        // set by the watcher before it closes done, then only read
}

// startLimit is how long the start of a command without a deadline may take. Without a limit a
// guardian that hangs before it starts the command would hold up Start for ever.
const startLimit = 10 * time.Second

// Start starts a command under a guardian and returns when the command runs. It gives up soon after
// the command's deadline, or after startLimit if it has none. Errors: [ErrNotFound],
// [ErrNotExecutable], [ErrTooLate], [ErrIsolate], and others, which say what is wrong. After an
// error nothing is left behind.
func (s *Supervisor) Start(c Command) (*Process, error) {
	c, path, err := c.resolve(boottime.Now())
	if err != nil {
		return nil, err
	}
	// The guardian kills at deadline − margin, the supervisor a quarter of the margin later. So the
	// guardian kills first, and if it does not, the supervisor still has most of the margin.
	ownPlan := plan{deadline: c.Deadline, margin: c.Margin / 4 * 3}
	if c.Deadline == NoDeadline {
		ownPlan.deadline = boottime.Now() + startLimit // watcher.endStartLimit removes it when the command runs
	}
	p := &Process{
		supervisor: s, jobControl: !c.NoJobControl,
		startResult: make(chan error, 1), done: make(chan struct{}), wakeSender: make(chan struct{}, 1),
		rebindTurn: make(chan struct{}, 1), grace: c.Grace, margin: c.Margin,
		plan: ownPlan, orderedDeadline: c.Deadline, eventFD: -1,
	}
	start := &startOrder{
		Path: rawString(path), Args: convert[rawString](c.Args), Env: convert[rawString](c.Env), Dir: rawString(c.Dir),
		Deadline: c.Deadline, Grace: c.Grace, Margin: c.Margin,
		StopSignal: c.StopSignal, DeathSignal: c.DeathSignal, KillRemaining: c.KillRemaining,
		Ignored: s.ignoredSignals, LastAction: c.LastAction, SupervisorPID: os.Getpid(), Isolate: s.isolate,
	}
	p.queue = []order{{Start: start}}
	stdin, stdout, stderr := cmp.Or(c.Stdin, os.Stdin), cmp.Or(c.Stdout, os.Stdout), cmp.Or(c.Stderr, os.Stderr)
	if !c.NoJobControl {
		start.Group = unix.Getpgrp()
		p.terminal, start.Foreground = openTerminal(int(stdin.Fd()), start.Group)
	}
	timer, err := newTimer()
	if err != nil {
		return nil, err
	}
	if p.eventFD, err = newEvent(); err != nil {
		unix.Close(timer)
		return nil, err
	}
	fd, err := p.startGuardian(s.isolate, stdin, stdout, stderr)
	if err != nil {
		unix.Close(timer)
		unix.Close(p.eventFD)
		return nil, err
	}
	w := &watcher{Process: p, timer: timer, alarm: newAlarm(unix.SIGCONT), reportReader: lineReader{fd: fd}}
	w.alarm.set(p.killAt()) // before the order to start is sent: this process may be suspended at any instruction
	go p.sendOrders()
	go w.run()
	if err := <-p.startResult; err != nil { // the watcher sends it, at the latest when the plan's deadline has come
		<-p.done
		return nil, err
	}
	return p, nil
}

// startGuardian runs this executable again, from /proc/self/exe: the file may have been replaced by
// an upgrade. It returns the descriptor of our end of the socket. Start calls it. Where this
// process may not make a PID namespace, the guardian of an isolated command begins in a user
// namespace, in which it may.
func (p *Process) startGuardian(isolate bool, stdin, stdout, stderr *os.File) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket to the guardian: %w", err)
	}
	p.socket = os.NewFile(uintptr(pair[0]), "socket to the guardian")
	guardianEnd := os.NewFile(uintptr(pair[1]), "socket to the supervisor")
	// While this process had the guardian's end open, the guardian's death would not end our reads.
	defer guardianEnd.Close()
	p.guardian = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"primacy", GuardianArg},
		// Without an environment: the store's password may be in ours, and /proc/<pid>/environ can
		// be read.
		Env:   []string{},
		Stdin: stdin, Stdout: stdout, Stderr: stderr,
		ExtraFiles: []*os.File{guardianEnd},
		// A group of its own: ^C and a shell's signals are meant for the command. Not a session of
		// its own: the guardian would lose the terminal.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	userNamespace := isolate && !mayMakeNamespaces()
	if userNamespace {
		inUserNamespace(p.guardian.SysProcAttr)
	}
	if err := p.supervisor.StartOther(p.guardian); err != nil {
		p.socket.Close()
		if userNamespace {
			err = fmt.Errorf("%w: %s", ErrIsolate, noNamespace(err))
		}
		return -1, fmt.Errorf("start the guardian: %w", err)
	}
	return pair[0], nil
}

// PID returns the command's process ID, which is also its group's. For logs: after [Process.Done]
// it may be another's.
func (p *Process) PID() int { return p.pid }

// Extend moves the deadline on. An earlier deadline than before changes nothing. No deadline saves
// a command that is being stopped or killed. A command without a deadline gets none: [Process.Bind]
// gives it one. Never blocks.
//
// While the guardian has not confirmed a Bind or Unbind, a deadline counts only if it confirms that
// call in time. If the call has failed for want of that, no deadline counts until another Bind or
// Unbind succeeds.
func (p *Process) Extend(deadline time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case boottime.Now() >= p.plan.killAt():
	case p.unconfirmed != nil:
		p.unconfirmed.heldBack = max(p.unconfirmed.heldBack, deadline)
	default:
		p.plan.extend(deadline)
	}
	p.wakeLocked()
}

// Signal sends sig to the command's process group. Never blocks, and does nothing when the command
// is gone.
func (p *Process) Signal(sig syscall.Signal) { p.enqueue(order{Signal: sig}) }

// Stop sends the stop signal now and SIGKILL after grace, or shortly before the deadline if that is
// earlier. It does not wait: [Process.Wait] does. Calling it again can only shorten the grace. A
// grace of 0 kills at once, without the stop signal.
func (p *Process) Stop(grace time.Duration) {
	grace = min(max(grace, 0), maxGrace)
	p.mu.Lock()
	defer p.mu.Unlock()
	// The guardian sends the signals. In the supervisor's own plan the grace ends a second later:
	// the supervisor kills the tree only if the guardian has not. From here on Bind fails.
	p.plan.endBy(boottime.Now() + time.Second + grace)
	p.queue = append(p.queue, order{StopGrace: &grace})
	p.wakeLocked()
}

// Done is closed when nothing of the command is left.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the command ended, when it and everything it started is gone.
func (p *Process) Wait() Status {
	<-p.done
	return p.status
}

func (p *Process) enqueue(o order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, o)
	p.wakeLocked()
}

// wakeLocked wakes the watcher and sendOrders. The caller has changed plan, queue, gotTSTP or
// gotCONT.
func (p *Process) wakeLocked() {
	if p.eventFD >= 0 {
		setEvent(p.eventFD)
	}
	select {
	case p.wakeSender <- struct{}{}:
	default: // sendOrders will wake already
	}
}

// sendOrders writes orders to the guardian until the Process is done. It has a goroutine of its
// own, started by Start, because the write blocks when the guardian is frozen and the socket is
// full. The watcher ends such a write: it kills the guardian at the deadline, and then closes the
// socket.
func (p *Process) sendOrders() {
	enc := json.NewEncoder(p.socket)
	for {
		for _, o := range p.takeQueue() {
			if enc.Encode(o) != nil {
				return
			}
		}
		select {
		case <-p.wakeSender:
		case <-p.done:
			return
		}
	}
}

// takeQueue returns what is to be sent, and empties the queue. If Extend has moved the deadline, an
// order with the new one comes last. There is none after an order of Unbind: no deadline is later
// than its NoDeadline.
func (p *Process) takeQueue() []order {
	p.mu.Lock()
	defer p.mu.Unlock()
	orders := p.queue
	p.queue = nil
	if p.plan.deadline > p.orderedDeadline {
		p.orderedDeadline = p.plan.deadline
		orders = append(orders, order{Deadline: p.orderedDeadline})
	}
	return orders
}

// killAt returns when this process must kill the tree, if the guardian has not. Once that instant
// has come, no Extend, Bind or Unbind moves it: they look at the clock.
func (p *Process) killAt() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan.killAt()
}

// overrun returns how long before that instant the deadline was; 0 before the deadline.
func (p *Process) overrun(at time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, at-p.plan.deadline)
}

// dueCause says why killAt has come: [Process.Stop] was called, or the deadline was not extended.
func (p *Process) dueCause() Cause {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plan.ending {
		return CauseStopped
	}
	return CauseDeadline
}

// startError returns the error of this package for a failed start.
func startError(f *failReport) error {
	switch {
	case f.Isolate:
		return fmt.Errorf("%w: %s", ErrIsolate, f.Text)
	case f.TooLate:
		return fmt.Errorf("%w: %s", ErrTooLate, f.Text)
	case f.Errno == unix.ENOENT:
		return fmt.Errorf("%w: %s (a script's interpreter?)", ErrNotFound, f.Text)
	case f.Errno == unix.EACCES, f.Errno == unix.ENOEXEC, f.Errno == unix.EPERM, f.Errno == unix.ELIBBAD:
		return fmt.Errorf("%w: %s", ErrNotExecutable, f.Text)
	}
	return errors.New("start the command: " + f.Text)
}
