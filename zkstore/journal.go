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

// note is a record that a place leaves in the step that removes it.
type note struct {
	journal string
	record  driver.Record
	exists  bool // there is one with its key, which it replaces
}

// note returns what a place leaves, nil if nothing or if it cannot be kept.
func (s *Store) note(p driver.Place) *note {
	if p.Record == nil || driver.CheckRecord(p.Journal, *p.Record) != nil {
		return nil
	}
	return &note{journal: p.Journal, record: *p.Record}
}

func (s *Store) journalPath(journal, key string) string {
	return s.at("@journal", escape(journal), escape(key))
}

func (n *note) op(s *Store) any {
	path := s.journalPath(n.journal, n.record.Key)
	if n.exists {
		return &zk.SetDataRequest{Path: path, Data: n.record.Value, Version: -1}
	}
	return s.node(path, n.record.Value, 0)
}

// learn makes of the reason why op was not done a better op. False: it cannot be kept.
func (n *note) learn(ctx context.Context, l *lease, err error) bool {
	switch {
	case errors.Is(err, zk.ErrNodeExists) && !n.exists:
		n.exists = true
		return true
	case errors.Is(err, zk.ErrNoNode) && n.exists:
		n.exists = false
		return true
	case errors.Is(err, zk.ErrNoNode):
		return l.store.ensure(ctx, l.link, l.store.at("@journal", escape(n.journal))) == nil
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
	l, err := s.main(ctx)
	if err != nil {
		return there, false, err
	}
	path := s.journalPath(name, r.Key)
	for {
		_, err := call(ctx, l, func(c *zk.Conn) (string, error) { return c.Create(path, append([]byte{}, r.Value...), 0, s.acl) })
		switch {
		case err == nil:
			return r, true, s.thin(ctx, l, name, keep)
		case errors.Is(err, zk.ErrNoNode):
			if err := s.ensure(ctx, l, s.at("@journal", escape(name))); err != nil {
				return there, false, err
			}
		case errors.Is(err, zk.ErrNodeExists):
			got, _, err := l.look(ctx, ofNode, path, false)
			if err != nil || got.exists {
				return driver.Record{Key: r.Key, Value: got.data}, false, err
			}
		default:
			return there, false, err
		}
	}
}

// thin removes the records of a journal beyond the keep largest, some of them now and the others with later ones.
func (s *Store) thin(ctx context.Context, l *link, name string, keep int) error {
	keys, err := s.names(ctx, l, s.at("@journal", escape(name)), "")
	if err != nil {
		return err
	}
	old := keys[:max(0, len(keys)-keep)]
	old = old[:min(len(old), 1000)]
	return each(len(old), func(i int) error { return s.remove(ctx, l, s.journalPath(name, old[i])) })
}

// Records returns the newest records of a journal, the newest first.
func (s *Store) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	keys, err := s.names(ctx, l, s.at("@journal", escape(name)), "")
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(k string) bool { return before != "" && k >= before })
	slices.Reverse(keys)
	keys = keys[:min(len(keys), max(limit, 0))]
	found := make([]*driver.Record, len(keys))
	err = each(len(keys), func(i int) error {
		got, _, err := l.look(ctx, ofNode, s.journalPath(name, keys[i]), false)
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
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	names, err := s.names(ctx, l, s.at("@journal"), prefix)
	if err != nil {
		return nil, err
	}
	has := make([]bool, len(names))
	err = each(len(names), func(i int) error {
		got, _, err := l.look(ctx, ofNode, s.at("@journal", escape(names[i])), false)
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
