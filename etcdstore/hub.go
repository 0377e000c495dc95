package etcdstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// hub holds all watches of a store on one stream. It tells that something changed, never what: whoever is told reads the
// state, so neither a lost event nor a compaction can hurt. Watches open at the present; one from a past revision would be
// served up to 100 ms late.
type hub struct {
	s    *Store
	wake chan struct{} // new work for the stream

	mu      sync.Mutex
	started bool
	watches map[span]*watch
	byID    map[int64]*watch // as requested on the present stream
	opened  []*watch         // requested, not yet answered; etcd answers in this order
	ended   []int64          // to be cancelled
	lastID  int64
}

// span is what a watch sees: one key, or [key, end). Puts are left out where only deletes matter.
type span struct {
	key, end string
	puts     bool
}

// watch is a span watched for everybody who subscribed to it.
type watch struct {
	span
	id      int64 // on the present stream; 0: not requested yet
	subs    map[*sub]struct{}
	refused bool  // etcd will not open it; those who wait must poll
	unused  int   // ticks without subscribers
	rev     int64 // the newest mod revision in its events
}

// sub is one subscription. Its notify never blocks and takes no lock under which the hub is called.
type sub struct {
	h      *hub
	w      *watch
	notify func()
}

func newHub(s *Store) *hub {
	return &hub{s: s, wake: make(chan struct{}, 1), watches: map[span]*watch{}, byID: map[int64]*watch{}}
}

// watch calls notify when the watch stands, after each event, and whenever events may have been missed.
// A subscriber to a watch that stands already is told nothing at first: it reads after subscribing.
func (h *hub) watch(sp span, notify func()) *sub {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.watches[sp]
	if w == nil {
		w = &watch{span: sp, subs: map[*sub]struct{}{}}
		h.watches[sp] = w
		h.rouse()
	}
	w.unused = 0
	su := &sub{h, w, notify}
	w.subs[su] = struct{}{}
	if !h.started {
		h.started = true
		h.s.spawn(h.run)
	}
	return su
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
	// A watched line stays for a while: who follows it asks again at once, and opening costs a round trip.
	if len(su.w.subs) == 0 && su.w.end == "" {
		h.remove(su.w)
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
	return su.w.id != 0 || su.w.refused
}

// remove forgets a watch. The caller holds h.mu.
func (h *hub) remove(w *watch) {
	if h.watches[w.span] != w {
		return
	}
	delete(h.watches, w.span)
	if w.id != 0 {
		delete(h.byID, w.id)
		h.ended = append(h.ended, w.id)
		h.rouse()
	}
}

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
		if len(w.subs) > 0 {
			continue
		}
		if w.unused++; w.unused > 3 {
			h.remove(w)
		}
	}
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
	h.opened, h.ended = nil, nil
	for _, w := range h.watches {
		w.id, w.refused = 0, false
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
