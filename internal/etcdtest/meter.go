package etcdtest

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// Meter passes connections through to a server and counts what is sent to it: by that a test
// knows which member a client talks to. It can swallow what is sent, too.
type Meter struct {
	ln     net.Listener
	target string
	sent   atomic.Int64
	mute   atomic.Bool
}

// NewMeter starts a meter for the server at addr (host:port). It ends with the test.
func NewMeter(tb testing.TB, addr string) *Meter {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	m := &Meter{ln: ln, target: addr}
	go m.accept()
	tb.Cleanup(func() { ln.Close() })
	return m
}

// Addr returns where clients connect, host:port.
func (m *Meter) Addr() string { return m.ln.Addr().String() }

// Sent returns how many bytes clients have sent to the server so far.
func (m *Meter) Sent() int64 { return m.sent.Load() }

// Swallow loses what clients send from now on, or no more. A connection that has lost something
// is of no use afterwards.
func (m *Meter) Swallow(on bool) { m.mute.Store(on) }

func (m *Meter) accept() {
	for {
		client, err := m.ln.Accept()
		if err != nil {
			return
		}
		go m.connect(client)
	}
}

func (m *Meter) connect(client net.Conn) {
	server, err := net.Dial("tcp", m.target)
	if err != nil {
		client.Close()
		return
	}
	go m.up(server, client)
	go pass(client, server)
}

// up passes on what a client sends, unless that is swallowed.
func (m *Meter) up(server, client net.Conn) {
	defer server.Close()
	defer client.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := client.Read(buf)
		m.sent.Add(int64(n))
		if n > 0 && !m.mute.Load() {
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass copies until either side closes, and then closes both.
func pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, from)
}
