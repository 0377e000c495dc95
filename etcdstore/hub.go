package etcdstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// hub holds all watches of a store on one stream. To most who subscribe it tells that something changed, never what: whoever is told reads the
// state, so neither a lost event nor a compaction can hurt. Claims that wait are told what (see await). Watches open at the present; one from
// a past revision would be served up to 100 ms late.
type hub struct {
	s    *Store
	wake chan struct{} // new work for the stream

	mu        sync.Mutex
	started   bool
	watches   map[span]*watch
	byID      map[int64]*watch // as requested on the present stream
	todo      []*watch         // to be requested
	opened    []request        // not yet answered; etcd answers in this order
	ended     []int64          // to be cancelled
	lastID    int64
	wide      *watch // what stands in for narrow watches; nil: nothing
	narrow    int    // how many of the watches it could stand in for
	narrowing bool   // it is to be given up, and they are opened one by one
	refused   bool   // etcd will not open it
	few       int    // ticks for which it has been more than is needed
	above     int    // wideAbove and wideBelow, but for tests
	below     int
}

// span is what a watch sees: one key, or [key, end). Puts are left out where only deletes matter.
type span struct {
	key, end string
	puts     bool
}

// watch is a span watched for everybody who subscribed to it.
type watch struct {
	span
	id      int64 // on the present stream; 0: not requested yet, or another stands in for it
	since   int64 // all deletions after this revision have been told, or are in log; 0: it does not stand
	log     []deletion
	subs    map[*sub]struct{}
	awaits  []*await
	narrow  bool // see wide
	refused bool // etcd will not open it; those who wait must poll
	touched bool // by the message that is dealt with just now
	unused  int  // ticks without subscribers
	wasted  int  // messages without subscribers

	rev int64 // the newest mod revision in its events
}

// request is one for a watch, under an ID.
type request struct {
	w  *watch
	id int64
}

// deletion is one of a key, at a revision.
type deletion struct {
	key string
	rev int64
}

// sub is one subscription. Its notify never blocks and takes no lock under which the hub is called.
type sub struct {
	h      *hub
	w      *watch
	notify func()
}

func newHub(s *Store) *hub {
	return &hub{s: s, wake: make(chan struct{}, 1), watches: map[span]*watch{}, byID: map[int64]*watch{}, above: wideAbove, below: wideBelow}
}

// watch calls notify when the watch stands, after each event, and whenever events may have been missed.
// A subscriber to a watch that stands already is told nothing at first: it reads after subscribing.
func (h *hub) watch(sp span, notify func()) *sub {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.open(sp)
	if w.subs == nil {
		w.subs = map[*sub]struct{}{}
	}
	su := &sub{h, w, notify}
	w.subs[su] = struct{}{}
	return su
}

// open returns the watch on a span, made if there is none. The caller holds h.mu and adds whoever needs it.
func (h *hub) open(sp span) *watch {
	w := h.watches[sp]
	if w == nil {
		w = &watch{span: sp, narrow: h.isNarrow(sp)}
		h.watches[sp] = w
		if w.narrow {
			h.narrow++
			h.widen()
		}
		h.request(w)
	}
	w.unused, w.wasted = 0, 0
	if !h.started {
		h.started = true
		h.s.spawn(h.run)
	}
	return w
}

// request has w opened, unless another watch stands in for it.
func (h *hub) request(w *watch) {
	if w.narrow && h.wide != nil && !h.narrowing {
		return
	}
	h.todo = append(h.todo, w)
	h.rouse()
}

// stop ends the subscription. It may be called on nil and more than once.
func (su *sub) stop() {
	if su == nil {
		return
	}
	h := su.h
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(su.w.subs, su)
	h.spare(su.w)
}

// idle reports whether nobody needs w.
func (w *watch) idle() bool { return len(w.subs) == 0 && len(w.awaits) == 0 }

// spare removes a watch that nobody needs. A watched line stays for a while: who follows it asks again at once, and opening costs a round trip.
func (h *hub) spare(w *watch) {
	if w.idle() && w.end == "" {
		h.remove(w)
	}
}

// seen returns the newest mod revision that the watch's events have told.
func (su *sub) seen() int64 {
	su.h.mu.Lock()
	defer su.h.mu.Unlock()
	return su.w.rev
}

// stands reports whether the watch was requested before: then what happened since the last look may have been told already.
func (h *hub) stands(su *sub) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, src := su.w, h.source(su.w)
	return w.id != 0 || src.id != 0 || w.refused
}

// remove forgets a watch. The caller holds h.mu.
func (h *hub) remove(w *watch) {
	if h.watches[w.span] != w {
		return
	}
	delete(h.watches, w.span)
	if w.narrow {
		h.narrow--
	}
	h.cancel(w)
}

// cancel ends w on the stream, if it was requested there.
func (h *hub) cancel(w *watch) {
	if w.id == 0 {
		return
	}
	delete(h.byID, w.id)
	h.ended = append(h.ended, w.id)
	w.forget()
	h.rouse()
}

// forget notes that w does not stand on any stream.
func (w *watch) forget() { w.id, w.since, w.log, w.refused = 0, 0, nil, false }

// rouse wakes the goroutine that sends.
func (h *hub) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// tell notifies all subscribers of w. The caller holds h.mu.
func (w *watch) tell() {
	for su := range w.subs {
		su.notify()
	}
}

// reap drops watches that nobody has used for some ticks, and returns how many are left.
func (h *hub) reap() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watches {
		if !w.idle() {
			continue
		}
		if w.unused++; w.unused > 3 {
			h.remove(w)
		}
	}
	h.straighten()
	return len(h.watches)
}

// empty reports whether nobody watches anything.
func (h *hub) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) == 0
}

// reset forgets what the stream that ended knew; every watch is opened anew on the next one, and tells when it stands.
func (h *hub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.byID)
	h.opened, h.ended, h.todo, h.refused, h.narrowing = nil, nil, nil, false, false
	if h.wide != nil {
		if h.wide.forget(); h.narrow <= h.below {
			h.wide = nil
		} else {
			h.todo = append(h.todo, h.wide)
		}
	}
	for _, w := range h.watches {
		w.forget()
		h.request(w)
	}
	h.rouse()
}

// run keeps a stream as long as there is something to watch.
func (h *hub) run() {
	pause, wait := firstPause, silence
	for h.s.ctx.Err() == nil {
		if h.empty() {
			select {
			case <-h.wake:
			case <-h.s.ctx.Done():
			}
			continue
		}
		opened := time.Now()
		good, silent := h.serve(wait)
		h.reset()
		if time.Since(opened) > sound {
			wait = silence
		}
		if silent {
			wait = min(2*wait, maxSilence)
		} else if good {
			pause = firstPause
			continue
		}
		sleep(h.s.ctx, rand.N(2*pause)) // not all at once
		pause = min(2*pause, time.Second)
	}
}

const firstPause = 20 * time.Millisecond

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
