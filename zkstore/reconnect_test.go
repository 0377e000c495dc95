package zkstore

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// fake is a server that gives every connection the session 7, and then does handle.
func fake(t *testing.T, timeout time.Duration, handle func(c net.Conn)) (addr string, joins *atomic.Int64) {
	t.Helper()
	joins = new(atomic.Int64)
	return servertest.Listen(t, func(c net.Conn) {
		if _, err := readFrame(c, 1024); err != nil {
			return
		}
		b := appendLong(appendInt(appendInt(nil, 0), int32(timeout.Milliseconds())), 7)
		b = appendText(b, make([]byte, 16))
		c.Write(append(appendInt(nil, int32(len(b))), b...))
		joins.Add(1)
		handle(c)
	}), joins
}

// linkedTo returns a store of that server, with one link.
func linkedTo(t *testing.T, addr string) (*Store, *link) {
	t.Helper()
	return linkedFor(t, addr, 3*time.Second, 2*time.Second)
}

// linkedFor is linkedTo with a session of that timeout, which leaves a server that is silent for so
// long.
func linkedFor(t *testing.T, addr string, timeout, silence time.Duration) (*Store, *link) {
	t.Helper()
	s, err := build(Config{Servers: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	s.longest = time.Hour
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.dialLocked(timeout, silence, false)
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// A server that gives the session and drops the connection at once.
func TestAServerThatDropsAtOnceIsNotAskedAllTheTime(t *testing.T) {
	addr, joins := fake(t, 3*time.Second, func(c net.Conn) {})
	s, _ := linkedTo(t, addr)
	time.Sleep(time.Second)
	n := joins.Load()
	begun := time.Now()
	s.Close()
	t.Logf("%d connections in a second; Close took %v", n, time.Since(begun))
	if n > 100 {
		t.Errorf("%d connections in a second", n)
	}
}

// Servers without a quorum, or with a disk that is too slow, give the session and answer nothing.
// All clients would move on at once, again and again.
func TestAServerThatGivesTheSessionAndAnswersNothingIsLeftLater(t *testing.T) {
	const silence = 200 * time.Millisecond
	addr, joins := fake(t, time.Minute, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	s, l := linkedFor(t, addr, time.Minute, silence)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for ctx.Err() == nil { // there is always something to answer
		_, _ = l.request(ctx, setOp("/a", nil, -1))
	}
	s.Close()
	// The first connection is left after the silence, each other one after twice that at least.
	if n, most := joins.Load(), int64(2+time.Since(begun)/(2*silence)); n < 2 || n > most {
		t.Errorf("%d connections in %v, want 2 to %d", n, time.Since(begun), most)
	}
}

// A server that takes nothing: calls end with their contexts, the connection with its time.
func TestAServerThatReadsNothing(t *testing.T) {
	stop := make(chan struct{})
	addr, joins := fake(t, 3*time.Second, func(c net.Conn) { <-stop })
	s, l := linkedTo(t, addr)
	for range 40 {
		go func() { l.request(context.Background(), setOp("/a", make([]byte, 1<<19), -1)) }()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	// If it did not obey its context, it would be told that the connection is lost.
	if _, err := l.request(ctx, setOp("/a", nil, -1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call with 300 ms = %v, want its context's end", err)
	}
	for end := time.Now().Add(time.Minute); joins.Load() < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no other connection after more than a session")
		}
	}
	begun := time.Now()
	s.Close()
	t.Logf("Close took %v, %d connections", time.Since(begun), joins.Load())
	close(stop)
}

// Close does not wait for a server that accepts and never answers.
func TestCloseWhileAServerNeverAnswers(t *testing.T) {
	s, _ := linkedTo(t, servertest.Listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }))
	time.Sleep(200 * time.Millisecond)
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > time.Second {
		t.Errorf("Close took %v", took)
	}
}
