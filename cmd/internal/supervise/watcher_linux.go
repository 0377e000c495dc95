package supervise

import (
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/internal/boottime"
	"golang.org/x/sys/unix"
)

// watcher follows a guardian for its Process until nothing is left of the command, and kills the
// command's tree itself if the guardian fails. It runs in the supervisor, on one goroutine, which
// alone touches its own fields; Process.mu guards what it shares.
type watcher struct {
	*Process
	timer   int // descriptor
	reports lineReader

	startErr   error       // the command was not started
	gone       *goneReport // nothing of the command is left
	passedTSTP bool        // a SIGTSTP was passed on: if the command stops now, it stops for that
}

// run is the goroutine. On every wake-up it first takes in what has been reported and only then
// looks at the clock, as the guardian does. After a freeze of this process the guardian's last
// report is thus read before the guardian is found late.
func (w *watcher) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	signals := make(chan os.Signal, 2)
	if w.jobControl {
		signal.Notify(signals, unix.SIGTSTP, unix.SIGCONT)
	}
	go w.noteSignals(signals)
	for late := false; !late && w.gone == nil && w.startErr == nil && !w.reports.closed; {
		_ = setTimer(w.timer, w.killAt())
		poll(-1, w.timer, w.event, w.reports.fd)
		if w.takeSignal(&w.gotTSTP) {
			w.passedTSTP = true
			w.Signal(unix.SIGTSTP)
		}
		if w.takeSignal(&w.gotCONT) {
			w.resume()
		}
		w.readReports()
		if late = w.gone == nil && boottime.Now() >= w.killAt(); late {
			w.killForGuardian()
		}
	}
	signal.Stop(signals)
	close(signals)
	w.finish()
}

// lateReportLimit is how long a guardian that runs, but is late, may take to report what it has
// done. Nothing of the command runs any more then; a large one may still be giving back its memory.
const lateReportLimit = 5 * time.Second

// killForGuardian kills everything below a guardian that did not do so in time. It leaves the
// guardian itself alone for the moment: if that is only late, as after a freeze of the whole
// machine, it still has the command's true status to report. It returns when the guardian has
// reported, is gone, or is frozen: finish kills it then.
func (w *watcher) killForGuardian() {
	guardian := w.guardian.Process.Pid
	for since := boottime.Now(); w.gone == nil && !w.reports.closed; sleepMillisecond() {
		for _, d := range descendants(guardian, newChildLister(), nil) {
			d.signal(guardian, unix.SIGKILL)
		}
		s, ok := readStat(guardian)
		if !ok || s.state == 'T' || s.state == 't' || boottime.Now() > since+lateReportLimit {
			return
		}
		w.readReports()
	}
}

// noteSignals is a second goroutine, from the start of run to its end.
func (w *watcher) noteSignals(signals <-chan os.Signal) {
	for sig := range signals {
		w.mu.Lock()
		w.gotTSTP = w.gotTSTP || sig == unix.SIGTSTP
		w.gotCONT = w.gotCONT || sig == unix.SIGCONT
		w.mu.Unlock()
		w.wake()
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

func (w *watcher) readReports() {
	for _, line := range w.reports.read() {
		w.handle(line)
	}
}

// handle takes in one report.
func (w *watcher) handle(line []byte) {
	var r report
	if json.Unmarshal(line, &r) != nil {
		return // a guardian with such a fault is found by the end of its socket, or by being late
	}
	switch {
	case r.Started != 0:
		w.pid = r.Started
		w.supervisor.commandStarted(w.pid)
		w.started <- nil
	case r.Failed != nil:
		w.startErr = startError(r.Failed)
	case r.Paused:
		w.pause()
	case r.Gone != nil:
		w.gone = r.Gone
	}
}

// finish makes sure that nothing is left, and publishes the status. run calls it last.
func (w *watcher) finish() {
	switch {
	case w.startErr != nil:
	case w.gone != nil:
		w.status = Status{Code: shellCode(w.gone.Wait), By: w.gone.By, Killed: w.gone.Killed, Overrun: w.gone.Overrun}
	default:
		wait, reaped := w.supervisor.killLost(w.guardian.Process.Pid, w.pid)
		w.status = Status{Code: 128 + int(unix.SIGKILL), By: GuardianLost, Killed: true, Overrun: w.overrun()}
		if reaped {
			w.status.Code, w.status.Killed = shellCode(wait), wait.Signaled() && wait.Signal() == syscall.SIGKILL
		}
	}
	_ = w.guardian.Process.Kill() // it has nothing left to do; if somebody froze it, Wait would not return
	_ = w.guardian.Wait()         // its exit status says nothing
	w.socket.Close()
	unix.Close(w.timer)
	w.mu.Lock()
	unix.Close(w.event)
	w.event = -1 // the kernel may soon give the number to another file
	w.mu.Unlock()
	if w.terminal != nil && w.pid != 0 {
		w.terminal.takeFrom(w.pid)
		if w.status.Code > 128 {
			w.terminal.restore()
		}
	}
	if w.pid == 0 {
		if w.startErr == nil {
			w.startErr = errors.New("the guardian ended before it could start the command")
		}
		w.started <- w.startErr
	}
	w.supervisor.commandGone(w.pid)
	close(w.done)
}

// pause makes ^Z work: the command has stopped, and now its supervisor stops too, or the shell
// would never get control. It returns when somebody has continued this process (fg, bg), and
// continues the command.
func (w *watcher) pause() {
	if w.terminal == nil && !w.passedTSTP {
		return // stopped by hand, with kill -STOP: no shell waits for it
	}
	if boottime.Now() >= w.killAt() {
		return // this process must kill now, and not stop
	}
	w.passedTSTP = false
	if w.terminal != nil {
		w.terminal.takeFrom(w.pid)
	}
	if !inOrphanedGroup() {
		if w.terminal != nil { // else the ^Z came to our group, and run has passed it on
			// Stop the others of our group as ^Z would: a script around us, the rest of a pipeline.
			// The signal comes to this process too. If that copy were passed on, the command would
			// stop again after fg.
			_ = unix.Kill(0, unix.SIGTSTP)
			w.awaitSignal(&w.gotTSTP)
		}
		// To this very thread: a signal to the process may take effect only after the command was
		// continued.
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
		// Here somebody has continued us. If run were to find that SIGCONT after the next ^Z, it
		// would continue the command while this process is stopped.
		w.awaitSignal(&w.gotCONT)
	}
	w.resume()
}

// awaitSignal waits for a signal that is on its way, and drops it. It waits a second at most:
// process 1 of a container cannot be stopped, so nobody continues it.
func (w *watcher) awaitSignal(got *bool) {
	for range 1000 {
		if w.takeSignal(got) {
			return
		}
		sleepMillisecond()
	}
}

// resume continues the command and hands it the terminal, if that is ours to give (fg, and not bg).
func (w *watcher) resume() {
	if w.terminal != nil {
		w.terminal.giveTo(w.pid)
	}
	w.Signal(unix.SIGCONT)
}
