package supervise

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// estate is the guardian's part in a will.
type estate struct {
	execute  Executor // nil: the program has none
	will     *Will    // nil: there is none, and the guardian ends with the command
	messages *messages
}

// carryOut calls the executor, and returns when that has had its time. Nothing of the command is left.
func (e *estate) carryOut() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	time.AfterFunc(patient, e.messages.close)
	go func() {
		defer close(done)
		e.execute(ctx, e.will.Text, e.messages)
	}()
	select {
	case <-done:
	case <-time.After(e.will.Limit):
	}
	stop()
	select {
	case <-done:
	case <-time.After(time.Second): // one that does not listen
	}
}

// orphaned says whether that process, our parent, is dead. That it has closed its end of the socket is not enough: with a fault in it, it may
// live. The kernel closes files before it gives children to another parent.
func (g *guardian) orphaned() bool {
	for range 1000 {
		if unix.Getppid() != g.command.Supervisor {
			return true
		}
		await(1)
	}
	return false
}

// afterwards is what the guardian does when nothing of the command is left. A living supervisor ends it. In the moment in which the
// command ended, it may just be dying itself; it may be frozen, and die until the deadline. After that there is nothing to inherit.
func (g *guardian) afterwards(now time.Duration) {
	switch {
	case g.estate.will == nil:
		g.done = true
	case g.alone:
		if g.orphaned() {
			g.estate.carryOut()
		}
		g.done = true
	case now >= g.plan.deadline:
		g.done = true
	}
}

// messages is a copy of the command's standard error. The supervisor has the same file open as long as it lives. After that, whoever reads
// a pipe to its end would wait for us, so it is closed soon after the command.
type messages struct {
	mu   sync.Mutex
	fd   int  // -1: there is nothing to write to
	read bool // somebody may wait for its end
}

// patient is how long after the command's end somebody who reads its errors to their end may have to wait for ours.
const patient = time.Second

func newMessages(fd int) *messages {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	var st unix.Stat_t
	if err != nil || unix.Fstat(own, &st) != nil {
		return &messages{fd: -1}
	}
	kind := st.Mode & unix.S_IFMT
	return &messages{fd: own, read: kind == unix.S_IFIFO || kind == unix.S_IFSOCK}
}

// Write drops what nobody takes: a pipe may be full, a terminal stopped, and the guardian has to end.
func (m *messages) Write(b []byte) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ready := []unix.PollFd{{Fd: int32(m.fd), Events: unix.POLLOUT}}
	if m.fd < 0 {
		return 0, unix.EBADF
	}
	if k, err := unix.Poll(ready, 0); err != nil || k == 0 {
		return 0, unix.EAGAIN
	}
	quietly(func() { n, err = unix.Write(m.fd, b) })
	return n, err
}

func (m *messages) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd >= 0 && m.read {
		unix.Close(m.fd)
		m.fd = -1
	}
}
