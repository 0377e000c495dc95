// Package proxy is a TCP proxy that does what a bad network does: it falls silent, in one
// direction or both, takes its time, loses the rest of a connection, or closes all of them.
package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Dir is a direction through a Proxy.
type Dir int

const (
	Up   Dir = iota // from the client to the server: requests
	Down            // from the server to the client: replies
)

// keep is how many bytes of one connection and direction are kept back at most; then its sender
// waits, as with a full window.
const keep = 16 << 20

// Proxy is a TCP proxy in front of one server. It is safe for concurrent use.
type Proxy struct {
	target string
	ln     net.Listener
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	all    sync.WaitGroup

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
	size           [2]int     // bytes in queue
	sealed         [2]bool    // what arrives from now on is lost
	writing        int        // directions that are still passed on
}

// piece is some bytes and when they arrived. Nil bytes mark the end.
type piece struct {
	at   time.Time
	data []byte
}

// Listen starts a proxy on a free port of loopback for the server at target (host:port). The
// server need not answer yet: a client whose server cannot be reached sees its connection closed.
// The caller closes the proxy.
func Listen(target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	p := &Proxy{target: target, ln: ln, conns: map[*pipe]struct{}{}}
	p.cond = sync.NewCond(&p.mu)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.all.Go(p.accept)
	return p, nil
}

// Addr returns where clients connect, host:port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close closes all connections and returns when nothing of the proxy runs any more.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.ln.Close()
	p.Cut()
	p.all.Wait()
}

// Hold lets nothing more pass in the given directions, both if none are given. Connections stay
// open and new ones are accepted: a silent black hole. Bytes are kept and delivered at Heal, as
// TCP would send them again.
func (p *Proxy) Hold(dirs ...Dir) {
	p.change(func() {
		for _, d := range orBoth(dirs) {
			p.held[d] = true
		}
	})
}

// Heal ends Hold, Delay and Cut.
func (p *Proxy) Heal() {
	p.change(func() {
		p.held, p.delay = [2]bool{}, [2]time.Duration{}
		p.cut = p.ctx.Err() != nil
	})
}

// Delay makes each piece take d longer in the given directions, both if none are given.
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

// Seal loses what clients of today's connections send from now on, while what is held is still
// delivered at Heal. So a request arrives late, and that its sender has given it up never does.
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
		p.all.Go(func() { p.connect(client) })
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
	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	c := &pipe{client: client, server: server, writing: 2}
	p.change(func() { p.conns[c] = struct{}{} })
	p.all.Go(func() { p.read(c, Up, client) })
	p.all.Go(func() { p.read(c, Down, server) })
	p.all.Go(func() { p.write(c, Up, server) })
	p.all.Go(func() { p.write(c, Down, client) })
}

// read takes bytes in; they are passed on by write.
func (p *Proxy) read(c *pipe, d Dir, from net.Conn) {
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		p.change(func() {
			for c.size[d] > keep && !p.cut && !c.sealed[d] && c.writing == 2 {
				p.cond.Wait()
			}
			if n > 0 && !c.sealed[d] {
				c.queue[d] = append(c.queue[d], piece{time.Now(), buf[:n]})
				c.size[d] += n
			}
			if err != nil && !c.sealed[d] {
				c.queue[d] = append(c.queue[d], piece{time.Now(), nil})
			}
		})
		if err != nil {
			return
		}
	}
}

// write passes bytes on until the end, and then ends the other side too.
func (p *Proxy) write(c *pipe, d Dir, to net.Conn) {
	defer p.change(func() {
		if c.writing--; c.writing == 0 {
			delete(p.conns, c)
		}
	})
	defer to.Close()
	for {
		data := p.next(c, d)
		if data == nil {
			return
		}
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}

// next waits until something may pass in direction d, and returns it; nil at the end.
func (p *Proxy) next(c *pipe, d Dir) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.cut {
		if p.held[d] || len(c.queue[d]) == 0 {
			p.cond.Wait()
			continue
		}
		first := c.queue[d][0]
		if early := p.delay[d] - time.Since(first.at); early > 0 {
			wake := time.AfterFunc(early, func() { p.change(func() {}) })
			p.cond.Wait()
			wake.Stop()
			continue
		}
		c.queue[d] = slices.Delete(c.queue[d], 0, 1)
		c.size[d] -= len(first.data)
		p.cond.Broadcast()
		return first.data
	}
	return nil
}
