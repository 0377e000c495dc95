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

// guardian is the state of a guardian process. Only the loop of guard uses it, on one locked
// thread, so it has no mutex. (The goroutine that newGuardian starts only writes to childEvent. The
// one that runs the last action reads lastAction, which the loop changes no more by then.)
//
// After every wake-up the loop looks at the clock FIRST, then reads the orders, and then acts by
// that reading of the clock. So wherever in the loop the guardian was frozen: what was sent before
// the clock was read is read too, and no tree is killed for a deadline that had moved by then. (But
// killAlarm knows only the deadline that was read before the freeze.)
type guardian struct {
	orderReader lineReader // closed: the supervisor is dead, or will never send anything again
	timer       int        // descriptor of a timer on the boot clock
	alarm       *alarm     // ends a suspension of this process when the tree must be killed
	killAlarm   *alarm     // with a namespace: kills this process, and so the tree, if alarm did not help
	childEvent  int        // eventfd, set after each SIGCHLD
	endLoop     bool       // the loop of guard ends, and the process soon after it

	// Set by the start order.
	command    startOrder
	terminal   *terminal // nil: the command's standard input is not our terminal
	plan       plan
	namespace  *namespace // nil: the command is not isolated
	pid        int        // the command's; 0: not started
	lastAction lastActionRunner

	// What has happened to the command and the tree, in the usual order.
	cause Cause // the first one; it stays
	// commandExited: the command is a zombie. It is reaped after our other children, but before the
	// namespace's init: see reapCommandLast. A zombie keeps its process ID, so until then the
	// kernel gives the number of the command's group to no other group, and signalGroup can use it.
	commandExited    bool
	remainingHandled bool               // stopRemaining was called
	killRounds       int                // how often killRound was called
	reaped           bool               // the command is reaped
	waitStatus       syscall.WaitStatus // the command's; valid once reaped
	goneReported     bool               // nothing of the tree is left, and that is reported
}

// guarding is this process's guardian once its command and the tree are gone; nil in every other
// process.
var guarding *guardian

// A guardian guards before the packages of the program that come later have begun: the stores'
// clients and PostgreSQL's tools, which a guardian does not need, would cost it half of its memory
// and most of its time to start. Only a last action needs them.
func init() {
	if len(os.Args) > 1 && os.Args[1] == GuardianArg {
		guarding = guard()
	}
}

// GuardianMain is the end of a guardian process: the last action, if there is one to do. It does
// not return. handler carries out what [Command].LastAction says; nil: nothing does. All else a
// guardian has done before main, while this package was initialized.
func GuardianMain(handler OrphanHandler) {
	if handler != nil && guarding.lastAction.due {
		guarding.lastAction.run(handler)
	}
	os.Exit(0)
}

// guard is a guardian's life until nothing is left of its command and the tree. It ends the process
// if there is nothing to guard.
func guard() *guardian {
	// The kernel sends PDEATHSIG when the THREAD that forked ends. So the command must be forked by
	// a thread that lives as long as this process; the Go runtime may end any other thread.
	runtime.LockOSThread()
	if len(os.Args) > 2 {
		switch os.Args[2] {
		case namespaceInitArg:
			namespaceInit() // does not return
		case checkIsolateArg: // this is the program that Isolate runs in a namespace
			os.Exit(0)
		}
	}
	g, err := newGuardian()
	if err != nil {
		fmt.Fprintln(os.Stderr, "primacy: guardian:", err)
		os.Exit(125)
	}
	for !g.endLoop {
		g.sleep()
		now := boottime.Now()
		orders := g.readOrders()
		// Before the other orders, which obey drops when the deadline is too near: one of these may
		// move it.
		for _, answer := range g.takeDeadlines(orders) {
			g.report(answer)
		}
		for _, o := range orders {
			g.obey(o, now)
		}
		switch {
		case g.pid == 0:
			g.endLoop = g.endLoop || g.orderReader.closed
		case g.goneReported:
			g.afterGone(now)
		default:
			g.observe()
			g.act(now)
		}
	}
	if !g.lastAction.due {
		os.Exit(0)
	}
	return g
}

func newGuardian() (*guardian, error) {
	if _, err := unix.GetsockoptInt(ordersFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return nil, errors.New("this is started by primacy itself, not by hand")
	}
	// Every signal is caught and dropped. They are not ignored, because the command would inherit
	// ignored signals.
	signal.Notify(make(chan os.Signal, 1))
	g := &guardian{orderReader: lineReader{fd: ordersFD}}
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
	g.alarm = newAlarm(unix.SIGCONT)
	g.killAlarm = &alarm{}
	children := make(chan os.Signal, 1) // one is enough: it says "look", not how often
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			setEvent(g.childEvent)
		}
	}()
	return g, nil
}

// closeInherited closes the descriptors that the guardian inherited by accident, such as a lock
// file or an end of a shell's pipe. If the guardian kept them, a lock would stay held or a pipe
// open after its owner's end, and the command would inherit them too. The descriptors that the Go
// runtime has opened are close-on-exec, and stay.
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
	case g.goneReported: // afterGone waits; without a deadline, for as long as the supervisor lives
		_ = setTimer(g.timer, g.plan.deadline)
	case g.killRounds > 100: // a process hangs in the kernel, or we may not kill it: do not spin
		timeout = 20
	case g.killRounds > 0:
		timeout = 2
	case g.pid != 0:
		_ = setTimer(g.timer, g.plan.next())
		g.setAlarms()
	}
	if g.orderReader.closed { // a closed socket can always be read, and would wake us without end
		poll(timeout, g.timer, g.childEvent)
	} else {
		poll(timeout, g.timer, g.childEvent, ordersFD)
	}
}

// idleWake is how long a guardian without a deadline may stay suspended.
const idleWake = time.Second

// setAlarms sets the alarms for the present plan.
//
// While there is no deadline, alarm goes off every idleWake. So a guardian that was suspended soon
// finds that its supervisor has died, or has given it a deadline.
//
// killAlarm goes off shortly before the deadline, unless the tree was killed before. The kernel
// then kills this process, and the namespace with it. A command without a namespace has no
// killAlarm: the guardian's death would end the command alone, and a frozen supervisor could not
// kill the command's children.
func (g *guardian) setAlarms() {
	if g.plan.unbound() { // no deadline, and not ending
		g.alarm.repeat(idleWake)
	} else {
		g.alarm.set(g.plan.killAt())
	}
	g.killAlarm.set(g.plan.deadline - g.plan.margin/4)
}

// readOrders returns every order that has arrived. A line that is no order counts as the
// supervisor's end: what it meant is unknown, so the command is stopped.
func (g *guardian) readOrders() []order {
	var orders []order
	for _, line := range g.orderReader.read() {
		var o order
		if json.Unmarshal(line, &o) != nil {
			g.orderReader.closed = true
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

// takeDeadlines carries out those orders that move or replace the deadline or replace the last
// action, and returns the answers to rebind orders. All of them count however late the guardian
// reads them: the supervisor gave them in time. (Before the start order there are none: the plan is
// empty, and start makes it.)
//
// If it has replaced the deadline, takeDeadlines sets the alarms: this process may be suspended as
// soon as its answer is sent. A deadline that was only moved on can wait until sleep sets them.
func (g *guardian) takeDeadlines(orders []order) (answers []report) {
	rebound := false
	for _, o := range orders {
		g.plan.extend(o.Deadline)
		if o.LastAction != nil {
			g.lastAction.action = o.LastAction.Action
		}
		if o.Rebind != nil {
			held := !g.goneReported && g.plan.rebind(o.Rebind.Deadline)
			rebound = rebound || held
			answers = append(answers, report{Rebind: &rebindAnswer{ID: o.Rebind.ID, Held: held}})
		}
	}
	if rebound {
		g.setAlarms()
	}
	return answers
}

// obey carries out an order to start, signal or stop. The others are takeDeadlines'. The order was
// read after now.
func (g *guardian) obey(o order, now time.Duration) {
	if g.pid == 0 { // the first order is that to start; a ^Z or fg that was passed on before is lost
		if o.Start != nil {
			g.start(*o.Start)
		}
		return
	}
	// An order that comes too late sends no signal: SIGCONT would let a suspended command act
	// before it is killed.
	switch {
	case now >= g.plan.killAt():
	case o.Signal != 0:
		g.signalGroup(o.Signal)
	case o.StopGrace != nil:
		g.stop(CauseStopped, now, *o.StopGrace)
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
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: c.Foreground, Ctty: 0, Pdeathsig: c.DeathSignal},
	}
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3); err == nil && c.Group != 0 {
		if g.terminal, _ = openTerminal(fd, c.Group); g.terminal == nil {
			unix.Close(fd)
		}
	}
	g.command = c
	g.plan = plan{deadline: c.Deadline, grace: c.Grace, margin: c.Margin}
	if c.Isolate {
		var err error
		// This waits for init, and looks neither at orders nor at the clock meanwhile. The
		// supervisor, at its killAt, kills a guardian that waits for too long, and init with it.
		if g.namespace, err = newNamespace(); err != nil {
			g.notStarted(failReport{Isolate: true, Text: noNamespace(err)})
			return
		}
		if g.killAlarm = newAlarm(unix.SIGKILL); !g.killAlarm.has {
			g.notStarted(failReport{Isolate: true, Text: "the kernel gives no timer: see ulimit -i"})
			return
		}
	}
	// The order may have been in the socket while the machine stood still.
	if now := boottime.Now(); now >= g.plan.next() {
		g.notStarted(failReport{TooLate: true, Text: "the guardian came to start it too late"})
		return
	}
	g.setAlarms() // before the command runs: this process may be suspended at any instruction
	pid, err := g.forkExec(string(c.Path), convert[string](c.Args), attr)
	if err != nil {
		g.notStarted(whyNot(err))
		return
	}
	g.pid = pid
	g.lastAction.begin(c) // before releaseFiles closes standard error
	releaseFiles()
	g.report(report{Started: pid})
}

// whyNot returns the report of an error of forkExec. A bare errno is that of the command's execve;
// one that another error wraps says nothing of the command. (Were EPERM of setns taken for the
// command's, the report would be that the command is not executable.)
func whyNot(err error) failReport {
	f := failReport{Text: err.Error(), Isolate: errors.Is(err, errEnter)}
	f.Errno, _ = err.(syscall.Errno) //nolint:errorlint // the bare one, see above
	return f
}

// notStarted reports why the command does not run, and ends the loop.
func (g *guardian) notStarted(why failReport) {
	if g.namespace != nil {
		g.namespace.abandon()
	}
	g.report(report{Failed: &why})
	g.endLoop = true
}

// forkExec starts the command, in the namespace if it has one.
func (g *guardian) forkExec(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	if g.namespace != nil {
		return g.namespace.forkExec(path, args, attr)
	}
	return syscall.ForkExec(path, args, attr)
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

// observe looks at what has happened to the children since the last wake-up: whether the command
// has exited or is suspended. It also reaps dead orphans; the command is left to reapTree.
func (g *guardian) observe() {
	if !g.commandExited {
		g.commandExited = g.commandChanged(unix.WEXITED | unix.WNOWAIT) // WNOWAIT: seen, but not reaped
		if g.commandExited && g.namespace != nil {
			g.namespace.endWhenEmpty() // init ends as soon as it has no child left
		}
	}
	if !g.commandExited && g.commandChanged(unix.WSTOPPED) {
		g.report(report{Suspended: true})
	}
	g.reapOrphans()
}

// commandChanged asks for a change of the command's state without waiting for it.
func (g *guardian) commandChanged(options int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, g.pid, &info, options|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// reapOrphans reaps the dead among our children, but for the command and init, and returns how many
// live.
func (g *guardian) reapOrphans() int {
	living := 0
	for _, child := range newChildLister()(os.Getpid()) {
		if child == g.pid || g.namespace != nil && child == g.namespace.init {
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
	// This comes before reapTree: if this guardian is late, the supervisor may have killed the
	// command already, and the cause of that end is the deadline too.
	if now >= g.plan.killAt() {
		g.setCause(CauseDeadline)
		// From killing on nobody gets a stop signal: the SIGCONT that goes with it would let a
		// suspended command act until SIGKILL reaches it. After endBy neither stop nor
		// stopRemaining sends any.
		g.plan.endBy(now)
	}
	if g.reapTree() {
		g.reportGone()
		g.afterGone(now)
		return
	}
	if g.commandExited && !g.remainingHandled && now < g.plan.killAt() {
		g.stopRemaining(now)
	}
	// Once true, the next two conditions stay true. stop is called again on every wake-up then.
	// That is harmless: only the first call sends signals, and a later one never lengthens the
	// grace.
	if g.orderReader.closed {
		g.stop(CauseStopped, now, g.command.Grace)
	}
	if now >= g.plan.stopAt() {
		g.stop(CauseDeadline, now, g.command.Grace)
	}
	if now >= g.plan.killAt() { // asked again: KillRemaining may have moved killAt to now
		g.killRound()
	}
}

// setCause sets the cause of the end, unless there is one already.
func (g *guardian) setCause(cause Cause) {
	if g.cause == "" {
		g.cause = cause
	}
}

// stop begins the command's end: the stop signal goes to its group, at the first call only (see
// endBy). A later call can only shorten the grace. Without a grace no stop signal is sent: a
// suspended command would be continued, and act until the SIGKILL of act, while somebody else may
// lead already.
func (g *guardian) stop(cause Cause, now, grace time.Duration) {
	if !g.plan.endBy(now + grace) {
		return
	}
	g.setCause(cause)
	if now < g.plan.killAt() {
		g.signalGroup(g.command.StopSignal)
		g.signalGroup(unix.SIGCONT) // a suspended command (^Z) handles no signal before it is continued
	}
}

// stopRemaining sends the stop signal to the processes that an exited command has left behind. They
// must end too: when the command has ended, the supervisor's caller wants to give up its right.
// With KillRemaining it sends no signal, and act kills them at once.
func (g *guardian) stopRemaining(now time.Duration) {
	g.remainingHandled = true
	g.setCause(CauseExited)
	if g.command.KillRemaining {
		g.plan.endBy(now)
		return
	}
	g.plan.endBy(boottime.Now() + g.command.Grace)
	g.signalDescendants(g.command.StopSignal)
	g.signalDescendants(unix.SIGCONT)
}

// signalGroup signals the command's group, and the command too if it has gone to another group.
func (g *guardian) signalGroup(sig unix.Signal) {
	if g.reaped { // the kernel may have given the number to another group
		return
	}
	_ = unix.Kill(-g.pid, sig)
	if group, err := unix.Getpgid(g.pid); err != nil || group != g.pid {
		_ = unix.Kill(g.pid, sig)
	}
}

func (g *guardian) signalDescendants(sig unix.Signal) {
	self := os.Getpid()
	for _, d := range descendants(self, newChildLister(), nil) {
		d.signal(self, sig)
	}
}

// killRound sends SIGKILL once to each process of the tree that it finds. It can miss the child of
// a process that forks at this moment. A later round finds that child: act calls killRound on every
// wake-up until nothing is left.
func (g *guardian) killRound() {
	g.killRounds++
	g.signalGroup(unix.SIGKILL) // the kernel kills a group as a whole: a fork in it cannot escape
	// When init is killed, the kernel kills all of its namespace. So killAlarm is needed no more.
	// It would kill this process, which now waits for the last to end, and then reports the true
	// status.
	if g.namespace != nil && unix.Kill(g.namespace.init, unix.SIGKILL) == nil {
		g.killAlarm.off()
	}
	g.signalDescendants(unix.SIGKILL)
}

// reapTree reaps what is dead of the tree, and returns whether nothing of the tree is left. Every
// process of the tree is our child or below a child of ours, because orphans become our children,
// or init's, which is our child. So when wait4 says that we have no child, nothing is left. A look
// into /proc is not so certain: it can miss a process.
func (g *guardian) reapTree() bool {
	if !g.reapCommandLast() {
		return false
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

// reapCommandLast reaps the command, once it has exited and no child but init is found alive. It
// returns whether the command is reaped. It cannot wait for init: init is in the command's
// namespace, and the kernel lets it end only when every other process there was reaped. (Processes
// may still run there, below init. signalGroup does nothing from now on. They are reached by
// signalDescendants, and the kernel kills them when init ends.)
func (g *guardian) reapCommandLast() bool {
	if g.reaped {
		return true
	}
	if !g.commandExited || g.reapOrphans() > 0 {
		return false
	}
	_, err := syscall.Wait4(g.pid, &g.waitStatus, 0, nil)
	g.reaped = err == nil
	return g.reaped
}

// reportGone reports that nothing of the tree is left, and sets goneReported.
func (g *guardian) reportGone() {
	g.alarm.off()
	g.killAlarm.off() // a last action may go on beyond the deadline
	g.setCause(CauseExited)
	killed := g.cause != CauseExited && g.waitStatus.Signaled() && g.waitStatus.Signal() == syscall.SIGKILL
	if g.orderReader.closed && g.terminal != nil { // else the supervisor does it
		g.terminal.takeFrom(g.pid)
		g.terminal.restore()
	}
	gone := &goneReport{WaitStatus: g.waitStatus, Cause: g.cause, CommandKilled: killed, At: boottime.Now()}
	g.report(report{Gone: gone})
	g.goneReported = true
}

// afterGone decides, once nothing of the tree is left, what becomes of the guardian:
//
//   - There is no last action: it exits.
//   - The socket is closed, and the supervisor is dead: it runs the last action, and exits.
//   - The socket is closed, but the supervisor lives: it exits.
//   - The deadline has come, so what the supervisor held has run out: it exits.
//   - Else it waits. Usually the supervisor lives, and kills the guardian soon. A frozen supervisor
//     may yet die; and the socket of a dying one closes within moments.
func (g *guardian) afterGone(now time.Duration) {
	switch {
	case g.lastAction.action == nil:
		g.endLoop = true
	case g.orderReader.closed:
		g.lastAction.due = g.supervisorDied()
		g.endLoop = true
	case now >= g.plan.deadline:
		g.endLoop = true
	}
}

// supervisorDied says whether the supervisor is dead. afterGone calls it when the socket is closed.
// A closed socket alone does not show the death: a supervisor with a fault may have closed it and
// live. The proof is that the guardian has another parent. The kernel closes a dying process's
// files first and gives its children another parent after that, so supervisorDied waits up to a
// second.
func (g *guardian) supervisorDied() bool {
	for range 1000 {
		if unix.Getppid() != g.command.SupervisorPID {
			return true
		}
		sleepMillisecond()
	}
	return false
}
