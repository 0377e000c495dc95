package registerstore

import (
	"context"
	"fmt"
	"maps"
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
	_, err := s.step(ctx, name, func(d *document) error { return d.ask(r) })
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
	_, err := s.step(ctx, name, func(d *document) error {
		d.remove(token)
		return nil
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
	ids, err := s.reg.List(ctx, at)
	if err != nil {
		return nil, s.wrap("list leases", err)
	}
	for i := range ids {
		ids[i] = strings.TrimPrefix(ids[i], at)
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !isLeaseID(id) })
	states := make([]leaseState, len(ids))
	err = together(len(ids), func(i int) (err error) {
		states[i], err = s.leaseNow(ctx, ids[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	all := map[string]leaseState{}
	for i, id := range ids {
		all[id] = states[i]
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
	ids := slices.Collect(maps.Keys(all))
	var dead atomic.Int64
	err = together(len(ids), func(i int) error {
		st := all[ids[i]]
		if !st.over() {
			ended, err := s.awaitExpiry(ctx, ids[i], st, maxRank, 1.25)
			if err != nil || !ended {
				return err
			}
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

// watchBrieflyLocked watches a lease for a while for somebody who does not wait in the line of
// name, and removes its claims from the line if it ends. The caller holds mu.
func (s *Store) watchBrieflyLocked(name, lease string) {
	key := lease + " " + name
	if s.brief[key] {
		return
	}
	s.brief[key] = true
	s.spawnLocked(func() {
		if st, err := s.leaseNow(s.ctx, lease); err == nil {
			if ended, _ := s.awaitExpiry(s.ctx, lease, st, 0, 2); ended {
				_, _ = s.purge(s.ctx, name, lease)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.brief, key)
	})
}

// Examine implements [driver.Store].
func (s *Store) Examine(ctx context.Context, name string) (found []driver.Finding) {
	add := func(topic, fine string, err error, advice string) {
		f := driver.Finding{Topic: topic, Level: driver.Fine, Found: fine}
		if err != nil {
			f = driver.Finding{Topic: topic, Level: driver.Failed, Found: err.Error(), Advice: advice}
		}
		found = append(found, f)
	}
	begun := time.Now()
	value, version, err := s.reg.Get(ctx, s.lineKey(name))
	took := time.Since(begun).Round(time.Microsecond)
	add(s.opts.Name, fmt.Sprintf("answers a read in %v", took), err, "look whether the storage is there, and may be read")
	if err != nil {
		return found
	}
	d, err := parse(name, value, version)
	says := ""
	if err == nil {
		says = fmt.Sprintf("%d claims in %d bytes", len(d.Claims), len(value))
	}
	add("line of "+name, says, err, "use a prefix that nothing else writes under")
	all, err := s.allLeases(ctx)
	over := 0
	for _, st := range all {
		if st.over() {
			over++
		}
	}
	add("leases", fmt.Sprintf("%d, %d of which have ended", len(all), over), err,
		"it must be allowed to list keys, and to read them")
	if err != nil {
		return found
	}
	wait := "changes are polled every " + s.opts.Poll.String() + ": that is how long a hand-over takes at most"
	if s.watcher != nil {
		wait = "changes are watched for, and looked for every " + s.opts.Poll.String()
	}
	add("waiting", wait, nil, "")
	return found
}
