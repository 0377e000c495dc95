package registerstore

import (
	"context"
	"errors"
	"slices"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// feed reads the line of one name for all of this process who wait for a change of it: one watch,
// or one poll, however many they are. It runs while there is one.
type feed struct {
	s    *Store
	name string
	end  context.CancelFunc

	// Store.mu guards what follows.
	waits   map[*lineWait]struct{}
	last    *document // the latest known; nil: none yet
	version string    // of last
	since   uint64    // calls up to this number may have seen an earlier line of the name: see offer
	refused error     // an ErrRefused: the line cannot be read any more
}

// lineWait is one who waits for a change of a line, or for the end of a lease in it.
type lineWait struct {
	f        *feed
	notify   func()                   // called after each change with Store.mu held: it must not block
	wake     chan struct{}            // of next
	watching map[string]*expiryWaiter // by lease; guarded by Store.mu; nil once the wait has stopped
}

// waitForLine begins to wait for changes of name. If notify is nil, next waits for them.
func (s *Store) waitForLine(name string, notify func()) *lineWait {
	w := &lineWait{notify: notify, wake: make(chan struct{}, 1), watching: map[string]*expiryWaiter{}}
	if notify == nil {
		w.notify = func() { storeutil.Signal(w.wake) }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.f = s.feeds[name]; w.f == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		w.f = &feed{s: s, name: name, end: cancel, since: s.calls.Load(), waits: map[*lineWait]struct{}{}}
		s.feeds[name] = w.f
		s.spawnLocked(func() { w.f.run(ctx) })
	}
	w.f.waits[w] = struct{}{}
	return w
}

// stop ends the wait, and with the last one the feed.
func (w *lineWait) stop() {
	f := w.f
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	for _, p := range w.watching {
		p.stopLocked()
	}
	w.watching = nil
	delete(f.waits, w)
	if len(f.waits) == 0 {
		f.end()
		if f.s.feeds[f.name] == f {
			delete(f.s.feeds, f.name)
		}
	}
}

// latest returns the latest document that is known, nil if there is none, or why the register
// refuses to be asked.
func (w *lineWait) latest() (*document, error) {
	w.f.s.mu.Lock()
	defer w.f.s.mu.Unlock()
	return w.f.last, w.f.refused
}

// leaveWatches has this process watch the same leases for a while longer, after one who gives up:
// many who wait for less than a silence each would never see the end of a dead holder.
func (w *lineWait) leaveWatches(own string) {
	w.f.s.mu.Lock()
	defer w.f.s.mu.Unlock()
	for id := range w.watching {
		if id != own {
			w.f.s.watchBrieflyLocked(w.f.name, id)
		}
	}
}

// watch watches those leases, and no others. Rank is how many others do it more eagerly.
func (w *lineWait) watch(rank int, leases ...string) {
	w.f.s.mu.Lock()
	defer w.f.s.mu.Unlock()
	if w.watching == nil {
		return
	}
	for _, id := range leases {
		if w.watching[id] == nil {
			w.watching[id] = w.f.s.watchExpiryLocked(id, rank, w.notify)
		}
	}
	for id, p := range w.watching {
		if !slices.Contains(leases, id) {
			p.stopLocked()
			delete(w.watching, id)
		}
	}
}

// ended returns which of the leases that it watches have ended and stand in d.
func (w *lineWait) ended(d *document) (ids []string) {
	w.f.s.mu.Lock()
	defer w.f.s.mu.Unlock()
	for id, p := range w.watching {
		if p.watch.over && slices.ContainsFunc(d.Claims, func(c claim) bool { return c.Lease == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// next waits for a document later than d, and returns it. What has ended meanwhile is removed from
// the line first.
func (w *lineWait) next(ctx context.Context, d *document) (*document, error) {
	s := w.f.s
	for {
		if last, _ := w.latest(); last != nil && last.Seq > d.Seq {
			return last, nil
		}
		if ended := w.ended(d); len(ended) > 0 {
			return s.purge(ctx, w.f.name, ended...)
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ctx.Done():
			return nil, s.wrapLine("follow", w.f.name, errClosed)
		}
	}
}

// run reads the document again and again.
func (f *feed) run(ctx context.Context) {
	key, version, first, stale := f.s.lineKey(f.name), "", true, 0
	for ctx.Err() == nil {
		var value []byte
		var err error
		call := f.s.calls.Add(1)
		if first {
			value, version, err = f.s.get(ctx, key)
		} else {
			value, version, err = f.s.changed(ctx, key, f.known(version))
		}
		var d *document
		if err == nil {
			first = false
			d, err = parse(f.name, value, version)
		}
		if err == nil {
			d.call = call
			if stale++; f.s.offer(f.name, d, version) {
				stale = 0
			}
			if stale < 3 || f.wentBack(ctx) {
				continue
			}
		} else if errors.Is(err, driver.ErrRefused) {
			f.refuse(f.s.wrapLine("read", f.name, err))
		}
		if storeutil.Sleep(ctx, jitter(f.s.retryPause())) != nil {
			return
		}
	}
}

// wentBack is asked where the line was older again and again than what is known of it. It says
// whether somebody has removed it, or put it back to what it was: a read that begins after that was
// known does not see it. Then what that read sees is the latest, though its number is smaller. Else
// those who hold a place would not hear that it is gone, and the line would be asked all the time.
func (f *feed) wentBack(ctx context.Context) bool {
	f.s.mu.Lock()
	last := f.last
	f.s.mu.Unlock()
	call := f.s.calls.Add(1)
	value, version, err := f.s.get(ctx, f.s.lineKey(f.name))
	if err != nil {
		return false
	}
	d, err := parse(f.name, value, version)
	if err != nil {
		return false
	}
	if d.call = call; f.s.offer(f.name, d, version) {
		return false
	}
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.last != last {
		return false
	}
	f.last, f.version, f.since = d, version, call
	f.notifyLocked()
	return true
}

// known returns the version of the latest document, or that one where none could be read.
func (f *feed) known(version string) string {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.last != nil {
		return f.version
	}
	return version
}

// refuse tells those who wait that the line cannot be read any more.
func (f *feed) refuse(err error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.refused == nil {
		f.refused = err
		f.notifyLocked()
	}
}

// notifyLocked wakes those who wait. The caller holds Store.mu.
func (f *feed) notifyLocked() {
	for w := range f.waits {
		w.notify()
	}
}

// offer tells a document to those who wait for a change of the line, unless they know a later one,
// and says whether they do not. The document is not changed any more. Seq begins anew where
// somebody has removed the line. A call that began before that was known, and whose answer comes
// late, has a larger one to tell of the line that is no more. If that were taken for the latest,
// whoever held a place there would lead on beside the next one.
func (s *Store) offer(name string, d *document, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.feeds[name]
	if f == nil {
		return true
	}
	if d.call <= f.since {
		return false
	}
	f.refused = nil
	if f.last != nil && f.last.Seq >= d.Seq {
		return f.version == version
	}
	f.last, f.version = d, version
	f.notifyLocked()
	return true
}

const (
	// near is how many leases wait before a waiter who watches all that stand before him. If those
	// further back did too, a crowd of n would keep n² watches: they watch the last far of them. As
	// those end a waiter comes nearer, so a row of dead waiters costs one silence, and a longer row
	// some more.
	near = 16
	far  = 2
)

// watchedBy returns the leases that the waiter at i watches. Those who hold wait for nobody, so
// each who waits near the front watches all of them.
func (d *document) watchedBy(i int) []string {
	all := leasesOf(d.Claims[:i])
	if len(leasesOf(d.Claims[min(d.holding(), i):i])) <= near {
		return all
	}
	return lastOf(all, far)
}

// ends returns the first leases of the claims, and the last: those that an observer of the line
// watches.
func ends(claims []claim) []string {
	all := leasesOf(claims)
	return append(slices.Clone(all[:min(len(all), near)]), lastOf(all, min(far, max(0, len(all)-near)))...)
}

// Next implements [driver.Store]. Who follows a line watches the leases that stand in it, as who
// waits does.
func (s *Store) Next(ctx context.Context, name string, after uint64) (driver.Line, error) {
	w := s.waitForLine(name, nil)
	defer w.stop()
	d, _, err := s.read(ctx, name)
	for {
		if err != nil {
			return driver.Line{}, err
		}
		if d.Rev > after {
			return d.show(), nil
		}
		w.watch(maxRank, ends(d.Claims)...)
		d, err = w.next(ctx, d)
	}
}
