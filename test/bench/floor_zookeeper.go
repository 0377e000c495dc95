package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// The floor on ZooKeeper: a sequential node for each claim, made in one step with a write to the
// line, which tells how many stand there; a watch on the node before it; and a delete. Each session
// is a raw socket. A goroutine reads it and wakes who waits for an answer or for a turn.
func init() {
	contenders = append(contenders,
		&Contender{Name: "floor of ZooKeeper", Store: "zookeeper", Floor: true, Local: true, Dial: dialBareZooKeeper})
}

// Requests of ZooKeeper's protocol, and its answers' errors.
const (
	zkCreate, zkDelete, zkExists, zkSetData, zkChildren, zkMulti, zkClose = 1, 2, 3, 5, 8, 14, -11

	zkNoNode, zkNodeExists = -101, -110
)

// bareZooKeeper has no connection of its own: a session is one.
type bareZooKeeper struct{ addr string }

func dialBareZooKeeper(_ context.Context, endpoints []string) (Process, error) {
	return bareZooKeeper{endpoints[0]}, nil
}

func (p bareZooKeeper) Close() {}

func (p bareZooKeeper) MinTTL() time.Duration { return 2 * time.Second }

// Session asks for the longest timeout that the server gives, for it sends no pings.
func (p bareZooKeeper) Session(context.Context, time.Duration) (Session, error) {
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		return nil, err
	}
	s := &bareZooKeeperSession{c: c, in: bufio.NewReader(c), dirs: map[string]bool{}, turns: map[string]chan struct{}{}}
	_ = c.SetDeadline(time.Now().Add(sliceLimit)) // whatever the server does
	hello := zkPacket{}.int(0).long(0).int(int32(time.Minute.Milliseconds())).long(0).text(strings.Repeat("\x00", 16))
	if _, err = c.Write(hello.framed()); err == nil {
		_, err = s.frame()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	go s.read()
	return s, nil
}

type bareZooKeeperSession struct {
	c  net.Conn
	in *bufio.Reader

	mu      sync.Mutex // held while something is sent, so answers come in the order of pending
	number  int32
	pending []chan zkAnswer
	ended   error
	dirs    map[string]bool          // lines that are there
	turns   map[string]chan struct{} // by the path of the node that is waited for
}

type zkAnswer struct {
	code int32 // 0: it was done
	body zkPacket
	err  error
}

func (s *bareZooKeeperSession) Close(ctx context.Context) error {
	_, err := s.ask(ctx, zkClose, nil)
	return errors.Join(err, s.c.Close())
}

func (s *bareZooKeeperSession) Revoke(context.Context) error {
	return errors.New("nobody else can end a session")
}

func (s *bareZooKeeperSession) Lock(name string, _ LockOptions) Lock {
	return bareZooKeeperLock{s, "/floor-" + name}
}

func (s *bareZooKeeperSession) Campaign(ctx context.Context, name string) (Held, error) {
	return s.Lock(name, LockOptions{}).Lock(ctx)
}

// ask sends a request and returns its answer. What ZooKeeper refuses is an error, but for the codes
// that are expected.
func (s *bareZooKeeperSession) ask(ctx context.Context, code int32, body zkPacket, expected ...int32,
) (zkAnswer, error) {
	answered := make(chan zkAnswer, 1)
	s.mu.Lock()
	s.number++
	_, err := s.c.Write(append(zkPacket{}.int(s.number).int(code), body...).framed())
	if s.ended != nil {
		err = s.ended
	}
	s.pending = append(s.pending, answered)
	s.mu.Unlock()
	if err != nil {
		return zkAnswer{}, err
	}
	select {
	case a := <-answered:
		if a.err == nil && a.code != 0 && !slices.Contains(expected, a.code) {
			a.err = fmt.Errorf("ZooKeeper's error %d to request %d", a.code, code)
		}
		return a, a.err
	case <-ctx.Done():
		return zkAnswer{}, context.Cause(ctx)
	}
}

// read takes answers and events until the socket is closed.
func (s *bareZooKeeperSession) read() {
	for {
		p, err := s.frame()
		s.mu.Lock()
		if err != nil {
			s.ended = err
			for _, answered := range s.pending {
				answered <- zkAnswer{err: err}
			}
			s.mu.Unlock()
			return
		}
		if number := p.takeInt(); number == -1 {
			// Of a node that is never written a watch tells only that it is gone.
			p.take(8 + 4 + 4 + 4) // revision, error, kind and state
			if path := p.takeText(); s.turns[path] != nil {
				close(s.turns[path])
				delete(s.turns, path)
			}
		} else {
			p.take(8)
			s.pending[0] <- zkAnswer{code: p.takeInt(), body: p}
			s.pending = s.pending[1:]
		}
		s.mu.Unlock()
	}
}

// frame reads one message.
func (s *bareZooKeeperSession) frame() (zkPacket, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return nil, err
	}
	p := make(zkPacket, binary.BigEndian.Uint32(head[:])&0xffffff)
	_, err := io.ReadFull(s.in, p)
	return p, err
}

type bareZooKeeperLock struct {
	s   *bareZooKeeperSession
	dir string
}

func (l bareZooKeeperLock) Lock(ctx context.Context) (Held, error) {
	if err := l.ensure(ctx); err != nil {
		return nil, err
	}
	// In one step: create the node, and write to the line. The latter's answer has the revision of
	// both, which is the token, and the number of those who stand.
	const ephemeralSequential, head = 3, 9
	step := zkHead(zkCreate, false).node(l.dir+"/n-", ephemeralSequential)
	step = append(step, zkHead(zkSetData, false).text(l.dir).text("").int(-1)...)
	a, err := l.s.ask(ctx, zkMulti, append(step, zkHead(-1, true)...))
	if err != nil {
		return nil, err
	}
	a.body.take(head)
	h := bareZooKeeperHeld{s: l.s, path: a.body.takeText()}
	a.body.take(head + 8) // and the revision at which the line was made
	h.token = uint64(a.body.takeLong())
	a.body.take(2*8 + 3*4 + 8 + 4) // two times, three versions, the owner, the data's length
	if a.body.takeInt() == 1 {
		return h, nil
	}
	return h, l.wait(ctx, h.path)
}

// ensure makes the line's node.
func (l bareZooKeeperLock) ensure(ctx context.Context) error {
	l.s.mu.Lock()
	there := l.s.dirs[l.dir]
	l.s.dirs[l.dir] = true
	l.s.mu.Unlock()
	if there {
		return nil
	}
	_, err := l.s.ask(ctx, zkCreate, zkPacket{}.node(l.dir, 0), zkNodeExists)
	return err
}

// wait returns when the node before this one is gone: who had it held, and has released.
func (l bareZooKeeperLock) wait(ctx context.Context, path string) error {
	a, err := l.s.ask(ctx, zkChildren, zkPacket{}.text(l.dir).bool(false))
	if err != nil {
		return err
	}
	before := ""
	for range a.body.takeInt() {
		if child := l.dir + "/" + a.body.takeText(); child < path && child > before {
			before = child
		}
	}
	if before == "" {
		return nil
	}
	turn := make(chan struct{})
	l.s.mu.Lock()
	l.s.turns[before] = turn
	l.s.mu.Unlock()
	a, err = l.s.ask(ctx, zkExists, zkPacket{}.text(before).bool(true), zkNoNode)
	if err != nil || a.code == zkNoNode {
		return err
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type bareZooKeeperHeld struct {
	s     *bareZooKeeperSession
	path  string
	token uint64
}

func (h bareZooKeeperHeld) Check() error  { return nil }
func (h bareZooKeeperHeld) Token() uint64 { return h.token }

func (h bareZooKeeperHeld) Release(ctx context.Context) error {
	_, err := h.s.ask(ctx, zkDelete, zkPacket{}.text(h.path).int(-1))
	return err
}

// zkPacket is a message, or what is left of it.
type zkPacket []byte

func (p zkPacket) int(n int32) zkPacket   { return binary.BigEndian.AppendUint32(p, uint32(n)) }
func (p zkPacket) long(n int64) zkPacket  { return binary.BigEndian.AppendUint64(p, uint64(n)) }
func (p zkPacket) text(s string) zkPacket { return append(p.int(int32(len(s))), s...) }

func (p zkPacket) bool(yes bool) zkPacket {
	if yes {
		return append(p, 1)
	}
	return append(p, 0)
}

// zkHead stands before each request in a step, and at its end.
func zkHead(code int32, end bool) zkPacket { return zkPacket{}.int(code).bool(end).int(-1) }

// node asks for an empty node with which all may do everything.
func (p zkPacket) node(path string, flags int32) zkPacket {
	return p.text(path).text("").int(1).int(31).text("world").text("anyone").int(flags)
}

// framed has the length before the message.
func (p zkPacket) framed() []byte { return append(zkPacket{}.int(int32(len(p))), p...) }

func (p *zkPacket) take(n int) []byte {
	n = min(max(n, 0), len(*p))
	part := (*p)[:n]
	*p = (*p)[n:]
	return part
}

func (p *zkPacket) takeInt() int32 {
	if len(*p) < 4 {
		return 0
	}
	return int32(binary.BigEndian.Uint32(p.take(4)))
}

func (p *zkPacket) takeLong() int64 {
	if len(*p) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(p.take(8)))
}

func (p *zkPacket) takeText() string { return string(p.take(int(p.takeInt()))) }
