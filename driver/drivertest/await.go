package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/primacy-go/primacy/driver"
)

// Await follows a place that waits and returns it as soon as l's news tell that it is held. The
// error is [driver.ErrGone] as soon as they tell that the place was removed or that the lease is
// gone, another final answer of the store ([driver.ErrRefused]), or ctx's own with what the store
// said last.
//
// What the owner does himself is no news: who releases, exchanges or transfers a place that is
// awaited ends ctx too.
//
// One goroutine reads the news of a lease while anybody is in Await or in [News], so that any
// number of places can be awaited at once. Nobody else may call l.News meanwhile. What comes for
// others is kept for [News]. l must be comparable, as pointers are.
func Await(ctx context.Context, l driver.Lease, p driver.Place) (driver.Place, error) {
	in := inboxOf(l)
	defer in.leave()
	in.await(p)
	defer in.forget(p)
	p.Held = false // a place with Held is followed for who waits behind it
	l.Follow(p)
	for {
		got, done, err, changed := in.placed(p)
		if done {
			return got, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return driver.Place{}, in.ended(ctx)
		}
	}
}

// News returns the news of l like l.News, beside any number of [Await], but not what an Await was
// told that it waited for.
func News(ctx context.Context, l driver.Lease) ([]driver.News, error) {
	in := inboxOf(l)
	defer in.leave()
	for {
		news, err, changed := in.take()
		if len(news) > 0 || err != nil {
			return news, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, in.ended(ctx)
		}
	}
}

// inbox is the one reader of a lease's news in a test.
type inbox struct {
	l driver.Lease

	mu      sync.Mutex
	readers int                // calls of Await and News
	stop    context.CancelFunc // of the goroutine that reads, while there are readers
	done    chan struct{}      // closed when it has ended
	changed chan struct{}      // closed when anything below changes
	waits   map[string]int     // calls of Await, by claim ID
	held    map[string]driver.Place
	gone    map[string]bool // claim IDs, for ever
	news    []driver.News   // for News
	last    error           // of the last l.News
	final   error           // the same, if it is an answer of the store
}

var inboxes = struct {
	sync.Mutex
	of map[driver.Lease]*inbox
}{of: map[driver.Lease]*inbox{}}

// inboxOf returns the inbox of l, which reads until leave.
func inboxOf(l driver.Lease) *inbox {
	inboxes.Lock()
	in := inboxes.of[l]
	if in == nil {
		in = &inbox{
			l: l, changed: make(chan struct{}),
			waits: map[string]int{}, held: map[string]driver.Place{}, gone: map[string]bool{},
		}
		inboxes.of[l] = in
	}
	inboxes.Unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.readers++
	if in.stop == nil {
		in.startLocked()
	}
	return in
}

// startLocked begins to read. The caller holds in.mu.
func (in *inbox) startLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	in.stop, in.done = cancel, make(chan struct{})
	go in.read(ctx, in.done)
}

// leave ends the reading with the last reader, so that the caller may read l.News himself
// afterwards.
func (in *inbox) leave() {
	in.mu.Lock()
	in.readers--
	if in.readers > 0 {
		in.mu.Unlock()
		return
	}
	in.stop()
	done := in.done
	in.mu.Unlock()
	<-done
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.done != done {
		return // another has begun to read meanwhile
	}
	in.stop = nil
	if in.readers > 0 { // somebody came while the reading ended
		in.startLocked()
	}
}

// read takes what News tells until ctx ends or the lease is gone.
func (in *inbox) read(ctx context.Context, done chan struct{}) {
	defer close(done)
	for ctx.Err() == nil {
		news, err := in.l.News(ctx)
		in.mu.Lock()
		for _, n := range news {
			in.keepLocked(n)
		}
		if err == nil || ctx.Err() == nil {
			in.last, in.final = err, nil
		}
		if driver.IsFinal(err) {
			in.final = err
		}
		over := errors.Is(in.final, driver.ErrGone)
		close(in.changed)
		in.changed = make(chan struct{})
		in.mu.Unlock()
		if over {
			return
		}
		if err != nil {
			pause(ctx)
		}
	}
}

// keepLocked gives a piece of news to those who wait for it. The caller holds in.mu.
func (in *inbox) keepLocked(n driver.News) {
	switch {
	case n.Held && in.waits[n.Place.ID] > 0:
		in.held[n.Place.ID] = n.Place
		return
	case n.Gone:
		in.gone[n.Place.ID] = true
		delete(in.held, n.Place.ID)
	}
	in.news = append(in.news, n)
}

func (in *inbox) await(p driver.Place) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waits[p.ID]++
}

func (in *inbox) forget(p driver.Place) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.waits[p.ID]--; in.waits[p.ID] == 0 {
		delete(in.waits, p.ID)
		delete(in.held, p.ID) // what is over by then is not told again
	}
}

// placed says what became of p, and if nothing did, what is closed when that may have changed.
func (in *inbox) placed(p driver.Place) (got driver.Place, done bool, err error, changed <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	got, held := in.held[p.ID]
	switch {
	case in.gone[p.ID]:
		return driver.Place{}, true, fmt.Errorf("await %s: %w", p.Name, driver.ErrGone), nil
	case held:
		return got, true, nil, nil
	case in.final != nil:
		return driver.Place{}, true, fmt.Errorf("await %s: %w", p.Name, in.final), nil
	}
	return driver.Place{}, false, nil, in.changed
}

// take returns what is kept for News.
func (in *inbox) take() (news []driver.News, err error, changed <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	news, in.news = in.news, nil
	return news, in.final, in.changed
}

// ended is the error of a call whose ctx ended.
func (in *inbox) ended(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.last != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), in.last)
	}
	return context.Cause(ctx)
}
