package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// wire is a proxy that counts what clients ask of a server, and how many bytes it sends them: round
// trips as they are on the wire, whatever a library does in between. It is in the way only while
// they are counted, for it takes time.
type wire struct {
	ln       net.Listener
	target   string
	frame    framing
	all      sync.WaitGroup
	requests atomic.Int64
	down     atomic.Int64 // bytes to clients

	mu    sync.Mutex
	conns []net.Conn
}

// framing passes one message of a client on and says whether the server answers it as a request of
// its own. First is the connection's first.
type framing func(w io.Writer, r *bufio.Reader, first bool) (request bool, err error)

func newWire(target string, frame framing) (*wire, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{ln: ln, target: target, frame: frame}
	w.all.Go(w.accept)
	return w, nil
}

func (w *wire) addr() string { return w.ln.Addr().String() }

func (w *wire) close() {
	w.ln.Close()
	w.mu.Lock()
	for _, c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.all.Wait()
}

func (w *wire) accept() {
	for {
		client, err := w.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, client, server)
		w.mu.Unlock()
		w.all.Go(func() { w.up(server, client); server.Close() })
		w.all.Go(func() { _, _ = io.Copy(counter{client, &w.down}, server); client.Close() })
	}
}

// up passes requests on, all that have arrived together in one piece.
func (w *wire) up(server, client net.Conn) {
	in, out := bufio.NewReaderSize(client, 64<<10), bufio.NewWriterSize(server, 64<<10)
	for first := true; ; first = false {
		request, err := w.frame(out, in, first)
		if request {
			w.requests.Add(1)
		}
		if err != nil {
			_ = out.Flush()
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// counter counts what is written.
type counter struct {
	io.Writer
	n *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.Writer.Write(b)
}

// respFrame passes a command of Redis's protocol on.
func respFrame(w io.Writer, r *bufio.Reader, _ bool) (bool, error) {
	n, err := respLength(w, r, '*')
	for range n {
		size, err := respLength(w, r, '$')
		if err == nil {
			_, err = io.CopyN(w, r, int64(size)+2)
		}
		if err != nil {
			return false, err
		}
	}
	return err == nil, err
}

func respLength(w io.Writer, r *bufio.Reader, mark byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != mark {
		return 0, fmt.Errorf("a client of Redis sent %q", line)
	}
	if _, err := io.WriteString(w, line); err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimRight(line[1:], "\r\n"))
}

// postgresFrame passes a message of PostgreSQL's protocol on. What is answered as a whole ends with
// Sync, or is a simple Query.
func postgresFrame(w io.Writer, r *bufio.Reader, first bool) (bool, error) {
	head := make([]byte, 5)
	if first {
		head = head[:4] // the startup message has no type
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return false, err
	}
	size := int64(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	if _, err := w.Write(head); err != nil {
		return false, err
	}
	_, err := io.CopyN(w, r, size)
	return !first && (head[0] == 'S' || head[0] == 'Q'), err
}

// zooKeeperFrame passes a packet of ZooKeeper's protocol on. Pings keep the session and are no
// requests.
func zooKeeperFrame(w io.Writer, r *bufio.Reader, first bool) (bool, error) {
	head := make([]byte, 8)
	if _, err := io.ReadFull(r, head); err != nil {
		return false, err
	}
	if _, err := w.Write(head); err != nil {
		return false, err
	}
	_, err := io.CopyN(w, r, int64(binary.BigEndian.Uint32(head))-4)
	return !first && int32(binary.BigEndian.Uint32(head[4:])) != -2, err
}
