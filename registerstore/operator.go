package registerstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// Ask implements [driver.Asker]: the request stands in the document, beside the claim it is for,
// and goes with it.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	if _, err := s.Line(ctx, name); err != nil { // a holder whose lease has ended holds no more
		return err
	}
	_, err := s.step(ctx, name, func(d *document) (bool, error) { return false, d.ask(r) })
	return err
}

// Revoke implements [driver.Store]. The lines that the lease's last renewal named are cleared at
// once; in others whoever waits behind its claims removes them.
func (s *Store) Revoke(ctx context.Context, id string) error {
	if !isLeaseID(id) {
		return ctx.Err() // no lease has it
	}
	st, err := s.endLease(ctx, id)
	if err != nil {
		return err
	}
	return s.removeLease(ctx, id, st)
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	_, err := s.step(ctx, name, func(d *document) (bool, error) {
		d.remove(token)
		return false, nil
	})
	return err
}

// Leases implements [driver.Admin].
func (s *Store) Leases(ctx context.Context, prefix string) ([]string, error) {
	all, err := s.allLeases(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for id, st := range all {
		if !st.over() && strings.HasPrefix(string(st.Owner), prefix) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// allLeases reads all leases.
func (s *Store) allLeases(ctx context.Context) (map[string]leaseState, error) {
	at := s.opts.Prefix + leases
	keys, err := s.reg.List(ctx, at)
	if err != nil {
		return nil, s.wrap("list leases", err)
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return !isLeaseID(strings.TrimPrefix(key, at)) })
	states := make([]leaseState, len(keys))
	err = together(len(keys), func(i int) (err error) {
		states[i], err = s.leaseNow(ctx, strings.TrimPrefix(keys[i], at))
		return err
	})
	if err != nil {
		return nil, err
	}
	all := map[string]leaseState{}
	for i, key := range keys {
		all[strings.TrimPrefix(key, at)] = states[i]
	}
	return all, nil
}

// Sweep ends every lease that nobody renews, with its claims, and removes what is left of those
// that ended. It watches each for 1.12 times its ttl on this machine's clock, as who waits does,
// and returns how many it found dead. A store that makes leases does it by itself, once in an hour
// or so.
func (s *Store) Sweep(ctx context.Context) (int, error) {
	all, err := s.allLeases(ctx)
	if err != nil {
		return 0, err
	}
	var ids []string
	for id := range all {
		ids = append(ids, id)
	}
	var dead atomic.Int64
	err = together(len(ids), func(i int) error {
		st := all[ids[i]]
		if !st.over() {
			woken := make(chan struct{}, 1)
			p := s.watchExpiry(ids[i], maxRank, func() {
				select {
				case woken <- struct{}{}:
				default:
				}
			})
			defer p.stop()
			silence := time.Duration(float64(st.TTL) * s.over)
			limit := time.NewTimer(silence + silence/4)
			defer limit.Stop()
			select {
			case <-woken:
			case <-limit.C:
				return nil // it lives
			case <-ctx.Done():
				return ctx.Err()
			case <-s.ctx.Done():
				return errClosed
			}
			var err error
			if st, err = s.leaseNow(ctx, ids[i]); err != nil {
				return err
			}
		}
		dead.Add(1)
		return s.removeLease(ctx, ids[i], st)
	})
	return int(dead.Load()), err
}

// sweepNowAndThen sweeps in the background until Close, at times that differ from one process to
// the next.
func (s *Store) sweepNowAndThen() {
	s.spawn(func() {
		for storeutil.Sleep(s.ctx, jitter(time.Hour)) == nil {
			_, _ = s.Sweep(s.ctx) // what it fails to do the next one does
		}
	})
}

// watchBriefly watches for a while a lease that stood in the way of a Try, and removes it from
// that line if it ends.
func (s *Store) watchBriefly(name, lease string) {
	key := lease + " " + name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.brief[key] {
		return
	}
	s.brief[key] = true
	s.spawnLocked(func() {
		s.removeWhenEnded(name, lease)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.brief, key)
	})
}

func (s *Store) removeWhenEnded(name, lease string) {
	st, err := s.leaseNow(s.ctx, lease)
	if err != nil {
		return
	}
	woken := make(chan struct{}, 1)
	p := s.watchExpiry(lease, 0, func() { storeutil.Signal(woken) })
	defer p.stop()
	limit := time.NewTimer(2 * time.Duration(float64(st.TTL)*s.over))
	defer limit.Stop()
	select {
	case <-woken:
		_, _ = s.purge(s.ctx, name, lease)
	case <-limit.C:
	case <-s.ctx.Done():
	}
}

// Examine implements [driver.Store].
func (s *Store) Examine(ctx context.Context, name string) []driver.Finding {
	begun := time.Now()
	value, version, err := s.reg.Get(ctx, s.lineKey(name))
	took := time.Since(begun).Round(time.Microsecond)
	if err != nil {
		return []driver.Finding{{Topic: s.opts.Name, Level: driver.Failed, Found: err.Error(), Advice: "look whether the storage is there, and may be read"}}
	}
	found := []driver.Finding{{Topic: s.opts.Name, Level: driver.Fine, Found: fmt.Sprintf("answers a read in %v", took)}}
	if d, err := parse(name, value, version); err != nil {
		found = append(found, driver.Finding{Topic: "line of " + name, Level: driver.Failed, Found: err.Error(), Advice: "use a prefix that nothing else writes under"})
	} else {
		found = append(found, driver.Finding{Topic: "line of " + name, Level: driver.Fine, Found: fmt.Sprintf("%d claims in %d bytes", len(d.Claims), len(value))})
	}
	all, err := s.allLeases(ctx)
	if err != nil {
		return append(found, driver.Finding{Topic: "leases", Level: driver.Failed, Found: err.Error(), Advice: "it must be allowed to list keys, and to read them"})
	}
	over := 0
	for _, st := range all {
		if st.over() {
			over++
		}
	}
	found = append(found, driver.Finding{Topic: "leases", Level: driver.Fine, Found: fmt.Sprintf("%d, %d of which have ended", len(all), over)})
	wait := "changes are polled every " + s.opts.Poll.String() + ": that is how long a hand-over takes at most"
	if s.watcher != nil {
		wait = "changes are watched for, and looked for every " + s.opts.Poll.String()
	}
	return append(found, driver.Finding{Topic: "waiting", Level: driver.Fine, Found: wait})
}
