package supervise

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lastAction is a guardian's state of the [LastAction].
type lastAction struct {
	handler OrphanHandler // nil: the program has none
	action  *LastAction   // nil: there is nothing to do, and the guardian exits with the command
	stderr  *stderrCopy
}

// handlerExit is how long a handler may take to return when its context has ended.
const handlerExit = time.Second

// run calls the handler, and returns when that has returned or had its time. The guardian calls it
// when the supervisor is dead and nothing of the command is left.
func (l *lastAction) run() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	time.AfterFunc(stderrLimit, l.stderr.closePipe)
	go func() {
		defer close(done)
		l.handler(ctx, l.action.Payload, l.stderr)
	}()
	select {
	case <-done:
	case <-time.After(l.action.Limit):
	}
	stop()
	select {
	case <-done:
	case <-time.After(handlerExit):
	}
}

// stderrCopy is the guardian's descriptor of the command's standard error, for the handler.
type stderrCopy struct {
	mu   sync.Mutex
	fd   int  // -1: there is nothing to write to
	pipe bool // somebody may read to the end of it, and would wait for the guardian to close it
}

// stderrLimit is how long after the command's end the guardian may keep a pipe open that somebody
// reads to its end.
const stderrLimit = time.Second

func newStderrCopy(fd int) *stderrCopy {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	var st unix.Stat_t
	if err != nil || unix.Fstat(own, &st) != nil {
		return &stderrCopy{fd: -1}
	}
	kind := st.Mode & unix.S_IFMT
	return &stderrCopy{fd: own, pipe: kind == unix.S_IFIFO || kind == unix.S_IFSOCK}
}

// Write drops what cannot be written at once: a pipe may be full, a terminal stopped, and the
// guardian has to end.
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
	withoutSIGTTOU(func() { n, err = unix.Write(c.fd, b) })
	return n, err
}

// closePipe closes the descriptor if it is that of a pipe or a socket.
func (c *stderrCopy) closePipe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 && c.pipe {
		unix.Close(c.fd)
		c.fd = -1
	}
}
