package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The floor on Redis: a fair line with tokens in two small scripts and one publish, by raw sockets.
// Each lock has a socket for its scripts; each session has one on which it is told of its turns,
// read by a goroutine that wakes the waiter.
func init() {
	contenders = append(contenders,
		&Contender{Name: "floor of Redis", Store: "redis", Floor: true, Local: true, Dial: dialBareRedis})
}

// bareEnter puts the caller's channel at the end of the line and draws a token, which is negative
// for who has to wait. bareLeave tells the next one that it is its turn.
const (
	bareEnter = `local t=redis.call('INCR',KEYS[2])
if redis.call('RPUSH',KEYS[1],ARGV[1])==1 then return t end
return -t`
	bareLeave = `redis.call('LPOP',KEYS[1])
local n=redis.call('LINDEX',KEYS[1],0)
if n then redis.call('PUBLISH',n,'') end
return 0`
)

// bareRedis has no connection of its own: a lock has one, and a session.
type bareRedis struct {
	addr         string
	enter, leave string // the scripts' names at the server
}

func dialBareRedis(_ context.Context, endpoints []string) (Process, error) {
	c, err := dialBare(endpoints[0])
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p := &bareRedis{addr: endpoints[0]}
	for _, s := range []struct {
		name *string
		text string
	}{{&p.enter, bareEnter}, {&p.leave, bareLeave}} {
		if *s.name, err = c.ask("SCRIPT", "LOAD", s.text); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *bareRedis) Close() {}

func (p *bareRedis) MinTTL() time.Duration { return time.Second }

func (p *bareRedis) Session(context.Context, time.Duration) (Session, error) {
	push, err := dialBare(p.addr)
	if err != nil {
		return nil, err
	}
	s := &bareRedisSession{p: p, push: push, id: push.LocalAddr().String(), locks: map[string]*bareRedisLock{}}
	go s.read()
	return s, nil
}

type bareRedisSession struct {
	p    *bareRedis
	push *bareConn
	id   string

	mu    sync.Mutex
	locks map[string]*bareRedisLock // by channel
}

func (s *bareRedisSession) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.locks {
		if l.conn != nil {
			l.conn.Close()
		}
	}
	return s.push.Close()
}

func (s *bareRedisSession) Revoke(context.Context) error { return errors.New("the floor has no lease") }

// Lock subscribes to the lock's own channel. The first who locks waits for that, and connects.
func (s *bareRedisSession) Lock(name string, _ LockOptions) Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &bareRedisLock{s: s, channel: s.id + "/" + strconv.Itoa(len(s.locks)), line: "floor:" + name,
		listens: make(chan struct{}), turn: make(chan struct{}, 1)}
	s.locks[l.channel] = l
	_ = s.push.send("SUBSCRIBE", l.channel) // if it fails, nothing is read from the socket either
	return l
}

func (s *bareRedisSession) Campaign(ctx context.Context, name string) (Held, error) {
	return s.Lock(name, LockOptions{}).Lock(ctx)
}

// read takes what is pushed until the socket is closed.
func (s *bareRedisSession) read() {
	for {
		m, err := s.push.read()
		if err != nil || len(m) < 3 {
			return
		}
		s.mu.Lock()
		l := s.locks[m[1]]
		s.mu.Unlock()
		if m[0] == "subscribe" {
			close(l.listens)
		} else {
			l.turn <- struct{}{}
		}
	}
}

type bareRedisLock struct {
	s       *bareRedisSession
	conn    *bareConn
	channel string
	line    string
	listens chan struct{} // closed when the server knows that it does
	turn    chan struct{}
}

func (l *bareRedisLock) connect(ctx context.Context) error {
	select {
	case <-l.listens:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	conn, err := dialBare(l.s.p.addr)
	if err != nil {
		return err
	}
	l.s.mu.Lock()
	l.conn = conn
	l.s.mu.Unlock()
	return nil
}

func (l *bareRedisLock) Lock(ctx context.Context) (Held, error) {
	if l.conn == nil {
		if err := l.connect(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := l.conn.ask("EVALSHA", l.s.p.enter, "2", l.line, l.line+":token", l.channel)
	if err != nil {
		return nil, err
	}
	token, err := strconv.ParseInt(reply, 10, 64)
	if err != nil || token > 0 {
		return bareRedisHeld{l, uint64(token)}, err
	}
	select {
	case <-l.turn:
		return bareRedisHeld{l, uint64(-token)}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

type bareRedisHeld struct {
	l     *bareRedisLock
	token uint64
}

func (h bareRedisHeld) Check() error  { return nil }
func (h bareRedisHeld) Token() uint64 { return h.token }

func (h bareRedisHeld) Release(context.Context) error {
	_, err := h.l.conn.ask("EVALSHA", h.l.s.p.leave, "1", h.l.line)
	return err
}

// bareConn is a socket that speaks Redis's protocol.
type bareConn struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

// dialBare connects for one slice: the socket ends with it, whatever the server does.
func dialBare(addr string) (*bareConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &bareConn{Conn: c, in: bufio.NewReader(c)}, c.SetDeadline(time.Now().Add(sliceLimit))
}

func (c *bareConn) send(args ...string) error {
	c.out = fmt.Appendf(c.out[:0], "*%d\r\n", len(args))
	for _, a := range args {
		c.out = fmt.Appendf(c.out, "$%d\r\n%s\r\n", len(a), a)
	}
	_, err := c.Write(c.out)
	return err
}

// ask sends a command and returns its answer, which is one number or text.
func (c *bareConn) ask(args ...string) (string, error) {
	if err := c.send(args...); err != nil {
		return "", err
	}
	answer, err := c.read()
	if err == nil && len(answer) != 1 {
		err = fmt.Errorf("%q to %q", answer, args)
	}
	if err != nil {
		return "", err
	}
	return answer[0], nil
}

// read returns an answer or a push, an array's elements one after the other.
func (c *bareConn) read() ([]string, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, text := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case ':', '+':
		return []string{text}, nil
	case '-':
		return nil, errors.New(text)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || kind != '*' && kind != '$' {
		return nil, fmt.Errorf("%q is no answer that the floor knows", line)
	}
	if kind == '$' {
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.in, b)
		return []string{string(b[:n])}, err
	}
	var all []string
	for range n {
		some, err := c.read()
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}
