package registerstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// lease is a lease that this process owns. Its register is rewritten at each renewal.
type lease struct {
	ownClaims
	owner string
	ttl   time.Duration

	renewing chan struct{} // holds one while a call renews, which guards what follows
	version  string        // of the register, as known last
	accepted uint64        // the last beat that is known to have been written
	sent     uint64        // the last beat that was sent

	reading chan struct{} // holds one while a call of News runs
}

var (
	_ driver.Lease      = (*lease)(nil)
	_ driver.Transferer = (*lease)(nil)
	_ driver.Exchanger  = (*lease)(nil)
)

// namesKept is how many names a lease's register tells.
const namesKept = 64

// ID implements [driver.Lease].
func (l *lease) ID() string { return l.id }

// TTL implements [driver.Lease].
func (l *lease) TTL() time.Duration { return l.ttl }

// beat returns what the register of the lease contains at that renewal.
func (l *lease) beat(n uint64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := beat{Owner: text(l.owner), TTL: int64(l.ttl), Beat: n}
	for name := range l.names {
		if len(b.Lines) < namesKept {
			b.Lines = append(b.Lines, text(name))
		}
	}
	slices.Sort(b.Lines)
	return stored(b)
}

// Renew implements [driver.Lease]: it rewrites the register under the version known. Each beat is
// sent once. So a write that came through though its caller was told otherwise is found by its
// beat, and a beat that was accepted before, under another version, is of a register that was made
// again: then the lease has ended.
func (l *lease) Renew(ctx context.Context) error {
	select {
	case l.renewing <- struct{}{}:
		defer func() { <-l.renewing }()
	case <-ctx.Done():
		return l.s.wrap("renew", ctx.Err())
	}
	l.sent++
	for try := 0; ; try++ {
		if l.over() {
			return l.goneErr("renew")
		}
		if err := ctx.Err(); err != nil {
			return l.s.wrap("renew", err)
		}
		next, ok, err := l.s.reg.Put(ctx, l.s.leaseKey(l.id), l.beat(l.sent), l.version)
		if err != nil {
			return l.s.wrap("renew", err)
		}
		if ok {
			l.version, l.accepted = next, l.sent
			return nil
		}
		if done, err := l.recover(ctx); done || err != nil {
			return err
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return l.s.wrap("renew", err)
		}
	}
}

// recover looks what is in the register after a renewal found another version there. It returns
// true if that is the renewal itself.
func (l *lease) recover(ctx context.Context) (done bool, err error) {
	st, err := l.s.leaseNow(ctx, l.id)
	if err != nil {
		return false, err
	}
	switch {
	case st.over():
	case st.Beat == l.sent:
		l.version, l.accepted = st.version, l.sent
		return true, nil
	case st.Beat > l.accepted: // an earlier renewal, whose outcome was unknown
		l.version, l.accepted = st.version, st.Beat
		return false, nil
	case st.version == l.version: // somebody else was about to write, and did not
		return false, nil
	}
	l.end()
	return false, l.goneErr("renew")
}

// check asks the register whether the lease lives.
func (l *lease) check(ctx context.Context) error {
	if l.over() {
		return l.goneErr("look at the lease")
	}
	st, err := l.s.leaseNow(ctx, l.id)
	if err == nil && st.over() {
		l.end()
		err = l.goneErr("look at the lease")
	}
	return err
}

// alive runs f, which is under the lease, and beside it asks whether the lease lives. If it has
// ended then what f did counts for nothing: it is as if it had been done just before.
func (l *lease) alive(ctx context.Context, f func() error) error {
	if l.over() {
		return l.goneErr("call")
	}
	checked := make(chan error, 1)
	go func() { checked <- l.check(ctx) }()
	err := f()
	check := <-checked
	if l.over() {
		return l.goneErr("call")
	}
	if err == nil {
		return unsettled(check, true)
	}
	return err
}

// Close implements [driver.Lease].
func (l *lease) Close(ctx context.Context) error {
	l.mu.Lock()
	done := l.removed
	l.mu.Unlock()
	if done {
		return ctx.Err()
	}
	st, err := l.s.endLease(ctx, l.id)
	if err != nil {
		return err
	}
	l.end()
	l.mu.Lock()
	names := slices.Collect(maps.Keys(l.names))
	l.mu.Unlock()
	if err := l.s.removeLease(ctx, l.id, st, names...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed, l.names, l.entering, l.marks = true, nil, nil, nil
	l.spent = storeutil.SpentIDs{}
	return nil
}

// News implements [driver.Lease]. It compares the places of the lease with the documents: so
// nothing is lost between two calls.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	select {
	case l.reading <- struct{}{}:
		defer func() { <-l.reading }()
	case <-l.gone:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		if l.over() {
			return nil, l.goneErr("news")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		l.visit(ctx)
		if news, err := l.take(ctx); len(news) > 0 || err != nil {
			return news, err
		}
		select {
		case <-l.wake:
		case <-l.gone:
		case <-ctx.Done():
		case <-l.s.ctx.Done():
			return nil, l.s.wrap("news", errClosed)
		}
	}
}

// take returns what is to be told. That a place is held, or was removed, is told only of a lease
// that lives: one that has ended has no places.
func (l *lease) take(ctx context.Context) ([]driver.News, error) {
	l.mu.Lock()
	verify := slices.ContainsFunc(l.news, func(n driver.News) bool { return n.Held || n.Gone })
	l.mu.Unlock()
	if verify {
		if err := l.check(ctx); err != nil {
			return nil, err // it is told next time
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news // only News adds to it
	l.news = nil
	return news, nil
}

// visit finds out what has become of the places on all names that may have changed.
func (l *lease) visit(ctx context.Context) {
	l.dueMu.Lock()
	names := slices.Collect(maps.Keys(l.due))
	clear(l.due)
	l.dueMu.Unlock()
	_ = together(len(names), func(i int) error {
		l.visitName(ctx, names[i])
		return nil
	})
}

func (l *lease) visitName(ctx context.Context, name string) {
	w := l.waitFor(name)
	if w == nil {
		return
	}
	d, refused := w.latest()
	if refused != nil {
		l.refuse(name, refused)
	}
	if d == nil {
		return // it comes
	}
	if l.isAhead(d) {
		stood := l.placesOn(name)
		now, _, err := l.s.read(ctx, name)
		if err != nil {
			_ = storeutil.Sleep(ctx, jitter(l.s.retryPause()))
			l.lookAt(name)
			return
		}
		l.renumber(now, stood)
		d = now
	}
	if ended := w.ended(d); len(ended) > 0 {
		later, err := l.s.purge(ctx, name, ended...)
		if err != nil {
			_ = storeutil.Sleep(ctx, jitter(l.s.retryPause()))
			l.lookAt(name)
			return
		}
		d = later
	}
	rank, leases := l.learn(d)
	w.watch(rank, leases...)
}
