package zkstore_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// faultProxy is a proxy that reads requests along and decides what becomes of each.
type faultProxy struct {
	net.Listener
	server string

	mu     sync.Mutex
	judge  func(opcode int32, request string) fate
	hangUp map[net.Conn]int32 // connections to close, instead of passing the answer to this request
}

type fate int

const (
	pass       fate = iota
	drop            // the connection is lost before the server has it
	swallow         // it is never answered
	loseAnswer      // the connection is lost when the server has done it
)

// Codes of requests.
const (
	opGetData      = 4
	opSetData      = 5
	opGetChildren2 = 12
	opMulti        = 14
	opSetWatches   = 101
)

func newFaultProxy(t *testing.T, server string) *faultProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	p := &faultProxy{Listener: ln, server: server, hangUp: map[net.Conn]int32{}}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *faultProxy) addr() string { return p.Listener.Addr().String() }

// decide sets what becomes of requests from now on; nil: all pass.
func (p *faultProxy) decide(judge func(opcode int32, request string) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

func (p *faultProxy) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer s.Close()
	asks, err := readFrame(c)
	if err != nil {
		return
	}
	if _, err := s.Write(asks); err != nil {
		return
	}
	if len(asks) == 4 {
		_, _ = io.Copy(c, s)
		return
	}
	go func() {
		defer c.Close()
		defer s.Close()
		for first := true; ; first = false {
			frame, err := readFrame(s)
			if err != nil || !first && p.hangsUp(c, frame) {
				return
			}
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
	}()
	for {
		frame, err := readFrame(c)
		f := pass
		if err == nil && len(frame) >= 12 {
			f = p.fateOf(c, frame)
		}
		if err != nil || f == drop {
			return
		}
		if f == swallow {
			continue
		}
		if _, err := s.Write(frame); err != nil {
			return
		}
	}
}

func (p *faultProxy) fateOf(c net.Conn, frame []byte) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.judge == nil {
		return pass
	}
	f := p.judge(int32(binary.BigEndian.Uint32(frame[8:])), string(frame[12:]))
	if f == loseAnswer {
		p.hangUp[c] = int32(binary.BigEndian.Uint32(frame[4:]))
	}
	return f
}

func (p *faultProxy) hangsUp(c net.Conn, frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	xid, ok := p.hangUp[c]
	return ok && len(frame) >= 8 && int32(binary.BigEndian.Uint32(frame[4:])) == xid
}

// readFrame reads a request or an answer, with the length in front.
func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > 1<<24 { // four letters: a command, which is no frame
		return head, nil
	}
	frame := append(head, make([]byte, n)...)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// once returns a judge that gives fates to the first requests that fit, one after the other.
func once(fits func(opcode int32, request string) bool, fates ...fate) func(int32, string) fate {
	return func(opcode int32, request string) fate {
		if len(fates) == 0 || !fits(opcode, request) {
			return pass
		}
		f := fates[0]
		fates = fates[1:]
		return f
	}
}

func enters(opcode int32, request string) bool {
	return opcode == opMulti && strings.Contains(request, "/p1-")
}
