package pause

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// Reading is what was paused when it was read. The zero value says that nothing was.
type Reading struct {
	b *book // nil: nothing
}

// Read asks the store once what is paused. A store that keeps no records has nothing.
func Read(ctx context.Context, st driver.Store) (Reading, error) {
	b, err := read(ctx, st)
	return Reading{b}, err
}

// List returns the pauses that stood, ordered by scope.
func (r Reading) List() []Pause {
	if r.b == nil {
		return nil
	}
	var all []Pause
	for _, p := range r.b.pauses {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Pause) int { return strings.Compare(a.Scope, b.Scope) })
	return all
}

// Of is the function [Of], of this reading.
func (r Reading) Of(names ...string) *Pause { return Strongest(r.List(), names...) }

// Admissions returns who may be elected to name in whatever pause, ordered by token: also those who
// have been elected since.
func (r Reading) Admissions(name string) (all []Admission) {
	if r.b == nil {
		return nil
	}
	for _, a := range r.b.admissions {
		if a.Name == name {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b Admission) int { return cmp.Compare(a.Token, b.Token) })
	return all
}

// Forbids returns the pause that forbids that the session with that ID is elected to name under
// that token, nil if none does: see [Elect].
func (r Reading) Forbids(name, id string, token uint64, over ...string) *Pause {
	if r.b == nil || r.b.admits(name, id, token) {
		return nil
	}
	return r.b.forbids(append([]string{name}, over...)...)
}

// Reader reads the pauses of a store for many who ask at a time: a thousand elections that wait for
// the end of one pause share a reading, also one that has failed. It is safe for concurrent use.
type Reader struct {
	st    driver.Store
	limit time.Duration

	mu   sync.Mutex
	last *reading // the newest that has begun; nil: none has
	next *reading // begins when last is over; nil: nobody waits for one
}

// reading is one call on the store.
type reading struct {
	began time.Time
	over  chan struct{} // closed when the rest is there
	r     Reading
	err   error
}

// NewReader returns a Reader, each of whose calls on the store may take as long as limit.
func NewReader(st driver.Store, limit time.Duration) *Reader { return &Reader{st: st, limit: limit} }

// Since returns what was paused at that time, or later; at is not in the future. It reads the store
// unless a reading tells that began since. One call is under way at a time. The error is the
// store's, or ctx's cause if ctx ends first.
func (r *Reader) Since(ctx context.Context, at time.Time) (Reading, error) {
	now := r.since(at)
	select {
	case <-now.over:
		return now.r, now.err
	case <-ctx.Done():
		return Reading{}, context.Cause(ctx)
	}
}

func (r *Reader) since(at time.Time) *reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.last != nil && !r.last.began.Before(at):
		return r.last
	case r.next == nil:
		r.next = &reading{over: make(chan struct{})}
		go r.read(r.last, r.next)
	}
	return r.next
}

// read makes a reading once the one before it is over. Others may wait for it when whoever asked
// first has gone, so no caller's context ends it.
func (r *Reader) read(before, now *reading) {
	if before != nil {
		<-before.over
	}
	r.mu.Lock()
	now.began = time.Now()
	r.last, r.next = now, nil
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	defer close(now.over)
	now.r, now.err = Read(ctx, r.st)
}
