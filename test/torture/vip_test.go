//go:build linux

package torture

import (
	"io"
	"net"
	"sync"
	"testing"
)

// vip is an address that moves from a server to the one that takes over, as a virtual IP does.
type vip struct {
	ln net.Listener

	mu     sync.Mutex
	target string
	conns  map[net.Conn]bool
}

func newVIP(t testing.TB, target string) *vip {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &vip{ln: ln, target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { ln.Close(); v.move("") })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go v.serve(c)
		}
	}()
	return v
}

func (v *vip) addr() string { return v.ln.Addr().String() }

// move closes all connections, and leads new ones to another server; nowhere if that is empty.
func (v *vip) move(target string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.target = target
	for c := range v.conns {
		c.Close()
	}
	clear(v.conns)
}

func (v *vip) serve(client net.Conn) {
	defer client.Close()
	v.mu.Lock()
	target := v.target
	v.mu.Unlock()
	if target == "" {
		return
	}
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	v.mu.Lock()
	moved := v.target != target
	v.conns[client], v.conns[server] = true, true
	v.mu.Unlock()
	if moved {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			way[0].Close()
			way[1].Close()
		})
	}
	both.Wait()
	v.mu.Lock()
	delete(v.conns, client)
	delete(v.conns, server)
	v.mu.Unlock()
}
