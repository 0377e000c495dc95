package registerstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// journalDocument is a journal, which is one value: all its records, in the order of their keys.
type journalDocument struct {
	Name    text     `json:"name"`
	Records []record `json:"records"`
	Marks   []string `json:"marks,omitempty"` // of the last writes
}

type record struct {
	Key   string `json:"key"`
	Value []byte `json:"value,omitempty"`
}

func parseJournal(name string, value []byte, version string) (*journalDocument, error) {
	d := &journalDocument{Name: text(name)}
	if version == "" {
		return d, nil
	}
	if err := json.Unmarshal(value, d); err != nil || d.Name != text(name) {
		return nil, fmt.Errorf("the journal of %q cannot be read, something else has written to it (%v): %w",
			name, err, driver.ErrRefused)
	}
	return d, nil
}

// find returns where the record with that key is, or where it would be.
func (d *journalDocument) find(key string) (int, bool) {
	return slices.BinarySearchFunc(d.Records, key, func(r record, k string) int { return strings.Compare(r.Key, k) })
}

// put keeps a record, in place of one with its key.
func (d *journalDocument) put(r driver.Record) {
	at, there := d.find(r.Key)
	if !there {
		d.Records = slices.Insert(d.Records, at, record{})
	}
	d.Records[at] = record{r.Key, bytes.Clone(r.Value)}
}

// trim keeps the records with the largest keys: so many, and so many bytes of them.
func (d *journalDocument) trim(keep, size int) {
	d.Records = lastOf(d.Records, keep)
	for i := len(d.Records) - 1; i >= 0; i-- {
		if size -= len(d.Records[i].Key) + len(d.Records[i].Value); size < 0 {
			d.Records = d.Records[i+1:]
			return
		}
	}
}

// change changes a journal as one step: f changes it, more than once perhaps, and reports whether
// it is to be written.
func (s *Store) change(ctx context.Context, name string, f func(d *journalDocument) bool) error {
	mark, unknown, attempted := newMark(), 0, false
	what := "write the journal of " + strconv.Quote(name)
	for try := 0; ; try++ {
		d, version, err := s.load(ctx, name)
		if err != nil {
			return err
		}
		if attempted && slices.Contains(d.Marks, mark) || !f(d) {
			return nil
		}
		attempted = true
		d.Marks = lastOf(append(d.Marks, mark), marksKept)
		_, ok, err := s.put(ctx, s.journalKey(name), stored(d), version)
		if err == nil && ok {
			return nil
		}
		if err != nil {
			if unknown++; unknown == maxFailures || ctx.Err() != nil || errors.Is(err, driver.ErrRefused) {
				return s.wrap(what, err)
			}
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return s.wrap(what, err)
		}
	}
}

func (s *Store) load(ctx context.Context, name string) (*journalDocument, string, error) {
	value, version, err := s.look(ctx, s.journalKey(name))
	if err != nil {
		return nil, "", s.wrap("read the journal of "+strconv.Quote(name), err)
	}
	d, err := parseJournal(name, value, version)
	return d, version, err
}

// Append implements [driver.Journal]. A journal is one value: [Options.Journal] limits it, whatever
// keep says.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (
	there driver.Record, added bool, err error,
) {
	if err := driver.CheckRecord(name, r); err != nil {
		return there, false, err
	}
	if keep < 1 {
		return there, false, fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	err = s.change(ctx, name, func(d *journalDocument) bool {
		if at, ok := d.find(r.Key); ok {
			there, added = driver.Record{Key: r.Key, Value: d.Records[at].Value}, false
			return false
		}
		d.put(r)
		d.trim(keep, s.opts.Journal)
		there, added = driver.Record{Key: r.Key, Value: bytes.Clone(r.Value)}, true
		return true
	})
	if err != nil {
		return driver.Record{}, false, err
	}
	return there, added, nil
}

// Records implements [driver.Journal].
func (s *Store) Records(ctx context.Context, name, before string, limit int) (all []driver.Record, err error) {
	d, _, err := s.load(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Backward(d.Records) {
		if len(all) < limit && (before == "" || r.Key < before) {
			all = append(all, driver.Record(r))
		}
	}
	return all, nil
}

// Journals implements [driver.Journal].
func (s *Store) Journals(ctx context.Context, prefix string) (names []string, err error) {
	var mu sync.Mutex
	err = s.each(ctx, journals, prefix, func(name string, value []byte, version string) error {
		d, err := parseJournal(name, value, version)
		if err == nil && len(d.Records) > 0 {
			mu.Lock()
			defer mu.Unlock()
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return nil, s.wrap("list journals", err)
	}
	slices.Sort(names)
	return names, nil
}

// leaveAll keeps records in a journal, in place of those with their keys.
func (s *Store) leaveAll(ctx context.Context, journal string, records []driver.Record) error {
	return s.change(ctx, journal, func(d *journalDocument) bool {
		for _, r := range records {
			d.put(r)
		}
		d.trim(len(d.Records), s.opts.Journal)
		return true
	})
}
