package etcdsim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// half is one direction of a connection: what was written lies in it until it is due and the
// reader takes it.
type half struct {
	mu     sync.Mutex
	cond   sync.Cond
	chunks []chunk
	size   int
	delay  time.Duration

	held     bool // the network swallows it: what was sent arrives once the cut is healed, as TCP sends it again
	stoppedR bool // the process that reads is frozen
	stoppedW bool // the process that writes is frozen
	eof      bool // the writer closed: the reader gets the rest, then the end
	broken   bool // reset: nothing more arrives
	deadline time.Time
}

type chunk struct {
	data []byte
	at   time.Time
}

// window bounds what lies in a connection, as the buffers of the kernel do.
const window = 256 << 10

var errReset = errors.New("connection reset by peer")

func newHalf() *half {
	h := &half{}
	h.cond.L = &h.mu
	return h
}

// set changes the state under the lock and wakes whoever waits.
func (h *half) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	h.cond.Broadcast()
}

func (h *half) read(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		now := time.Now()
		var due time.Time
		switch {
		case h.stoppedR:
		case h.broken:
			return 0, errReset
		case !h.deadline.IsZero() && !now.Before(h.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(h.chunks) > 0 && !h.held:
			if due = h.chunks[0].at; !now.Before(due) {
				return h.take(b), nil
			}
		case h.eof && len(h.chunks) == 0 && !h.held:
			return 0, io.EOF
		}
		h.wait(now, due)
	}
}

// wait waits for a change, for due, or for the deadline. The caller holds the lock.
func (h *half) wait(now, due time.Time) {
	if !h.deadline.IsZero() && !h.stoppedR && (due.IsZero() || h.deadline.Before(due)) {
		due = h.deadline
	}
	if due.IsZero() {
		h.cond.Wait()
		return
	}
	t := time.AfterFunc(due.Sub(now), func() { h.set(func() {}) })
	h.cond.Wait()
	t.Stop()
}

// take moves what is due to b.
func (h *half) take(b []byte) int {
	c := &h.chunks[0]
	n := copy(b, c.data)
	if c.data = c.data[n:]; len(c.data) == 0 {
		h.chunks = h.chunks[1:]
	}
	h.size -= n
	h.cond.Broadcast()
	return n
}

func (h *half) write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.stoppedW:
		case h.broken || h.eof:
			return 0, errReset
		case h.size < window:
			h.size += len(b)
			h.chunks = append(h.chunks, chunk{append([]byte(nil), b...), time.Now().Add(h.delay)})
			h.cond.Broadcast()
			return len(b), nil
		}
		h.cond.Wait()
	}
}

// conn is one end of a connection between a client and a member.
type conn struct {
	in, out *half
	name    string
	closed  func() // tells the cluster that the connection is over
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close ends this side. What was written before still arrives.
func (c *conn) Close() error {
	c.out.set(func() { c.out.eof = true })
	c.in.set(func() { c.in.broken = true })
	c.closed()
	return nil
}

func (c *conn) LocalAddr() net.Addr               { return addr(c.name) }
func (c *conn) RemoteAddr() net.Addr              { return addr(c.name) }
func (c *conn) SetDeadline(t time.Time) error     { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error  { return nil }
func (c *conn) SetReadDeadline(t time.Time) error { c.in.set(func() { c.in.deadline = t }); return nil }

type addr string

func (a addr) Network() string { return "memory" }
func (a addr) String() string  { return string(a) }

// flow is an open connection as the cluster sees it: to the member, and back.
type flow struct {
	client, member int
	to, back       *half
	ends           int // that were closed
}

// reset breaks the connection for both sides.
func (f *flow) reset() {
	f.to.set(func() { f.to.broken = true })
	f.back.set(func() { f.back.broken = true })
}

// listener hands new connections to a member's server.
type listener struct {
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
}

func newListener() *listener {
	return &listener{accepted: make(chan net.Conn, 64), done: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *listener) Addr() net.Addr { return addr("etcdsim") }

// Dial connects a client, named by any number, to the member at that endpoint. While the member
// is cut off from the client it hangs until ctx ends; a member that is down refuses. A frozen one
// is connected to: its kernel does that.
func (c *Cluster) Dial(ctx context.Context, client int, endpoint string) (net.Conn, error) {
	i, err := c.member(endpoint)
	if err != nil {
		return nil, err
	}
	for {
		c.mu.Lock()
		m := c.members[i]
		down, cut := m.down || c.closed, c.held[way{client, i, true}] || c.held[way{client, i, false}]
		if !down && !cut {
			conn := c.connect(client, m)
			c.mu.Unlock()
			return conn, nil
		}
		c.mu.Unlock()
		if down {
			return nil, errors.New("connection refused")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connect makes the two ends. The caller holds the lock.
func (c *Cluster) connect(client int, m *member) net.Conn {
	f := &flow{client: client, member: m.i, to: newHalf(), back: newHalf()}
	c.flows[f] = struct{}{}
	f.to.delay, f.back.delay = c.latency, c.latency
	c.applyTo(f)
	ended := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		f.ends++
		if f.ends == 2 {
			delete(c.flows, f)
		}
	}
	m.lis.accepted <- &conn{in: f.to, out: f.back, name: m.endpoint(), closed: sync.OnceFunc(ended)}
	return &conn{in: f.back, out: f.to, name: m.endpoint(), closed: sync.OnceFunc(ended)}
}

// applyTo gives a connection the state that its ends and its way have now. The caller holds the
// lock.
func (c *Cluster) applyTo(f *flow) {
	frozen := c.members[f.member].frozen
	to, back := c.held[way{f.client, f.member, true}], c.held[way{f.client, f.member, false}]
	f.to.set(func() { f.to.held, f.to.stoppedR = to, frozen })
	f.back.set(func() { f.back.held, f.back.stoppedW = back, frozen })
}
