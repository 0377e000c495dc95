package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRequestsAreCountedAndPassedOnUnchanged(t *testing.T) {
	pg := "\x00\x00\x00\x10startup-----" + "P\x00\x00\x00\x05x" + "S\x00\x00\x00\x04" + "Q\x00\x00\x00\x06ab" + "X\x00\x00\x00\x04"
	zk := "\x00\x00\x00\x04conn" + "\x00\x00\x00\x06\xff\xff\xff\xfe\x00\x0b" + "\x00\x00\x00\x05\x00\x00\x00\x01z"
	redis := "*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$5\r\na\r\nbc\r\n"
	for _, c := range []struct {
		what  string
		frame framing
		text  string
		want  int
	}{{"Redis", respFrame, redis, 2}, {"PostgreSQL", postgresFrame, pg, 2}, {"ZooKeeper", zooKeeperFrame, zk, 1}} {
		var out bytes.Buffer
		in, got := bufio.NewReader(strings.NewReader(c.text)), 0
		for first := true; ; first = false {
			request, err := c.frame(&out, in, first)
			if request {
				got++
			}
			if err != nil {
				break
			}
		}
		if got != c.want || out.String() != c.text {
			t.Errorf("%s: %d requests, want %d; passed on %q of %q", c.what, got, c.want, out.String(), c.text)
		}
	}
}

func TestAWireCountsBothWays(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.CopyN(io.Discard, c, int64(len("*1\r\n$4\r\nPING\r\n")))
		_, _ = io.WriteString(c, "+PONG\r\n")
	}()
	w, err := newWire(ln.Addr().String(), respFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	c, err := net.Dial("tcp", w.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "*1\r\n$4\r\nPING\r\n")
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || answer != "+PONG\r\n" || w.requests.Load() != 1 || w.down.Load() != 7 {
		t.Errorf("%q, %v: %d requests, %d bytes to the client", answer, err, w.requests.Load(), w.down.Load())
	}
}

func TestWhoListensAndWhatItTakes(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pid, err := listener(ln.Addr().String())
	if err != nil || pid != os.Getpid() {
		t.Fatalf("process %d, %v; we are %d", pid, err, os.Getpid())
	}
	before, err := cpuOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	for begin := ownCPU(); ownCPU()-begin < 100*time.Millisecond; {
	}
	after, err := cpuOf(pid)
	if d := after - before; err != nil || d < 60*time.Millisecond || d > 5*time.Second {
		t.Errorf("took %v, %v; want about 100 ms", d, err)
	}
	_, parent, cpu, err := parseStat([]byte("7 (a ) b) S 3 0 0 0 0 0 0 0 0 0 1 2 3 4 20 0"))
	if err != nil || parent != 3 || cpu != 10*tick {
		t.Errorf("parent %d, %v, %v; want 3 and 10 ticks", parent, cpu, err)
	}
}

// oneLock is a contender whose store is a channel.
type oneLock struct {
	free  chan struct{}
	token uint64
	two   bool // it lets a second in
}

func (o *oneLock) Session(context.Context, time.Duration) (Session, error) {
	return newPlain(time.Second, func(ctx context.Context, _ string, _ time.Duration) (Held, error) {
		select {
		case o.free <- struct{}{}:
			if !o.two {
				o.token++
			}
			return oneHeld{o, o.token}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}), nil
}

func (o *oneLock) MinTTL() time.Duration { return time.Second }
func (o *oneLock) Close()                {}

type oneHeld struct {
	o     *oneLock
	token uint64
}

func (h oneHeld) Check() error                  { return nil }
func (h oneHeld) Token() uint64                 { return h.token }
func (h oneHeld) Release(context.Context) error { <-h.o.free; return nil }

// Each holds for a while, or the bubble's time would never advance.
func TestWhoHasReleasedWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &oneLock{free: make(chan struct{}, 1)}
		dial := func(context.Context, []string) (Process, error) { return o, nil }
		c := &Contender{Name: "one", Local: true, Dial: dial}
		k := crowd(2, 2, 1)
		k.forced, k.hold, k.warm, k.window = true, time.Millisecond, 10*time.Millisecond, 100*time.Millisecond
		s, err := k.contend(t.Context(), &Env{}, c, time.Second, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s["rate"].Value < 900 || s["others"].Value < s["rate"].Value {
			t.Errorf("%v: all holds must follow another's", s)
		}
	})
}

func TestTwoHoldersAreSeen(t *testing.T) {
	o := &oneLock{free: make(chan struct{}, 2), two: true}
	c := &Contender{Name: "two", Local: true, Dial: func(context.Context, []string) (Process, error) { return o, nil }}
	k := crowd(2, 1, 1)
	k.hold, k.warm, k.window = time.Millisecond, 10*time.Millisecond, 50*time.Millisecond
	_, err := k.contend(t.Context(), &Env{servers: servers{at: verbatim}}, c, time.Second, nil)
	if err == nil || !strings.Contains(err.Error(), "mutual exclusion") {
		t.Errorf("%v; want that mutual exclusion is broken", err)
	}
}
