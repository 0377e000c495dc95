package zkstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// session is what a client and the servers know of a session.
type session struct {
	id       int64 // 0: none
	password []byte
	timeout  time.Duration
}

// ask asks on a new connection for the session s; for a new one if it has no ID yet. It returns the
// session as the servers keep it, without an ID if they have ended it. A server that has not
// applied all up to zxid refuses: what the client has seen could come to be unseen.
func (s session) ask(c net.Conn, zxid int64) (session, error) {
	b := appendLong(make([]byte, 8, 48), zxid) // length and version of the protocol
	b = appendLong(appendInt(b, int32(s.timeout.Milliseconds())), s.id)
	password := [16]byte{}
	copy(password[:], s.password)
	b = appendText(b, password[:])
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	if _, err := c.Write(b); err != nil {
		return session{}, err
	}
	// An answer that begins with "HTTP" would be more than a gigabyte long.
	answer, err := readFrame(c, 1024)
	if errors.Is(err, errStrange) {
		return session{}, err
	} else if err != nil {
		return session{}, fmt.Errorf("it closed the connection (it may have no quorum): %w", err)
	}
	r := reader{rest: answer}
	if len(answer) == 16 { // the header of an answer, after a new session that had ended before the server came to it
		r.take(12) // number and zxid
		return session{}, fmt.Errorf("it made no session: %w", serverError(r.int()))
	}
	r.int() // the version
	got := session{timeout: time.Duration(r.int()) * time.Millisecond, id: r.long(), password: r.bytes()}
	if r.short || got.id != 0 && got.timeout <= 0 {
		return session{}, errStrange
	}
	return got, nil
}

// readFrame reads what a length stands before, of that size at most.
func readFrame(r io.Reader, limit uint32) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > limit {
		return nil, errStrange
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// conn is a connection that has its session. It never comes back when it is lost.
type conn struct {
	net.Conn
	link    *link
	timeout time.Duration // of the session
	silence time.Duration // for how long the server may say nothing
	heard   atomic.Uint64 // how often something was received

	writing sync.Mutex // held while something is written

	mu      sync.Mutex
	waiting map[int32]chan<- reply // for the answers to requests, by their numbers
	ended   bool                   // no answer will come any more
}

// reply is what came of a request.
type reply struct {
	body []byte
	err  error
}

var errLost = errors.New("the connection was lost")

func newConn(c net.Conn, l *link, timeout time.Duration) *conn {
	return &conn{Conn: c, link: l, timeout: timeout, silence: l.silence, waiting: map[int32]chan<- reply{}}
}

// begin gives a request its number, and returns how it is sent and where its answer comes. The
// caller sends it then. A request belongs to one connection: what was lost with that is unknown,
// and it is never sent again.
//
// No two requests of a session have one number, on whatever connections: a server takes what was
// committed for its client's request by session and number alone (CommitProcessor). After a move
// to another server, one of the old server's that is committed only now would be told as the
// answer to a later one with its number.
func (c *conn) begin(o op) (frame []byte, answer <-chan reply) {
	result := make(chan reply, 1)
	number := requestNumber(c.link.count.Add(1))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		result <- reply{err: errLost}
	} else {
		c.waiting[number] = result
	}
	return o.frame(number), result
}

// requestNumber returns the number of a session's nth request: above 0, for the others have a
// meaning of their own.
func requestNumber(n uint32) int32 { return int32(1 + (n-1)%(1<<31-1)) }

// send sends a frame. It blocks while the network takes nothing. Where it fails, the connection is
// lost.
func (c *conn) send(frame []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(c.timeout * 2 / 3))
	if _, err := c.Write(frame); err != nil {
		c.lose()
	}
}

// lose closes the connection, and answers all who wait.
func (c *conn) lose() {
	_ = c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, result := range c.waiting {
		result <- reply{err: errLost}
	}
	clear(c.waiting)
}

// maxAnswer is how large an answer may be: the children of a line with some 500,000 claims.
const maxAnswer = 64 << 20

// serve handles what the server sends, in its order, until the connection is lost.
func (c *conn) serve() {
	defer c.lose()
	done := make(chan struct{})
	defer close(done)
	go c.ping(done)
	go c.leaveSilent(done)
	in := bufio.NewReader(c)
	for {
		b, err := readFrame(in, maxAnswer)
		if err != nil || !c.handle(b) {
			return
		}
	}
}

// Read notes that something was received, be it a part of a large answer.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Add(1)
	}
	return n, err
}

// ping has the servers hear of the session, and us of the server, until done is closed.
func (c *conn) ping(done <-chan struct{}) {
	pings := time.NewTicker(c.timeout / 3)
	defer pings.Stop()
	for {
		select {
		case <-pings.C:
			c.mu.Lock()
			if !c.ended {
				c.waiting[pingNumber] = make(chan reply, 1) // nobody reads it: see leaveSilent
			}
			c.mu.Unlock()
			c.send(op{code: opPing}.frame(pingNumber))
		case <-done:
			return
		}
	}
}

// leaveSilent loses a connection by which nothing has come at all for the time silence or a quarter
// longer though something was asked, so that the session moves to another server. One that is
// frozen or was cut off closes no connection: waiting for it would cost the term, though the others
// serve.
//
// It counts looks, not time: a process that was stopped, or gets no processor, comes to few of
// them, and between two of them reads what has arrived meanwhile. Otherwise it would take its own
// pause for the server's, and all processes of a busy machine would move again and again.
func (c *conn) leaveSilent(done <-chan struct{}) {
	const within = 4 // looks, after a first one from which on it counts
	looks := time.NewTicker(c.silence / within)
	defer looks.Stop()
	asked, heard, quiet := false, uint64(0), 0
	for quiet < within {
		select {
		case <-looks.C:
		case <-done:
			return
		}
		was, before := asked, heard
		c.mu.Lock()
		asked = len(c.waiting) > 0
		c.mu.Unlock()
		if heard = c.heard.Load(); was && asked && heard == before {
			quiet++
		} else {
			quiet = 0
		}
	}
	c.lose()
}

// handle takes an answer or event. Who waits is told of an answer when all events before it have
// been told: on that rests a claim's wait for its turn. False: the connection is of no use.
func (c *conn) handle(b []byte) bool {
	r := reader{rest: b}
	number, zxid, code := r.int(), r.long(), r.int()
	c.link.zxid.Store(max(c.link.zxid.Load(), zxid)) // events have -1
	switch {
	case r.short || number == authNumber && code != 0:
		return false
	case number == eventNumber:
		kind, _, path := eventKind(r.int()), r.int(), r.text()
		c.link.watches.event(kind, path)
		return !r.short
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if result := c.waiting[number]; result != nil {
		delete(c.waiting, number)
		if code != 0 {
			result <- reply{err: serverError(code)}
		} else {
			result <- reply{body: r.rest}
		}
	}
	return true
}

// endSession asks the server to end the session, and closes the connection when it has answered, or
// after a second.
func (c *conn) endSession() {
	frame, answer := c.begin(op{code: opClose})
	late := time.AfterFunc(time.Second, c.lose) // which answers too
	defer late.Stop()
	c.send(frame)
	<-answer
	c.lose()
}

// translate turns what is final into the port's errors, and leaves the rest: it is unknown.
func (l *link) translate(err error) error {
	switch {
	case errors.Is(err, errExpired):
		l.end(l.gone(), false)
		return l.gone()
	case errors.Is(err, errNoAuth), errors.Is(err, errAuthFailed), errors.Is(err, errInvalidACL):
		return fmt.Errorf("no permission (%w): check user, password and the ACLs below %s: %w",
			err, l.store.root, driver.ErrRefused)
	}
	return err
}
