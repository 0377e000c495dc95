package etcdstore

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// TestSimulatedWatchLostBesideTheWideOne: a watch that stands by itself beside the wide one is
// ended by etcd. The prefix watch stands in for it from now on, and has told things that it has
// not.
func TestSimulatedWatchLostBesideTheWideOne(t *testing.T) {
	const dir = "primacy/x/"
	gone := func(rev int64, k string) []*mvccpb.Event {
		return []*mvccpb.Event{{Type: mvccpb.Event_EventType(1), Kv: &mvccpb.KeyValue{Key: []byte(dir + k),
			ModRevision: rev}}}
	}
	h, l := fakeHub()
	h.Above, h.Below = 0, 4
	wt := &waiter{s: l.s, all: l.waiters, seat: seatID{Name: "x"}, key: dir + "own", token: 100,
		asOf: 100, ahead: []predecessor{{dir + "a", 50}}, aheadIsAll: true}
	wt.startListening()
	wide := h.PrefixWatch
	h.Lock()
	wide.ID = 1
	h.ByID[1] = wide
	h.Stood(wide, 100)
	h.Unlock()
	for range 4 { // few are left: it is to be given up
		h.Reap()
	}
	w := wt.watches[0]
	h.Pending()
	h.Above = 1
	h.Lock()
	n := h.Open(etcdwire.Span{Key: dir + "b"}) // another line, so that it stays in the balance: not yet stood
	_ = n
	h.Unlock()
	h.Lock()
	h.Stood(w, 100)
	for i := range 3 { // many come at once: it is kept
		h.Open(etcdwire.Span{Key: fmt.Sprint("primacy/y/", i)})
	}
	// our claim is removed by hand; the prefix watch tells so, the narrow one has not yet
	h.Deliver(wide, gone(101, "own"))
	h.Lost(w, false) // etcd has cancelled it (it was behind a compaction)
	h.Deliver(wide, gone(102, "a"))
	h.Unlock()
	h.Pending()
	if f, unsure := wt.ask(); f == holds || f == waits && !unsure {
		t.Errorf("seed 1: outcome %d, unsure %v: w.ID %d since %d, wide %v", f, unsure, w.ID, w.Since,
			h.PrefixWatch != nil)
	}
}

// TestSimulatedDoubtDuringALook: a livenessWatch says that it has ended the session before, while
// the answer to an older look is on its way. That answer must not clear the doubt: where etcd
// refuses the watch nothing else would tell.
func TestSimulatedDoubtDuringALook(t *testing.T) {
	h, l := fakeHub()
	wt := awaitOn(l, "a")
	wt.startListening()
	h.Lock()
	h.Lost(wt.watches[0], true)
	h.Unlock()
	if _, unsure := wt.ask(); !unsure {
		t.Error("its watch was refused, and it does not look")
	}
	wt.makeUnsure()
	wt.noteLook(standing{rev: 150, stands: true, ahead: wt.ahead})
	if _, unsure := wt.ask(); !unsure {
		t.Error("the doubt is forgotten")
	}
	wt.noteLook(standing{rev: 151, stands: true, ahead: wt.ahead})
	if _, unsure := wt.ask(); unsure {
		t.Error("the look that came after the doubt did not clear it")
	}
}

// TestSimulatedEndAfterTheTurn: a claim's turn comes, and before anybody asks it is removed.
func TestSimulatedEndAfterTheTurn(t *testing.T) {
	h, l := fakeHub()
	wt := awaitOn(l, "a")
	wt.startListening()
	h.Lock()
	h.Stood(wt.watches[0], 100)
	h.Deliver(wt.watches[0], goneAt(101, "primacy/x/a"))
	h.Deliver(wt.watches[0], goneAt(102, wt.key))
	h.Unlock()
	if f, _ := wt.ask(); f != ended {
		t.Errorf("outcome %d, want it ended", f)
	}
	if wt.keepListening() {
		t.Error("a claim that has ended is kept as one that holds")
	}
}

// TestSimulatedNeighbourIsTold: the claim right before goes, and others stay. News looks at whoever
// waits where a session with a heartbeat is to be watched now, or no longer.
func TestSimulatedNeighbourIsTold(t *testing.T) {
	for _, c := range []struct {
		before, next string
		told         bool
	}{
		{"b", "a", false},
		{"b", "a" + beatMark + "900", true},
		{"b" + beatMark + "900", "a", true},
	} {
		h, l := fakeHub()
		wt := awaitOn(l, c.before, c.next)
		wt.startListening()
		h.Lock()
		h.Stood(wt.watches[0], 100)
		wt.queued, l.waiters.queue = false, nil
		h.Deliver(wt.watches[0], goneAt(101, "primacy/x/"+c.before))
		h.Unlock()
		if wt.queued != c.told {
			t.Errorf("%+v: told %v", c, wt.queued)
		}
	}
}

// TestSimulatedFollowedAndLeaving: the turn of a followed claim comes while its owner gives it
// up. News tells nothing of it.
func TestSimulatedFollowedAndLeaving(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		_, l := fakeHub()
		wt := awaitOn(l)
		l.seats.by[wt.seat] = &seatState{seatID: wt.seat, claimFields: claimFields{id: "c", token: 100,
			leaving: leaving}}
		l.waiters.by[wt.seat] = wt
		if out := l.tellLast(nil, wt, driver.News{Held: true}); len(out) > 0 == leaving {
			t.Errorf("leaving %v: news %+v", leaving, out)
		}
	}
}

// TestSimulatedJoinsARefusedWatch: etcd has refused a watch, and another claim comes that needs it.
// It must read its line once, for nobody will tell it more; once only, or it would read without
// end.
func TestSimulatedJoinsARefusedWatch(t *testing.T) {
	h, l := fakeHub()
	first, second := awaitOn(l, "a"), awaitOn(l, "b", "a")
	second.seat, second.key = seatID{Name: "x", Seat: "2"}, "primacy/x/own.2"
	first.startListening()
	h.Lock()
	h.Lost(first.watches[0], true)
	h.Unlock()
	second.startListening()
	if f, unsure := second.ask(); f != waits || !unsure || !second.queued {
		t.Errorf("outcome %d, unsure %v, queued %v, want it to read its line", f, unsure, second.queued)
	}
	second.noteLook(standing{rev: 150, stands: true, ahead: second.ahead})
	if _, unsure := second.ask(); unsure {
		t.Error("the read has not cleared it: it would read without end")
	}
}
