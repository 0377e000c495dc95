package zkstore

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// frame is an answer of a server's.
func frame(number int32, zxid int64, failed int32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	b = binary.BigEndian.AppendUint64(b, uint64(zxid))
	return append(binary.BigEndian.AppendUint32(b, uint32(failed)), body...)
}

// isFirst is the number of a link's first request of ours.
var isFirst = ourNumber(1)

// piped returns a wire whose first answer was read, the server's side of it, and what reads one
// answer as go-zookeeper does.
func piped(t *testing.T) (w *wire, server net.Conn, next func()) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	w = newWire(client, &link{})
	next = func() {
		t.Helper()
		b := make([]byte, 4)
		if _, err := io.ReadFull(w, b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w, make([]byte, binary.BigEndian.Uint32(b))); err != nil {
			t.Fatal(err)
		}
	}
	go server.Write(frame(isFirst, 99, 0, "0123456789abcdef0123")) // by which nothing of ours is answered, and no zxid told
	next()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	return w, server, next
}

// What is told of events must have been told when an answer to a request behind them is: on that
// rests who waits.
func TestAnAnswerWaitsForTheEventsBeforeIt(t *testing.T) {
	w, server, next := piped(t)
	first, second := w.own.begin(readPacket(codeChildren, "/a", false)), w.own.begin(deletePacket("/b"))
	go server.Write(append(frame(-1, -1, 0, "an event"), append(frame(isFirst, 7, 0, "body"), frame(isFirst+1, 8, -101, "")...)...))
	next()
	select {
	case <-first:
		t.Fatal("answered before go-zookeeper has read what came after the event")
	default:
	}
	next()
	if r := <-first; r.err != nil || string(r.body) != "body" {
		t.Errorf("first answer %+v", r)
	}
	next()
	if r := <-second; !errors.Is(r.err, errorOf(-101)) || r.body != nil {
		t.Errorf("second answer %+v", r)
	}
}

func TestALostConnectionAnswersAllWhoWait(t *testing.T) {
	for _, lose := range []func(*wire, net.Conn){
		func(w *wire, _ net.Conn) { w.Close() },
		func(w *wire, server net.Conn) { server.Close(); _, _ = w.Read(make([]byte, 4)) },
	} {
		w, server, _ := piped(t)
		before := w.own.begin(deletePacket("/a"))
		lose(w, server)
		for _, answer := range []<-chan reply{before, w.own.begin(deletePacket("/b"))} {
			select {
			case r := <-answer:
				if r.err != errLost {
					t.Errorf("answer %+v", r)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("no answer")
			}
		}
	}
}

func must(got looked, err error) looked {
	if err != nil {
		panic(err)
	}
	return got
}

func TestAnswersAreReadOrRefused(t *testing.T) {
	b := appendText(appendText(binary.BigEndian.AppendUint32(nil, 2), "one"), "two")
	for i := range 68 {
		b = append(b, byte(i))
	}
	got, err := readAnswer(codeChildren, b)
	if err != nil || !slices.Equal(got.children, []string{"one", "two"}) || got.stat.Czxid != 0x01020304050607 || got.stat.Pzxid != 0x3c3d3e3f40414243 || got.stat.NumChildren != 0x38393a3b {
		t.Errorf("%+v, %+v, %v", got, got.stat, err)
	}
	stat := b[14+4:]
	value := append(appendText(nil, "value"), stat...)
	if got, err := readAnswer(codeData, value); err != nil || string(got.data) != "value" || *got.stat != *must(readAnswer(codeExists, stat)).stat {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := readAnswer(codeData, append([]byte{255, 255, 255, 255}, stat...)); err != nil || len(got.data) != 0 || got.stat.Czxid != 0x01020304050607 {
		t.Errorf("without a value: %+v, %v", got, err)
	}
	for code, whole := range map[uint32][]byte{codeChildren: b, codeData: value, codeExists: stat} {
		for n := range whole {
			if _, err := readAnswer(code, whole[:n]); err == nil {
				t.Errorf("%d of %d bytes were taken for an answer", n, len(whole))
			}
		}
	}
}

// A server takes what was committed for its client's request by the number: one of another
// connection, which is committed late, must not be told as a later one's answer.
func TestNoTwoRequestsOfASessionHaveOneNumber(t *testing.T) {
	old, _, _ := piped(t)
	w, server, next := piped(t)
	l := joined(old, Config{})
	w.link, w.own.count = l, &l.count
	old.own.begin(deletePacket("/a"))
	answer := w.own.begin(deletePacket("/b"))
	go server.Write(append(frame(isFirst, 7, 0, ""), frame(isFirst+1, 8, -101, "")...))
	next()
	select {
	case r := <-answer:
		t.Fatalf("the answer to another connection's request was taken for its own: %+v", r)
	default:
	}
	next()
	if r := <-answer; !errors.Is(r.err, errorOf(-101)) {
		t.Errorf("answer %+v", r)
	}
	if n := len(w.own.waiting); n != 0 {
		t.Errorf("%d answers are awaited", n)
	}
	for _, n := range []uint32{0, 1, 1<<30 - 1, 1 << 30, 1<<32 - 1} {
		if number := ourNumber(n); number >= -8 || !isOurs(number) {
			t.Errorf("request %d has number %d", n, number)
		}
	}
	if isOurs(-1) || isOurs(-2) || isOurs(-4) || isOurs(-8) || isOurs(1) {
		t.Error("a number of ZooKeeper's was taken for ours")
	}
}
