package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// joined returns a link whose connection is w, which has its session.
func joined(w *wire, c Config) *link {
	l := &link{
		store: &Store{config: c}, present: w, up: make(chan struct{}), dead: make(chan struct{}),
		watches: watches{all: map[string]*watch{}}, rotation: newRotation([]string{"a"}, nil),
	}
	w.link, w.own.count, w.sent = l, &l.count, true
	return l
}

// A server that knows less than what was seen must refuse the session. go-zookeeper does not count
// answers that are not its own.
func TestAnotherConnectionSaysWhatWasSeen(t *testing.T) {
	w, server, next := piped(t)
	answer := w.own.begin(deletePacket("/a"))
	go server.Write(append(frame(isFirst, 1<<40, 0, ""), frame(-1, -1, 0, "an event")...))
	next()
	next()
	<-answer
	for _, known := range []int64{5, 1<<40 + 1} {
		client, server := net.Pipe()
		again := newWire(client, w.link)
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

// Values of others may have filled the buffers of a connection to a server that is frozen.
func TestACallObeysItsContextWhereTheNetworkTakesNothing(t *testing.T) {
	client, server := net.Pipe() // which has no buffer
	defer client.Close()
	defer server.Close()
	w := newWire(client, &link{})
	w.whole, w.timeout = true, time.Hour
	l := joined(w, Config{})
	l.raiseLocked()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := l.request(ctx, deletePacket("/a"))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("request = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the network")
	}
}

// A request that overtook user and password would be refused for good.
func TestNothingOvertakesThePasswordOnANewConnection(t *testing.T) {
	w, _, _ := piped(t)
	l := joined(w, Config{})
	l.connected()
	if !l.isUp {
		t.Error("without a password a connection is not up with its session")
	}
	w, _, _ = piped(t)
	l = joined(w, Config{Username: "u", Password: "p"})
	l.authed = true
	l.connected()
	if l.isUp {
		t.Fatal("it is up before the password was sent")
	}
	_, _ = w.Write(finish(packet(codeDelete, 0)))
	if l.isUp {
		t.Fatal("it is up when something else was sent")
	}
	_, _ = w.Write(finish(packet(setAuth, 0)))
	if !l.isUp {
		t.Error("it is not up when the password was sent")
	}
}
