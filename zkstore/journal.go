package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/primacy-go/primacy/driver"
)

var _ driver.Journal = (*Store)(nil)

// partRecord is a record that a place leaves in the step that removes it.
type partRecord struct {
	journal string
	record  driver.Record
	exists  bool // there is one with its key, which it replaces
}

// recordOf returns what a place leaves, nil if nothing or if it cannot be kept.
func recordOf(p driver.Place) *partRecord {
	if p.Record == nil || driver.CheckRecord(p.Journal, *p.Record) != nil {
		return nil
	}
	return &partRecord{journal: p.Journal, record: *p.Record}
}

// journalPath returns the path of a journal.
func (s *Store) journalPath(name string) string { return s.at("@journal", escape(name)) }

// journalPaths returns the paths of records of a journal.
func (s *Store) journalPaths(name string, keys []string) []string {
	paths := make([]string, len(keys))
	for i, key := range keys {
		paths[i] = s.journalPath(name) + "/" + escape(key)
	}
	return paths
}

func (n *partRecord) op(s *Store) op {
	path := s.journalPath(n.journal) + "/" + escape(n.record.Key)
	if n.exists {
		return setOp(path, n.record.Value, -1)
	}
	return createOp(path, n.record.Value, s.acl, 0)
}

// learn makes of the reason why op was not done a better op. False: it cannot be kept.
func (n *partRecord) learn(ctx context.Context, t tree, err error) bool {
	switch {
	case errors.Is(err, errNodeExists) && !n.exists:
		n.exists = true
		return true
	case errors.Is(err, errNoNode) && n.exists:
		n.exists = false
		return true
	case errors.Is(err, errNoNode):
		return t.ensure(ctx, t.store.journalPath(n.journal)) == nil
	}
	return false
}

// Append keeps a record, unless there is one with its key.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	none := driver.Record{}
	if err := driver.CheckRecord(name, r); err != nil {
		return none, false, err
	}
	if keep < 1 {
		return none, false, fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	there, added := none, false
	_, err := s.begun(ctx, func(t tree) (err error) {
		there, added, err = t.append(ctx, name, r, keep)
		return err
	})
	return there, added, err
}

func (t tree) append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	none, journal := driver.Record{}, t.store.journalPath(name)
	path := journal + "/" + escape(r.Key)
	for {
		switch err := t.create(ctx, path, r.Value); {
		case err == nil:
			return r, true, t.thin(ctx, name, keep)
		case errors.Is(err, errNoNode):
			if err := t.ensure(ctx, journal); err != nil {
				return none, false, err
			}
		case errors.Is(err, errNodeExists):
			got, err := t.look(ctx, ofNode, path)
			if err != nil || got.exists {
				return driver.Record{Key: r.Key, Value: got.data}, false, err
			}
		default:
			return none, false, err
		}
	}
}

// thin removes the records of a journal beyond the keep largest, some of them now and the others
// with later ones.
func (t tree) thin(ctx context.Context, name string, keep int) error {
	keys, err := t.names(ctx, t.store.journalPath(name), "")
	if err != nil {
		return err
	}
	return t.removeAll(ctx, t.store.journalPaths(name, keys[:min(max(0, len(keys)-keep), 1000)]))
}

// Records returns the newest records of a journal, the newest first.
func (s *Store) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := t.names(ctx, s.journalPath(name), "")
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(k string) bool { return before != "" && k >= before })
	slices.Reverse(keys)
	keys = keys[:min(len(keys), max(limit, 0))]
	found, err := t.lookAll(ctx, ofNode, s.journalPaths(name, keys))
	var all []driver.Record
	for i, got := range found {
		if got.exists { // it was not removed meanwhile
			all = append(all, driver.Record{Key: keys[i], Value: got.data})
		}
	}
	return all, err
}

// Journals returns the names of journals that have records.
func (s *Store) Journals(ctx context.Context, prefix string) (all []string, err error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	names, err := t.names(ctx, s.at("@journal"), prefix)
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = s.journalPath(name)
	}
	found, err := t.lookAll(ctx, ofNode, paths)
	for i, got := range found {
		if got.exists && got.stat.children > 0 {
			all = append(all, names[i])
		}
	}
	return all, err
}
