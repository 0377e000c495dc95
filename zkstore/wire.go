package zkstore

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is one connection of a link. It reads along what go-zookeeper does not tell: when the session was asked for, which it is and for how long the servers keep it.
type wire struct {
	net.Conn
	asked time.Duration // when its first bytes were sent
	sent  bool

	writing sync.Mutex // held while something is written

	count  *atomic.Uint32         // requests of ours, on all connections of the link
	asking map[int32]chan<- reply // guarded by mu: who waits for an answer to a request of ours
	ended  bool                   // guarded by mu: none will come any more

	// Of go-zookeeper's reader: the answer that it reads.
	front, body []byte // its beginning, and what follows if it is ours
	left        int    // how much of it is to come
	ours, begun bool   // it is an answer to us; there was one before it
	number      int32  // the request's
	code        int32  // its error

	zxid *atomic.Int64 // the largest that an answer had, on any connection of the link

	mu      sync.Mutex
	head    []byte // the answer to the first request, until it is whole
	whole   bool
	sid     int64
	timeout time.Duration
	muted   func() bool

	loggedIn func() // called when go-zookeeper has sent user and password

	// go-zookeeper reads the length of each answer by itself, and sets a deadline before and after whatever it reads or writes. What is kept here saves most of
	// these system calls and timers.
	ahead  []byte // its reader's: read, and not asked for yet
	room   [4096]byte
	reads  time.Time // its reader's: the deadline that is set
	writes time.Time // guarded by writing
}

// handshakes is for how long a server may leave us without an answer to the first request. go-zookeeper itself would wait for many times the session's timeout
// for a server that is frozen, and lose the session.
const handshakes = 2 * time.Second

// dial opens a connection to one server, for go-zookeeper.
func (l *link) dial(addr string) (net.Conn, error) {
	l.mu.Lock()
	l.gen++
	if l.mute || l.over() {
		l.mu.Unlock()
		return nil, errClosed
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), handshakes)
	defer cancel()
	c, err := l.store.connect(ctx, addr)
	if err != nil {
		l.servers.failed(addr, err)
		return nil, err
	}
	w := &wire{Conn: c, zxid: &l.zxid, count: &l.count}
	w.muted = func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.mute
	}
	w.loggedIn = func() { l.loggedIn(w) }
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute {
		c.Close()
		return nil, errClosed
	}
	l.present = w
	return w, nil
}

// connect opens a plain or TLS connection.
func (s *Store) connect(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil || s.config.TLS == nil {
		return c, err
	}
	config := s.config.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	t := tls.Client(c, config)
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// Write never fails: it closes the connection instead, which is noticed where answers are read. go-zookeeper answers a request whose write failed twice or more, and may then
// stop for ever on a channel that nobody reads.
func (w *wire) Write(b []byte) (int, error) {
	if !w.sent { // by one goroutine, before all others
		w.sent, w.asked = true, now()
		b = withZxid(b, w.zxid.Load())
	} else if len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == setAuth {
		defer w.loggedIn()
	}
	w.writing.Lock()
	defer w.writing.Unlock()
	w.send(b)
	return len(b), nil
}

// withZxid has a request for a session say what its client has seen: a server that knows less refuses it, or what was seen could come to be unseen. go-zookeeper does
// not count the answers that are ours.
func withZxid(b []byte, zxid int64) []byte {
	if len(b) >= 16 && int64(binary.BigEndian.Uint64(b[8:])) < zxid {
		b = append([]byte(nil), b...)
		binary.BigEndian.PutUint64(b[8:], uint64(zxid))
	}
	return b
}

// send writes a request. The caller has the mutex of writing.
func (w *wire) send(b []byte) {
	if w.muted() {
		w.Conn.Close()
	} else if _, err := w.Conn.Write(b); err != nil {
		w.Conn.Close()
	}
}

func (w *wire) Read(b []byte) (n int, err error) {
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
		w.lost()
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

// postpone sets a deadline up to an eighth later than it is asked for, and then not again as long as the one that is set will do. No deadline is asked for only where another
// one will be before the next read or write, so the old one does no harm.
func postpone(is *time.Time, t time.Time, set func(time.Time) error) error {
	late := time.Until(t) / 8
	if t.IsZero() || !t.After(*is) && is.Sub(t) <= late+time.Millisecond {
		return nil
	}
	*is = t.Add(late)
	return set(*is)
}

func (w *wire) session() (int64, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sid, w.timeout
}

// answered reads the answer to a request for a session: its length, a version, the timeout in ms, the session.
func answered(head []byte) (sid int64, timeout time.Duration, whole bool) {
	if len(head) < 20 {
		return 0, 0, false
	}
	return int64(binary.BigEndian.Uint64(head[12:])), time.Duration(binary.BigEndian.Uint32(head[8:])) * time.Millisecond, true
}

// errStrange says that what answers is no ZooKeeper, or speaks TLS where we do not.
var errStrange = errors.New("what answers there does not speak as ZooKeeper does")

// strange says whether an answer to a request for a session has a length that none has. go-zookeeper would make room for as much as it says: for one that begins with
// "HTTP", more than a gigabyte.
func strange(head []byte) bool {
	return len(head) >= 4 && binary.BigEndian.Uint32(head) > 1024
}

// servers tells go-zookeeper where to connect next: in turn, without the second it would itself wait after each round.
type servers struct {
	all  []string
	stop <-chan struct{}

	mu    sync.Mutex
	next  int
	tries int              // since the last connection
	last  map[string]error // of each server, since the last connection
	lost  chan struct{}    // closed when all have refused
}

func newServers(all []string, stop <-chan struct{}) *servers {
	return &servers{all: all, stop: stop, next: rand.IntN(len(all)), last: map[string]error{}, lost: make(chan struct{})}
}

func (s *servers) Init([]string) error { return nil }
func (s *servers) Len() int            { return len(s.all) }
func (s *servers) Connected()          {}

// Next returns the next server, after a pause if all were tried.
func (s *servers) Next() (server string, retryStart bool) {
	s.mu.Lock()
	server = s.all[s.next%len(s.all)]
	s.next++
	rounds := s.tries / len(s.all)
	s.tries++
	s.mu.Unlock()
	if rounds > 0 {
		select {
		case <-time.After(min(time.Duration(rounds)*50*time.Millisecond, 500*time.Millisecond)):
		case <-s.stop:
		}
	}
	select {
	case <-s.stop:
		return server, true // has go-zookeeper see that it is closed
	default:
		return server, false
	}
}

func (s *servers) found() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries, s.last = 0, map[string]error{}
}

func (s *servers) failed(addr string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[addr] = err
}

// explain adds to err why no server could be reached.
func (s *servers) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, last := range s.last {
		return fmt.Errorf("no connection to ZooKeeper (%s: %v): %w", addr, last, err)
	}
	return err
}

// refuses says that a server will not be there the next moment either: nothing listens, or nobody knows its name.
func refuses(err error) bool {
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound
}

// withPort adds ZooKeeper's own port where there is none.
func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), "2181")
}
