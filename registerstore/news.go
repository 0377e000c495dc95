package registerstore

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// News implements [driver.Lease]. It compares the places of the lease with the documents: so
// nothing is lost between two calls.
func (l *lease) News(ctx context.Context) ([]driver.News, error) {
	select {
	case l.asks <- struct{}{}:
		defer func() { <-l.asks }()
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
	verify := false
	for _, n := range l.news {
		verify = verify || n.Held || n.Gone
	}
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

// visit looks at all names that may have changed.
func (l *lease) visit(ctx context.Context) {
	l.dirtyMu.Lock()
	names := make([]string, 0, len(l.dirty))
	for name := range l.dirty {
		names = append(names, name)
	}
	clear(l.dirty)
	l.dirtyMu.Unlock()
	_ = together(len(names), func(i int) error {
		l.visitName(ctx, names[i])
		return nil
	})
}

// visitName finds out what has become of the places on one name.
func (l *lease) visitName(ctx context.Context, name string) {
	a := l.listenTo(name)
	if a == nil {
		return
	}
	d := a.sub.latest()
	if d == nil {
		return // it comes
	}
	if ended := a.ended(d); len(ended) > 0 {
		later, err := l.s.purge(ctx, name, ended...)
		if err != nil {
			_ = storeutil.Sleep(ctx, jitter(l.s.again()))
			l.mark(name)
			return
		}
		d = later
	}
	rank, leases := l.compare(d)
	a.guard(rank, leases...)
}
