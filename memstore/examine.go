package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Admin       = (*Store)(nil)
	_ driver.LeaseViewer = (*Store)(nil)
)

// Examine implements [driver.Store]: there is no server to look at.
func (s *Store) Examine(context.Context, string) []driver.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ln := range s.lines {
		n += len(ln.claims)
	}
	return []driver.Finding{{Topic: "memory", Level: driver.Fine, Found: fmt.Sprintf("in this process: %d names used, %d claims", len(s.lines), n)}}
}

// Left implements [driver.LeaseTimer], to the nanosecond.
func (l *lease) Left(ctx context.Context) (left, step time.Duration, err error) {
	err = l.do(ctx, func() error {
		left = time.Duration(float64(time.Until(l.ends)) * l.store.opts.Rate)
		return nil
	})
	return left, 1, err
}

// Remaining implements [driver.LeaseViewer]. A lease is known by its claims.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	all := map[string]driver.Remaining{}
	err := s.do(ctx, "", func() error {
		for l := range s.standing() {
			if slices.Contains(leases, l.id) {
				left := time.Duration(float64(time.Until(l.ends)) * s.opts.Rate)
				all[l.id] = driver.Remaining{Left: max(left, 0), TTL: l.ttl, Step: 1}
			}
		}
		return nil
	})
	return all, err
}

// Leases implements [driver.Admin]. A lease is known by its claims, so one without any is not
// found.
func (s *Store) Leases(ctx context.Context, prefix string) (ids []string, err error) {
	err = s.do(ctx, "", func() error {
		for l := range s.standing() {
			if strings.HasPrefix(l.owner, prefix) {
				ids = append(ids, l.id)
			}
		}
		slices.Sort(ids)
		return nil
	})
	return ids, err
}

// RemoveClaim implements [driver.Admin]; see [Store.Remove].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.Remove(name, token)
	return nil
}

// Revoke ends the lease of that ID. One without a claim runs out by itself: nobody waits for its
// end.
func (s *Store) Revoke(ctx context.Context, id string) error {
	return s.do(ctx, "", func() error {
		for l := range s.standing() {
			if l.id == id {
				l.end()
			}
		}
		return nil
	})
}

// standing returns the leases that have claims.
func (s *Store) standing() map[*lease]bool {
	all := map[*lease]bool{}
	for ln := range maps.Values(s.lines) {
		for _, c := range ln.claims {
			all[c.lease] = true
		}
	}
	return all
}
