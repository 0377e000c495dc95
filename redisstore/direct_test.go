package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
)

// warmed returns a store whose calls go over a connection of their caller's.
func warmed(t *testing.T, srv *redistest.Server) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Addrs: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for end := time.Now().Add(time.Minute); ; {
		if _, err := s.Line(t.Context(), "n"); err != nil {
			t.Fatal(err)
		}
		s.calls.mu.Lock()
		n := len(s.calls.free)
		s.calls.mu.Unlock()
		if n > 0 {
			return s
		}
		if time.Now().After(end) {
			t.Fatal("calls that come one upon another have no connection of their own")
		}
	}
}

// A call on a connection of its caller's ends with its context while the server says nothing, and
// with the store. Its connection is not used again: the answer to the call before would come for
// the next one.
func TestACallOfItsOwnConnectionObeysItsContext(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := warmed(t, srv)
	srv.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	begun := time.Now()
	if _, err := s.Line(ctx, "n"); !errors.Is(err, context.Canceled) || time.Since(begun) > callLimit-time.Second {
		t.Errorf("Line of a server that is frozen = %v after %v, want context.Canceled after 30ms", err, time.Since(begun))
	}
	if n := len(s.calls.directs); n != 0 {
		t.Errorf("%d connections are kept, want none", n)
	}
	srv.Cont()
	if _, _, err := s.Append(t.Context(), "j", driver.Record{Key: "1"}, 9); err != nil {
		t.Error(err)
	}
	for i := range 300 {
		if ln, err := s.Line(t.Context(), fmt.Sprint(i)); err != nil || ln.Name != fmt.Sprint(i) || ln.Holder != nil {
			t.Fatalf("Line = %+v, %v", ln, err)
		}
	}
	srv.Stop()
	defer srv.Cont()
	done := make(chan error, 1)
	go func() {
		_, err := s.Line(t.Context(), "n")
		done <- err
	}()
	time.Sleep(30 * time.Millisecond)
	s.Close()
	select {
	case err := <-done:
		if !errors.Is(err, errClosed) {
			t.Errorf("Line of a store that was closed = %v", err)
		}
	case <-time.After(callLimit - time.Second):
		t.Error("Line goes on for long after the store was closed")
	}
}

// A server that was restarted has closed all connections: what may be repeated is, and meets none
// of them.
func TestARestartClosesOwnConnections(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Persist: "always"})
	s := warmed(t, srv)
	srv.Restart()
	if _, err := s.Line(t.Context(), "n"); err != nil {
		t.Errorf("the first call after a restart: %v", err)
	}
}

// What no server of the protocol says is an error, not a hang and not a panic.
func TestReadAnswers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"+OK\r\n": "OK", ":-7\r\n": "-7", "$2\r\nab\r\n": "ab", "$-1\r\n": "<nil>", "_\r\n": "<nil>", "*2\r\n:1\r\n*1\r\n$0\r\n\r\n": "[1 []]", "*0\r\n": "[]",
		"-ERR no\r\n": "error ERR no", "$2\r\na": "error unexpected EOF", "": "error EOF", "x\r\n": "error an answer", "$9999999999\r\n": "error an answer",
		"*-2\r\n": "error an answer", ":\r\n": "error an answer", "\n": "error an answer", "*1000000\r\n:1\r\n": "error EOF",
	} {
		got, err := read(bufio.NewReader(strings.NewReader(in)))
		text := fmt.Sprint(got)
		if err != nil {
			text = "error " + err.Error()
		}
		if !strings.HasPrefix(text, want) || want == "" {
			t.Errorf("read(%q) = %q, want %q", in, text, want)
		}
	}
}

// A string that just fits into the reader's buffer, and one that does not, are read in full, with
// the end of their line.
func TestReadStringsOfAnyLength(t *testing.T) {
	t.Parallel()
	for n := range 4200 {
		want := strings.Repeat("x", n)
		in := bufio.NewReader(strings.NewReader(fmt.Sprintf("$%d\r\n%s\r\n:7\r\n", n, want)))
		if got, err := read(in); got != want || err != nil {
			t.Fatalf("a string of %d bytes is read as one of %d, %v", n, len(fmt.Sprint(got)), err)
		}
		if next, err := read(in); next != int64(7) || err != nil {
			t.Fatalf("after a string of %d bytes comes %v, %v", n, next, err)
		}
	}
}

// The answer to a claim is read with two allocations for each string and two for the list.
func TestReadingAnAnswerAllocatesLittle(t *testing.T) {
	const answer = "*6\r\n$2\r\nOK\r\n$4\r\nabcd\r\n$2\r\n12\r\n$3\r\n345\r\n:1\r\n:0\r\n"
	from := strings.NewReader("")
	in := bufio.NewReader(from)
	if n := testing.AllocsPerRun(1000, func() {
		from.Reset(answer)
		in.Reset(from)
		if _, err := read(in); err != nil {
			t.Error(err)
		}
	}); n > 8 {
		t.Errorf("%v allocations, want 8", n)
	}
}

// An error inside a list ends the reading of it: what follows would answer the next call of the
// connection.
func TestAnErrorInsideAnAnswerBreaksTheConnection(t *testing.T) {
	t.Parallel()
	var no refusal
	if got, err := read(bufio.NewReader(strings.NewReader("*2\r\n-ERR no\r\n:1\r\n"))); err == nil || errors.As(err, &no) {
		t.Errorf("read = %v, %v, want an error that the connection does not outlive", got, err)
	}
}

// Close does not wait for a connection that is being dialed to a server that says nothing.
func TestCloseWhileAServerIsDialed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, err := Open(t.Context(), Config{Addrs: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	srv.Stop()
	defer srv.Cont()
	for range 2 { // two calls one upon the other
		s.calls.take(s.ctx, s.spawn)
	}
	time.Sleep(50 * time.Millisecond) // until the second is dialing
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > dialLimit-100*time.Millisecond {
		t.Errorf("Close took %v, want it at once", took)
	}
}

// However many calls are given up at whatever moment, each answer is that to its own call.
func TestNoAnswerIsMixedUp(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := warmed(t, srv)
	l, err := s.Grant(t.Context(), "x", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	const names = 20
	for i := range names {
		name := fmt.Sprint("n", i)
		if _, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: name, Value: []byte(name)}); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	var good, bad atomic.Int64
	for i := range names {
		all.Go(func() {
			name := fmt.Sprint("n", i)
			for k := range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if k%3 > 0 {
					time.AfterFunc(rand.N(4*time.Millisecond), cancel)
				}
				ln, err := s.Line(ctx, name)
				cancel()
				switch {
				case err != nil:
					bad.Add(1)
				case ln.Holder == nil || string(ln.Holder.Value) != name:
					t.Errorf("the line of %s = %+v", name, ln)
				default:
					good.Add(1)
				}
			}
		})
	}
	all.Wait()
	if good.Load() == 0 || bad.Load() == 0 {
		t.Errorf("%d calls were answered and %d given up, want some of both", good.Load(), bad.Load())
	}
}
