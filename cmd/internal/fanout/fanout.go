// Package fanout lets one observer of a name tell any number of readers, so that what the store is
// asked grows with names and not with readers.
//
// An observer begins with the first reader of its name and ends a while after the last has gone.
// Readers get states, not events: one that is slow gets the latest when it asks, and what is over
// is kept for nobody.
package fanout

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"
)

// Source says what is observed. No field may be nil.
type Source[T any] struct {
	// Observe yields the present value, as the store shows it after the call, and then each change,
	// until ctx ends. With an error it yields that the store does not answer. Where it ends by
	// itself, nothing follows what it yielded last.
	Observe func(ctx context.Context, name string) iter.Seq2[T, error]
	// Revision grows with each change. A value with a smaller one than was told before is not told.
	// It is nil where a line may begin anew: else readers would hear nothing of that one until it
	// has had as many changes as the one before.
	Revision func(T) uint64
	// Same says that b tells readers nothing that a has not.
	Same func(a, b T) bool
}

// News is what all readers of a name are told at one time. They share it, so nobody changes it.
type News[T any] struct {
	Value T
	Err   error // the store does not answer, or the observer has ended
	forms [Forms]struct {
		once sync.Once
		text []byte
	}
}

// Forms is in how many ways a piece of news can be encoded.
const Forms = 2

// Encoded returns what encode makes of the news. It is called once for each form from 0 to Forms-1,
// however many readers ask.
func (n *News[T]) Encoded(form int, encode func(*News[T]) []byte) []byte {
	f := &n.forms[form]
	f.once.Do(func() { f.text = encode(n) })
	return f.text
}

// Linger is how long an observer goes on without readers: one that comes back at once finds it.
const Linger = 5 * time.Second

// A hub wakes so many readers, rests, and wakes the next. Without the rest, a change of a name with
// a thousand readers keeps the process computing, and a busy machine gives a process that computes
// all the time its turn late: renewals then come too late, and terms are lost. On such a machine
// the rest becomes longer by itself, and readers skip what was replaced meanwhile.
const (
	wokenAtOnce = 16
	rest        = time.Millisecond
)

// Hub has an observer for each name that has readers. It is safe for concurrent use.
type Hub[T any] struct {
	src    Source[T]
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu     sync.Mutex
	topics map[string]*topic[T] // of which none is over

	pace  chan struct{} // has room for one who wakes; never waited for under mu
	woken int           // since the last rest; of who wakes
}

// topic is one name and its observer. The observer is begun again for a reader that comes while it
// runs: what it told last may be older than the reader's question.
type topic[T any] struct {
	name    string
	readers map[*Reader[T]]struct{}
	latest  *News[T]
	version int                // of latest; 0: nothing was told yet
	turn    int                // how often the observer was begun
	told    int                // the turn in which something was told last
	wanted  int                // the turn that the latest reader waits for
	again   context.CancelFunc // ends this turn
	idle    *time.Timer        // ends the topic, while there are no readers
	over    bool               // nobody joins it any more
	untold  bool               // latest is an error after another one: told only if the observer ends with it
}

// Reader is told what there is to know of a name. It is for one goroutine.
type Reader[T any] struct {
	hub     *Hub[T]
	topic   *topic[T]
	since   int // the first turn that began after the reader came
	version int // the latest that it has taken
	changed chan struct{}
}

// New returns a hub without observers.
func New[T any](src Source[T]) *Hub[T] {
	h := &Hub[T]{src: src, topics: map[string]*topic[T]{}, pace: make(chan struct{}, 1)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Join returns a reader of a name. The first news that it takes is what the store showed after
// Join was called. The caller closes it.
func (h *Hub[T]) Join(name string) *Reader[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[name]
	begin := t == nil
	if begin {
		t = &topic[T]{name: name, readers: map[*Reader[T]]struct{}{}, again: func() {}}
		h.topics[name] = t
	}
	if t.idle != nil {
		t.idle.Stop()
		t.idle = nil
	}
	t.wanted = t.turn + 1
	r := &Reader[T]{hub: h, topic: t, since: t.wanted, changed: make(chan struct{}, 1)}
	t.readers[r] = struct{}{}
	if t.told == t.turn { // else it begins again once this turn has told something
		t.again()
	}
	if r.nextLocked() != nil {
		r.wake()
	}
	if begin && h.ctx.Err() == nil {
		h.all.Go(func() { h.run(t) })
	}
	return r
}

// Close ends all observers. Readers are told nothing any more.
func (h *Hub[T]) Close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.all.Wait()
}

// run observes until the topic is over.
func (h *Hub[T]) run(t *topic[T]) {
	for {
		ctx, cancel := context.WithCancel(h.ctx)
		h.mu.Lock()
		if t.over || ctx.Err() != nil {
			h.endLocked(t)
			h.mu.Unlock()
			cancel()
			return
		}
		t.turn++
		t.again = cancel
		h.mu.Unlock()
		for v, err := range h.src.Observe(ctx, t.name) {
			h.tell(t, v, err)
		}
		if ctx.Err() == nil { // by itself
			h.mu.Lock()
			h.endLocked(t)
			if t.untold {
				t.version++
				for r := range t.readers {
					r.wake()
				}
			}
			h.mu.Unlock()
		}
		cancel()
	}
}

// endLocked lets nobody join the topic any more.
func (h *Hub[T]) endLocked(t *topic[T]) {
	t.over = true
	if h.topics[t.name] == t {
		delete(h.topics, t.name)
	}
}

// tell wakes those for whom there is something new, a few at a time.
func (h *Hub[T]) tell(t *topic[T], v T, err error) {
	h.mu.Lock()
	old := t.latest
	behind := h.src.Revision != nil && old != nil && old.Err == nil && err == nil &&
		h.src.Revision(v) < h.src.Revision(old.Value)
	if !behind {
		t.latest = &News[T]{Value: v, Err: err}
	}
	switch {
	case behind:
	case old == nil, (old.Err == nil) != (err == nil), err == nil && !h.src.Same(old.Value, v):
		t.version++
		t.untold = false
	default:
		t.untold = err != nil
	}
	t.told = t.turn
	if t.wanted > t.turn {
		t.again()
	}
	var woken []*Reader[T]
	for r := range t.readers {
		if r.nextLocked() != nil {
			woken = append(woken, r)
		}
	}
	h.mu.Unlock()
	for group := range slices.Chunk(woken, wokenAtOnce) {
		h.wake(group)
	}
}

// wake wakes a few readers. Those of other names wait for their turn, so that the rest is one for
// all.
func (h *Hub[T]) wake(group []*Reader[T]) {
	h.pace <- struct{}{}
	defer func() { <-h.pace }()
	for _, r := range group {
		r.wake()
	}
	if h.woken += len(group); h.woken >= wokenAtOnce {
		h.woken = 0
		time.Sleep(rest)
	}
}

func (r *Reader[T]) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Changed has something in it when Take may have.
func (r *Reader[T]) Changed() <-chan struct{} { return r.changed }

// Take returns the latest news, nil if the reader has it.
func (r *Reader[T]) Take() *News[T] {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	n := r.nextLocked()
	if n != nil {
		r.version = r.topic.version
	}
	return n
}

// nextLocked returns what the reader has not taken. What was told before it came is old, unless it
// is that the store does not answer.
func (r *Reader[T]) nextLocked() *News[T] {
	t := r.topic
	if t.version == r.version || t.told < r.since && t.latest.Err == nil {
		return nil
	}
	return t.latest
}

// Close takes the reader out. The last one's observer ends after Linger.
func (r *Reader[T]) Close() {
	h, t := r.hub, r.topic
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(t.readers, r)
	if len(t.readers) > 0 || t.over {
		return
	}
	t.idle = time.AfterFunc(Linger, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(t.readers) == 0 {
			h.endLocked(t)
			t.again()
		}
	})
}
