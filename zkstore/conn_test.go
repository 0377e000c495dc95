package zkstore

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// frame is an answer of a server's.
func frame(number int32, zxid int64, failed int32, body string) []byte {
	b := appendInt(appendLong(appendInt(appendInt(nil, int32(16+len(body))), number), zxid), failed)
	return append(b, body...)
}

// deletedEvent is the event that a node was deleted.
func deletedEvent(path string) []byte {
	body := appendText(appendInt(appendInt(nil, int32(deleted)), 3), path)
	return frame(eventNumber, -1, 0, string(body))
}

// piped returns a link with a connection, which the test has to serve, and the server's side of it.
func piped(t *testing.T) (l *link, server net.Conn) {
	t.Helper()
	client, server := net.Pipe() // which has no buffer
	t.Cleanup(func() { client.Close(); server.Close() })
	up := make(chan struct{})
	close(up)
	l = &link{
		store: &Store{}, silence: time.Hour, up: up, watches: watches{all: map[string]*watch{}},
		rotation: newRotation([]string{"a"}, nil),
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.present = newConn(client, l, time.Hour)
	return l, server
}

// What is told of events must have been told when an answer to a request behind them is: on that
// rests who waits.
func TestAnAnswerWaitsForTheEventsBeforeIt(t *testing.T) {
	l, server := piped(t)
	w, _ := l.watches.place(ofNode, "/a")
	told := false // guarded by nothing: that is the test
	w.on(func(bool) {
		time.Sleep(20 * time.Millisecond)
		told = true
	})
	_, first := l.present.begin(pathOp(opSync, "/"))
	_, second := l.present.begin(deleteOp("/b"))
	go l.present.serve()
	go server.Write(append(deletedEvent("/a"), append(frame(1, 7, 0, "body"), frame(2, 8, -101, "")...)...))
	if r := <-first; r.err != nil || string(r.body) != "body" {
		t.Errorf("first answer %+v", r)
	}
	if !told {
		t.Error("answered before the event in front of it was told")
	}
	if r := <-second; !errors.Is(r.err, errNoNode) || r.body != nil {
		t.Errorf("second answer %+v", r)
	}
	if zxid := l.zxid.Load(); zxid != 8 {
		t.Errorf("zxid %d", zxid)
	}
}

func TestALostConnectionAnswersAllWhoWait(t *testing.T) {
	for _, lose := range []func(*conn, net.Conn){
		func(c *conn, _ net.Conn) { c.lose() },
		func(c *conn, server net.Conn) { server.Close(); c.serve() },
		func(c *conn, server net.Conn) { server.Close(); c.send(op{code: opPing}.frame(pingNumber)) },
	} {
		l, server := piped(t)
		_, before := l.present.begin(deleteOp("/a"))
		lose(l.present, server)
		_, after := l.present.begin(deleteOp("/b"))
		for _, answer := range []<-chan reply{before, after} {
			select {
			case r := <-answer:
				if r.err != errLost {
					t.Errorf("answer %+v", r)
				}
			case <-time.After(time.Minute):
				t.Fatal("no answer")
			}
		}
	}
}

// A server takes what was committed for its client's request by the number: one of another
// connection, which is committed late, must not be told as a later one's answer.
func TestNoTwoRequestsOfASessionHaveOneNumber(t *testing.T) {
	l, _ := piped(t)
	old := l.present
	client, server := net.Pipe()
	defer client.Close()
	l.present = newConn(client, l, time.Hour)
	old.begin(deleteOp("/a"))
	_, answer := l.present.begin(deleteOp("/b"))
	go l.present.serve()
	go server.Write(append(frame(1, 7, 0, ""), frame(2, 8, -101, "")...))
	select {
	case r := <-answer:
		if !errors.Is(r.err, errNoNode) {
			t.Errorf("the answer to another connection's request was taken for its own: %+v", r)
		}
	case <-time.After(time.Minute):
		t.Error("no answer")
	}
	if n := len(l.present.waiting); n != 0 {
		t.Errorf("%d answers are awaited", n)
	}
	for _, n := range []uint32{0, 1, 1<<30 - 1, 1 << 30, 1<<32 - 1} {
		if number := requestNumber(n); number <= 0 {
			t.Errorf("request %d has number %d", n, number)
		}
	}
}

// joining has a link ask for its session on a new connection. It returns the server's side, and
// what comes of it.
func joining(t *testing.T, l *link) (server net.Conn, done <-chan error) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	result := make(chan error, 1)
	go func() {
		_, err := l.join(client)
		result <- err
	}()
	return server, result
}

// answerSession answers the request for a session, and returns it.
func answerSession(t *testing.T, server net.Conn, s session) (asks []byte) {
	t.Helper()
	asks, err := readFrame(server, 1024)
	if err != nil {
		t.Fatal(err)
	}
	b := appendLong(appendInt(appendInt(nil, 0), int32(s.timeout.Milliseconds())), s.id)
	b = appendText(b, make([]byte, 16))
	if _, err := server.Write(append(appendInt(nil, int32(len(b))), b...)); err != nil {
		t.Fatal(err)
	}
	return asks
}

// A server that knows less than what was seen must refuse the session.
func TestAnotherConnectionSaysWhatWasSeen(t *testing.T) {
	l, server := piped(t)
	_, answer := l.present.begin(deleteOp("/a"))
	go l.present.serve()
	go server.Write(append(frame(1, 1<<40, 0, ""), deletedEvent("/a")...))
	<-answer
	l.present, l.up = nil, make(chan struct{})
	l.session = session{id: 7, timeout: time.Hour, password: []byte("0123456789abcdef")}
	server, done := joining(t, l)
	r := reader{rest: answerSession(t, server, l.session)}
	r.int()
	if zxid := r.long(); zxid != 1<<40 {
		t.Errorf("asks for the session with zxid %x, seen was %x", zxid, int64(1)<<40)
	}
	if r.int(); r.long() != 7 || string(r.bytes()) != "0123456789abcdef" {
		t.Error("asks for another session")
	}
	if err := <-done; err != nil || l.gen != 1 || !isClosed(l.up) {
		t.Errorf("join = %v, generation %d", err, l.gen)
	}
}

func TestAnAnswerOfAnotherKindIsRefused(t *testing.T) {
	noTimeout := appendText(appendLong(appendLong(appendInt(nil, 36), 0), 7), make([]byte, 16))
	for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", string(noTimeout), "\x00\x00\x00\x04zook"} {
		client, server := net.Pipe()
		defer client.Close()
		go func() {
			_, _ = io.ReadFull(server, make([]byte, 48))
			_, _ = server.Write([]byte(answer))
		}()
		if got, err := (session{}).ask(client, 0); !errors.Is(err, errStrange) {
			t.Errorf("%q: ask = %+v, %v", answer, got, err)
		}
	}
}

// A server that stood still for as long as the shortest session lasts has ended the session that it
// was asked for, and answers with the error alone. It speaks as ZooKeeper does: who opens the store
// asks again.
func TestASessionThatEndedBeforeItBeganIsAskedForAgain(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		_, _ = io.ReadFull(server, make([]byte, 48))
		_, _ = server.Write(appendInt(appendLong(appendInt(appendInt(nil, 16), 0), 0x4517), int32(errExpired)))
	}()
	if got, err := (session{}).ask(client, 0); !errors.Is(err, errExpired) || errors.Is(err, errStrange) {
		t.Errorf("ask = %+v, %v, want %v", got, err, errExpired)
	}
}

// answersSession answers what asks for a session on the other side of a pipe, and returns when that
// had been read.
func answersSession(t *testing.T, l *link, id int64) (read time.Duration, err error) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	joined := make(chan error, 1)
	go func() {
		_, err := l.join(client)
		joined <- err
	}()
	if _, err := readFrame(server, 1024); err != nil {
		t.Fatal(err)
	}
	read = now()
	for now() <= read {
		time.Sleep(time.Millisecond)
	}
	body := appendText(appendLong(appendInt(appendInt(nil, 0), 10_000), id), make([]byte, 16))
	if _, err := server.Write(append(appendInt(nil, int32(len(body))), body...)); err != nil {
		t.Fatal(err)
	}
	return read, <-joined
}

// The servers touch a session when they are asked for it, which may be long before their answer
// arrives. And in another session nothing of the lease lives.
func TestASessionCountsFromBeforeItWasAskedFor(t *testing.T) {
	t.Parallel()
	l, _ := piped(t)
	l.up, l.present = make(chan struct{}), nil
	read, err := answersSession(t, l, 5)
	if err != nil || l.began > read || l.began == 0 {
		t.Fatalf("join = %v, began %v after the servers were asked, want no later", err, l.began-read)
	}
	l.up, l.present = make(chan struct{}), nil
	if _, err := answersSession(t, l, 6); !errors.Is(err, driver.ErrGone) || !l.over() {
		t.Errorf("join with another session = %v, over: %v, want ErrGone", err, l.over())
	}
}

// The servers may touch the session as soon as the write is sent, however late its answer arrives.
func TestAWriteCountsFromBeforeItWasSent(t *testing.T) {
	t.Parallel()
	l, server := piped(t)
	go l.present.serve()
	r := renewal{tree: tree{l}, node: "/a"}
	done := make(chan write, 1)
	go func() {
		w, err := r.write(t.Context())
		if err != nil {
			t.Error(err)
		}
		done <- w
	}()
	if _, err := readFrame(server, 1024); err != nil {
		t.Fatal(err)
	}
	read := now()
	for now() <= read {
		time.Sleep(time.Millisecond)
	}
	if _, err := server.Write(frame(1, 7, 0, string(make([]byte, 68)))); err != nil { // with the node's stat
		t.Fatal(err)
	}
	if w := <-done; w.sent > read || w.answered <= read {
		t.Errorf("sent %v and answered %v after the server had it, want no later, and later",
			w.sent-read, w.answered-read)
	}
}

// A frozen server, or one that was cut off, closes no connection, and answers nothing. A server of
// which anything comes, be it a byte of a large answer, is left alone, and so is one of which
// nothing was asked, but for a ping.
func TestASilentServerIsLeft(t *testing.T) {
	const silence, timeout = 2 * time.Second, 15 * time.Second
	for _, c := range []struct {
		what    string
		request bool
		answer  time.Duration // to something else
		trickle time.Duration
		from    time.Duration // since when it is silent though something was asked
	}{
		{"a request", true, 0, 0, 0},
		{"a request, and then another's answer", true, time.Second / 3, 0, time.Second / 3},
		{"no request, so the first ping", false, 0, 0, timeout / 3},
		{"a large answer", true, 0, silence * 9 / 10, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, server := piped(t)
			l.silence = silence
			l.present = newConn(l.present.Conn, l, timeout)
			begun := time.Now()
			lost := make(chan struct{})
			go func() { defer close(lost); l.present.serve() }()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			if c.request {
				frame, _ := l.present.begin(deleteOp("/a"))
				l.present.send(frame)
			}
			if c.answer > 0 {
				time.Sleep(c.answer)
				if _, err := server.Write(frame(pingNumber, 7, 0, "")); err != nil {
					t.Fatal(err)
				}
			}
			for c.trickle > 0 && time.Since(begun) < time.Minute {
				time.Sleep(c.trickle)
				if _, err := server.Write([]byte{1}); err != nil {
					t.Fatalf("%s: lost after %v", c.what, time.Since(begun))
				}
			}
			if c.trickle > 0 {
				server.Close()
			}
			<-lost
			took := time.Since(begun) - c.from
			if c.trickle == 0 && (took < silence || took > silence*5/4) {
				t.Errorf("%s: a silent server was left after %v, want %v to a quarter more", c.what, took, silence)
			}
		})
	}
}

// Two servers that are silent, the one that has the session and the next one, must not cost a term:
// that ends its work after eight tenths of the ttl, and renews each fifth.
func TestATermBearsTwoSilentServers(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Second, 15 * time.Second, time.Minute} {
		silence := silenceFor(ttl)
		if left := ttl*8/10 - (ttl/5 + silence*5/4 + min(silence, handshakes)); left < ttl/10 {
			t.Errorf("ttl %v: the third server has %v", ttl, left)
		}
		if silence < ttl/10 {
			t.Errorf("ttl %v: a server is left after %v, sooner than a renewal fails", ttl, silence)
		}
	}
}
