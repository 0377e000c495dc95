package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/supervise"
	"github.com/primacy-go/primacy/shards"
)

// event is one line of --events: what happened, and what is known of it. 64-bit numbers are
// strings.
type event struct {
	Time      time.Time      `json:"time"`
	Event     string         `json:"event"`
	Election  string         `json:"election"`
	ID        string         `json:"id,omitempty"`
	Token     primacy.Token  `json:"token,omitzero"`
	Leader    string         `json:"leader,omitempty"`
	Lease     string         `json:"lease,omitempty"` // of another process that has this one's ID
	Reason    primacy.Reason `json:"reason,omitempty"`
	By        string         `json:"by,omitempty"`   // who asked for it
	Text      string         `json:"text,omitempty"` // why, in his words, or why it expired
	Err       string         `json:"err,omitempty"`
	Hook      string         `json:"hook,omitempty"`
	Healthy   *bool          `json:"healthy,omitempty"`
	PID       int            `json:"pid,omitempty"`
	Status    *int           `json:"status,omitempty"`
	WaitMS    *int64         `json:"wait_ms,omitempty"`
	TookMS    int64          `json:"took_ms,omitempty"`
	Remaining int64          `json:"remaining_ms,omitempty"`
	Dropped   uint64         `json:"dropped,omitempty"` // lines before this one that nobody took in time
}

// reasonOf returns why a term ended, given how its work ended; own says that the command ended by
// itself.
func reasonOf(err error, own bool) primacy.Reason {
	var sig signalled
	var e *exitError
	switch r := primacy.ReasonOf(err); {
	case r != "":
		return r
	case errors.Is(err, supervise.ErrTooLate):
		return primacy.Expired
	case errors.As(err, &sig), errors.Is(err, shards.ErrLeft):
		return shown.Stopped
	case errors.As(err, &e) && e.code == exitLost:
		return shown.Unreachable
	case own:
		return shown.Exited
	}
	return primacy.Failed
}

// endOf returns the event that says how a term ended.
func endOf(term *primacy.Term, reason primacy.Reason, err error) event {
	e := event{Event: string(reason), Token: term.Token(), Reason: reason}
	switch reason {
	case primacy.Expired, shown.Unreachable, primacy.Closed:
		e.Event = "lost"
	case shown.Exited, shown.Stopped, primacy.Failed:
		e.Event = "resigned"
	}
	why := shown.EndingOf(err)
	e.By, e.Text = why.By, why.Text
	if err != nil {
		e.Err = oneLine(err)
	}
	return e
}

// eventLog writes events, one line of JSON each, and never holds anybody up: a full pipe or a disk
// that hangs loses the oldest lines that wait. A nil one writes nothing.
type eventLog struct {
	file io.WriteCloser
	torn bool                             // what was written last is half a line
	to   string                           // as --events names it
	say  func(format string, args ...any) // tells people of a loss

	mu      sync.Mutex
	lost    uint64 // lines that nobody will read
	waiting []event
	dropped uint64
	closed  bool
	more    chan struct{}
	done    chan struct{}
}

const (
	eventsKept  = 256                    // lines that wait for a slow reader
	eventsFlush = 300 * time.Millisecond // that the last ones get at the end
)

// openEvents opens what --events names; say tells people what goes wrong later.
func openEvents(to string, say func(string, ...any)) (*eventLog, error) {
	f, err := openEventsFile(to)
	if err != nil {
		return nil, fmt.Errorf("--events %s: %w", clean(to), err)
	}
	l := &eventLog{file: f, to: clean(to), say: say, more: make(chan struct{}, 1), done: make(chan struct{})}
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
		if pe := (*os.PathError)(nil); errors.As(err, &pe) {
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

// inherited returns a descriptor that our caller left open for us, as a copy that nobody below us
// inherits.
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

func (l *eventLog) write(e event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if len(l.waiting) == eventsKept {
		l.waiting = l.waiting[1:]
		l.dropped++
		l.lost++
	}
	l.waiting = append(l.waiting, e)
	l.mu.Unlock()
	l.wake()
}

func (l *eventLog) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// next returns the oldest event that waits; false if there is none.
func (l *eventLog) next() (e event, ok, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return e, false, l.closed
	}
	e, l.waiting = l.waiting[0], l.waiting[1:]
	e.Dropped, l.dropped = l.dropped, 0
	return e, true, false
}

func (l *eventLog) run() {
	defer close(l.done)
	for {
		e, ok, closed := l.next()
		switch {
		case closed:
			return
		case !ok:
			<-l.more
		default:
			l.put(e)
		}
	}
}

// put writes one line. Where whoever read it is gone, or the disk is full, the command goes on and
// people are told; the next line that can be written says how many are missing before it.
func (l *eventLog) put(e event) {
	line, err := json.Marshal(e)
	if err == nil {
		if line = append(line, '\n'); l.torn {
			line = append([]byte{'\n'}, line...) // or one line would be of two events, and no JSON
		}
		var n int
		n, err = l.file.Write(line)
		l.torn = err != nil && (l.torn || n > 0)
	}
	if err == nil {
		return
	}
	l.mu.Lock()
	first := l.lost == 0
	l.lost++
	l.dropped += e.Dropped + 1
	l.mu.Unlock()
	if first {
		if pe := (*os.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err
		}
		l.say("warning: --events %s: %v: events are lost", l.to, err)
	}
}

// close gives what waits a moment to be written. A writer that hangs is left behind: the process
// ends.
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
	l.mu.Lock()
	lost := l.lost + uint64(len(l.waiting))
	l.mu.Unlock()
	if lost > 0 {
		l.say("warning: --events %s: %d %s lost", l.to, lost, plural(int(lost), "event was", "events were"))
	}
}

// dropWriter writes messages for people, who may not read them: a terminal that is stopped (^S), a
// pipe that nobody reads. It waits for a moment and then drops the message, or a leader would stop
// nothing, and give nothing up, until somebody has read about it.
type dropWriter struct {
	mu    sync.Mutex
	next  chan message
	under chan struct{} // nil, or closed when what is under way since an earlier Write is written
}

type message struct {
	text []byte
	done chan struct{} // closed when it is written
}

// sayLimit is how long a reader that does not read is waited for, once; from then on, until it has
// read, busyLimit each time.
const (
	sayLimit  = 200 * time.Millisecond
	busyLimit = 5 * time.Millisecond
)

func newDropWriter(w io.Writer) *dropWriter {
	p := &dropWriter{next: make(chan message)}
	go func() { // stays to the end of the process, as what it writes to does
		for m := range p.next {
			_, _ = w.Write(m.text)
			close(m.done)
		}
	}()
	return p
}

// Write returns when text is written, or dropped, or still under way after a moment.
func (p *dropWriter) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := message{bytes.Clone(text), make(chan struct{})}
	limit := sayLimit
	select {
	case <-p.under:
		p.under = nil
	default:
		if p.under != nil {
			limit = busyLimit
		}
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case p.next <- m:
	case <-t.C:
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case <-m.done:
		p.under = nil
	case <-t.C:
		p.under = m.done
	}
	return len(text), nil
}
