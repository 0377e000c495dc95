package redisstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// end ends a lease with every claim.
func (s *Store) end(ctx context.Context, id string) error {
	got, err := s.run(ctx, s.calls, endScript, false, id)
	if err == nil && got.str(0) != "OK" {
		err = s.unexpected("end", got)
	}
	return err
}

// Revoke implements [driver.Store].
func (s *Store) Revoke(ctx context.Context, lease string) error { return s.end(ctx, lease) }

// EndLease implements [driver.Admin].
func (s *Store) EndLease(ctx context.Context, id string) error {
	if b, err := hex.DecodeString(id); err != nil || len(b) != 8 {
		return fmt.Errorf("end lease: %q is not the ID of a lease: %w", id, driver.ErrRefused)
	}
	return s.end(ctx, id)
}

// RemoveClaim implements [driver.Admin].
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	got, err := s.run(ctx, s.calls, removeScript, false, name, strconv.FormatUint(token, 10))
	if err == nil && got.str(0) != "OK" {
		err = s.unexpected("remove", got)
	}
	return err
}

// Leases implements [driver.Admin]. A lease is known by its claims, so one without any is not
// found.
func (s *Store) Leases(ctx context.Context, prefix string) (ids []string, err error) {
	lines, err := s.Lines(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, ln := range lines {
		all := ln.Waiters
		if ln.Holder != nil {
			all = append(all, *ln.Holder)
		}
		for _, st := range all {
			if strings.HasPrefix(st.Owner, prefix) {
				ids = append(ids, st.Lease)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Remaining implements [driver.LeaseViewer], to the millisecond.
func (s *Store) Remaining(ctx context.Context, leases ...string) (map[string]driver.Remaining, error) {
	all := map[string]driver.Remaining{}
	for part := range slices.Chunk(leases, 1000) {
		args := make([]any, len(part))
		for i, id := range part {
			args[i] = id
		}
		got, err := s.run(ctx, s.calls, leftScript, false, args...)
		if err != nil {
			return nil, err
		}
		for i, id := range part {
			if left := got.ms(2 + 2*i); left >= 0 {
				all[id] = driver.Remaining{Left: left, TTL: got.ms(3 + 2*i), Step: time.Millisecond}
			}
		}
	}
	return all, nil
}

// Append implements [driver.Journal].
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (
	there driver.Record, added bool, err error,
) {
	if err := driver.CheckRecord(name, r); err != nil {
		return driver.Record{}, false, err
	}
	if keep < 1 {
		err := fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
		return driver.Record{}, false, err
	}
	got, err := s.run(ctx, s.calls, appendScript, true, name, r.Key, r.Value, keep)
	if err != nil {
		return driver.Record{}, false, err
	}
	if got.num(2) == 1 {
		return r, true, nil
	}
	return driver.Record{Key: r.Key, Value: []byte(got.str(3))}, false, nil
}

// Records implements [driver.Journal].
func (s *Store) Records(ctx context.Context, name, before string, limit int) (all []driver.Record, err error) {
	if limit <= 0 {
		return nil, ctx.Err()
	}
	got, err := s.run(ctx, s.calls, recordsScript, false, name, before, limit)
	if err != nil {
		return nil, err
	}
	for i := 2; i+1 < len(got); i += 2 {
		all = append(all, driver.Record{Key: got.str(i), Value: []byte(got.str(i + 1))})
	}
	return all, nil
}

// Journals implements [driver.Journal].
func (s *Store) Journals(ctx context.Context, prefix string) ([]string, error) {
	return s.index(ctx, "journals", prefix)
}
