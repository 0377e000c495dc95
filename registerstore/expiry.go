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
	Lines []text `json:"lines,omitempty"` // names in which it has claims, some of them: where to remove them first
	Over  bool   `json:"over,omitempty"`  // it has ended
}

func (b beat) stored() []byte {
	out, err := json.Marshal(b)
	if err != nil { // there is nothing in it that cannot be written
		panic(err)
	}
	return out
}

// leaseState is a lease as it was read.
type leaseState struct {
	beat
	version string // "": it is not there
}

// over says whether it has ended. One that is not there has: it is made before its first claim, and
// removed after its end.
func (st leaseState) over() bool { return st.version == "" || st.Over }

// parseLease reads a lease's register.
func parseLease(id string, value []byte, version string) (leaseState, error) {
	st := leaseState{version: version}
	if version == "" {
		return st, nil
	}
	if err := json.Unmarshal(value, &st.beat); err != nil || st.TTL <= 0 {
		return st, fmt.Errorf("the lease %s cannot be read, something else has written to it (%v): %w", id, err, driver.ErrRefused)
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
	// overTTL is by how much the silence after which a lease is ended is longer than its ttl. With
	// a drift of d the holder trusts 1 − d of the ttl on his own clock. Two clocks that each miss d
	// of the true one differ by a factor of (1 + d) ÷ (1 − d) at most, and where d is taken of the
	// faster one, by 1 ÷ (1 − d)². So the silence must be 1 + d of the ttl, or 1 ÷ (1 − d): with
	// the 0.10 that is the default 1.10, or 1.112.
	overTTL = 1.12
	// maxRank is that of who only observes. Each rank waits a hundredth of the silence longer, so
	// that not all strike at once.
	maxRank = 12
)

// expiryWatch watches one lease for all of this process who wait for its end, and ends it when it falls
// silent. Why that is safe stands in the package's documentation: the silence is counted on this
// process's clock from after the receipt of a version, and the lease is ended by a compare-and-swap
// on that very version. Go's clock measures it: where it stands still, in suspend, the watch only
// lasts longer.
type expiryWatch struct {
	s     *Store
	lease string
	end   context.CancelFunc

	waiters  map[*expiryWaiter]struct{} // guarded by Store.mu, as what follows
	over     bool                       // the lease has ended
	ttl      time.Duration              // 0: not known yet
	version  string                     // that was received last
	received time.Time                  // when: the watch counts from then
}

// expiryWaiter is one who waits for the end of a lease.
type expiryWaiter struct {
	v      *expiryWatch
	rank   int
	notify func() // called with Store.mu locked: it must not block
}

// watchExpiry has notify called once the lease has ended, and sees to it that it ends.
func (s *Store) watchExpiry(lease string, rank int, notify func()) *expiryWaiter {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// stop ends the wait, and with the last one the watch.
func (p *expiryWaiter) stop() {
	v := p.v
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	delete(v.waiters, p)
	if len(v.waiters) == 0 {
		v.end()
		if v.s.expiries[v.lease] == v {
			delete(v.s.expiries, v.lease)
		}
	}
}

func (v *expiryWatch) isOver() bool {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.over
}

// silence returns how long a lease must be silent until it is ended, and how much longer this watch
// leaves it to those who are nearer.
func (v *expiryWatch) silence(ttl time.Duration) (silence, more time.Duration) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	rank := maxRank
	for p := range v.waiters {
		rank = min(rank, p.rank)
	}
	silence = time.Duration(float64(ttl) * v.s.over)
	return silence, silence / 100 * time.Duration(rank)
}

// run watches the lease until the lease has ended or nobody waits any more.
func (v *expiryWatch) run(ctx context.Context) {
	key := v.s.leaseKey(v.lease)
	st, err := v.look(ctx, func(ctx context.Context) ([]byte, string, error) { return v.s.get(ctx, key) })
	for ctx.Err() == nil {
		switch {
		case err != nil:
			if storeutil.Sleep(ctx, jitter(v.s.again())) != nil {
				return
			}
			st, err = v.look(ctx, func(ctx context.Context) ([]byte, string, error) { return v.s.get(ctx, key) })
		case st.over():
			v.notifyAll()
			return
		default:
			st, err = v.listen(ctx, st)
		}
	}
}

// look reads the lease, and counts from after the receipt if it has another version than before.
func (v *expiryWatch) look(ctx context.Context, read func(context.Context) ([]byte, string, error)) (leaseState, error) {
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
	if v.version != version || v.received.IsZero() {
		v.version, v.received, v.ttl = version, received, time.Duration(st.TTL)
	}
	v.s.mu.Unlock()
	return st, nil
}

// listen waits for another version than st's, until the lease was silent for too long: then it ends
// it. It returns what there is afterwards.
func (v *expiryWatch) listen(ctx context.Context, st leaseState) (leaseState, error) {
	silence, more := v.silence(time.Duration(st.TTL))
	v.s.mu.Lock()
	since := v.received
	v.s.mu.Unlock()
	lctx, cancel := context.WithTimeout(ctx, silence+more-time.Since(since))
	defer cancel()
	now, err := v.look(lctx, func(ctx context.Context) ([]byte, string, error) {
		return v.changedLease(ctx, st.version, silence)
	})
	if err == nil || ctx.Err() != nil || time.Since(since) < silence {
		return now, err
	}
	return v.endSilent(ctx, st)
}

// changedLease is changed for a lease, which is not worth a look more often than its ttl asks for.
func (v *expiryWatch) changedLease(ctx context.Context, version string, silence time.Duration) ([]byte, string, error) {
	key := v.s.leaseKey(v.lease)
	if v.s.watcher != nil {
		return v.s.changed(ctx, key, version)
	}
	for {
		often := silence / 8
		if _, more := v.silence(silence); more > 0 {
			often = silence / 3 // somebody else is nearer
		}
		if err := storeutil.Sleep(ctx, jitter(often)); err != nil {
			return nil, "", err
		}
		if value, next, err := v.s.get(ctx, key); err == nil && next != version {
			return value, next, nil
		}
	}
}

// endSilent ends the lease if it still has that version, and removes it. It returns what the lease is
// then.
func (v *expiryWatch) endSilent(ctx context.Context, st leaseState) (leaseState, error) {
	ended := leaseState{beat: st.beat, version: st.version}
	ended.Over = true
	// Under a limit of its own, for a write that hangs is repeated.
	pctx, cancel := context.WithTimeout(ctx, v.s.opts.Patience)
	defer cancel()
	next, ok, err := v.s.reg.Put(pctx, v.s.leaseKey(v.lease), ended.stored(), st.version)
	if err == nil && ok {
		ended.version = next
		v.s.spawn(func() { _ = v.s.removeLease(v.s.ctx, v.lease, ended) }) // whoever looks at a line does what this fails to do
		return ended, nil
	}
	_ = storeutil.Sleep(ctx, jitter(min(v.s.again(), time.Duration(st.TTL)/16))) // it may have happened, or happen yet: what is there says so
	return v.look(ctx, func(ctx context.Context) ([]byte, string, error) { return v.s.get(ctx, v.s.leaseKey(v.lease)) })
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

// endLease ends a lease, whatever version it has, and removes its claims. What is gone already is
// no error.
func (s *Store) endLease(ctx context.Context, id string) (leaseState, error) {
	for try := 0; ; try++ {
		st, err := s.leaseNow(ctx, id)
		if err != nil || st.over() {
			return st, err
		}
		st.Over = true
		next, ok, err := s.put(ctx, s.leaseKey(id), st.stored(), st.version)
		if err != nil {
			return st, s.wrap("end lease "+id, err)
		}
		if st.version = next; ok {
			return st, nil
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return st, s.wrap("end lease "+id, err)
		}
	}
}

// removeLease removes the claims of a lease that has ended from the lines that it named and from others,
// and then itself. It may fail: whoever looks at a line removes what is over, and a lease that is
// not there has ended too.
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
