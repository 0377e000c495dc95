package httpfence

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// exchange is one request and its answer, which can be interrupted.
//
// A body that a stopped client never finishes would hold its handler for ever: only a read deadline
// in the past ends that. On HTTP/1 the deadline is the connection's, and outlives the request:
// net/http reads ahead once a body has ended, fails, and cancels the contexts of all later requests
// on the connection, which may be another leader's, by way of a proxy. So there
//
//	no deadline is set once the body has been read to its end,
//	an answer says Connection: close if its header is written after the deadline was set,
//	or before the body has ended,
//
// and net/http then reads no more from that connection.
type exchange struct {
	w       http.ResponseWriter
	request *http.Request
	old     bool // HTTP/1

	begun    atomic.Bool // the handler reads the body
	ended    atomic.Bool // the body has been read; net/http may read ahead
	duplex   atomic.Bool // the handler writes before it has read
	hijacked atomic.Bool // no more requests come on this connection, and its reads are the handler's

	mu     sync.Mutex
	header bool // written, or decided
	cut    bool // the read deadline is set
}

// drainLimit is how much of a body net/http itself reads before an answer, to keep the connection.
const drainLimit = 256 << 10

func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{w: w, request: r, old: r.ProtoMajor < 2}
	if r.Body == nil || r.Body == http.NoBody {
		x.ended.Store(true)
	} else {
		r.Body = &body{x, r.Body} // r is a copy of ours
	}
	return x
}

// interrupt ends what the handler reads or writes. Its answer gets a second; net/http lifts a write
// deadline with the end of each request.
func (x *exchange) interrupt() {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := http.NewResponseController(x.w)
	if !x.ended.Load() || !x.old || x.hijacked.Load() {
		x.cut = true
		_ = c.SetReadDeadline(time.Unix(1, 0)) // where the server cannot, the handler's context must do
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
}

// beforeHeader decides whether the connection may be used again.
func (x *exchange) beforeHeader() {
	if !x.old {
		return
	}
	x.mu.Lock()
	decided := x.header
	x.mu.Unlock()
	if decided {
		return
	}
	waits := strings.Contains(strings.ToLower(x.request.Header.Get("Expect")), "100-continue") && !x.begun.Load()
	if !x.ended.Load() && !x.duplex.Load() && !waits { // as net/http would now, unseen by us
		_, _ = io.CopyN(io.Discard, x.request.Body, drainLimit+1)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.header = true; !x.ended.Load() || x.cut {
		x.w.Header().Set("Connection", "close")
	}
}

// returned is called when the handler has returned by itself. The header may have been written;
// then this changes nothing.
func (x *exchange) returned() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.old && x.cut && !x.header {
		x.w.Header().Set("Connection", "close")
	}
}

// writer returns what the handler writes to.
func (x *exchange) writer() http.ResponseWriter {
	if !x.old {
		return x.w // deadlines are the stream's there
	}
	return &writer{x.w, x}
}

// body notes how far it was read.
type body struct {
	x *exchange
	io.ReadCloser
}

func (b *body) Read(p []byte) (int, error) {
	b.x.begun.Store(true)
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.x.ended.Store(true)
	}
	return n, err
}

// writer is an HTTP/1 answer. It has what net/http's own has.
type writer struct {
	http.ResponseWriter
	x *exchange
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.x.beforeHeader()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.x.beforeHeader()
	return w.ResponseWriter.Write(p)
}

func (w *writer) WriteString(s string) (int, error) {
	w.x.beforeHeader()
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom lets net/http send a file without copying it.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.x.beforeHeader()
	return io.Copy(w.ResponseWriter, r)
}

func (w *writer) Flush() { _ = w.FlushError() }

func (w *writer) FlushError() error {
	w.x.beforeHeader()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack hands the connection over.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.x.hijacked.Store(err == nil)
	return c, rw, err
}

// EnableFullDuplex lets the handler write before it has read.
func (w *writer) EnableFullDuplex() error {
	w.x.duplex.Store(true)
	return http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
}
