package supervise

import (
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// watcher follows a guardian for its Process until nothing is left of the command. If the guardian
// fails, it kills the command's tree itself. It runs in the supervisor, on one goroutine: all its
// methods run there, except noteSignals.
//
// Its own fields belong to that goroutine alone. What it shares with other goroutines is in the
// Process, and w.mu is the Process's mutex.
type watcher struct {
	*Process
	timer        int    // descriptor of a timer on the boot clock
	alarm        *alarm // ends a suspension of this process when it must kill the tree itself
	reportReader lineReader

	startErr   error       // the command was not started
	started    bool        // Start has got its result, nil
	goneReport *goneReport // not nil: nothing of the command is left
	passedTSTP bool        // a SIGTSTP was passed on: if the command is suspended next, that is why

	// killedFor is CauseDeadline or CauseStopped, whichever let this process kill the tree in the
	// guardian's place. Empty: it has not done so, or the command was dead already.
	killedFor Cause
}

// run is the watcher's goroutine; Start starts it. On every wake-up it first reads the reports, and
// only then looks whether it must kill. So after a freeze of this process it first learns that the
// guardian has ended the tree in time, and does not take the guardian for late.
func (w *watcher) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	signals := make(chan os.Signal, 2)
	if w.jobControl {
		signal.Notify(signals, unix.SIGTSTP, unix.SIGCONT)
	}
	go w.noteSignals(signals)
	for !w.ended() {
		_ = setTimer(w.timer, w.killAt())
		w.alarm.set(w.killAt())
		poll(-1, w.timer, w.eventFD, w.reportReader.fd)
		if w.takeSignal(&w.gotTSTP) {
			w.passedTSTP = true
			w.Signal(unix.SIGTSTP)
		}
		// From killAt on SIGCONT comes from the alarm, and the command must not be continued.
		// (Before that it may come from another Process's alarm: see "Limits" in doc.go.)
		if w.takeSignal(&w.gotCONT) && boottime.Now() < w.killAt() {
			w.resume()
		}
		w.readReports()
		if w.goneReport == nil && boottime.Now() >= w.killAt() {
			w.killForGuardian()
			break
		}
	}
	signal.Stop(signals)
	close(signals)
	w.finish()
}

// ended says whether the guardian will report nothing more that counts.
func (w *watcher) ended() bool {
	return w.goneReport != nil || w.startErr != nil || w.reportReader.closed
}

// lateReportLimit is how long a late guardian that still runs may take to report the command's end.
// Meanwhile killForGuardian kills the tree again and again, so no code of the command runs. But the
// kernel may take seconds to free the memory of a large process that was killed.
const lateReportLimit = 5 * time.Second

// killForGuardian kills everything below a guardian that did not do so in time. It does not kill
// the guardian: one that is only late, as after a freeze of the whole machine, can still report the
// command's true status. killForGuardian waits for that report, and kills meanwhile. It waits no
// longer when the guardian is dead or suspended (state T or t), or lateReportLimit is over; one
// that a cgroup has frozen has that long. Afterwards finish kills the guardian.
func (w *watcher) killForGuardian() {
	if w.pid == 0 || !isDead(w.pid) {
		w.killedFor = w.dueCause()
	}
	guardian := w.guardian.Process.Pid
	for since := boottime.Now(); w.goneReport == nil && !w.reportReader.closed; sleepMillisecond() {
		for _, d := range descendants(guardian, newChildLister(), nil) {
			d.signal(guardian, unix.SIGKILL)
		}
		s, ok := procfs.Look(guardian)
		if !ok || s.State == 'T' || s.State == 't' || boottime.Now() > since+lateReportLimit {
			return
		}
		w.readReports() // a report that the command is suspended has no effect now: see suspend
	}
}

// noteSignals is a second goroutine, from the start of run to its end. It sets gotTSTP and gotCONT,
// because run waits in poll and cannot wait for a channel too.
func (w *watcher) noteSignals(signals <-chan os.Signal) {
	for sig := range signals {
		w.mu.Lock()
		w.gotTSTP = w.gotTSTP || sig == unix.SIGTSTP
		w.gotCONT = w.gotCONT || sig == unix.SIGCONT
		w.wakeLocked()
		w.mu.Unlock()
	}
}

// takeSignal returns *got, which is gotTSTP or gotCONT, and resets it.
func (w *watcher) takeSignal(got *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := *got
	*got = false
	return was
}

// readReports handles what the guardian has sent. A report that the command is suspended may
// suspend this process, in the midst of the reports: see suspend. Those that came with it are
// handled when somebody has continued this process.
func (w *watcher) readReports() {
	for _, line := range w.reportReader.read() {
		w.handle(line)
	}
}

// handle acts on one report.
func (w *watcher) handle(line []byte) {
	var r report
	if json.Unmarshal(line, &r) != nil {
		return // a fault in the guardian: its socket will end, or it will be late, and run sees both
	}
	switch {
	case r.Started != 0:
		w.pid = r.Started
		w.supervisor.commandStarted(w.pid)
		if w.started = w.endStartLimit(); w.started {
			w.startResult <- nil
		}
	case r.Failed != nil:
		w.startErr = startError(r.Failed)
	case r.Suspended:
		w.suspend()
	case r.Rebind != nil:
		w.alarm.set(w.killAt()) // before anybody relies on the new deadline
		w.rebindAnswered(*r.Rebind)
	case r.Gone != nil:
		w.goneReport = r.Gone
	}
}

// endStartLimit takes startLimit away from a command that has no deadline of its own. It returns
// false if the limit is over: killForGuardian is killing the command, and Start must fail. (Nobody
// has called Bind yet: Start has not returned.)
func (w *watcher) endStartLimit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.orderedDeadline != NoDeadline {
		return true
	}
	return w.killedFor == "" && w.plan.rebind(NoDeadline)
}

// finish makes sure that nothing of the tree is left, and of the guardian. Then it sets status and
// closes done. run calls it last.
func (w *watcher) finish() {
	switch {
	case w.startErr != nil:
	case w.goneReport != nil:
		w.status = w.reportedStatus(*w.goneReport)
	default: // the guardian is lost: its socket has ended, or the tree had to be killed for it
		wait, reaped := w.supervisor.killLostTree(w.guardian.Process.Pid, w.pid)
		w.status = Status{Code: 128 + int(unix.SIGKILL), Cause: CauseGuardianLost, Killed: true,
			Overrun: w.overrun(boottime.Now())}
		if reaped {
			w.status.Code, w.status.Killed = shellCode(wait), wait.Signaled() && wait.Signal() == syscall.SIGKILL
		}
	}
	// The guardian has nothing left to do. Without Kill, Wait would not return while the guardian
	// is frozen. If the goroutine of Reap has reaped a lost guardian already (see killLostTree),
	// Kill and Wait fail, and that is no harm.
	_ = w.guardian.Process.Kill()
	_ = w.guardian.Wait()
	w.socket.Close()
	unix.Close(w.timer)
	w.alarm.close()
	w.mu.Lock()
	unix.Close(w.eventFD)
	w.eventFD = -1 // the kernel may soon give the number to another file
	w.mu.Unlock()
	if w.terminal != nil {
		if g := w.goneReport; g != nil && w.terminal.lentTo(w.pid) {
			w.status.Interrupted = interruption(g.WaitStatus)
		}
		w.terminal.takeFrom(w.pid)
		// A command that was killed could not restore the terminal itself. (If this process is
		// dead, the guardian does it.)
		if w.status.Code > 128 {
			w.terminal.restore()
		}
	}
	if !w.started {
		switch {
		case w.startErr != nil:
		case w.killedFor != "":
			w.startErr = errors.New("the guardian did not start the command in time")
		default:
			w.startErr = errors.New("the guardian ended before it could start the command")
		}
		w.startResult <- w.startErr
	}
	w.supervisor.commandGone(w.pid)
	close(w.done)
}

// interruption returns the signal of the keyboard that a command has died of; 0: of none.
func interruption(s syscall.WaitStatus) syscall.Signal {
	if s.Signaled() && (s.Signal() == unix.SIGINT || s.Signal() == unix.SIGQUIT) {
		return s.Signal()
	}
	return 0
}

// reportedStatus returns the status by the guardian's report. A guardian that does not know the
// deadline, because of an Unbind that failed, sees this process kill the command and takes that for
// an end by itself.
func (w *watcher) reportedStatus(r goneReport) Status {
	s := Status{Code: shellCode(r.WaitStatus), Cause: r.Cause, Killed: r.CommandKilled, Overrun: w.overrun(r.At)}
	if w.killedFor != "" && r.Cause == CauseExited && s.Code == 128+int(unix.SIGKILL) {
		s.Cause, s.Killed = w.killedFor, true
	}
	return s
}

// suspend makes ^Z work: the guardian has reported that the command is suspended. This process then
// suspends itself too, or the shell would never get control. When somebody has continued this
// process (fg, bg), suspend continues the command and returns.
//
// It runs on the watcher's goroutine, inside readReports. If the instant comes at which the watcher
// must kill the tree, the alarm ends the suspension, and suspend returns without continuing the
// command. The supervisor's group may then have the terminal already: finish takes it anyway.
func (w *watcher) suspend() {
	if w.terminal == nil && !w.passedTSTP {
		return // suspended by hand, with kill -STOP: no shell waits for this process
	}
	if boottime.Now() >= w.killAt() {
		return // this process must kill now, so it must not be suspended
	}
	w.passedTSTP = false
	if w.terminal != nil {
		w.terminal.takeFrom(w.pid)
	}
	if !inOrphanedGroup() { // in an orphaned group ^Z has no effect: nobody could continue this process
		// A command without the terminal was suspended because ^Z went to our own group, and run
		// passed it on. If the command has the terminal, ^Z went to the command's group alone.
		if w.terminal != nil {
			// Suspend the others of our group as ^Z would: a script that started us, the rest of a
			// pipeline. This process gets the signal too. awaitSignal drops it: run would pass it
			// on after fg, and suspend the command again.
			_ = unix.Kill(0, unix.SIGTSTP)
			if w.awaitSignal(&w.gotTSTP) {
				return
			}
		}
		// The deadline may have moved on since run set the alarm. The old alarm would continue this
		// process too early, and the command with it, as by fg.
		w.alarm.set(w.killAt())
		// SIGSTOP goes to this thread, so it takes effect before the next statement. A signal to
		// the process may go to another thread, and this one might continue the command first.
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
		// Somebody has continued this process with SIGCONT. awaitSignal drops that signal: run
		// would take it for a second one, and continue a command that the next ^Z has suspended.
		if w.awaitSignal(&w.gotCONT) {
			return
		}
	}
	w.resume()
}

// awaitSignal waits until noteSignals has noted a signal that was sent already, and drops it. It
// waits a second at most: process 1 of a container cannot be suspended, so no SIGCONT comes. It
// returns late if the watcher must kill the tree now.
func (w *watcher) awaitSignal(got *bool) (late bool) {
	for range 1000 {
		if boottime.Now() >= w.killAt() {
			return true
		}
		if w.takeSignal(got) {
			return false
		}
		sleepMillisecond()
	}
	return false
}

// resume continues the command. Before that it gives the command the terminal, if our group is in
// the foreground (after fg, not after bg).
func (w *watcher) resume() {
	if w.terminal != nil {
		w.terminal.giveTo(w.pid)
	}
	w.Signal(unix.SIGCONT)
}
