//go:build unix

package main

import (
	"bytes"
	"fmt"
	"net"
	"sync"
)

// proxy stands before the port at which a member listens for the others, and can lose what passes
// between two of them. etcd's members say in their requests who they are.
type proxy struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	conns map[*pair]bool
	cut   func(from string) bool // whether what this member asks for, or anybody for "", is lost
}

// pair is a connection through the proxy.
type pair struct {
	in, out net.Conn
	from    string // the member that opened it; empty: it has not said yet
}

func newProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, to: to, conns: map[*pair]bool{}, cut: func(string) bool { return false }}
	go p.serve()
	return p, nil
}

func (p *proxy) serve() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.join(in)
	}
}

// join passes bytes on in both directions until either side closes.
func (p *proxy) join(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer out.Close()
	c := &pair{in: in, out: out}
	p.mu.Lock()
	p.conns[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}()
	go func() {
		p.pass(c, out, in, false)
		in.Close()
	}()
	p.pass(c, in, out, true)
}

func (p *proxy) pass(c *pair, from, to net.Conn, requests bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		if requests && c.from == "" {
			c.from = sender(buf[:n])
		}
		lost := p.cut(c.from)
		p.mu.Unlock()
		if lost {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// sender returns the member that a request between members comes from, "" if it does not say.
func sender(request []byte) string {
	_, rest, found := bytes.Cut(request, []byte("X-Server-From: "))
	if !found {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return string(id)
}

// lose sets what is lost from now on.
func (p *proxy) lose(cut func(from string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
}

// heal passes everything on again, over new connections: the old ones miss bytes.
func (p *proxy) heal() {
	p.lose(func(string) bool { return false })
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.in.Close()
		c.out.Close()
	}
}

// cut loses what passes between m and the other members, silently.
func (c *cluster) cut(m *member) {
	id := fmt.Sprintf("%x", m.id)
	for _, o := range c.members {
		o.proxy.lose(func(from string) bool { return o == m || from == id })
	}
}

// heal joins all members again.
func (c *cluster) heal() {
	for _, m := range c.members {
		m.proxy.heal()
	}
}
