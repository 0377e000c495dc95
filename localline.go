package primacy

import (
	"context"
	"slices"
	"sync"

	"github.com/primacy-go/primacy/driver"
)

// localLines let no more claims of this process stand for a name at a time than it has seats: a
// lease has one claim for each seat. The campaigns that want another one wait here, in the order in
// which they came.
type localLines struct {
	mu    sync.Mutex
	taken map[seat]*localLine // what is not in it is free; nil: one seat, for which nobody waits
}

// localLine is a name with a seat that is taken. A semaphore has several seats under one key.
type localLine struct {
	seats   int
	free    []int
	waiting []*localTurn
}

// localTurn is one who waits for a seat.
type localTurn struct {
	come chan struct{} // closed when the seat numbered n is his
	n    int
	// caller is told instead of come, if it is not nil: it is an attempt of an Elections.
	caller interface{ turn() }
}

// take returns the number of a free seat, from 0. If there is none, w waits for one, unless it is
// nil. It is an ErrInvalid to want another number of seats than those who have taken one.
func (ls *localLines) take(at seat, seats int, w *localTurn) (n int, ok bool, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, taken := ls.taken[at]
	if !taken && seats > 1 {
		l = &localLine{seats: seats}
		for i := range seats {
			l.free = append(l.free, i)
		}
	}
	if !taken {
		ls.taken[at] = l
	}
	if taken && l == nil {
		l = &localLine{seats: 1}
		ls.taken[at] = l
	}
	switch {
	case l == nil:
		return 0, true, nil
	case l.seats != seats:
		return 0, false, invalid("semaphore %s has %d slots here already, not %d", at.name, l.seats, seats)
	case len(l.free) > 0:
		n, l.free = l.free[0], l.free[1:]
		return n, true, nil
	case w != nil:
		l.waiting = append(l.waiting, w)
	}
	return 0, false, nil
}

// quit takes out one who waits. It says whether he still did.
func (ls *localLines) quit(at seat, w *localTurn) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.taken[at]
	if l == nil {
		return false
	}
	before := len(l.waiting)
	l.waiting = slices.DeleteFunc(l.waiting, func(o *localTurn) bool { return *o == *w })
	return len(l.waiting) < before
}

// leave gives seat n to the next one who waits, if there is one.
func (ls *localLines) leave(at seat, n int) {
	ls.mu.Lock()
	l := ls.taken[at]
	if l == nil || len(l.waiting) == 0 {
		if l != nil {
			l.free = append(l.free, n)
		}
		if l == nil || len(l.free) == l.seats {
			delete(ls.taken, at)
		}
		ls.mu.Unlock()
		return
	}
	w := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	w.n = n // before the lock is given back: quit compares all of w
	ls.mu.Unlock()
	if w.caller != nil {
		w.caller.turn()
		return
	}
	close(w.come)
}

// enter waits for a seat, and returns its number and what gives it back. With try it does not wait:
// ErrTaken. When ctx ends the error is its cause.
func (ls *localLines) enter(ctx context.Context, at seat, seats int, try bool) (n int, leave func(), err error) {
	var w *localTurn
	if !try {
		w = &localTurn{come: make(chan struct{})}
	}
	n, ok, err := ls.take(at, seats, w)
	if err != nil {
		return 0, nil, err
	}
	leave = sync.OnceFunc(func() { ls.leave(at, n) })
	if ok {
		return n, leave, nil
	}
	if try {
		return 0, nil, driver.ErrTaken
	}
	select {
	case <-w.come:
		n = w.n
		return n, leave, nil
	case <-ctx.Done():
		if !ls.quit(at, w) { // it has become his in this moment
			<-w.come
			ls.leave(at, w.n)
		}
		return 0, nil, context.Cause(ctx)
	}
}

// seat is a place of this process in the line of a name. A lease has at most one claim for each:
// for an election "", for locks several under one name.
type seat struct{ name, id string }
