package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
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

// piped returns a wire whose first answer was read, the server's side of it, and what reads one answer as go-zookeeper does.
func piped(t *testing.T) (w *wire, server net.Conn, next func()) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	w = &wire{Conn: client, zxid: new(atomic.Int64), count: new(atomic.Uint32), muted: func() bool { return false }}
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

// What is told of events must have been told when an answer to a request behind them is: on that rests who waits.
func TestAnAnswerWaitsForTheEventsBeforeIt(t *testing.T) {
	w, server, next := piped(t)
	first, second := w.begin(readPacket(codeChildren, "/a", false)), w.begin(deletePacket("/b"))
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
		before := w.begin(deletePacket("/a"))
		lose(w, server)
		for _, answer := range []<-chan reply{before, w.begin(deletePacket("/b"))} {
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

// A server that knows less than what was seen must refuse the session. go-zookeeper does not count answers that are not its own.
func TestAnotherConnectionSaysWhatWasSeen(t *testing.T) {
	w, server, next := piped(t)
	answer := w.begin(deletePacket("/a"))
	go server.Write(append(frame(isFirst, 1<<40, 0, ""), frame(-1, -1, 0, "an event")...))
	next()
	next()
	<-answer
	for _, known := range []int64{5, 1<<40 + 1} {
		client, server := net.Pipe()
		again := &wire{Conn: client, zxid: w.zxid, muted: w.muted}
		asks := make([]byte, 48)
		binary.BigEndian.PutUint64(asks[8:], uint64(known))
		go again.Write(asks)
		got := make([]byte, len(asks))
		if _, err := io.ReadFull(server, got); err != nil {
			t.Fatal(err)
		}
		if zxid := int64(binary.BigEndian.Uint64(got[8:])); zxid != max(known, 1<<40) {
			t.Errorf("asks for the session with zxid %x, known were %x to go-zookeeper and %x", zxid, known, int64(1)<<40)
		}
		client.Close()
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

// What a waiter knows of those in front, and what it makes of it.
func TestWhenItIsAWaitersTurn(t *testing.T) {
	const gen = 3
	for _, c := range []struct {
		what        string
		front       int
		gone        []int // of those in front, from 0
		by          uint64
		lost        bool
		unguarded   bool
		turn, looks bool
	}{
		{what: "both went, the first first", front: 2, gone: []int{0, 1}, by: gen, turn: true},
		{what: "both went, the last first", front: 2, gone: []int{1, 0}, by: gen, turn: true},
		{what: "only the one in front went", front: 2, gone: []int{1}, by: gen},
		{what: "the one in front went, and more wait than are watched", front: 6, gone: []int{5}, by: gen, looks: true},
		{what: "all who are watched went", front: 6, gone: []int{3, 4, 5}, by: gen, looks: true},
		{what: "by an earlier connection", front: 1, gone: []int{0}, by: gen - 1},
		{what: "our own node is not watched", front: 1, gone: []int{0}, by: gen, unguarded: true, looks: true},
		{what: "another's node changed", front: 2, gone: []int{0, 1}, by: gen, lost: true, looks: true},
	} {
		l := &lease{link: &link{gen: gen, dead: make(chan struct{})}}
		v := &vigil{l: l, c: &claim{arm: 1, armGen: gen, left: make(chan struct{})}, watched: map[string]func(){}, woken: make(chan struct{}, 1), gone: map[string]uint64{}, lost: map[string]bool{}}
		if c.unguarded {
			v.c.arm = 0
		}
		nodes := make([]node, c.front+1)
		for i := range nodes {
			nodes[i] = node{path: strconv.Itoa(i)}
		}
		v.seen = &sight{nodes, c.front, gen}
		for _, n := range lookouts(nodes, c.front) {
			v.watched[n.path] = func() {}
		}
		for _, i := range c.gone {
			v.tell(nodes[i].path, true, c.by)
		}
		if c.lost {
			v.tell(nodes[0].path, false, gen)
		}
		turn, err := v.wait(context.Background())
		if turn != c.turn || err != nil || !turn && (v.seen == nil) != c.looks {
			t.Errorf("%s: turn %v, looks again %v, %v; want %v, %v", c.what, turn, v.seen == nil, err, c.turn, c.looks)
		}
	}
}
