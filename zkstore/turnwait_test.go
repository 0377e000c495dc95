package zkstore

import (
	"context"
	"encoding/binary"
	"io"
	"strconv"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

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
		l := newLease(tree{&link{gen: gen, ctx: context.Background()}}, "")
		v := newTurnWait(l, &claim{own: ownWatch{w: &watch{}, gen: gen}, gone: make(chan struct{})})
		if c.unguarded {
			v.c.own.w.done = true
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
			v.notify(nodes[i].path, true, c.by)
		}
		if c.lost {
			v.notify(nodes[0].path, false, gen)
		}
		turn, err := v.wait()
		if turn != c.turn || err != nil || !turn && (v.seen == nil) != c.looks {
			t.Errorf("%s: turn %v, looks again %v, %v; want %v, %v", c.what, turn, v.seen == nil, err, c.turn, c.looks)
		}
	}
}

// Of a node that had gone before it was watched, that is known before anybody may hold by the
// watch.
func TestAWatchGuardsWhenItIsKnownThatItHasNotFired(t *testing.T) {
	l := newLease(tree{&link{ctx: context.Background()}}, "")
	for _, gone := range []bool{true, false} {
		c := &claim{want: driver.Claim{Name: "n", ID: "i"}, gone: make(chan struct{})}
		w := &watch{done: gone, deleted: gone, fired: make(chan struct{})}
		l.guardWith(c, w, 3)
		if c.own.stands(3) == gone || c.isGone() != gone {
			t.Errorf("node gone %v: guarded %v, known to have gone %v", gone, c.own.stands(3), c.isGone())
		}
		if !gone {
			fired := false // of what was called before the claim's own call, or after
			w.on(func(bool) { fired = !c.own.stands(3) })
			if w.fire(true); !fired || c.own.stands(3) || !c.isGone() {
				t.Error("guarded by a watch that has fired")
			}
		}
	}
}

// serve answers requests as a server does in whose line at /n those nodes stand, and tells of which
// nodes watches are set.
func serve(t *testing.T, line []string) (l *link, watched <-chan string) {
	t.Helper()
	l, server := piped(t)
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
			switch opcode(binary.BigEndian.Uint32(head[8:])) {
			case opChildren:
				body = appendInt(nil, int32(len(line)))
				for _, name := range line {
					body = appendText(body, name)
				}
				body = append(body, make([]byte, 68)...)
			case opSetWatches:
				for n, at := binary.BigEndian.Uint32(rest[8:]), rest[12:]; n > 0; n-- {
					size := binary.BigEndian.Uint32(at)
					told <- string(at[4 : 4+size])
					at = at[4+size:]
				}
			}
			_, _ = server.Write(frame(int32(binary.BigEndian.Uint32(head[4:])), 1, 0, string(body)))
		}
	}()
	return l, told
}

// A server may lag behind what the last one told: who had gone by that stands there yet, and goes
// once more.
func TestWhoStandsAgainOnAnotherServerIsWatchedAgain(t *testing.T) {
	first := nodeName("0000000000000001", driver.Claim{ID: "one"}) + "0000000001"
	mine := nodeName("0000000000000002", driver.Claim{ID: "two"}) + "0000000002"
	k, watched := serve(t, []string{first, mine})
	go k.present.serve()
	k.store.root = "/r"
	k.gen = 4
	c := &claim{want: driver.Claim{Name: "n", ID: "two"}, dir: "/r/n", path: "/r/n/" + mine,
		own: ownWatch{w: &watch{}, gen: 4}, gone: make(chan struct{})}
	v := newTurnWait(newLease(tree{k}, ""), c)
	v.watched["/r/n/"+first] = func() {}
	v.notify("/r/n/"+first, true, 3)
	if turn, err := v.look(); turn || err != nil {
		t.Fatalf("look = %v, %v", turn, err)
	}
	for found := false; !found; {
		select {
		case path := <-watched:
			found = path == "/r/n/"+first
		default:
			t.Fatal("the one in front is not watched")
		}
	}
}

// A watch of an earlier connection has not fired, and guards nothing.
func TestAWatchOfAnEarlierConnectionGuardsNothing(t *testing.T) {
	set, none := &ownWatch{w: &watch{}, gen: 3}, &ownWatch{gen: 3}
	if !set.stands(3) || set.stands(4) || none.stands(3) {
		t.Error("guarded, though no watch of this connection is set")
	}
}
