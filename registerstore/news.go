package registerstore

import (
	"context"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// mark has News look at a name. It is called with any lock.
func (l *lease) mark(name string) {
	l.dirtyMu.Lock()
	l.dirty[name] = true
	l.dirtyMu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Follow implements [driver.Lease].
func (l *lease) Follow(places ...driver.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range places {
		st := l.names[p.Name][p.ID]
		if l.ended || st == nil || st.leaving || p.Token != 0 && st.place.Token != p.Token {
			continue // News has told, or its owner released it
		}
		if p.Held {
			st.wants = true
		} else {
			st.follows = true
		}
		l.mark(p.Name)
	}
}

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
	a := l.heed(name)
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

// heed listens to a name in which the lease has places; nil: it has none.
func (l *lease) heed(name string) *attendance {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || len(l.names[name]) == 0 {
		return nil
	}
	a := l.heeds[name]
	if a == nil {
		a = l.s.attend(name, func() { l.mark(name) })
		l.heeds[name] = a
	}
	return a
}

// compare tells what is new of the places in d, and returns the leases over which vigil is to be
// kept for those that are followed while they wait.
func (l *lease) compare(d *document) (rank int, leases []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, nil
	}
	rank = maxRank
	for id, st := range l.names[string(d.Name)] {
		if st.leaving || d.Seq < st.seq {
			continue
		}
		i := d.find(l.id, st.place)
		if i < 0 {
			l.forgetLocked(string(d.Name), id)
			l.spent.Add(id)
			l.news = append(l.news, driver.News{Place: st.place, Gone: true})
			continue
		}
		l.compareOne(d, i, st)
		if st.follows {
			rank = min(rank, i-1)
			leases = append(leases, d.watched(i)...)
			leases = append(leases, l.id) // nobody else may be waiting for the end of that
		}
	}
	return rank, leases
}

// compareOne tells what is new of the place of st, which stands at i.
func (l *lease) compareOne(d *document, i int, st *standing) {
	p := d.place(i)
	for _, w := range d.Claims[i].Wishes {
		if w.N > st.told {
			st.told = w.N
			l.news = append(l.news, driver.News{Place: p, Request: &w.Request})
		}
	}
	if st.follows && p.Held {
		st.follows = false
		l.news = append(l.news, driver.News{Place: p, Held: true})
	}
	if !st.wants || !p.Held {
		return
	}
	for j := i + 1; j < len(d.Claims) && st.wants; j++ {
		if d.Claims[j].Lease != l.id && !d.held(j) {
			st.wants = false
			l.news = append(l.news, driver.News{Place: p, Wanted: true})
		}
	}
}
