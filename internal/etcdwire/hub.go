package etcdwire

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/primacy-go/primacy/internal/storeutil"
)

// Hub holds all watches of a Wire on one stream. A subscriber (Sub) is told that something changed
// and reads the state then: neither a lost event nor a compaction can hurt it. A Listener is told
// what changed. Watches open at the present, for etcd serves one from a past revision up to 100 ms
// late. A watch stands once etcd has confirmed it on the present stream.
//
// The hub's lock guards all its fields, those of its watches, and what its listeners keep. Whoever
// calls a method that says so holds it.
type Hub struct {
	w      *Wire
	prefix string
	wake   chan struct{} // new work for the stream

	mu          sync.Mutex
	Started     bool // the goroutine that keeps the stream; set by tests that play the stream themselves
	Watches     map[Span]*Watch
	ByID        map[int64]*Watch // as requested on the present stream
	todo        []*Watch         // to be requested
	opened      []request        // not yet answered; etcd answers in this order
	ended       []int64          // to be cancelled
	lastID      int64
	PrefixWatch *Watch // stands in for many small watches; nil: each stands by itself
	replaceable int    // how many watches it could stand in for
	dropping    bool   // it is to be given up, and they are opened one by one
	refused     bool   // etcd will not open it
	few         int    // ticks in a row with at most Below watches that it stands in for
	Above       int    // prefixWatchAbove and prefixWatchBelow, but for tests
	Below       int
}

// Lock takes the hub's lock, for a Listener's own fields.
func (h *Hub) Lock() { h.mu.Lock() }

// Unlock gives the lock back.
func (h *Hub) Unlock() { h.mu.Unlock() }

// Span is what a watch sees: one key, or [Key, End). Without Puts it sees deletions only.
type Span struct {
	Key, End string
	Puts     bool
}

// Covers reports whether key is in the span.
func (sp Span) Covers(key string) bool {
	if sp.End == "" {
		return key == sp.Key
	}
	return key >= sp.Key && (key < sp.End || sp.End == "\x00")
}

// Listener is told of each event in a watch. Its methods are called under the hub's lock.
type Listener interface {
	// Deleted and Put tell of one event.
	Deleted(key string, rev int64)
	Put(kv *mvccpb.KeyValue)

	// MessageEnd is called when all events of one message have been told. etcd never splits a
	// revision.
	MessageEnd()

	// Begun says that the watch has a new beginning, or that the listener has just joined: what
	// came before is in the watch's log, or is not known.
	Begun(w *Watch)

	// Refused says that etcd will not open the watch: the listener must ask from time to time.
	Refused()
}

// Watch is a span that is watched for all who subscribed to it.
type Watch struct {
	Span
	ID          int64 // on the present stream; 0: not requested yet, or the prefix watch stands in for it
	Since       int64 // all deletions after this revision have been told, or are in Log; 0: it does not stand
	Log         []Deletion
	Subs        map[*Sub]struct{}
	Listeners   []Listener
	Replaceable bool  // the prefix watch can stand in for it
	refused     bool  // etcd will not open it; those who wait must poll
	touched     bool  // by the message that is dealt with just now
	unused      int   // ticks without subscribers
	wasted      int   // messages without subscribers
	rev         int64 // the newest mod revision in its events
	revDeleted  bool  // the event of rev was a deletion
}

// request is one for a watch, under an ID.
type request struct {
	w  *Watch
	id int64
}

// Deletion is one of a key, at a revision.
type Deletion struct {
	Key string
	Rev int64
}

// Sub is one subscription. Its notify does not block, and takes no lock under which the hub is
// called.
type Sub struct {
	h      *Hub
	w      *Watch
	notify func()
}

func newHub(w *Wire, prefix string) *Hub {
	return &Hub{w: w, prefix: prefix, wake: make(chan struct{}, 1), Watches: map[Span]*Watch{},
		ByID:  map[int64]*Watch{},
		Above: prefixWatchAbove, Below: prefixWatchBelow}
}

// Join has l told of sp from now on, and of what it has missed that is still known. The caller
// holds the lock.
func (h *Hub) Join(l Listener, sp Span) *Watch {
	w := h.Open(sp)
	w.Listeners = append(w.Listeners, l)
	l.Begun(w)
	return w
}

// Leave ends what Join began. The caller holds the lock.
func (h *Hub) Leave(l Listener, w *Watch) {
	if i := slices.Index(w.Listeners, l); i >= 0 {
		w.Listeners = slices.Delete(w.Listeners, i, i+1)
		h.removeIfUnused(w)
	}
}

// Watch calls notify when the watch stands, after each message with events in it, and when events
// may have been missed.
// It calls nothing at first where the watch stands already: the subscriber reads after subscribing.
func (h *Hub) Watch(sp Span, notify func()) *Sub {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.Open(sp)
	if w.Subs == nil {
		w.Subs = map[*Sub]struct{}{}
	}
	sub := &Sub{h, w, notify}
	w.Subs[sub] = struct{}{}
	return sub
}

// Open returns the watch on a span, made if there is none. The caller holds the lock and adds
// whoever needs it.
func (h *Hub) Open(sp Span) *Watch {
	w := h.Watches[sp]
	if w == nil {
		w = &Watch{Span: sp, Replaceable: h.isReplaceable(sp)}
		h.Watches[sp] = w
		if w.Replaceable {
			h.replaceable++
			h.openPrefixWatch()
		}
		h.request(w)
	}
	w.unused, w.wasted = 0, 0
	if !h.Started {
		h.Started = true
		h.w.Go(h.run)
	}
	return w
}

// request has w opened, unless the prefix watch stands in for it. The caller holds the lock.
func (h *Hub) request(w *Watch) {
	if w.Replaceable && h.PrefixWatch != nil && !h.dropping {
		return
	}
	h.todo = append(h.todo, w)
	h.rouse()
}

// Stop ends the subscription. It may be called on nil and more than once.
func (sub *Sub) Stop() {
	if sub == nil {
		return
	}
	h := sub.h
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(sub.w.Subs, sub)
	h.removeIfUnused(sub.w)
}

// idle reports whether nobody needs w. The caller holds the lock.
func (w *Watch) idle() bool { return len(w.Subs) == 0 && len(w.Listeners) == 0 }

// removeIfUnused removes the watch of a single key that nobody needs. A line's watch stays until
// Reap: whoever follows the line asks again at once, and opening costs a round trip. The caller
// holds the lock.
func (h *Hub) removeIfUnused(w *Watch) {
	if w.idle() && w.End == "" {
		h.remove(w)
	}
}

// NewestMod returns the newest mod revision that the watch's events have told, and whether that
// event was a deletion.
func (sub *Sub) NewestMod() (rev int64, deleted bool) {
	sub.h.mu.Lock()
	defer sub.h.mu.Unlock()
	return sub.w.rev, sub.w.revDeleted
}

// Requested reports whether the watch has been requested from etcd by now, perhaps for an earlier
// subscriber. Then it may not tell again what happened before this subscription began: the
// subscriber must read once more. A watch that is requested later notifies once it stands.
func (sub *Sub) Requested() bool {
	sub.h.mu.Lock()
	defer sub.h.mu.Unlock()
	w, src := sub.w, sub.h.Source(sub.w)
	return w.ID != 0 || src.ID != 0 || w.refused
}

// IsRefused reports whether etcd has refused to open w. The caller holds the lock.
func (w *Watch) IsRefused() bool { return w.refused }

// remove forgets a watch. The caller holds the lock.
func (h *Hub) remove(w *Watch) {
	if h.Watches[w.Span] != w {
		return
	}
	delete(h.Watches, w.Span)
	if w.Replaceable {
		h.replaceable--
	}
	h.cancel(w)
}

// cancel ends w on the stream, if it was requested there. The caller holds the lock.
func (h *Hub) cancel(w *Watch) {
	if w.ID == 0 {
		return
	}
	delete(h.ByID, w.ID)
	h.ended = append(h.ended, w.ID)
	w.Forget()
	h.rouse()
}

// Forget notes that w does not stand on any stream. The caller holds the lock.
func (w *Watch) Forget() { w.ID, w.Since, w.Log, w.refused = 0, 0, nil, false }

// rouse wakes the goroutine that sends.
func (h *Hub) rouse() {
	storeutil.Signal(h.wake)
}

// tell notifies all subscribers of w. The caller holds the lock.
func (w *Watch) tell() {
	for sub := range w.Subs {
		sub.notify()
	}
}

// Reap drops watches that nobody has used for some ticks, and returns how many are left.
func (h *Hub) Reap() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.Watches {
		if !w.idle() {
			continue
		}
		if w.unused++; w.unused > 3 {
			h.remove(w)
		}
	}
	h.dropPrefixWatch()
	return len(h.Watches)
}

func (h *Hub) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.Watches) == 0
}

// reset forgets what the stream that ended knew. Every watch is opened anew, and tells when it
// stands.
func (h *Hub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.ByID)
	h.opened, h.ended, h.todo, h.refused, h.dropping = nil, nil, nil, false, false
	if h.PrefixWatch != nil {
		if h.PrefixWatch.Forget(); h.replaceable <= h.Below {
			h.PrefixWatch = nil
		} else {
			h.todo = append(h.todo, h.PrefixWatch)
		}
	}
	for _, w := range h.Watches {
		w.Forget()
		h.request(w)
	}
	h.rouse()
}

// run keeps a stream as long as there is something to watch.
func (h *Hub) run() {
	pause, wait := firstPause, silence
	for h.w.ctx.Err() == nil {
		if h.empty() {
			select {
			case <-h.wake:
			case <-h.w.ctx.Done():
			}
			continue
		}
		opened := time.Now()
		good, silent := h.serve(wait)
		h.reset()
		if time.Since(opened) > healthyAfter {
			wait = silence
		}
		if silent { // the pause before the next stream grows too
			wait = min(2*wait, maxSilence)
		} else if good {
			pause = firstPause
			continue
		}
		_ = storeutil.Sleep(h.w.ctx, rand.N(2*pause)) // not all at once
		pause = min(2*pause, time.Second)
	}
}

const firstPause = 20 * time.Millisecond

// Answered reports whether etcd has answered all requests for watches.
func (h *Hub) Answered() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.opened) == 0
}
