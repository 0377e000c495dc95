package concurrency

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	v3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdwire"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// watcher ends the session as soon as a claim of it is seen to be gone. Renewals find that, too.
type watcher struct {
	s    *Session
	wake chan struct{}

	mu      sync.Mutex
	suspect map[string]bool // keys to look at
}

// run watches until the session ends.
func (w *watcher) run() {
	for {
		pause := w.watchClaims()
		if err := w.lookUp(); errors.Is(err, errGone) {
			w.s.end(lost, "a claim of it was deleted, or its lease revoked")
			return
		} else if err != nil {
			pause = etcdwire.RetryPause
		}
		if storeutil.WaitFor(w.s.over, pause, w.wake) != nil {
			return
		}
	}
}

// poke has the claims looked through for those to be watched.
func (w *watcher) poke() { storeutil.Signal(w.wake) }

// look has a key looked at. The hub calls it under its own lock.
func (w *watcher) look(key string) {
	w.mu.Lock()
	w.suspect[key] = true
	w.mu.Unlock()
	w.poke()
}

// watchClaims begins to watch claims that are old enough, and returns in how long the next one
// will be; an hour if there is none.
func (w *watcher) watchClaims() (next time.Duration) {
	next = time.Hour
	now, t := time.Now(), w.s.claims
	t.mu.Lock()
	var old []*claim
	for _, c := range t.standingLocked() {
		switch age := now.Sub(c.entered); {
		case c.unwatch != nil:
		case age >= etcdwire.WatchAfter:
			old = append(old, c)
		default:
			next = min(next, etcdwire.WatchAfter-age)
		}
	}
	t.mu.Unlock()
	for _, c := range old {
		stop, _ := w.s.wire.watch(c.key, "", false, func() { w.look(c.key) })
		t.mu.Lock()
		keep := t.by[c.key] == c && w.s.live() // otherwise the session's end stops it
		if keep {
			c.unwatch = stop
		}
		t.mu.Unlock()
		if !keep {
			stop()
			continue
		}
		w.look(c.key) // it tells nothing at first if it stood already
	}
	return next
}

// lookUp reads the keys that something happened to.
func (w *watcher) lookUp() error {
	w.mu.Lock()
	keys := slices.Collect(maps.Keys(w.suspect))
	clear(w.suspect)
	w.mu.Unlock()
	lease, t := w.s.leases.current().id, w.s.claims
	var claims []*claim
	t.mu.Lock()
	for _, k := range keys {
		if c := t.by[k]; c != nil && c.rev != 0 && !c.givenUp {
			claims = append(claims, c)
		}
	}
	t.mu.Unlock()
	w.s.removals.sweep(keys)
	err := w.read(claims, lease)
	if err != nil {
		w.mu.Lock()
		for _, k := range keys {
			w.suspect[k] = true
		}
		w.mu.Unlock()
	}
	return err
}

// read compares claims without a proof.
func (w *watcher) read(claims []*claim, lease v3.LeaseID) error {
	_, err := w.s.wire.limit.InChunks(len(claims), func(from, to int) (bool, error) {
		ctx, cancel := context.WithTimeout(w.s.over, 2*etcdwire.CallLimit)
		defer cancel()
		part := claims[from:to]
		keys := keysOf(part, lease)
		t := txn{}
		for _, k := range keys {
			t.then = append(t.then, look(k))
		}
		resp, _, err := w.s.wire.txn(ctx, t)
		if err != nil {
			return false, err
		}
		return true, w.s.claims.compare(part, etcdwire.States(keys, (*pb.TxnResponse)(resp)), lease)
	})
	return err
}
