package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// eventLog writes moments, one line of JSON each, and never holds anybody up: a full pipe or a disk that hangs loses the oldest lines that
// wait. A nil one writes nothing.
type eventLog struct {
	file *os.File

	mu      sync.Mutex
	waiting []moment
	dropped uint64
	closed  bool
	more    chan struct{}
	done    chan struct{}
}

const (
	eventsKept  = 256                    // lines that wait for a slow reader
	eventsFlush = 300 * time.Millisecond // that the last ones get at the end
)

// openEvents opens what --events names.
func openEvents(to string) (*eventLog, error) {
	f, err := openEventsFile(to)
	if err != nil {
		return nil, fmt.Errorf("--events %s: %w", clean(to), err)
	}
	l := &eventLog{file: f, more: make(chan struct{}, 1), done: make(chan struct{})}
	go l.run()
	return l, nil
}

func openEventsFile(to string) (*os.File, error) {
	number, ok := strings.CutPrefix(to, "fd:")
	if !ok {
		how := os.O_WRONLY | os.O_APPEND | os.O_CREATE
		if info, err := os.Stat(to); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			how = os.O_RDWR | unix.O_NONBLOCK // nobody need read it yet, and nobody may stop
		}
		f, err := os.OpenFile(to, how, 0o600)
		if pe, is := err.(*os.PathError); is {
			err = pe.Err // the path stands before it already
		}
		return f, err
	}
	fd, err := strconv.Atoi(number)
	if err != nil || fd < 2 || fd > 1<<20 {
		return nil, fmt.Errorf("give the number of an open file, 2 or more (1 is the command's)")
	}
	return inherited(fd)
}

// inherited returns a descriptor that our caller left open for us, as a copy that nobody below us inherits.
func inherited(fd int) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 { // those are our own
		return nil, fmt.Errorf("descriptor %d is not open: open it for us, as by %d>FILE in a shell", fd, fd)
	}
	if mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, fmt.Errorf("descriptor %d cannot be written to", fd)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	if fd > 2 {
		unix.CloseOnExec(fd)
	}
	return os.NewFile(uintptr(own), "events"), nil
}

func (l *eventLog) write(m moment) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if len(l.waiting) == eventsKept {
		l.waiting = l.waiting[1:]
		l.dropped++
	}
	l.waiting = append(l.waiting, m)
	l.mu.Unlock()
	l.wake()
}

func (l *eventLog) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// next returns the oldest moment that waits; false if there is none.
func (l *eventLog) next() (m moment, ok, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return m, false, l.closed
	}
	m, l.waiting = l.waiting[0], l.waiting[1:]
	m.Dropped, l.dropped = l.dropped, 0
	return m, true, false
}

func (l *eventLog) run() {
	defer close(l.done)
	for {
		m, ok, closed := l.next()
		switch {
		case closed:
			return
		case !ok:
			<-l.more
		default:
			if line, err := json.Marshal(m); err == nil {
				_, _ = l.file.Write(append(line, '\n')) // whoever read it is gone, or the disk is full: the command goes on
			}
		}
	}
}

// close gives what waits a moment to be written. A writer that hangs is left behind: the process ends.
func (l *eventLog) close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wake()
	select {
	case <-l.done:
		_ = l.file.Close()
	case <-time.After(eventsFlush):
	}
}
