package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// ordersFD is where the guardian finds its end of the socket.
const ordersFD = 3

// guardian is the state of a guardian process: one thread, one loop. After every wake-up the loop
// first takes in all that has happened and only then looks at the clock. So a deadline that was
// extended while the guardian was frozen counts, and one that was not extended is noticed before
// anything else is done.
type guardian struct {
	orders     lineReader // closed: the supervisor is dead, or will never send anything again
	timer      int        // descriptor of a timer on the boot clock
	childEvent int        // eventfd, set after each SIGCHLD
	exit       bool       // the loop ends

	// From the start order on.
	command  startOrder
	terminal *terminal // nil: the command's standard input is not our terminal
	plan     plan
	pid      int // the command's; 0: not started
	last     lastAction

	// The way to the end, in this order.
	cause By // the first one
	// exited: the command is a zombie. It is reaped last: until then the kernel gives the number of
	// its group to no other.
	exited           bool
	stoppedRemaining bool // what the command left behind was sent the stop signal
	killRounds       int
	reaped           bool
	wait             syscall.WaitStatus // valid once reaped
	gone             bool               // nothing of the tree is left, and that is reported
}

// GuardianMain is the whole life of a guardian process. It does not return. handler carries out
// what [Command].LastAction says; nil: nothing does.
func GuardianMain(handler OrphanHandler) {
	// PDEATHSIG is sent when the THREAD that forked ends. Were that a thread of the Go runtime, its
	// end would kill the command.
	runtime.LockOSThread()
	g, err := newGuardian()
	if err != nil {
		fmt.Fprintln(os.Stderr, "primacy: guardian:", err)
		os.Exit(125)
	}
	g.last.handler = handler
	for !g.exit {
		g.sleep()
		for _, o := range g.readOrders() {
			g.obey(o)
		}
		switch {
		case g.pid == 0:
			g.exit = g.exit || g.orders.closed
		case g.gone:
			g.afterGone(boottime.Now())
		default:
			g.observe()
			g.act(boottime.Now())
		}
	}
	os.Exit(0)
}

func newGuardian() (*guardian, error) {
	if _, err := unix.GetsockoptInt(ordersFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, errors.New("this is started by primacy itself, not by hand")
	}
	// Every signal is caught and dropped. If it were ignored, the command would inherit that.
	signal.Notify(make(chan os.Signal, 1))
	g := &guardian{orders: lineReader{fd: ordersFD}}
	closeInherited()
	unix.CloseOnExec(ordersFD)
	_ = os.WriteFile("/proc/self/comm", []byte("primacy-guard"), 0) // for ps only
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	if err := unix.SetNonblock(ordersFD, true); err != nil {
		return nil, err
	}
	var err error
	if g.timer, err = newTimer(); err != nil {
		return nil, err
	}
	if g.childEvent, err = newEvent(); err != nil {
		return nil, err
	}
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			setEvent(g.childEvent)
		}
	}()
	return g, nil
}

// closeInherited closes what the guardian inherited by accident: a lock file, an end of a shell's
// pipe. Open here such a file would outlive its use, and the command would inherit it too. What the
// Go runtime has opened is close-on-exec.
func closeInherited() {
	for _, fd := range openFDs() {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd > 2 && fd != ordersFD && err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// openFDs returns the descriptors of this process.
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

// sleep returns when something has happened or is due.
func (g *guardian) sleep() {
	timeout := -1
	switch {
	case g.gone:
		_ = setTimer(g.timer, g.plan.deadline)
	case g.killRounds > 100: // a process hangs in the kernel, or we may not kill it: do not spin
		timeout = 20
	case g.killRounds > 0:
		timeout = 2
	case g.pid != 0:
		_ = setTimer(g.timer, g.plan.next())
	}
	if g.orders.closed { // a closed socket can always be read, and would wake us without end
		poll(timeout, g.timer, g.childEvent)
	} else {
		poll(timeout, g.timer, g.childEvent, ordersFD)
	}
}

// readOrders returns every order that has arrived. A line that is no order counts as the
// supervisor's end: what it meant is unknown, so the command is stopped.
func (g *guardian) readOrders() []order {
	var orders []order
	for _, line := range g.orders.read() {
		var o order
		if json.Unmarshal(line, &o) != nil {
			g.orders.closed = true
			break
		}
		orders = append(orders, o)
	}
	return orders
}

// report sends a report. It never blocks: a supervisor that is frozen must not freeze the guardian.
// The few lines of a command's life fit the socket's buffer, and a dead supervisor needs none.
func (g *guardian) report(r report) {
	if line, err := json.Marshal(r); err == nil {
		_ = unix.Send(ordersFD, append(line, '\n'), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

func (g *guardian) obey(o order) {
	if g.pid == 0 {
		if o.Start != nil {
			g.start(*o.Start)
		}
		return
	}
	switch {
	case o.Deadline != 0:
		g.plan.extend(o.Deadline)
	case o.Signal != 0:
		g.signalGroup(o.Signal)
	case o.Stop != nil:
		g.stop(Stopped, *o.Stop)
	}
}

// start starts the command.
func (g *guardian) start(c startOrder) {
	for _, sig := range c.Ignored {
		signal.Ignore(sig)
	}
	attr := &syscall.ProcAttr{
		Dir: string(c.Dir), Env: convert[string](c.Env), Files: []uintptr{0, 1, 2},
		// Ctty is a descriptor: standard input, in this process and in the command.
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: c.Foreground, Ctty: 0, Pdeathsig: syscall.SIGKILL},
	}
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3); err == nil {
		if g.terminal, _ = openTerminal(fd, c.Group); g.terminal == nil {
			unix.Close(fd)
		}
	}
	g.command = c
	g.plan = plan{deadline: c.Deadline, grace: c.Grace, margin: c.Margin}
	// The order may have been in the socket while the machine stood still.
	if now := boottime.Now(); now >= g.plan.next() {
		g.report(report{Failed: &failReport{TooLate: true, Text: "the guardian came to start it too late"}})
		g.exit = true
		return
	}
	pid, err := syscall.ForkExec(string(c.Path), convert[string](c.Args), attr)
	if err != nil {
		f := &failReport{Text: err.Error()}
		errors.As(err, &f.Errno)
		g.report(report{Failed: f})
		g.exit = true
		return
	}
	g.pid = pid
	if c.LastAction != nil && g.last.handler != nil {
		g.last.action, g.last.stderr = c.LastAction, newStderrCopy(2)
	}
	releaseFiles()
	g.report(report{Started: pid})
}

// releaseFiles closes the guardian's copies of what belongs to the command: whoever reads a pipe of
// the command waits until the last process that could write to it has closed it.
func releaseFiles() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := 0; fd <= 2; fd++ {
		if err != nil || unix.Dup3(null, fd, 0) != nil {
			unix.Close(fd)
		}
	}
	if err == nil {
		unix.Close(null)
	}
	_ = unix.Chdir("/") // in any other directory we would keep its file system from being unmounted
}

// observe takes in what happened to the children.
func (g *guardian) observe() {
	if !g.exited {
		g.exited = g.commandChanged(unix.WEXITED | unix.WNOWAIT) // WNOWAIT: seen, but not reaped
	}
	if !g.exited && g.commandChanged(unix.WSTOPPED) {
		g.report(report{Paused: true})
	}
	g.reapOrphans()
}

// commandChanged asks for a change of the command's state without waiting for it.
func (g *guardian) commandChanged(options int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, g.pid, &info, options|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// reapOrphans reaps the dead among our children, but for the command, and returns how many live.
func (g *guardian) reapOrphans() int {
	living := 0
	for _, child := range newChildLister()(os.Getpid()) {
		if child == g.pid {
			continue
		}
		if pid, err := unix.Wait4(child, nil, unix.WNOHANG|unix.WALL, nil); err == nil && pid == 0 {
			living++
		}
	}
	return living
}

// act does what is due at now.
func (g *guardian) act(now time.Duration) {
	// Before the command is looked for: when this guardian is late, the supervisor kills the
	// command, and that end must be put down to the deadline too.
	if now >= g.plan.killAt() {
		g.setCause(Deadline)
	}
	if g.nothingLeft() {
		g.reportGone(now)
		g.afterGone(now)
		return
	}
	if g.exited && !g.stoppedRemaining {
		g.stopRemaining()
	}
	if g.orders.closed {
		g.stop(Stopped, g.command.Grace)
	}
	if now >= g.plan.stopAt() {
		g.stop(Deadline, g.command.Grace)
	}
	if now >= g.plan.killAt() {
		g.killRound()
	}
}

// setCause sets the cause of the end, unless there is one already.
func (g *guardian) setCause(by By) {
	if g.cause == "" {
		g.cause = by
	}
}

// stop sends the stop signal to the command's group. A second call can only shorten the grace.
func (g *guardian) stop(by By, grace time.Duration) {
	if g.plan.beginStop(boottime.Now(), grace) {
		g.setCause(by)
		g.signalGroup(g.command.StopSignal)
		g.signalGroup(unix.SIGCONT) // a command that is stopped (^Z) handles no signal before it goes on
	}
}

// stopRemaining sends the stop signal to what an exited command has left behind. The end of the
// command is the end of the tree: after it the supervisor's caller gives its right up.
func (g *guardian) stopRemaining() {
	g.stoppedRemaining = true
	g.setCause(Exited)
	g.plan.beginStop(boottime.Now(), g.command.Grace)
	g.signalDescendants(g.command.StopSignal)
	g.signalDescendants(unix.SIGCONT)
}

// signalGroup signals the command's group, or the command alone if it has gone to another group.
func (g *guardian) signalGroup(sig unix.Signal) {
	if g.reaped { // by now the number may be another group's
		return
	}
	if unix.Kill(-g.pid, sig) != nil {
		_ = unix.Kill(g.pid, sig)
	}
}

func (g *guardian) signalDescendants(sig unix.Signal) {
	self := os.Getpid()
	for _, d := range descendants(self, newChildLister(), nil) {
		d.signal(self, sig)
	}
}

// killRound kills all it finds, once. A process that forks between the look and the kill is found
// in a later round: rounds end only when nothing is left.
func (g *guardian) killRound() {
	g.killRounds++
	g.signalGroup(unix.SIGKILL) // the kernel kills a group as a whole: a fork in it cannot escape
	g.signalDescendants(unix.SIGKILL)
}

// nothingLeft says whether nothing of the tree is left. It reaps the command when the command is
// the last one. Every process below us is a child of ours or has an ancestor that is, so "no child"
// from wait4 is certain, where a look into /proc is not.
func (g *guardian) nothingLeft() bool {
	if !g.exited || !g.reaped && g.reapOrphans() > 0 {
		return false
	}
	if !g.reaped {
		if _, err := syscall.Wait4(g.pid, &g.wait, 0, nil); err != nil {
			return false
		}
		g.reaped = true
	}
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil)
		if errors.Is(err, unix.ECHILD) {
			return true
		}
		if err != nil || pid == 0 {
			return false
		}
	}
}

// reportGone reports that nothing of the tree is left, and sets gone.
func (g *guardian) reportGone(now time.Duration) {
	g.setCause(Exited)
	killed := g.cause != Exited && g.wait.Signaled() && g.wait.Signal() == syscall.SIGKILL
	if g.orders.closed && g.terminal != nil { // else the supervisor does it
		g.terminal.takeFrom(g.pid)
		g.terminal.restore()
	}
	overrun := max(0, now-g.plan.deadline)
	g.report(report{Gone: &goneReport{Wait: g.wait, By: g.cause, Killed: killed, Overrun: overrun}})
	g.gone = true
}

// afterGone says whether the guardian still waits for its supervisor to die, and runs the last
// action if that has died. A supervisor that lives kills the guardian soon. One that was dying as
// the command ended is dead in a moment; a frozen one may die before the deadline. At the deadline
// the guardian exits: what the supervisor held has run out then.
func (g *guardian) afterGone(now time.Duration) {
	switch {
	case g.last.action == nil:
		g.exit = true
	case g.orders.closed:
		if g.supervisorDied() {
			g.last.run()
		}
		g.exit = true
	case now >= g.plan.deadline:
		g.exit = true
	}
}

// supervisorDied says whether the supervisor is dead. A closed socket alone does not show that: a
// supervisor with a fault may have closed it and live. The kernel closes a dying process's files
// before it gives the children to another parent, so this waits for that, a second at most.
func (g *guardian) supervisorDied() bool {
	for range 1000 {
		if unix.Getppid() != g.command.Supervisor {
			return true
		}
		sleepMillisecond()
	}
	return false
}
