package etcdtest

import (
	"net"
	"sync/atomic"
	"testing"
)

// Meter passes connections through to a server and counts what is sent to it: by that a test knows which member a client
// talks to.
type Meter struct {
	ln     net.Listener
	target string
	sent   atomic.Int64
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
	go pass(server, client, &m.sent)
	go pass(client, server, nil)
}

// pass copies until either side closes, and then closes both.
func pass(to, from net.Conn, sent *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if sent != nil {
			sent.Add(int64(n))
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}
