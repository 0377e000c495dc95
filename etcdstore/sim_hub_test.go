package etcdstore

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/driver"
)

// fakeHub returns a hub whose watches are told by hand, and a lease.
func fakeHub() (*hub, *lease) {
	s := &Store{prefix: "primacy/", ring: &ring{}}
	h := newHub(s)
	s.hub, h.started = h, true
	l := &lease{s: s, slots: map[spot]*slot{}, gone: make(chan struct{})}
	l.news.init()
	return h, l
}

// goneAt is the news that a key was deleted.
func goneAt(rev int64, key string) []*mvccpb.Event {
	return []*mvccpb.Event{{Type: mvccpb.Event_EventType(1), Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: rev}}}
}

// awaitOn is a claim in the line x that entered at 100, behind others that stood since 50 and a little later.
func awaitOn(l *lease, before ...string) *await {
	a := &await{l: l, at: spot{name: "x"}, key: "primacy/x/own", token: 100, changed: make(chan struct{}, 1), seen: 100, whole: true}
	for i, key := range before {
		a.ahead = append(a.ahead, rival{"primacy/x/" + key, int64(60 - i)})
	}
	return a
}

// TestSimulatedForgottenDeletions: a claim that knows its line at an earlier revision than what the watch remembers has it read. Its own end may be
// among what was forgotten.
func TestSimulatedForgottenDeletions(t *testing.T) {
	const dir = "primacy/x/"
	for _, wide := range []bool{false, true} {
		h, l := fakeHub()
		kept := int64(logKept)
		if wide {
			h.above, kept = 0, wideLogKept
		}
		h.mu.Lock()
		w := h.open(lineSpan(dir))
		src := h.source(w)
		w.subs = map[*sub]struct{}{&sub{h: h, w: w, notify: func() {}}: {}} // somebody stays
		src.id = 1
		h.stood(src, 100)
		h.deliver(src, goneAt(201, dir+"own")) // by hand, before Wait is called
		for i := range kept {
			h.deliver(src, goneAt(202+i, fmt.Sprint(dir, "o", i)))
		}
		h.deliver(src, goneAt(2000, dir+"a"))
		h.mu.Unlock()
		a := &await{l: l, at: spot{name: "x"}, key: dir + "own", token: 200, changed: make(chan struct{}, 1),
			seen: 200, ahead: []rival{{dir + "a", 50}}, whole: true}
		h.enlist(a)
		if f, unsure, _ := h.ask(a); f == holds || !unsure {
			t.Errorf("seed 1: wide %v: fate %d, unsure %v, want it unsure: its own end is forgotten", wide, f, unsure)
		}
	}
}

// TestSimulatedHolderBeyondWhatIsKnown: more stand before a claim than it knows of. All that it knows of go, the holder stays, and it must look.
func TestSimulatedHolderBeyondWhatIsKnown(t *testing.T) {
	const dir = "primacy/x/"
	for _, looked := range []bool{false, true} {
		h, l := fakeHub()
		var before []rival
		var kvs []*mvccpb.KeyValue
		for i := range nearby { // the holder, at 10, is the seventeenth
			key := fmt.Sprint(dir, "b", i)
			before = append(before, rival{key, int64(90 - i)})
			kvs = append(kvs, &mvccpb.KeyValue{Key: []byte(key), CreateRevision: int64(90 - i)})
		}
		p := driver.Place{Name: "x", ID: "c", Token: 100}
		if !looked {
			l.slots[spotOf(p)] = &slot{spot: spotOf(p), id: "c", key: dir + "own", token: 100, ahead: kvs, at: 100}
		}
		l.id = 1
		a := l.newAwait(p, make(chan struct{}, 1))
		a.key = dir + "own"
		h.enlist(a)
		if looked {
			h.learn(a, standing{rev: 100, stands: true, before: before})
		}
		h.mu.Lock()
		for i := range a.in {
			a.in[i].id = int64(i + 1)
			h.stood(a.in[i], 100)
		}
		h.mu.Unlock()
		for i := range nearby { // the youngest first, the farthest last
			h.mu.Lock()
			for _, w := range append([]*watch(nil), a.in...) {
				if w.covers(fmt.Sprint(dir, "b", i)) {
					h.deliver(w, goneAt(int64(101+i), fmt.Sprint(dir, "b", i)))
				}
			}
			h.mu.Unlock()
			if f, _, _ := h.ask(a); f == holds {
				t.Fatalf("seed 1: looked %v: told that it holds after %d of 17 before it went", looked, i+1)
			}
		}
		h.mu.Lock()
		for i, w := range a.in { // the whole line now, which begins to be watched
			if w.since == 0 {
				w.id = int64(10 + i)
				h.stood(w, 200)
			}
		}
		h.mu.Unlock()
		if f, unsure, _ := h.ask(a); f != waits || !unsure {
			t.Errorf("seed 1: looked %v: fate %d, unsure %v: want it to look at the line", looked, f, unsure)
		}
	}
}

// TestSimulatedLostWatchIsOpenedAnew: etcd ends a watch by itself, as where its history was compacted. It is opened anew, and what went between is read.
func TestSimulatedLostWatchIsOpenedAnew(t *testing.T) {
	const dir = "primacy/x/"
	for _, wide := range []bool{false, true} {
		h, l := fakeHub()
		if wide {
			h.above = 0
		}
		a := &await{l: l, at: spot{name: "x"}, key: dir + "own", token: 100, changed: make(chan struct{}, 1),
			seen: 100, ahead: []rival{{dir + "a", 50}}, whole: true}
		h.enlist(a)
		h.pending()
		h.mu.Lock()
		src := h.source(a.in[0])
		h.stood(src, 100)
		h.lost(src, false)
		h.mu.Unlock()
		if n := len(h.pending()); n != 1 {
			t.Errorf("seed 1: wide %v: %d requests, want one", wide, n)
		}
		h.mu.Lock()
		h.stood(src, 120)
		h.mu.Unlock()
		if _, unsure, _ := h.ask(a); !unsure {
			t.Errorf("seed 1: wide %v: sure over a gap", wide)
		}
	}
}
