package etcdstore

import (
	"sync"
	"time"

	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// waiters are the places of one lease that are followed, and the queue of those that News is to
// look at. A waiter is in one of these states. (The fields are waiter.queued, dropped and
// fate; a waiter that is taken is in a local variable of News.)
//
//	state      what it means                event                                     next state
//	listening  it listens to its line       the hub tells what matters (MessageEnd),  queued
//	                                        a session before it was ended
//	                                        (makeUnsure), or
//	                                        nothing was heard for long (check)
//	queued     News is to look at it        News takes the queue                      taken
//	taken      News asks it (ask), reads    it still waits                            listening
//	           its line where it is unsure  it was not read, or the read failed       queued
//	                                        it holds: told, its line is heard         holdsTold
//	                                        it holds: told, its line is not heard     dropped
//	                                        it is gone: told                          dropped
//	                                        its line may not be read: told            dropped
//	holdsTold  only its end is news         the hub tells its end, or check           queued
//	dropped    it listens to nothing, and   none
//	           nothing is told of it
//
// Follow makes a waiter, in state listening. What the table leaves out:
//   - In any state a Release of the place, a later Follow of its seat and the end of the lease move
//     it to dropped.
//   - The hub may queue a waiter again while it is taken: then News asks it once more.
//   - A waiter that was told as held keeps that (fate) while it is queued and taken. If it still
//     stands it goes back to holdsTold, also if its line may not be read.
type waiters struct {
	wake chan struct{} // holds one signal for News

	// mu guards what follows, and waiter.queued. It is taken under the hub's lock.
	mu        sync.Mutex
	by        map[seatID]*waiter
	queue     []*waiter
	unchecked []*waiter // those that are yet to be checked before each has its turn again
	closed    bool
}

const (
	// looksPerTxn is how many places are checked at once, and read together. A place takes two
	// reads, on a semaphore four, and etcd allows 128 in a Txn: lookAt makes as many Txns as it
	// takes.
	looksPerTxn = 60
	// minCheckPause is the shortest time between two checks.
	minCheckPause = 500 * time.Millisecond
)

func (ws *waiters) poke() { storeutil.Signal(ws.wake) }

// add takes wt in, in place of an earlier waiter of its seat, which the caller drops. It reports
// false where the lease has ended, or a later claim of the seat is followed already.
func (ws *waiters) add(wt *waiter) (earlier *waiter, ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	earlier = ws.by[wt.seat]
	if ws.closed || earlier != nil && earlier.token > wt.token {
		return nil, false
	}
	ws.by[wt.seat] = wt
	return earlier, true
}

// remove takes wt out. It reports false if it was not there any more.
func (ws *waiters) remove(wt *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ours := ws.by[wt.seat] == wt
	if ours {
		delete(ws.by, wt.seat)
	}
	return ours
}

// of returns the waiter of a seat, nil if the seat's claim is not followed.
func (ws *waiters) of(id seatID) *waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.by[id]
}

func (ws *waiters) push(wt *waiter) {
	ws.pushQuietly(wt)
	ws.poke()
}

// pushQuietly has News look at some when it wakes for something else.
func (ws *waiters) pushQuietly(some ...*waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, wt := range some {
		if !wt.queued && !ws.closed {
			wt.queued = true
			ws.queue = append(ws.queue, wt)
		}
	}
}

// take empties the queue. It takes the hub's lock, so it never sees the queue in the middle of a
// message: News tells all places that a message is about together.
func (ws *waiters) take(h *etcdwire.Hub) []*waiter {
	h.Lock()
	defer h.Unlock()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	queue := ws.queue
	ws.queue = nil
	for _, wt := range queue {
		wt.queued = false
	}
	return queue
}

// checkSome has the next few checked. None is checked twice before all were.
func (ws *waiters) checkSome() {
	ws.mu.Lock()
	if len(ws.unchecked) == 0 {
		for _, wt := range ws.by {
			ws.unchecked = append(ws.unchecked, wt)
		}
	}
	k := min(looksPerTxn, len(ws.unchecked))
	some := ws.unchecked[:k]
	ws.unchecked = ws.unchecked[k:]
	ws.mu.Unlock()
	for _, wt := range some { // which takes the hub's lock
		wt.check()
	}
}

// checkPause returns the pause between two checks: so long that all waiters are checked in d, but
// not less than minCheckPause.
func (ws *waiters) checkPause(d time.Duration) time.Duration {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.by) <= looksPerTxn {
		return d
	}
	return max(minCheckPause, d*looksPerTxn/time.Duration(len(ws.by)))
}

// close drops all, and takes none any more.
func (ws *waiters) close() {
	ws.mu.Lock()
	all := ws.by
	ws.by, ws.queue, ws.unchecked, ws.closed = map[seatID]*waiter{}, nil, nil, true
	ws.mu.Unlock()
	for _, wt := range all { // which takes the hub's lock
		wt.drop()
	}
}
