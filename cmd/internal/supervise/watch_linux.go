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

// watch follows the guardian until nothing is left, and takes its place if it fails. It works as the guardian does:
// on every wake-up first take in what has been reported, then look at the clock. After a freeze of this process the
// guardian's last report is there before we judge it.
//
// It has a thread to itself and waits in the kernel, not in the Go scheduler: there is no queue of goroutines before it.
func (p *Process) watch(timer int) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	signals := make(chan os.Signal, 2)
	if !p.apart {
		signal.Notify(signals, unix.SIGTSTP, unix.SIGCONT)
	}
	go p.note(signals)
	for late := false; !late && p.gone == nil && p.failed == nil && !p.inbox.closed; {
		_ = setTimer(timer, p.killAt())
		await(-1, timer, p.bell, p.inbox.fd)
		if p.came(&p.stop) {
			p.asked = true
			p.Signal(unix.SIGTSTP)
		}
		if p.came(&p.cont) {
			p.resume()
		}
		p.takeReports()
		if late = p.gone == nil && boottime.Now() >= p.killAt(); late {
			p.stepIn()
		}
	}
	signal.Stop(signals)
	close(signals)
	p.finish(timer)
}

// patience is how long a guardian that runs, but is late, may take to report what it has done. Nothing of the command
// runs any more then; a large one may still be giving back its memory.
const patience = 5 * time.Second

// stepIn kills everything below a guardian that did not do it in time. The guardian itself is left alone for the
// moment: if it is only late, as after a freeze of the whole machine, it still has the command's true status to tell.
func (p *Process) stepIn() {
	guardian := p.guardian.Process.Pid
	for since := boottime.Now(); p.gone == nil && !p.inbox.closed; await(1) {
		for _, m := range descendants(guardian, newCensus(), nobody) {
			m.kill(guardian, unix.SIGKILL)
		}
		s, ok := readStat(guardian)
		if !ok || s.state == 'T' || s.state == 't' || boottime.Now() > since+patience {
			return // frozen: finish kills it
		}
		p.takeReports()
	}
}

func (p *Process) killAt() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan.killAt()
}

// note notes the signals that came.
func (p *Process) note(signals <-chan os.Signal) {
	for sig := range signals {
		p.mu.Lock()
		p.stop = p.stop || sig == unix.SIGTSTP
		p.cont = p.cont || sig == unix.SIGCONT
		p.mu.Unlock()
		p.poke()
	}
}

// came says whether a signal was noted, and forgets it.
func (p *Process) came(signal *bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	noted := *signal
	*signal = false
	return noted
}

func (p *Process) takeReports() {
	for _, line := range p.inbox.read() {
		p.take(line)
	}
}

// take takes in one report.
func (p *Process) take(line []byte) {
	var r report
	if json.Unmarshal(line, &r) != nil {
		return // the end of the socket is what tells of a broken guardian
	}
	switch {
	case r.Started != 0:
		p.pid = r.Started
		p.sup.mark(p.pid, true)
		p.started <- nil
	case r.Failed != nil:
		p.failed = startError(r.Failed)
	case r.Paused:
		p.pause()
	case r.Gone != nil:
		p.gone = r.Gone
	}
}

// finish makes sure that nothing is left, and publishes the status.
func (p *Process) finish(timer int) {
	switch {
	case p.failed != nil:
	case p.gone != nil:
		p.status = Status{Code: shellCode(p.gone.Wait), By: p.gone.By, Killed: p.gone.Killed, Overrun: p.gone.Overrun}
	default:
		wait, known := p.sup.sweep(p.guardian.Process.Pid, p.pid)
		p.status = Status{Code: 128 + int(unix.SIGKILL), By: GuardianLost, Killed: true, Overrun: p.overrun()}
		if known {
			p.status.Code, p.status.Killed = shellCode(wait), wait.Signaled() && wait.Signal() == syscall.SIGKILL
		}
	}
	_ = p.guardian.Process.Kill() // it has nothing left to do, and frozen just now it would never end
	_ = p.guardian.Wait()         // its status says nothing
	p.socket.Close()
	unix.Close(timer)
	p.mu.Lock()
	unix.Close(p.bell)
	p.bell = -1 // its number may be another file's soon
	p.mu.Unlock()
	if p.terminal != nil && p.pid != 0 {
		p.terminal.take(p.pid)
		if p.status.Code > 128 {
			p.terminal.restore()
		}
	}
	if p.pid == 0 && p.failed == nil {
		p.failed = errors.New("the guardian ended before it could start the command")
	}
	if p.failed != nil && p.pid == 0 {
		p.started <- p.failed
	}
	p.sup.mark(p.pid, false)
	close(p.done)
}

func (p *Process) overrun() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, boottime.Now()-p.plan.deadline)
}

// pause makes ^Z work: the command has stopped, now its supervisor stops too, or the shell would never get control.
// It returns when somebody has continued us (fg, bg), and continues the command.
func (p *Process) pause() {
	if p.terminal == nil && !p.asked || boottime.Now() >= p.killAt() {
		return // stopped by hand, with kill -STOP: no shell waits for it. Or too late: we must kill, and not stand still
	}
	p.asked = false
	if p.terminal != nil {
		p.terminal.take(p.pid)
	}
	if !orphaned() {
		if p.terminal != nil { // else ^Z came to our group, and we passed it on
			// The others of our group as well, as ^Z would: a script around us, the rest of a pipeline. Our own copy is
			// caught and must not be passed on, or the command would stop again after fg.
			_ = unix.Kill(0, unix.SIGTSTP)
			p.swallow(&p.stop)
		}
		// To this very thread: a signal to the process may strike later, after we have continued the command.
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
		// Passed on late, it would continue the command after the next ^Z, while we stand still.
		p.swallow(&p.cont)
	}
	p.resume()
}

// swallow waits for a signal that is on its way. Not for ever: process 1 of a container cannot be stopped, so nobody
// continues it.
func (p *Process) swallow(signal *bool) {
	for range 1000 {
		if p.came(signal) {
			return
		}
		await(1)
	}
}

// resume continues the command and hands it the terminal, if that is ours to give (fg, and not bg).
func (p *Process) resume() {
	if p.terminal != nil {
		p.terminal.give(p.pid)
	}
	p.Signal(unix.SIGCONT)
}
