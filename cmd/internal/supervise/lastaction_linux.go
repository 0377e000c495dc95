package supervise

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lastActionRunner is what a guardian needs to run its supervisor's [LastAction]. begin sets action
// and stderr; an order, which can come only after begin, replaces action. The guardian's loop uses
// it, and once that has ended GuardianMain and the handler's goroutine.
type lastActionRunner struct {
	action *LastAction // nil: there is nothing to do
	stderr *stderrCopy
	due    bool // the supervisor has died, and nothing is left of the tree
}

// begin notes the last action of a command that has just started. It is called before the guardian
// gives up its own standard error. It keeps a copy of that for the handler's messages, if there is
// a last action, or if the command has no deadline: then one may come later. Otherwise it keeps
// none, since the guardian must not keep a pipe open for nothing.
func (l *lastActionRunner) begin(c startOrder) {
	l.action, l.stderr = c.LastAction, &stderrCopy{fd: -1}
	if c.LastAction != nil || c.Deadline == NoDeadline {
		l.stderr = newStderrCopy(2)
	}
}

// handlerExit is how long a handler may take to return when its context has ended.
const handlerExit = time.Second

// run calls the handler on a goroutine of its own. It returns when the handler has returned, or
// when the handler's limit and handlerExit are over. GuardianMain calls it, at most once, when the
// supervisor is dead and nothing of the command is left.
func (l *lastActionRunner) run(handler OrphanHandler) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	time.AfterFunc(stderrLimit, l.stderr.closePipeOrSocket)
	go func() {
		defer close(done)
		handler(ctx, l.action.Payload, l.stderr)
	}()
	select {
	case <-done:
	case <-time.After(l.action.Limit):
	}
	cancel()
	select {
	case <-done:
	case <-time.After(handlerExit):
	}
}

// stderrCopy is the guardian's descriptor of the command's standard error, for the handler.
// mu guards fd: the handler's goroutines write, and a timer closes.
type stderrCopy struct {
	mu           sync.Mutex
	fd           int  // -1: there is nothing to write to
	pipeOrSocket bool // a reader may wait for the end of it, which comes when every writer has closed it
}

// stderrLimit is how long the guardian keeps the command's standard error open after the last
// action has begun, if it is a pipe or a socket: somebody may wait until the last writer has closed
// it. To close it earlier would help nobody: the supervisor has the pipe open too until it is dead,
// and once it is dead and nothing of the command is left, the last action begins.
const stderrLimit = time.Second

func newStderrCopy(fd int) *stderrCopy {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	var st unix.Stat_t
	if err != nil || unix.Fstat(own, &st) != nil {
		return &stderrCopy{fd: -1}
	}
	kind := st.Mode & unix.S_IFMT
	return &stderrCopy{fd: own, pipeOrSocket: kind == unix.S_IFIFO || kind == unix.S_IFSOCK}
}

// Write drops what cannot be written at once: a pipe may be full, or the terminal's output may be
// held (^S), and the guardian must not wait for either.
func (c *stderrCopy) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return 0, unix.EBADF
	}
	ready := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
	if k, err := unix.Poll(ready, 0); err != nil || k == 0 {
		return 0, unix.EAGAIN
	}
	// The kernel may suspend a background process that writes to a terminal, with SIGTTOU.
	withoutSIGTTOU(func() { n, err = unix.Write(c.fd, b) })
	return n, err
}

// closePipeOrSocket closes the descriptor if it is that of a pipe or a socket.
func (c *stderrCopy) closePipeOrSocket() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 && c.pipeOrSocket {
		unix.Close(c.fd)
		c.fd = -1
	}
}
