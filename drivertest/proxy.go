package drivertest

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy on loopback that can cut its connections silently: nothing is closed or refused, bytes only stop,
// as when a cable is pulled. They arrive when it is healed, as TCP sends them again.
type Proxy struct {
	// Addr is where clients connect, host:port.
	Addr string

	target string
	ctx    context.Context // ends with the test

	mu     sync.Mutex
	cut    bool
	turned chan struct{} // closed when cut is switched
}

// NewProxy returns a proxy to target (host:port), which ends with the test. For [Harness.Cut]:
//
//	Cut: func(t testing.TB) (driver.Store, func(bool)) {
//		p := drivertest.NewProxy(t, addr)
//		return open(t, p.Addr), p.Cut
//	},
//
// The client must know no other way to the storage: switch off what finds the members of a cluster by itself.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy to %s: %v", target, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{Addr: ln.Addr().String(), target: target, ctx: ctx, turned: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return // the test ends
			}
			all.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = ln.Close()
		all.Wait()
	})
	return p
}

// Cut cuts all connections, also those to come, or heals them.
func (p *Proxy) Cut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	close(p.turned)
	p.turned = make(chan struct{})
}

// pass waits while the proxy is cut, and reports false when the test ends.
func (p *Proxy) pass() bool {
	for {
		p.mu.Lock()
		cut, turned := p.cut, p.turned
		p.mu.Unlock()
		if !cut {
			return p.ctx.Err() == nil
		}
		select {
		case <-turned:
		case <-p.ctx.Done():
			return false
		}
	}
}

// serve carries one connection. A client that connects while the proxy is cut hangs, it is not refused.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	if !p.pass() {
		return
	}
	server, err := (&net.Dialer{}).DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		return // the server is down: the client sees its connection closed
	}
	defer server.Close()
	// Closing both when the test ends is what ends the copies below.
	stop := context.AfterFunc(p.ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { p.carry(server, client) })
	both.Go(func() { p.carry(client, server) })
	both.Wait()
}

// carry copies one direction until it ends, then ends it on the other side too, unless that news is cut off as well.
func (p *Proxy) carry(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass() {
			return
		}
		if n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			return
		}
	}
}
