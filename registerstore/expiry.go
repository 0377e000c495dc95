package registerstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

var errClosed = errors.New("the store was closed")

// beat is what a lease's register contains.
type beat struct {
	Owner text   `json:"owner,omitempty"`
	TTL   int64  `json:"ttl"` // ns
	Beat  uint64 `json:"beat"`
	Lines []text `json:"lines,omitempty"` // some names in which it has claims: where to remove them first
	Over  bool   `json:"over,omitempty"`  // it has ended
}

// leaseState is a lease as it was read.
type leaseState struct {
	beat
	version string // "": it is not there
}

// over says whether the lease has ended. One that is not there has: it is made before its first
// claim, and removed after its end.
func (st leaseState) over() bool { return st.version == "" || st.Over }

// parseLease reads a lease's register.
func parseLease(id string, value []byte, version string) (leaseState, error) {
	st := leaseState{version: version}
	if version == "" {
		return st, nil
	}
	if err := json.Unmarshal(value, &st.beat); err != nil || st.TTL <= 0 {
		return st, fmt.Errorf("the lease %s cannot be read, something else has written to it (%v): %w",
			id, err, driver.ErrRefused)
	}
	return st, nil
}

// leaseNow reads a lease.
func (s *Store) leaseNow(ctx context.Context, id string) (leaseState, error) {
	value, version, err := s.look(ctx, s.leaseKey(id))
	if err != nil {
		return leaseState{}, s.wrap("read lease "+id, err)
	}
	return parseLease(id, value, version)
}

const (
	// overTTL is the silence after which a lease is ended, as a multiple of its ttl. With a drift
	// of d the holder trusts 1 − d of the ttl on his own clock. Two clocks that each miss d of the
	// true one differ by a factor of (1 + d) ÷ (1 − d) at most, and where d is taken of the faster
	// one, by 1 ÷ (1 − d)². So the silence must be 1 + d of the ttl, or 1 ÷ (1 − d): with the
	// default d of 0.10 that is 1.10, or 1.112.
	overTTL = 1.12
	// maxRank is that of who only observes. Each rank waits a hundredth of the silence longer, so
	// that not all end a lease at once.
	maxRank = 12
)

// expiryWatch watches one lease for all of this process who wait for its end, and ends it when it
// falls silent. The package's documentation says why that is safe. It rests on two things: the
// silence is counted on this process's clock from after the receipt of a version, and the lease is
// ended by a compare-and-swap on that very version. Where Go's clock stands still, in suspend, the
// watch lasts longer.
type expiryWatch struct {
	s     *Store
	lease string
	end   context.CancelFunc

	// Store.mu guards what follows.
	waiters  map[*expiryWaiter]struct{}
	over     bool      // the lease has ended
	version  string    // that was received last
	received time.Time // when: the silence counts from then
}

// expiryWaiter is one who waits for the end of a lease.
type expiryWaiter struct {
	watch  *expiryWatch
	rank   int
	notify func() // called with Store.mu held: it must not block
}

// watchExpiryLocked has notify called once the lease has ended, and sees to it that it ends. The
// caller holds Store.mu.
func (s *Store) watchExpiryLocked(lease string, rank int, notify func()) *expiryWaiter {
	v := s.expiries[lease]
	if v == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		v = &expiryWatch{s: s, lease: lease, end: cancel, waiters: map[*expiryWaiter]struct{}{}}
		s.expiries[lease] = v
		s.spawnLocked(func() { v.run(ctx) })
	}
	p := &expiryWaiter{v, min(rank, maxRank), notify}
	v.waiters[p] = struct{}{}
	if v.over {
		notify()
	}
	return p
}

// stopLocked ends the wait, and with the last one the watch. The caller holds Store.mu.
func (p *expiryWaiter) stopLocked() {
	v := p.watch
	delete(v.waiters, p)
	if len(v.waiters) == 0 {
		v.end()
		if v.s.expiries[v.lease] == v {
			delete(v.s.expiries, v.lease)
		}
	}
}

// awaitExpiry watches a lease until it has ended, or until the limit, which is a multiple of the
// silence. It returns true if the lease has ended.
func (s *Store) awaitExpiry(ctx context.Context, id string, st leaseState, rank int, limit float64) (bool, error) {
	woken := make(chan struct{}, 1)
	s.mu.Lock()
	p := s.watchExpiryLocked(id, rank, func() { storeutil.Signal(woken) })
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.stopLocked()
	}()
	timer := time.NewTimer(time.Duration(limit * s.silence * float64(st.TTL)))
	defer timer.Stop()
	select {
	case <-woken:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-s.ctx.Done():
		return false, errClosed
	}
}

// due returns since when the lease is silent, after what silence it is ended, and how much longer
// this watch leaves that to those who are nearer.
func (v *expiryWatch) due(ttl int64) (since time.Time, silence, more time.Duration) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	rank := maxRank
	for p := range v.waiters {
		rank = min(rank, p.rank)
	}
	silence = time.Duration(float64(ttl) * v.s.silence)
	return v.received, silence, silence / 100 * time.Duration(rank)
}

// run watches the lease until it has ended or nobody waits any more.
func (v *expiryWatch) run(ctx context.Context) {
	st, err := v.look(ctx, v.get)
	for ctx.Err() == nil {
		switch {
		case err != nil:
			if storeutil.Sleep(ctx, jitter(v.s.retryPause())) != nil {
				return
			}
			st, err = v.look(ctx, v.get)
		case st.over():
			v.notifyAll()
			return
		default:
			st, err = v.await(ctx, st)
		}
	}
}

func (v *expiryWatch) get(ctx context.Context) ([]byte, string, error) {
	return v.s.get(ctx, v.s.leaseKey(v.lease))
}

// look reads the lease, and counts from after the receipt if it has another version than before.
func (v *expiryWatch) look(
	ctx context.Context, read func(context.Context) ([]byte, string, error),
) (leaseState, error) {
	value, version, err := read(ctx)
	received := time.Now() // after the read, or a renewal sent meanwhile would be older than it looks
	if err != nil {
		return leaseState{}, err
	}
	st, err := parseLease(v.lease, value, version)
	if err != nil {
		return st, err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if v.version != version || v.received.IsZero() {
		v.version, v.received = version, received
	}
	return st, nil
}

// await waits for another version than st's. If the lease was silent for too long it ends the
// lease. It returns what there is afterwards.
func (v *expiryWatch) await(ctx context.Context, st leaseState) (leaseState, error) {
	since, silence, more := v.due(st.TTL)
	waits, cancel := context.WithTimeout(ctx, silence+more-time.Since(since))
	defer cancel()
	now, err := v.look(waits, func(ctx context.Context) ([]byte, string, error) { return v.changed(ctx, st) })
	if err == nil || ctx.Err() != nil || time.Since(since) < silence {
		return now, err
	}
	return v.endSilent(ctx, st)
}

// changed waits for another version than st's. Without a watch it does not look more often than the
// ttl asks for.
func (v *expiryWatch) changed(ctx context.Context, st leaseState) (value []byte, version string, err error) {
	if v.s.watcher != nil {
		value, version, err = v.s.changed(ctx, v.s.leaseKey(v.lease), st.version)
		if errors.Is(err, driver.ErrRefused) { // for this process the lease is silent
			<-ctx.Done()
		}
		return value, version, err
	}
	for {
		_, silence, more := v.due(st.TTL)
		pause := silence / 8
		if more > 0 {
			pause = silence / 3 // somebody else is nearer
		}
		if err := storeutil.Sleep(ctx, jitter(pause)); err != nil {
			return nil, "", err
		}
		// Repeated where it fails: with a long ttl the next look is minutes away.
		value, version, err = v.s.look(ctx, v.s.leaseKey(v.lease))
		if err == nil && version != st.version {
			return value, version, nil
		}
	}
}

// endSilent ends the lease if it still has st's version, and removes it. It returns what the lease
// is then.
func (v *expiryWatch) endSilent(ctx context.Context, st leaseState) (leaseState, error) {
	ended := st
	ended.Over = true
	next, ok, err := v.s.put(ctx, v.s.leaseKey(v.lease), stored(ended.beat), st.version)
	if err == nil && ok {
		ended.version = next
		// Whoever looks at a line does what this fails to do.
		v.s.spawn(func() { _ = v.s.removeLease(v.s.ctx, v.lease, ended) })
		return ended, nil
	}
	// It may have happened, or happen yet: what is there says so.
	_ = storeutil.Sleep(ctx, jitter(min(v.s.retryPause(), time.Duration(st.TTL)/16)))
	return v.look(ctx, v.get)
}

// notifyAll tells everybody that the lease has ended.
func (v *expiryWatch) notifyAll() {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.over = true
	for p := range v.waiters {
		p.notify()
	}
}

// endLease ends a lease, whatever version it has. What is gone already is no error.
func (s *Store) endLease(ctx context.Context, id string) (leaseState, error) {
	for try := 0; ; try++ {
		st, err := s.leaseNow(ctx, id)
		if err != nil || st.over() {
			return st, err
		}
		st.Over = true
		next, ok, err := s.put(ctx, s.leaseKey(id), stored(st.beat), st.version)
		if err == nil && !ok {
			err = storeutil.Sleep(ctx, backoff(try))
		}
		if err != nil {
			return st, s.wrap("end lease "+id, err)
		}
		if st.version = next; ok {
			return st, nil
		}
	}
}

// removeLease removes the claims of a lease that has ended from the lines that it named and from
// others, and then itself. It may fail: whoever looks at a line removes what is over, and a lease
// that is not there has ended too.
func (s *Store) removeLease(ctx context.Context, id string, st leaseState, names ...string) error {
	for _, name := range st.Lines {
		names = append(names, string(name))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	err := together(len(names), func(i int) error {
		_, err := s.purge(ctx, names[i], id)
		return err
	})
	if err == nil && st.version != "" {
		_ = s.reg.Delete(ctx, s.leaseKey(id), st.version) // it only saves space
	}
	return err
}
