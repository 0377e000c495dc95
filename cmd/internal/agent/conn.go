package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// conn is a connection that remembers how it ended: who closed it has stopped, who fell silent may
// still act.
type conn struct {
	net.Conn
	uid   int  // of the peer on a unix socket; -1 elsewhere
	unix  bool // it came by a unix socket
	local bool // both ends are on this machine: what ends it is one of them
	ended atomic.Pointer[error]

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
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil && errors.Is(err, syscall.EPIPE) {
		c.ended.CompareAndSwap(nil, &err)
	}
	return n, err
}

// closed says whether the peer closed the connection, or died: its kernel says so. A reset from
// another machine may be the work of a box in between, and one that fell silent says nothing.
func (c *conn) closed() bool {
	p := c.ended.Load()
	if p == nil {
		return false
	}
	return errors.Is(*p, io.EOF) || c.local && (errors.Is(*p, syscall.ECONNRESET) || errors.Is(*p, syscall.EPIPE))
}

type connKey struct{}

// connOf returns the connection of a request, nil where it came by another server.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// direct returns the connection of a request if its other end is the client: that of a proxy ends
// with the proxy, while its client may still act.
func direct(r *http.Request) *conn {
	for _, h := range []string{"Via", "Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return nil
		}
	}
	return connOf(r)
}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if own, ok := c.(*conn); ok {
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
