package zkstore

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"
)

// wire is one connection of a link, as go-zookeeper uses it. It reads along what go-zookeeper does
// not tell: when the session was asked for, which it is and for how long the servers keep it.
type wire struct {
	net.Conn
	link *link
	own  ownRequests

	asked time.Duration // when its first bytes were sent
	sent  bool

	writing sync.Mutex // held while something is written
	writes  time.Time  // guarded by writing: the deadline that is set

	mu      sync.Mutex
	head    []byte // the answer to the first request, until it is whole
	whole   bool
	sid     int64
	timeout time.Duration

	// For go-zookeeper's reader only. It reads the length of each answer by itself, and sets a
	// deadline before and after whatever it reads or writes: what is kept here saves most of
	// these system calls and timers.
	answers answers
	ahead   []byte // read, and not asked for yet
	room    [4096]byte
	reads   time.Time // the deadline that is set
}

// newWire returns a connection of l.
func newWire(c net.Conn, l *link) *wire {
	return &wire{Conn: c, link: l, own: ownRequests{count: &l.count, waiting: map[int32]chan<- reply{}}}
}

// Write never fails: it closes the connection instead, which is noticed where answers are read.
// go-zookeeper answers a request whose write failed twice or more, and may then stop for ever on a
// channel that nobody reads.
func (w *wire) Write(b []byte) (int, error) {
	if !w.sent { // by one goroutine, before all others
		w.sent, w.asked = true, now()
		b = withZxid(b, w.link.zxid.Load())
	} else if len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == setAuth {
		defer w.link.loggedIn(w)
	}
	w.writing.Lock()
	defer w.writing.Unlock()
	w.sendLocked(b)
	return len(b), nil
}

// withZxid has a request for a session say what its client has seen: a server that knows less
// refuses it, or what was seen could come to be unseen. go-zookeeper does not count the answers
// that are ours.
func withZxid(b []byte, zxid int64) []byte {
	if len(b) >= 16 && int64(binary.BigEndian.Uint64(b[8:])) < zxid {
		b = append([]byte(nil), b...)
		binary.BigEndian.PutUint64(b[8:], uint64(zxid))
	}
	return b
}

// sendLocked writes a request. The caller holds writing.
func (w *wire) sendLocked(b []byte) {
	if w.link.isMute() {
		w.Conn.Close()
	} else if _, err := w.Conn.Write(b); err != nil {
		w.Conn.Close()
	}
}

// sendOwn sends a request of ours, with the deadline that go-zookeeper would set. It blocks while
// the network takes nothing.
func (w *wire) sendOwn(packet []byte) {
	_, timeout := w.session()
	w.writing.Lock()
	defer w.writing.Unlock()
	_ = postpone(&w.writes, time.Now().Add(timeout*2/3), w.Conn.SetWriteDeadline)
	w.sendLocked(packet)
}

func (w *wire) Read(b []byte) (n int, err error) {
	// After the read, not in it: by then go-zookeeper has told the events before these bytes.
	defer func() { w.pass(b[:n]) }()
	if len(w.ahead) == 0 && len(b) < len(w.room) {
		n, err := w.read(w.room[:])
		w.ahead = w.room[:n]
		if n == 0 {
			return 0, err
		}
	}
	if len(w.ahead) > 0 {
		n = copy(b, w.ahead)
		w.ahead = w.ahead[n:]
		return n, nil
	}
	return w.read(b)
}

// read reads from the connection, and the answer to the first request along.
func (w *wire) read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil && n == 0 {
		w.own.end()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.whole && n > 0 {
		w.head = append(w.head, b[:n]...)
		if strange(w.head) {
			return 0, errStrange
		}
		w.sid, w.timeout, w.whole = answered(w.head)
	}
	return n, err
}

// pass follows what go-zookeeper reads. An answer to a request of ours is given out when
// go-zookeeper has read all of it, so when it has told all events before it.
func (w *wire) pass(b []byte) {
	for len(b) > 0 {
		var a *answer
		if a, b = w.answers.next(b); a != nil {
			w.link.zxid.Store(max(w.link.zxid.Load(), a.zxid)) // events have -1
			if isOurs(a.number) {
				w.own.deliver(a)
			}
		}
	}
}

// SetReadDeadline sets the deadline of reads, sooner while the first answer is awaited.
func (w *wire) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	whole := w.whole
	w.mu.Unlock()
	if whole {
		return postpone(&w.reads, t, w.Conn.SetReadDeadline)
	}
	if soon := time.Now().Add(handshakes); t.IsZero() || t.After(soon) {
		t = soon
	}
	return w.Conn.SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline of writes.
func (w *wire) SetWriteDeadline(t time.Time) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	return postpone(&w.writes, t, w.Conn.SetWriteDeadline)
}

// postpone sets a deadline up to an eighth later than it is asked for, and then not again as long
// as the one that is set will do. No deadline is asked for only where another one will be before
// the next read or write, so the old one does no harm.
func postpone(is *time.Time, t time.Time, set func(time.Time) error) error {
	late := time.Until(t) / 8
	if t.IsZero() || !t.After(*is) && is.Sub(t) <= late+time.Millisecond {
		return nil
	}
	*is = t.Add(late)
	return set(*is)
}

// session returns the session that the connection has, and its timeout; 0 before the first answer.
func (w *wire) session() (int64, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sid, w.timeout
}

// Close closes the connection.
func (w *wire) Close() error {
	w.own.end()
	return w.Conn.Close()
}

// answered reads the answer to a request for a session: its length, a version, the timeout in ms,
// the session.
func answered(head []byte) (sid int64, timeout time.Duration, whole bool) {
	if len(head) < 20 {
		return 0, 0, false
	}
	timeout = time.Duration(binary.BigEndian.Uint32(head[8:])) * time.Millisecond
	return int64(binary.BigEndian.Uint64(head[12:])), timeout, true
}

// errStrange says that what answers is no ZooKeeper, or speaks TLS where we do not.
var errStrange = errors.New("what answers there does not speak as ZooKeeper does")

// strange says whether an answer to a request for a session has a length that none has.
// go-zookeeper would make room for as much as it says: for one that begins with "HTTP", more than
// a gigabyte.
func strange(head []byte) bool {
	return len(head) >= 4 && binary.BigEndian.Uint32(head) > 1024
}
