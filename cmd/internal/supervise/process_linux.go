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

// Process is a command that runs under a guardian.
type Process struct {
	sup      *Supervisor
	guardian *exec.Cmd
	terminal *terminal // nil: the command's standard input is not our terminal
	pid      int       // the command's; known when Start returns

	socket  *os.File
	unsent  chan struct{} // there are orders to send
	started chan error    // what Start waits for

	// watch's own.
	inbox  inbox
	failed error
	gone   *goneReport
	asked  bool // SIGTSTP was passed on: the command stops for that, and not by hand
	apart  bool

	mu     sync.Mutex
	plan   plan    // the supervisor's own: a little later than the guardian's, for when that one fails
	stop   bool    // SIGTSTP came
	cont   bool    // SIGCONT came
	bell   int     // eventfd that wakes watch; -1 when that has ended
	orders []order // not yet sent; deadlines wait in the plan, for only the newest counts
	sent   time.Duration

	done   chan struct{}
	status Status // valid once done is closed
}

// Start starts a command under a guardian and returns when the command runs. Errors: [ErrNotFound],
// [ErrNotExecutable], [ErrTooLate], or what kept us from starting the guardian; nothing is left behind then.
func (s *Supervisor) Start(c Command) (*Process, error) {
	c, path, err := c.resolve(boottime.Now())
	if err != nil {
		return nil, err
	}
	p := &Process{
		sup: s, started: make(chan error, 1), done: make(chan struct{}),
		unsent: make(chan struct{}, 1), bell: -1, apart: c.Apart,
		sent: c.Deadline, plan: plan{deadline: c.Deadline, grace: c.Grace, margin: c.Margin / 4 * 3},
	}
	p.orders = []order{{Start: &startOrder{
		Path: path, Args: c.Args, Env: c.Env, Dir: c.Dir,
		Deadline: c.Deadline, Grace: c.Grace, Margin: c.Margin,
		StopSignal: c.StopSignal, Ignored: s.ignored, Group: unix.Getpgrp(),
		Will: c.Will, Supervisor: os.Getpid(),
	}}}
	in, out, errs := cmp.Or(c.Stdin, os.Stdin), cmp.Or(c.Stdout, os.Stdout), cmp.Or(c.Stderr, os.Stderr)
	p.terminal, p.orders[0].Start.Foreground = openTerminal(int(in.Fd()), unix.Getpgrp())
	timer, err := newTimer()
	if err != nil {
		return nil, err
	}
	if p.bell, err = newBell(); err != nil {
		unix.Close(timer)
		return nil, err
	}
	if err := p.startGuardian(in, out, errs); err != nil {
		unix.Close(timer)
		unix.Close(p.bell)
		return nil, err
	}
	go p.send()
	go p.watch(timer)
	if err := <-p.started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// startGuardian runs this executable again, from /proc/self/exe: the file may have been replaced by an upgrade.
func (p *Process) startGuardian(in, out, errs *os.File) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socket to the guardian: %w", err)
	}
	p.inbox = inbox{fd: pair[0]}
	p.socket = os.NewFile(uintptr(pair[0]), "guardian")
	theirs := os.NewFile(uintptr(pair[1]), "supervisor")
	defer theirs.Close() // held open here, it would hide the guardian's death
	p.guardian = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"primacy", GuardianArg},
		Env:   []string{}, // the store's password is none of its business, and /proc/<pid>/environ can be read
		Stdin: in, Stdout: out, Stderr: errs,
		ExtraFiles: []*os.File{theirs},
		// A group of its own: ^C and a shell's signals are meant for the command. Not a session: that would lose the terminal.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := p.sup.StartOther(p.guardian); err != nil {
		p.socket.Close()
		return fmt.Errorf("start the guardian: %w", err)
	}
	return nil
}

// PID returns the command's process ID, which is also its group's. For logs: after [Process.Done] it may be another's.
func (p *Process) PID() int { return p.pid }

// Extend moves the deadline on. An earlier one than before changes nothing, and none revives a command that is being
// stopped or killed already. Never blocks.
func (p *Process) Extend(deadline time.Duration) {
	p.mu.Lock()
	if boottime.Now() < p.plan.killAt() {
		p.plan.extend(deadline)
	}
	p.mu.Unlock()
	p.poke()
}

// Signal sends sig to the command's process group. Never blocks, and does nothing when the command is gone.
func (p *Process) Signal(sig syscall.Signal) { p.order(order{Signal: sig}) }

// Stop sends the stop signal now and SIGKILL after grace, or shortly before the deadline if that is earlier. It does
// not wait: [Process.Wait] does. Calling it again can only shorten the grace; 0 kills at once.
func (p *Process) Stop(grace time.Duration) {
	grace = max(grace, 0)
	p.mu.Lock()
	p.plan.tell(boottime.Now()+time.Second, grace) // we step in if the guardian has not killed a second later
	p.mu.Unlock()
	p.order(order{Stop: &grace})
}

// Done is closed when nothing of the command is left.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the command ended, when it and everything it started is gone.
func (p *Process) Wait() Status {
	<-p.done
	return p.status
}

func (p *Process) order(o order) {
	p.mu.Lock()
	p.orders = append(p.orders, o)
	p.mu.Unlock()
	p.poke()
}

// poke wakes whoever watches and whoever sends.
func (p *Process) poke() {
	p.mu.Lock()
	if p.bell >= 0 {
		ring(p.bell)
	}
	p.mu.Unlock()
	select {
	case p.unsent <- struct{}{}:
	default: // there is one already
	}
}

// send writes orders to the guardian. A frozen guardian makes the write hang and nobody else: the socket is closed
// when it has been killed for that.
func (p *Process) send() {
	enc := json.NewEncoder(p.socket)
	for {
		for _, o := range p.takeOrders() {
			if enc.Encode(o) != nil {
				return
			}
		}
		select {
		case <-p.unsent:
		case <-p.done:
			return
		}
	}
}

func (p *Process) takeOrders() []order {
	p.mu.Lock()
	defer p.mu.Unlock()
	orders := p.orders
	p.orders = nil
	if p.plan.deadline > p.sent {
		p.sent = p.plan.deadline
		orders = append(orders, order{Deadline: p.sent})
	}
	return orders
}

// startError turns a failed start into one of the errors of this package.
func startError(f *failReport) error {
	switch {
	case f.TooLate:
		return fmt.Errorf("%w: %s", ErrTooLate, f.Text)
	case f.Errno == unix.ENOENT:
		return fmt.Errorf("%w: %s (a script's interpreter?)", ErrNotFound, f.Text)
	case f.Errno == unix.EACCES, f.Errno == unix.ENOEXEC, f.Errno == unix.EPERM, f.Errno == unix.ELIBBAD:
		return fmt.Errorf("%w: %s", ErrNotExecutable, f.Text)
	}
	return errors.New("start the command: " + f.Text)
}
