package memstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/primacy-go/primacy/driver"
)

// Append keeps a record, unless there is one with its key.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (there driver.Record, added bool, err error) {
	if err := driver.CheckRecord(name, r); err != nil {
		return driver.Record{}, false, err
	}
	if keep < 1 {
		return driver.Record{}, false, fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	err = s.do(ctx, "", func() error {
		if v, ok := s.journals[name][r.Key]; ok {
			there = driver.Record{Key: r.Key, Value: bytes.Clone(v)}
			return nil
		}
		s.keep(name, r)
		keys := slices.Sorted(maps.Keys(s.journals[name]))
		for _, old := range keys[:max(0, len(keys)-keep)] {
			delete(s.journals[name], old)
		}
		there, added = r, true
		return nil
	})
	return there, added, err
}

// Records returns the newest records of a journal, the newest first.
func (s *Store) Records(ctx context.Context, name, before string, limit int) (all []driver.Record, err error) {
	err = s.do(ctx, "", func() error {
		keys := slices.Sorted(maps.Keys(s.journals[name]))
		for _, key := range slices.Backward(keys) {
			if len(all) < limit && (before == "" || key < before) {
				all = append(all, driver.Record{Key: key, Value: bytes.Clone(s.journals[name][key])})
			}
		}
		return nil
	})
	return all, err
}

// Journals returns the names of journals that have records.
func (s *Store) Journals(ctx context.Context, prefix string) (names []string, err error) {
	err = s.do(ctx, "", func() error {
		for _, name := range slices.Sorted(maps.Keys(s.journals)) {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// keep keeps a record, in place of one with its key.
func (s *Store) keep(name string, r driver.Record) {
	if s.journals[name] == nil {
		s.journals[name] = map[string][]byte{}
	}
	s.journals[name][r.Key] = bytes.Clone(r.Value)
}

// leave keeps the record that a place carries, as the place is given up. One that cannot be kept
// holds up nothing.
func (s *Store) leave(p driver.Place) {
	if p.Record != nil && driver.CheckRecord(p.Journal, *p.Record) == nil {
		s.keep(p.Journal, *p.Record)
	}
}
