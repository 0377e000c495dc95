package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// ordersFD is where the guardian finds its end of the socket.
const ordersFD = 3

// guardian is the process between the supervisor and the command. One thread, one loop: after every wake-up it first
// takes in all that has happened and only then looks at the clock, so a deadline that was extended while it was
// frozen counts, and one that was not is noticed before anything else is done.
type guardian struct {
	inbox       inbox // orders
	timer, wake int   // descriptors: boot timer, eventfd that says SIGCHLD
	alone       bool  // the supervisor is gone
	done        bool

	command  startOrder
	terminal *terminal
	plan     plan
	by       By // why it ends; the first reason counts
	pid      int
	ended    bool // the command is a zombie. It stays one to the end: as long as it is not reaped, its group number is nobody else's
	reaped   bool
	wait     syscall.WaitStatus
	asked    bool // what it left behind was told to stop
	passes   int  // of killing
	over     bool // nothing is left of it
	estate   estate
}

// GuardianMain is the whole life of a guardian process. It does not return. Execute carries out what [Command].Will says; nil: there are none.
func GuardianMain(execute Executor) {
	// PDEATHSIG is sent when the THREAD that forked ends: a thread of the Go runtime that went away would kill the command.
	runtime.LockOSThread()
	g, err := newGuardian()
	if err != nil {
		fmt.Fprintln(os.Stderr, "primacy: guardian:", err)
		os.Exit(125)
	}
	g.estate.execute = execute
	for !g.done {
		g.sleep()
		for _, o := range g.read() {
			g.obey(o)
		}
		switch {
		case g.pid == 0:
			g.done = g.done || g.alone
		case g.over:
			g.afterwards(boottime.Now())
		default:
			g.look()
			g.act(boottime.Now())
		}
	}
	os.Exit(0)
}

func newGuardian() (*guardian, error) {
	if _, err := unix.GetsockoptInt(ordersFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, errors.New("this is started by primacy itself, not by hand")
	}
	// Caught and thrown away, not ignored: ignored ones would be inherited by the command.
	signal.Notify(make(chan os.Signal, 1))
	g := &guardian{inbox: inbox{fd: ordersFD}}
	g.closeOthers()
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
	if g.wake, err = newBell(); err != nil {
		return nil, err
	}
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			ring(g.wake)
		}
	}()
	return g, nil
}

// closeOthers closes what was inherited by accident (a lock file, the end of a shell's pipe): held open here it would
// outlive its use, and passed on it would be the command's. What the Go runtime opened is close-on-exec.
func (g *guardian) closeOthers() {
	for _, fd := range openFDs() {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd > 2 && fd != ordersFD && err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// sleep returns when something happened or is due.
func (g *guardian) sleep() {
	timeout := -1
	switch {
	case g.over:
		_ = setTimer(g.timer, g.plan.deadline)
	case g.passes > 100: // it hangs in the kernel, or we may not kill it: no use in spinning
		timeout = 20
	case g.passes > 0:
		timeout = 2
	case g.pid != 0:
		_ = setTimer(g.timer, g.plan.next())
	}
	if g.alone { // its end of file would wake us for ever
		await(timeout, g.timer, g.wake)
	} else {
		await(timeout, g.timer, g.wake, ordersFD)
	}
}

// read returns every order that has arrived. One that makes no sense counts as the supervisor's end.
func (g *guardian) read() []order {
	var orders []order
	for _, line := range g.inbox.read() {
		var o order
		if json.Unmarshal(line, &o) != nil {
			g.inbox.closed = true
			break
		}
		orders = append(orders, o)
	}
	g.alone = g.inbox.closed
	return orders
}

// report sends a report. Never blocks: a supervisor that is frozen must not freeze us. The few lines of a command's life
// fit the socket's buffer, and if the supervisor is dead nobody needs them.
func (g *guardian) report(r report) {
	if line, err := json.Marshal(r); err == nil {
		_ = unix.Send(ordersFD, append(line, '\n'), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	}
}

func (g *guardian) obey(o order) {
	switch {
	case o.Start != nil && g.pid == 0:
		g.start(*o.Start)
	case g.pid == 0:
	case o.Deadline != 0:
		g.plan.extend(o.Deadline)
	case o.Signal != 0:
		g.signal(o.Signal)
	case o.Stop != nil:
		g.tell(Stopped, *o.Stop)
	}
}

// start starts the command.
func (g *guardian) start(c startOrder) {
	for _, sig := range c.Ignored {
		signal.Ignore(sig)
	}
	attr := &syscall.ProcAttr{
		Dir: c.Dir, Env: c.Env, Files: []uintptr{0, 1, 2},
		// Ctty is our number of it, and the child's too.
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: c.Foreground, Ctty: 0, Pdeathsig: syscall.SIGKILL},
	}
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3); err == nil {
		if g.terminal, _ = openTerminal(fd, c.Group); g.terminal == nil {
			unix.Close(fd)
		}
	}
	g.command = c
	g.plan = plan{deadline: c.Deadline, grace: c.Grace, margin: c.Margin}
	// The order may have lain in the socket while the machine stood still.
	if now := boottime.Now(); now >= g.plan.next() {
		g.report(report{Failed: &failReport{TooLate: true, Text: "the guardian came to start it too late"}})
		g.done = true
		return
	}
	pid, err := syscall.ForkExec(c.Path, c.Args, attr)
	if err != nil {
		f := &failReport{Text: err.Error()}
		errors.As(err, &f.Errno)
		g.report(report{Failed: f})
		g.done = true
		return
	}
	g.pid = pid
	if c.Will != nil && g.estate.execute != nil {
		g.estate.will, g.estate.messages = c.Will, newMessages(2)
	}
	g.letGo()
	g.report(report{Started: pid})
}

// letGo closes what belongs to the command alone: a pipeline ends when the last writer is gone, and we are none.
func (g *guardian) letGo() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := 0; fd <= 2; fd++ {
		if err != nil || unix.Dup3(null, fd, 0) != nil {
			unix.Close(fd)
		}
	}
	if err == nil {
		unix.Close(null)
	}
	_ = unix.Chdir("/") // or no file system could be unmounted that the command has left
}

// look takes in what happened to the children.
func (g *guardian) look() {
	if !g.ended {
		// WNOWAIT: seen, but not reaped.
		g.ended = g.happened(unix.WEXITED | unix.WNOWAIT)
	}
	if !g.ended && g.happened(unix.WSTOPPED) {
		g.report(report{Paused: true})
	}
	g.reapOthers()
}

// happened asks for a change of the command's state without waiting for it.
func (g *guardian) happened(options int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, g.pid, &info, options|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// reapOthers reaps the orphans that fell to us and returns how many still run.
func (g *guardian) reapOthers() int {
	running := 0
	for _, child := range newCensus()(os.Getpid()) {
		if child == g.pid {
			continue
		}
		if pid, err := unix.Wait4(child, nil, unix.WNOHANG|unix.WALL, nil); err == nil && pid == 0 {
			running++
		}
	}
	return running
}

// act does what is due at now.
func (g *guardian) act(now time.Duration) {
	if now >= g.plan.killAt() { // before the command can be found dead: the supervisor kills too if we are late
		g.because(Deadline)
	}
	if g.gone() {
		g.finish(now)
		return
	}
	if g.ended && !g.asked {
		g.askOthers()
	}
	if g.alone {
		g.tell(Stopped, g.command.Grace)
	}
	if now >= g.plan.tellAt() {
		g.tell(Deadline, g.command.Grace)
	}
	if now >= g.plan.killAt() {
		g.killAll()
	}
}

func (g *guardian) because(by By) {
	if g.by == "" {
		g.by = by
	}
}

// tell tells the command to stop, once.
func (g *guardian) tell(by By, grace time.Duration) {
	if g.plan.tell(boottime.Now(), grace) {
		g.because(by)
		g.signal(g.command.StopSignal)
		g.signal(unix.SIGCONT) // one that is stopped (^Z) would not hear it
	}
}

// askOthers tells what the command left behind to stop. Its end is the end of the tree: the claim is given up next.
func (g *guardian) askOthers() {
	g.asked = true
	g.because(Exited)
	g.plan.tell(boottime.Now(), g.command.Grace)
	g.each(g.command.StopSignal)
	g.each(unix.SIGCONT)
}

// signal signals the command's group; also the command itself, should it have gone to another group.
func (g *guardian) signal(sig unix.Signal) {
	if g.reaped { // the number may be another group's by now
		return
	}
	if unix.Kill(-g.pid, sig) != nil {
		_ = unix.Kill(g.pid, sig)
	}
}

// each signals every descendant.
func (g *guardian) each(sig unix.Signal) {
	self := os.Getpid()
	for _, m := range descendants(self, newCensus(), nobody) {
		m.kill(self, sig)
	}
}

// killAll kills once round. Whoever forks faster than we look is met in the next round: the loop ends only when
// nothing is left.
func (g *guardian) killAll() {
	g.passes++
	g.signal(unix.SIGKILL) // the group at one stroke: no fork slips through
	g.each(unix.SIGKILL)
}

// gone says whether nothing is left, and reaps the command then. Every process below us is a child of ours or has an
// ancestor that is, so "no child" from wait4 is certain, where a look into /proc is not.
func (g *guardian) gone() bool {
	if !g.ended || (!g.reaped && g.reapOthers() > 0) {
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

func (g *guardian) finish(now time.Duration) {
	g.because(Exited)
	killed := g.by != Exited && g.wait.Signaled() && g.wait.Signal() == syscall.SIGKILL
	if g.alone && g.terminal != nil { // else the supervisor does it
		g.terminal.take(g.pid)
		g.terminal.restore()
	}
	g.report(report{Gone: &goneReport{Wait: g.wait, By: g.by, Killed: killed, Overrun: max(0, now-g.plan.deadline)}})
	g.over = true
	g.afterwards(now)
}
