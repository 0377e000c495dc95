package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection that remembers how it ended: its peer closed it, or fell silent. Whether the
// peer is the client it does not know, see [direct].
type conn struct {
	net.Conn
	uid   int  // of the peer on a unix socket; -1 elsewhere
	unix  bool // it came by a unix socket
	local bool // both ends are on this machine: what ends it is one of them
	ended atomic.Pointer[error]
	cut   atomic.Bool // what came last was the end of TCP's stream, or the socket's
	tls   *tls.Conn   // on top of this one; nil: there is none

	door    *door         // by which it came; nil: another server's
	counted *atomic.Int64 // of the door, until it is closed; nil: nowhere
	refused bool          // it is one too many
	left    sync.Once

	asked  sync.Once
	caller int // of [Caller]
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	if c.counted != nil {
		c.left.Do(func() { c.counted.Add(-1) })
	}
	return c.Conn.Close()
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.ended.CompareAndSwap(nil, &err)
	}
	if errors.Is(err, io.EOF) {
		c.cut.Store(true)
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && errors.Is(err, syscall.EPIPE) {
		c.ended.CompareAndSwap(nil, &err)
	}
	return n, err
}

// closed says whether the peer closed the connection, or died. Of a peer on this machine the kernel
// says so. Of another machine only TLS does: its close_notify bears the peer's key, while anything
// in between can make the end of a stream or a reset.
func (c *conn) closed() bool {
	if c.tls != nil && c.tookLeave() {
		return true
	}
	p := c.ended.Load()
	return p != nil && c.local &&
		(errors.Is(*p, io.EOF) || errors.Is(*p, syscall.ECONNRESET) || errors.Is(*p, syscall.EPIPE))
}

// tookLeave says whether the peer sent close_notify. TLS keeps what ended its reading, and returns
// it again at once; else this read ends by its deadline, which has passed. A stream that ends
// between two records is an end for TLS too, but then it has read that end from us. Nothing may be
// read by c.tls afterwards.
func (c *conn) tookLeave() bool {
	_ = c.tls.SetReadDeadline(time.Unix(1, 0))
	n, err := c.tls.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF) && !c.cut.Load()
}

type connKey struct{}

// connOf returns the connection of a request, nil where it came by another server.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// direct returns the connection of a request if its other end is the client, as it says in the
// request: that of a proxy ends with the proxy, while its client may still act. Most proxies show
// themselves in no header, so silence is no proof; and one that does show itself is believed more
// than the client.
func direct(r *http.Request, said bool) *conn {
	if !said {
		return nil
	}
	for _, h := range []string{"Via", "Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return nil
		}
	}
	return connOf(r)
}

func withConn(ctx context.Context, c net.Conn) context.Context {
	secured, _ := c.(*tls.Conn)
	if secured != nil {
		c = secured.NetConn()
	}
	if own, ok := c.(*conn); ok {
		own.tls = secured
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// Caller returns the user of the process that makes a request by a port, where it runs on this
// machine and the kernel tells; else -1. Of a browser that comes through a forward it is who runs
// the forward.
func Caller(r *http.Request) int {
	c := connOf(r)
	if c == nil || c.unix || !c.local {
		return -1
	}
	c.asked.Do(func() { c.caller = tcpUser(c.Conn) })
	return c.caller
}

// Door tells apart by which listener requests came: what is open at one must take no room from
// another. Nil: by another server's.
func Door(r *http.Request) any {
	if c := connOf(r); c != nil && c.door != nil {
		return c.door
	}
	return nil
}
