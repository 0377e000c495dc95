package etcdtest

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Dir is a direction through a Proxy.
type Dir int

const (
	Up   Dir = iota // from the client to the server: requests
	Down            // from the server to the client: replies
)

// Proxy is a TCP proxy in front of a server, which can do what a bad network does.
type Proxy struct {
	tb     testing.TB
	target string
	ln     net.Listener

	mu    sync.Mutex
	cond  *sync.Cond
	held  [2]bool          // nothing passes in this direction
	delay [2]time.Duration // how long each piece takes
	cut   bool
	conns map[*pipe]struct{}
}

// pipe is one connection through the proxy.
type pipe struct {
	client, server net.Conn
	queue          [2][]piece // read and not yet passed on
	sealed         [2]bool    // what arrives from now on is lost
}

// piece is some bytes and when they arrived.
type piece struct {
	at   time.Time
	data []byte
}

// NewProxy starts a proxy for the server at addr (host:port). It ends with the test.
func NewProxy(tb testing.TB, addr string) *Proxy {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{tb: tb, target: addr, ln: ln, conns: map[*pipe]struct{}{}}
	p.cond = sync.NewCond(&p.mu)
	go p.accept()
	tb.Cleanup(func() {
		ln.Close()
		p.Cut()
	})
	return p
}

// Addr returns where clients connect, host:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Hold lets nothing more pass in the given directions, both if none are given. Connections stay open and new ones are
// accepted: a silent black hole. Bytes are kept and delivered at Heal, as TCP would send them again.
func (p *Proxy) Hold(dirs ...Dir) {
	p.change(func() {
		for _, d := range orBoth(dirs) {
			p.held[d] = true
		}
	})
}

// Heal ends Hold, Delay and Cut.
func (p *Proxy) Heal() {
	p.change(func() { p.held, p.delay, p.cut = [2]bool{}, [2]time.Duration{}, false })
}

// Delay makes each piece take d longer in the given directions.
func (p *Proxy) Delay(d time.Duration, dirs ...Dir) {
	p.change(func() {
		for _, dir := range orBoth(dirs) {
			p.delay[dir] = d
		}
	})
}

// Cut closes all connections and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.change(func() {
		p.cut = true
		for c := range p.conns {
			c.client.Close()
			c.server.Close()
		}
	})
}

// Seal loses what clients of today's connections send from now on, while what is held is still delivered at Heal. So a
// request arrives late, and that its sender has given it up never does.
func (p *Proxy) Seal() {
	p.change(func() {
		for c := range p.conns {
			c.sealed[Up] = true
		}
	})
}

// Holds reports whether data is among the bytes held back in direction d.
func (p *Proxy) Holds(d Dir, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		var all []byte
		for _, pc := range c.queue[d] {
			all = append(all, pc.data...)
		}
		if bytes.Contains(all, data) {
			return true
		}
	}
	return false
}

func orBoth(dirs []Dir) []Dir {
	if len(dirs) == 0 {
		return []Dir{Up, Down}
	}
	return dirs
}

// change does f and has all pumps look again.
func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.cond.Broadcast()
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		go p.connect(client)
	}
}

// connect joins a client with the server.
func (p *Proxy) connect(client net.Conn) {
	p.mu.Lock()
	cut := p.cut
	p.mu.Unlock()
	if cut {
		client.Close()
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	c := &pipe{client: client, server: server}
	p.change(func() { p.conns[c] = struct{}{} })
	go p.read(c, Up, client)
	go p.read(c, Down, server)
	go p.write(c, Up, server)
	go p.write(c, Down, client)
}

// read takes bytes in; they are passed on by write. A nil piece marks the end.
func (p *Proxy) read(c *pipe, d Dir, from net.Conn) {
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		p.change(func() {
			if !c.sealed[d] {
				if n > 0 {
					c.queue[d] = append(c.queue[d], piece{time.Now(), buf[:n]})
				}
				if err != nil {
					c.queue[d] = append(c.queue[d], piece{time.Now(), nil})
				}
			}
		})
		if err != nil {
			return
		}
	}
}

// write passes bytes on when they may pass.
func (p *Proxy) write(c *pipe, d Dir, to net.Conn) {
	for {
		p.mu.Lock()
		for !p.cut && (p.held[d] || len(c.queue[d]) == 0) {
			p.cond.Wait()
		}
		if p.cut {
			delete(p.conns, c)
			p.mu.Unlock()
			to.Close()
			return
		}
		pc, late := c.queue[d][0], p.delay[d]
		if wait := late - time.Since(pc.at); wait > 0 {
			p.mu.Unlock()
			time.Sleep(wait)
			continue
		}
		c.queue[d] = slices.Delete(c.queue[d], 0, 1)
		p.mu.Unlock()
		if pc.data == nil {
			to.Close()
			return
		}
		if _, err := to.Write(pc.data); err != nil {
			to.Close()
			return
		}
	}
}
