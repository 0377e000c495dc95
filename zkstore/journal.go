package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

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

// journalPath returns the path of a journal, or of what lies below it.
func (s *Store) journalPath(journal string, key ...string) string {
	path := s.at("@journal", escape(journal))
	for _, k := range key {
		path += "/" + escape(k)
	}
	return path
}

func (n *partRecord) op(s *Store) any {
	path := s.journalPath(n.journal, n.record.Key)
	if n.exists {
		return &zk.SetDataRequest{Path: path, Data: n.record.Value, Version: -1}
	}
	return s.createOp(path, n.record.Value, 0)
}

// learn makes of the reason why op was not done a better op. False: it cannot be kept.
func (n *partRecord) learn(ctx context.Context, t tree, err error) bool {
	switch {
	case errors.Is(err, zk.ErrNodeExists) && !n.exists:
		n.exists = true
		return true
	case errors.Is(err, zk.ErrNoNode) && n.exists:
		n.exists = false
		return true
	case errors.Is(err, zk.ErrNoNode):
		return t.ensure(ctx, t.store.journalPath(n.journal)) == nil
	}
	return false
}

// Append keeps a record, unless there is one with its key.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (there driver.Record, added bool, err error) {
	if err := driver.CheckRecord(name, r); err != nil {
		return there, false, err
	}
	if keep < 1 {
		return there, false, fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	t, err := s.connected(ctx)
	if err != nil {
		return there, false, err
	}
	path := s.journalPath(name, r.Key)
	for {
		switch err := t.create(ctx, path, append([]byte{}, r.Value...)); {
		case err == nil:
			return r, true, t.thin(ctx, name, keep)
		case errors.Is(err, zk.ErrNoNode):
			if err := t.ensure(ctx, s.journalPath(name)); err != nil {
				return there, false, err
			}
		case errors.Is(err, zk.ErrNodeExists):
			got, err := t.look(ctx, ofNode, path)
			if err != nil || got.exists {
				return driver.Record{Key: r.Key, Value: got.data}, false, err
			}
		default:
			return there, false, err
		}
	}
}

// thin removes the records of a journal beyond the keep largest, some of them now and the others
// with later ones.
func (t tree) thin(ctx context.Context, name string, keep int) error {
	keys, err := t.names(ctx, t.store.journalPath(name), "")
	old := keys[:min(max(0, len(keys)-keep), 1000)]
	for i, key := range old {
		old[i] = t.store.journalPath(name, key)
	}
	if err != nil {
		return err
	}
	return t.removeAll(ctx, old)
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
	found := make([]*driver.Record, len(keys))
	err = parallel(len(keys), func(i int) error {
		got, err := t.look(ctx, ofNode, s.journalPath(name, keys[i]))
		if got.exists {
			found[i] = &driver.Record{Key: keys[i], Value: got.data}
		}
		return err
	})
	var all []driver.Record
	for _, r := range found {
		if r != nil { // not removed meanwhile
			all = append(all, *r)
		}
	}
	return all, err
}

// Journals returns the names of journals that have records.
func (s *Store) Journals(ctx context.Context, prefix string) ([]string, error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	names, err := t.names(ctx, s.at("@journal"), prefix)
	if err != nil {
		return nil, err
	}
	has := make([]bool, len(names))
	err = parallel(len(names), func(i int) error {
		got, err := t.look(ctx, ofNode, s.journalPath(names[i]))
		has[i] = got.exists && got.stat.NumChildren > 0
		return err
	})
	var all []string
	for i, name := range names {
		if has[i] {
			all = append(all, name)
		}
	}
	return all, err
}
