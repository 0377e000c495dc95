package etcdstore

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// fakeHub returns a hub whose watches are told by hand, and a lease.
func fakeHub() (*etcdwire.Hub, *lease) {
	s := build(nil, Options{Prefix: "primacy/"})
	s.wire.Hub.Started = true
	return s.wire.Hub, newLease(s, 0)
}

// goneAt is the news that a key was deleted.
func goneAt(rev int64, key string) []*mvccpb.Event {
	return []*mvccpb.Event{{Type: mvccpb.Event_EventType(1), Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}}
}

// awaitOn is a claim in the line x that entered at 100, behind others that stood since 50 and a
// little later.
func awaitOn(l *lease, before ...string) *waiter {
	wt := &waiter{s: l.s, all: l.waiters, seat: seatID{Name: "x"}, key: "primacy/x/own", token: 100, asOf: 100,
		aheadIsAll: true}
	for i, key := range before {
		wt.ahead = append(wt.ahead, predecessor{"primacy/x/" + key, int64(60 - i)})
	}
	return wt
}

// TestSimulatedForgottenDeletions: a claim that knows its line at an earlier revision than what
// the watch remembers has it read. Its own end may be among what was forgotten.
func TestSimulatedForgottenDeletions(t *testing.T) {
	const dir = "primacy/x/"
	for _, wide := range []bool{false, true} {
		h, l := fakeHub()
		kept := int64(etcdwire.LogKept)
		if wide {
			h.Above, kept = 0, etcdwire.PrefixLogKept
		}
		h.Watch(etcdwire.LineSpan(dir), func() {}) // somebody stays
		h.Lock()
		w := h.Open(etcdwire.LineSpan(dir))
		src := h.Source(w)
		src.ID = 1
		h.Stood(src, 100)
		h.Deliver(src, goneAt(201, dir+"own")) // by hand, before Wait is called
		for i := range kept {
			h.Deliver(src, goneAt(202+i, fmt.Sprint(dir, "o", i)))
		}
		h.Deliver(src, goneAt(2000, dir+"a"))
		h.Unlock()
		wt := &waiter{s: l.s, all: l.waiters, seat: seatID{Name: "x"}, key: dir + "own", token: 200,
			asOf: 200, ahead: []predecessor{{dir + "a", 50}}, aheadIsAll: true}
		wt.startListening()
		if f, unsure := wt.ask(); f == holds || !unsure {
			t.Errorf("seed 1: wide %v: outcome %d, unsure %v, want it unsure: its own end is forgotten", wide, f,
				unsure)
		}
	}
}

// TestSimulatedHolderBeyondWhatIsKnown: more stand before a claim than it knows of. All that it
// knows of go, the holder stays, and it must look.
func TestSimulatedHolderBeyondWhatIsKnown(t *testing.T) {
	const dir = "primacy/x/"
	for _, looked := range []bool{false, true} {
		h, l := fakeHub()
		var before []predecessor
		var kvs []*mvccpb.KeyValue
		for i := range maxAhead { // the holder, at 10, is the seventeenth
			key := fmt.Sprint(dir, "b", i)
			before = append(before, predecessor{key, int64(90 - i)})
			kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(key), CreateRevision: int64(90 - i)})
		}
		p := driver.Place{Name: "x", ID: "c", Token: 100}
		seat := &seatState{seatID: storeutil.SeatAt(p), key: dir + "own", claimFields: claimFields{id: "c", token: 100}}
		if !looked {
			seat.ahead, seat.aheadRev = kvs, 100
		}
		l.seats.by[seat.seatID] = seat
		l.id = 1
		wt := l.newWaiter(p)
		wt.startListening()
		if looked {
			wt.noteLook(standing{rev: 100, stands: true, ahead: before})
		}
		h.Lock()
		for i := range wt.watches {
			wt.watches[i].ID = int64(i + 1)
			h.Stood(wt.watches[i], 100)
		}
		h.Unlock()
		for i := range maxAhead { // the youngest first, the farthest last
			h.Lock()
			for _, w := range append([]*etcdwire.Watch(nil), wt.watches...) {
				if w.Covers(fmt.Sprint(dir, "b", i)) {
					h.Deliver(w, goneAt(int64(101+i), fmt.Sprint(dir, "b", i)))
				}
			}
			h.Unlock()
			if f, _ := wt.ask(); f == holds {
				t.Fatalf("seed 1: looked %v: told that it holds after %d of 17 before it went", looked, i+1)
			}
		}
		h.Lock()
		for i, w := range wt.watches { // the whole line now, which begins to be watched
			if w.Since == 0 {
				w.ID = int64(10 + i)
				h.Stood(w, 200)
			}
		}
		h.Unlock()
		if f, unsure := wt.ask(); f != waits || !unsure {
			t.Errorf("seed 1: looked %v: outcome %d, unsure %v: want it to look at the line", looked, f, unsure)
		}
	}
}

// TestSimulatedLostWatchIsOpenedAnew: etcd ends a watch by itself, as where its history was
// compacted. It is opened anew, and what went between is read.
func TestSimulatedLostWatchIsOpenedAnew(t *testing.T) {
	const dir = "primacy/x/"
	for _, wide := range []bool{false, true} {
		h, l := fakeHub()
		if wide {
			h.Above = 0
		}
		wt := &waiter{s: l.s, all: l.waiters, seat: seatID{Name: "x"}, key: dir + "own", token: 100,
			asOf: 100, ahead: []predecessor{{dir + "a", 50}}, aheadIsAll: true}
		wt.startListening()
		h.Pending()
		h.Lock()
		src := h.Source(wt.watches[0])
		h.Stood(src, 100)
		h.Lost(src, false)
		h.Unlock()
		if n := len(h.Pending()); n != 1 {
			t.Errorf("seed 1: wide %v: %d requests, want one", wide, n)
		}
		h.Lock()
		h.Stood(src, 120)
		h.Unlock()
		if _, unsure := wt.ask(); !unsure {
			t.Errorf("seed 1: wide %v: sure over a gap", wide)
		}
	}
}
