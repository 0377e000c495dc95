package registerstore

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// feed follows the line of one name for all of this process who want to know: one watch, or one
// poll, however many they are. It runs while somebody listens.
type feed struct {
	s    *Store
	name string
	stop context.CancelFunc

	subs map[*sub]struct{} // guarded by Store.mu, as what follows
	last *document         // the latest known; nil: none yet
	at   string            // its version
}

// sub is one who listens. Notify is called with Store.mu locked after each new document: it must
// not block.
type sub struct {
	f      *feed
	notify func()
}

// listen has notify called whenever a later document of name is known.
func (s *Store) listen(name string, notify func()) *sub {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[name]
	if f == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		f = &feed{s: s, name: name, stop: cancel, subs: map[*sub]struct{}{}}
		s.feeds[name] = f
		s.spawnLocked(func() { f.run(ctx) })
	}
	u := &sub{f, notify}
	f.subs[u] = struct{}{}
	return u
}

// latest returns the latest document that is known, nil if there is none.
func (u *sub) latest() *document {
	u.f.s.mu.Lock()
	defer u.f.s.mu.Unlock()
	return u.f.last
}

// stop ends it. It may be called on nil and more than once.
func (u *sub) stop() {
	if u == nil {
		return
	}
	f := u.f
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	delete(f.subs, u)
	if len(f.subs) == 0 {
		f.stop()
		if f.s.feeds[f.name] == f {
			delete(f.s.feeds, f.name)
		}
	}
}

// run reads the document again and again.
func (f *feed) run(ctx context.Context) {
	key, version, first, stale := f.s.lineKey(f.name), "", true, 0
	for ctx.Err() == nil {
		var value []byte
		var err error
		if first {
			value, version, err = f.s.get(ctx, key)
		} else {
			value, version, err = f.s.changed(ctx, key, f.known(version))
		}
		if err == nil {
			first = false
			if d, err := parse(f.name, value, version); err == nil {
				// One that is older again and again is of a storage that was put back: asked at
				// once each time, it would be asked all the time.
				if stale++; f.s.offer(f.name, d, version) {
					stale = 0
				}
				if stale < 3 {
					continue
				}
			}
		}
		if storeutil.Sleep(ctx, jitter(f.s.again())) != nil {
			return
		}
	}
}

// known returns the version of the latest document, or that one where none could be read.
func (f *feed) known(version string) string {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.last != nil {
		return f.at
	}
	return version
}

// offer tells a document to those who listen, unless they know a later one, and reports whether
// they do not. It is not changed any more.
func (s *Store) offer(name string, d *document, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[name]
	if f == nil || f.last != nil && f.last.Seq >= d.Seq {
		return f == nil || f.at == version
	}
	f.last, f.at = d, version
	for u := range f.subs {
		u.notify()
	}
	return true
}

const (
	// near is how many leases wait before one who watches all that stand before him. Who is further
	// back keeps it over the last far of them, or a crowd of n would keep n² expiries: as those end
	// he comes nearer. So a row of dead waiters costs one silence, and a longer row some more.
	near = 16
	far  = 2
)

// watched returns the leases that he watches who stands at i. Those who hold wait for
// nobody, so each who waits near the front watches all of them.
func (d *document) watched(i int) []string {
	all := leasesOf(d.Claims[:i])
	if len(leasesOf(d.Claims[min(d.holding(), i):i])) <= near {
		return all
	}
	return lastOf(all, far)
}

// followed returns those that he watches who follows the line: the first, and the last.
func followed(claims []claim) []string {
	all := leasesOf(claims)
	return append(slices.Clone(all[:min(len(all), near)]), lastOf(all, min(far, max(0, len(all)-near)))...)
}

// lineWait is one who waits for a line to move: by a push or a poll of the line, or by the end of
// a lease that stands in it.
type lineWait struct {
	s      *Store
	name   string
	sub    *sub
	wake   chan struct{} // of next
	notify func()

	mu      sync.Mutex
	waiters map[string]*expiryWaiter // by lease; nil once it was stopped
}

// waitForLine begins to wait for changes of name. notify is called after each, with Store.mu
// locked; if it is nil, next waits for them.
func (s *Store) waitForLine(name string, notify func()) *lineWait {
	a := &lineWait{s: s, name: name, wake: make(chan struct{}, 1), notify: notify, waiters: map[string]*expiryWaiter{}}
	if notify == nil {
		a.notify = func() { storeutil.Signal(a.wake) }
	}
	a.sub = s.listen(name, a.notify)
	return a
}

func (a *lineWait) stop() {
	a.sub.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.waiters {
		p.stop()
	}
	a.waiters = nil
}

// leaveWatches has the watches go on for a while behind one who gives up: many who wait for less
// than a silence each would never see the end of a dead holder.
func (a *lineWait) leaveWatches(own string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.waiters {
		if id != own {
			a.s.watchBriefly(a.name, id)
		}
	}
}

// guard watches those leases, and no others. Rank says how many others do it more eagerly.
func (a *lineWait) guard(rank int, leases ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiters == nil {
		return
	}
	for _, id := range leases {
		if a.waiters[id] == nil {
			a.waiters[id] = a.s.watchExpiry(id, rank, a.notify)
		}
	}
	for id, p := range a.waiters {
		if !slices.Contains(leases, id) {
			p.stop()
			delete(a.waiters, id)
		}
	}
}

// ended returns which of the leases that it watches have ended and stand in d.
func (a *lineWait) ended(d *document) (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, p := range a.waiters {
		if p.v.isOver() && slices.ContainsFunc(d.Claims, func(c claim) bool { return c.Lease == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// next waits for a document later than d, and returns it. What has ended meanwhile is removed from
// the line first.
func (a *lineWait) next(ctx context.Context, d *document) (*document, error) {
	for {
		if last := a.sub.latest(); last != nil && last.Seq > d.Seq {
			return last, nil
		}
		if ended := a.ended(d); len(ended) > 0 {
			return a.s.purge(ctx, a.name, ended...)
		}
		select {
		case <-a.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-a.s.ctx.Done():
			return nil, a.s.wrap("follow the line of "+strconv.Quote(a.name), errClosed)
		}
	}
}

// Next implements [driver.Store]. Who follows a line watches the leases that stand in it,
// as who waits does.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	a := s.waitForLine(name, nil)
	defer a.stop()
	d, _, err := s.read(ctx, name)
	for {
		if err != nil {
			return driver.Line{}, err
		}
		if d.Rev > after {
			return d.show(), nil
		}
		a.guard(maxRank, followed(d.Claims)...)
		d, err = a.next(ctx, d)
	}
}
