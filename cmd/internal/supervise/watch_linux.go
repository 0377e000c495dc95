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
func (p *Process) watch(t *bootTimer) {
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, unix.SIGTSTP)
	late := false // the guardian did not act in time
	for !p.inbox.closed && !late {
		due := p.killAt()
		t.set(due)
		select {
		case <-p.mail:
		case <-p.changed:
		case <-t.ticks:
		case <-stops:
			p.order(order{Signal: unix.SIGTSTP})
		}
		for _, line := range p.inbox.read() {
			p.take(line, stops)
		}
		if late = p.gone == nil && boottime.Now() >= p.killAt(); late {
			p.stepIn(stops)
		}
	}
	signal.Stop(stops)
	t.close()
	p.finish()
}

// patience is how long a guardian that runs, but is late, may take to report what it has done.
const patience = time.Second

// stepIn kills everything below a guardian that did not do it in time. The guardian itself is left alone for the
// moment: if it is only late, as after a freeze of the whole machine, it still has the command's true status to tell.
func (p *Process) stepIn(stops <-chan os.Signal) {
	guardian := p.guardian.Process.Pid
	for since := boottime.Now(); p.gone == nil && !p.inbox.closed; time.Sleep(time.Millisecond) {
		for _, m := range descendants(guardian, snapshot(), func(int) bool { return false }) {
			m.kill(guardian, unix.SIGKILL)
		}
		s, ok := readStat(guardian)
		if !ok || s.state == 'T' || s.state == 't' || boottime.Now() > since+patience {
			return // frozen: finish kills it
		}
		for _, line := range p.inbox.read() {
			p.take(line, stops)
		}
	}
}

func (p *Process) killAt() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan.killAt()
}

// take takes in one report.
func (p *Process) take(line []byte, stops <-chan os.Signal) {
	var r report
	if json.Unmarshal(line, &r) != nil {
		return // the end of the socket is what tells of a broken guardian
	}
	switch {
	case r.Started != 0:
		p.pid = r.Started
		p.started <- nil
	case r.Failed != nil:
		p.failed = startError(r.Failed)
	case r.Paused:
		p.pause(stops)
	case r.Gone != nil:
		p.gone = r.Gone
		_ = p.guardian.Process.Kill() // it has nothing left to do, and frozen just now it would never end
	}
}

// finish makes sure that nothing is left, and publishes the status.
func (p *Process) finish() {
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
	_ = p.guardian.Wait() // it always fails, as we killed it; its status says nothing
	p.socket.Close()
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
	close(p.done)
}

func (p *Process) overrun() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, boottime.Now()-p.plan.deadline)
}

// pause makes ^Z work: the command has stopped, now its supervisor stops too, or the shell would never get control.
// It returns when somebody has continued us (fg, bg), and continues the command.
func (p *Process) pause(stops <-chan os.Signal) {
	if p.terminal == nil || boottime.Now() >= p.killAt() {
		return // stopped by hand, with kill -STOP: no shell waits for it. Or too late: we must kill, and not stand still
	}
	p.terminal.take(p.pid)
	if !orphaned() {
		// The others of our group as well, as ^Z would: a script around us, the rest of a pipeline. Our own copy is
		// caught and must not be passed on, or the command would stop again after fg.
		_ = unix.Kill(0, unix.SIGTSTP)
		select {
		case <-stops:
		case <-time.After(time.Second):
		}
		runtime.LockOSThread()
		// To this very thread: a signal to the process may strike later, after we have continued the command.
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
		runtime.UnlockOSThread()
	}
	p.Signal(unix.SIGCONT)
}
