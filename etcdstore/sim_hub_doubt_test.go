package etcdstore

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/etcdwire"
)

// TestSimulatedWatchLostBesideTheWideOne: a watch that stands by itself beside the wide one is
// ended by etcd. The wide one stands in for it from now on, and has told things that it has not.
func TestSimulatedWatchLostBesideTheWideOne(t *testing.T) {
	const dir = "primacy/x/"
	gone := func(rev int64, k string) []*mvccpb.Event {
		return []*mvccpb.Event{{Type: mvccpb.Event_EventType(1), Kv: &mvccpb.KeyValue{Key: []byte(dir + k),
			ModRevision: rev}}}
	}
	h, l := fakeHub()
	h.Above, h.Below = 0, 4
	a := &waiter{n: l.newsbox, at: seatID{name: "x"}, key: dir + "own", token: 100, changed: make(chan struct{}, 1),
		seen: 100, ahead: []predecessor{{dir + "a", 50}}, whole: true}
	a.enlist()
	wide := h.PrefixWatch
	h.Lock()
	wide.ID = 1
	h.ByID[1] = wide
	h.Stood(wide, 100)
	h.Unlock()
	for range 4 { // few are left: it is to be given up
		h.Reap()
	}
	w := a.in[0]
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
	// our claim is removed by hand; the wide watch tells so, the narrow one has not yet
	h.Deliver(wide, gone(101, "own"))
	h.Lost(w, false) // etcd has cancelled it (it was behind a compaction)
	h.Deliver(wide, gone(102, "a"))
	h.Unlock()
	h.Pending()
	if f, unsure, _ := a.ask(); f == holds || f == waits && !unsure {
		t.Errorf("seed 1: outcome %d, unsure %v: w.ID %d since %d, wide %v", f, unsure, w.ID, w.Since,
			h.PrefixWatch != nil)
	}
}

// TestSimulatedDoubtDuringALook: a vigil says that it has ended the session before, while the
// answer to an older look is on its way. That answer must not clear the doubt: where etcd refuses
// the watch nothing else would tell.
func TestSimulatedDoubtDuringALook(t *testing.T) {
	h, l := fakeHub()
	a := awaitOn(l, "a")
	a.enlist()
	h.Lock()
	h.Lost(a.in[0], true)
	h.Unlock()
	if _, unsure, _ := a.ask(); !unsure {
		t.Error("its watch was refused, and it does not look")
	}
	a.doubt()
	a.learn(standing{rev: 150, stands: true, before: a.ahead})
	if _, unsure, _ := a.ask(); !unsure {
		t.Error("the doubt is forgotten")
	}
	a.learn(standing{rev: 151, stands: true, before: a.ahead})
	if _, unsure, _ := a.ask(); unsure {
		t.Error("the look that came after the doubt did not clear it")
	}
}

// TestSimulatedEndAfterTheTurn: a claim's turn comes, and before anybody asks it is removed.
func TestSimulatedEndAfterTheTurn(t *testing.T) {
	h, l := fakeHub()
	a := awaitOn(l, "a")
	a.enlist()
	h.Lock()
	h.Stood(a.in[0], 100)
	h.Deliver(a.in[0], goneAt(101, "primacy/x/a"))
	h.Deliver(a.in[0], goneAt(102, a.key))
	h.Unlock()
	if f, _, _ := a.ask(); f != ended {
		t.Errorf("outcome %d, want it ended", f)
	}
	if l.newsbox.keepHeld(a) || !l.hasEnded(a) {
		t.Error("a claim that has ended is kept as one that holds")
	}
}

// TestSimulatedNeighbourIsTold: the claim right before goes, and others stay. Whoever waits is
// told whom it stands behind now: it keeps vigil over that session, and no longer over the other.
// Who is followed is told only where either has a heartbeat.
func TestSimulatedNeighbourIsTold(t *testing.T) {
	for _, c := range []struct {
		followed     bool
		before, next string
		told         bool
	}{
		{false, "b", "a", true},
		{true, "b", "a", false},
		{true, "b", "a" + beatMark + "900", true},
		{true, "b" + beatMark + "900", "a", true},
	} {
		h, l := fakeHub()
		a := awaitOn(l, c.before, c.next)
		if c.followed {
			a.changed = nil
		}
		a.enlist()
		told := func() bool {
			if !c.followed {
				return len(a.changed) > 0
			}
			return a.queued
		}
		clearTold := func() {
			a.queued, l.newsbox.queued = false, nil
			if len(a.changed) > 0 {
				<-a.changed
			}
		}
		h.Lock()
		h.Stood(a.in[0], 100)
		clearTold()
		h.Deliver(a.in[0], goneAt(101, "primacy/x/"+c.before))
		h.Unlock()
		if told() != c.told {
			t.Errorf("%+v: told %v", c, told())
		}
	}
}

// TestSimulatedFollowedAndLeaving: the turn of a followed claim comes while its owner gives it
// up. News tells nothing of it.
func TestSimulatedFollowedAndLeaving(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		_, l := fakeHub()
		a := awaitOn(l)
		a.changed = nil
		l.seats.by[a.at] = &claimState{seatID: a.at, id: "c", token: 100, leaving: leaving}
		l.newsbox.follows[a.at] = a
		if out := l.newsOf(nil, a, holds); len(out) > 0 == leaving {
			t.Errorf("leaving %v: news %+v", leaving, out)
		}
	}
}

// TestSimulatedFailedKeepCoversNothing: a claim that holds is given up while Wait hands it to
// News, or cannot be handed over. Either way exactly one of the two ends what Wait began: counted
// down twice, the next claim in its place would never be watched.
func TestSimulatedFailedKeepCoversNothing(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		h, l := fakeHub()
		a := awaitOn(l, "a")
		a.enlist()
		l.newsbox.cover(a.at, 1)
		follows := func() bool {
			l.newsbox.mu.Lock()
			defer l.newsbox.mu.Unlock()
			return l.newsbox.follows[a.at] == a
		}
		h.Lock()
		h.Stood(a.in[0], 100)
		h.Deliver(a.in[0], goneAt(101, "primacy/x/a"))
		a.unsure = true // it cannot be kept
		var both sync.WaitGroup
		both.Go(func() {
			if !l.newsbox.keepHeld(a) { // as Wait does
				a.leave()
				l.newsbox.cover(a.at, -1)
			}
		})
		for !follows() { // it comes as far as the hub
			runtime.Gosched()
		}
		if dropped {
			both.Go(func() { l.newsbox.released(a.at, uint64(a.token)) })
			for follows() {
				runtime.Gosched()
			}
		}
		h.Unlock()
		both.Wait()
		if n := l.newsbox.covered[a.at]; n != 0 || awaitsOf(h) != 0 {
			t.Errorf("dropped %v: covered %d times, %d awaits", dropped, n, awaitsOf(h))
		}
	}
}
