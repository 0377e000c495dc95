package zkstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// joined returns a link whose connection is w, which has its session.
func joined(w *wire, c Config) *link {
	l := &link{store: &Store{config: c}, present: w, up: make(chan struct{}), dead: make(chan struct{}), watches: map[string]*watch{}, servers: newServers([]string{"a"}, nil)}
	w.count, w.sent, w.loggedIn = &l.count, true, func() { l.loggedIn(w) }
	return l
}

// A server takes what was committed for its client's request by the number: one of another connection, which is committed late, must not be told as a later one's answer.
func TestNoTwoRequestsOfASessionHaveOneNumber(t *testing.T) {
	old, _, _ := piped(t)
	w, server, next := piped(t)
	l := joined(old, Config{})
	joined(w, Config{})
	w.count = &l.count
	old.begin(deletePacket("/a"))
	answer := w.begin(deletePacket("/b"))
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
	if n := len(w.asking); n != 0 {
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

// Values of others may have filled the buffers of a connection to a server that is frozen.
func TestACallObeysItsContextWhereTheNetworkTakesNothing(t *testing.T) {
	client, server := net.Pipe() // which has no buffer
	defer client.Close()
	defer server.Close()
	w := &wire{Conn: client, muted: func() bool { return false }, whole: true, timeout: time.Hour}
	l := joined(w, Config{})
	l.raise()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := l.beside(ctx, deletePacket("/a"))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beside = %v", err)
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

// Of a node that had gone before it was watched, that is known before anybody may hold by the watch.
func TestAWatchGuardsWhenItIsKnownThatItHasNotFired(t *testing.T) {
	l := &lease{link: &link{dead: make(chan struct{})}, claims: map[seat]*claim{}, spent: map[string]bool{}, parted: map[string]*claim{}, told: make(chan struct{})}
	for _, gone := range []bool{true, false} {
		c := &claim{want: driver.Claim{Name: "n", ID: "i"}, left: make(chan struct{})}
		w := &watch{done: gone, deleted: gone, fired: make(chan struct{})}
		w.mu.Lock()
		set := make(chan struct{})
		go func() {
			defer close(set)
			l.guardWith(c, w, 3)
		}()
		for range 100 {
			if l.guarded(c, 3) {
				t.Fatal("guarded by a watch that may have fired")
			}
			time.Sleep(100 * time.Microsecond)
		}
		w.mu.Unlock()
		<-set
		if l.guarded(c, 3) == gone || c.isGone != gone {
			t.Errorf("node gone %v: guarded %v, known to have gone %v", gone, l.guarded(c, 3), c.isGone)
		}
		if !gone {
			w.tell(true)
			if l.guarded(c, 3) || !c.isGone {
				t.Error("guarded by a watch that has fired")
			}
		}
	}
}

// serve answers requests of ours as a server does in whose line at /n those nodes stand, and tells of which nodes watches are set.
func serve(t *testing.T, line []string) (w *wire, watched <-chan string) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close(); server.Close() })
	w = &wire{Conn: client, muted: func() bool { return false }, whole: true, timeout: time.Hour, begun: true, zxid: new(atomic.Int64)}
	go func() { _, _ = io.Copy(io.Discard, w) }()
	told := make(chan string, 100)
	go func() {
		for {
			head := make([]byte, 12)
			if _, err := io.ReadFull(server, head); err != nil {
				return
			}
			rest := make([]byte, binary.BigEndian.Uint32(head)-8)
			if _, err := io.ReadFull(server, rest); err != nil {
				return
			}
			body := []byte(nil)
			switch binary.BigEndian.Uint32(head[8:]) {
			case codeChildren:
				body = binary.BigEndian.AppendUint32(nil, uint32(len(line)))
				for _, name := range line {
					body = appendText(body, name)
				}
				body = append(body, make([]byte, 68)...)
			case setWatches:
				for n, at := binary.BigEndian.Uint32(rest[8:]), rest[12:]; n > 0; n-- {
					size := binary.BigEndian.Uint32(at)
					told <- string(at[4 : 4+size])
					at = at[4+size:]
				}
			}
			_, _ = server.Write(frame(int32(binary.BigEndian.Uint32(head[4:])), 1, 0, string(body)))
		}
	}()
	return w, told
}

// A server may lag behind what the last one told: who had gone by that stands there yet, and goes once more.
func TestWhoStandsAgainOnAnotherServerIsWatchedAgain(t *testing.T) {
	first, mine := nodeName("0000000000000001", driver.Claim{ID: "one"})+"0000000001", nodeName("0000000000000002", driver.Claim{ID: "two"})+"0000000002"
	w, watched := serve(t, []string{first, mine})
	k := joined(w, Config{})
	k.store.root = "/r"
	k.gen = 4
	k.raise()
	c := &claim{want: driver.Claim{Name: "n", ID: "two"}, dir: "/r/n", path: "/r/n/" + mine, arm: 1, armGen: 4, left: make(chan struct{})}
	l := &lease{store: k.store, link: k}
	v := &vigil{l: l, c: c, watched: map[string]func(){}, woken: make(chan struct{}, 1), gone: map[string]uint64{}, lost: map[string]bool{}}
	v.watched["/r/n/"+first] = func() {}
	v.tell("/r/n/"+first, true, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if turn, err := v.look(ctx); turn || err != nil {
		t.Fatalf("look = %v, %v", turn, err)
	}
	select {
	case path := <-watched:
		if path != "/r/n/"+first {
			t.Errorf("watches %s", path)
		}
	default:
		t.Error("the one in front is not watched")
	}
}
