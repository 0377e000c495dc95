package primacy

import (
	"context"
	"sync"
)

// feed is a bounded queue of events for one reader.
type feed[E any] struct {
	size   int
	mu     sync.Mutex
	queue  []E
	missed int
	ready  chan struct{}
}

func newFeed[E any](size int) *feed[E] { return &feed[E]{size: size, ready: make(chan struct{}, 1)} }

// push never blocks: a reader that is slow loses the oldest.
func (f *feed[E]) push(ev E) {
	f.mu.Lock()
	if len(f.queue) == f.size {
		f.queue = f.queue[1:]
		f.missed++
	}
	f.queue = append(f.queue, ev)
	f.mu.Unlock()
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// next returns the oldest event that is left, and how many before it were lost. It waits for one until ctx ends, or last is closed and nothing is left.
func (f *feed[E]) next(ctx context.Context, last <-chan struct{}) (ev E, missed int, ok bool) {
	for {
		over := false
		select {
		case <-last:
			over = true // before the queue is looked at: what was pushed before it is told
		default:
		}
		f.mu.Lock()
		if len(f.queue) > 0 {
			ev, missed, f.missed = f.queue[0], f.missed, 0
			f.queue = f.queue[1:]
			f.mu.Unlock()
			return ev, missed, true
		}
		f.mu.Unlock()
		if over {
			return ev, 0, false
		}
		select {
		case <-f.ready:
		case <-last:
		case <-ctx.Done():
			return ev, 0, false
		}
	}
}
