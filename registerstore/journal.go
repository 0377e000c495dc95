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
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/storeutil"
)

// shelf is a journal: all its records in one register, in the order of their keys.
type shelf struct {
	Name    text     `json:"name"`
	Records []record `json:"records"`
	Marks   []string `json:"marks,omitempty"` // of the last writes
}

type record struct {
	Key   string `json:"key"`
	Value []byte `json:"value,omitempty"`
}

func parseShelf(name string, value []byte, version string) (*shelf, error) {
	sh := &shelf{Name: text(name)}
	if version == "" {
		return sh, nil
	}
	if err := json.Unmarshal(value, sh); err != nil || sh.Name != text(name) {
		return nil, fmt.Errorf("the journal of %q cannot be read, something else has written to it (%v): %w", name, err, driver.ErrRefused)
	}
	return sh, nil
}

// find returns where the record with that key is, or where it would be.
func (sh *shelf) find(key string) (int, bool) {
	return slices.BinarySearchFunc(sh.Records, key, func(r record, key string) int { return strings.Compare(r.Key, key) })
}

// put keeps a record, in place of one with its key.
func (sh *shelf) put(r driver.Record) {
	at, there := sh.find(r.Key)
	if !there {
		sh.Records = slices.Insert(sh.Records, at, record{})
	}
	sh.Records[at] = record{r.Key, bytes.Clone(r.Value)}
}

// trim keeps the records with the largest keys: so many, and so many bytes of them.
func (sh *shelf) trim(keep, size int) {
	sh.Records = lastOf(sh.Records, keep)
	for i := len(sh.Records) - 1; i >= 0; i-- {
		if size -= len(sh.Records[i].Key) + len(sh.Records[i].Value); size < 0 {
			sh.Records = sh.Records[i+1:]
			return
		}
	}
}

// shelve changes a journal as one step: f changes it, more than once perhaps, and reports whether
// it is to be written. It is step for journals.
func (s *Store) shelve(ctx context.Context, name string, f func(sh *shelf) bool) error {
	mark, unknown, attempted := newMark(), 0, false
	what := "write the journal of " + strconv.Quote(name)
	for try := 0; ; try++ {
		sh, version, err := s.shelfOf(ctx, name)
		if err != nil {
			return err
		}
		if attempted && slices.Contains(sh.Marks, mark) || !f(sh) {
			return nil
		}
		attempted = true
		sh.Marks = lastOf(append(sh.Marks, mark), marksKept)
		text, err := json.Marshal(sh)
		if err != nil {
			return s.wrap(what, err)
		}
		_, ok, err := s.put(ctx, s.journalKey(name), text, version)
		if err == nil && ok {
			return nil
		}
		if err != nil {
			if unknown++; unknown == doubts || ctx.Err() != nil || errors.Is(err, driver.ErrRefused) {
				return s.wrap(what, err)
			}
		}
		if err := storeutil.Sleep(ctx, backoff(try)); err != nil {
			return s.wrap(what, err)
		}
	}
}

func (s *Store) shelfOf(ctx context.Context, name string) (*shelf, string, error) {
	value, version, err := s.look(ctx, s.journalKey(name))
	if err != nil {
		return nil, "", s.wrap("read the journal of "+strconv.Quote(name), err)
	}
	sh, err := parseShelf(name, value, version)
	return sh, version, err
}

// Append implements [driver.Journal]. A journal is one value: [Options.Journal] limits it, whatever
// keep says.
func (s *Store) Append(ctx context.Context, name string, r driver.Record, keep int) (there driver.Record, added bool, err error) {
	if err := driver.CheckRecord(name, r); err != nil {
		return driver.Record{}, false, err
	}
	if keep < 1 {
		return driver.Record{}, false, fmt.Errorf("keep %d records of %s: keep at least 1: %w", keep, name, driver.ErrRefused)
	}
	err = s.shelve(ctx, name, func(sh *shelf) bool {
		if at, ok := sh.find(r.Key); ok {
			there, added = driver.Record{Key: r.Key, Value: sh.Records[at].Value}, false
			return false
		}
		sh.put(r)
		sh.trim(keep, s.opts.Journal)
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
	sh, _, err := s.shelfOf(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Backward(sh.Records) {
		if len(all) < limit && (before == "" || r.Key < before) {
			all = append(all, driver.Record{Key: r.Key, Value: r.Value})
		}
	}
	return all, nil
}

// Journals implements [driver.Journal].
func (s *Store) Journals(ctx context.Context, prefix string) ([]string, error) {
	keys, err := s.reg.List(ctx, s.opts.Prefix+journals+prefixPart(prefix))
	if err != nil {
		return nil, s.wrap("list journals", err)
	}
	names := make([]string, len(keys))
	err = together(len(keys), func(i int) error {
		value, version, err := s.look(ctx, keys[i])
		if err != nil || version == "" {
			return err
		}
		if name, err := nameOf(keys[i], value); err != nil || !strings.HasPrefix(name, prefix) || s.journalKey(name) != keys[i] {
			return err
		} else if sh, err := parseShelf(name, value, version); err != nil || len(sh.Records) == 0 {
			return err
		} else {
			names[i] = name
		}
		return nil
	})
	if err != nil {
		return nil, s.wrap("list journals", err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" })
	slices.Sort(names)
	return names, nil
}

// nameOf returns the name that a value is of.
func nameOf(key string, value []byte) (string, error) {
	var named struct {
		Name text `json:"name"`
	}
	if err := json.Unmarshal(value, &named); err != nil || named.Name == "" {
		return "", fmt.Errorf("%s cannot be read, something else has written to it: %w", key, driver.ErrRefused)
	}
	return string(named.Name), nil
}

// record leaves the records of places that were given up in their journals. These are registers of
// their own, so it is another step: a process that dies between the two leaves none, and one that
// cannot be kept, or not soon, holds up nothing. It is written to the end also where the caller has
// gone.
func (l *lease) record(ctx context.Context, places ...driver.Place) error {
	by := map[string][]driver.Record{}
	for _, p := range places {
		if p.Record != nil && driver.CheckRecord(p.Journal, *p.Record) == nil {
			by[p.Journal] = append(by[p.Journal], driver.Record{Key: p.Record.Key, Value: bytes.Clone(p.Record.Value)})
		}
	}
	if len(by) == 0 {
		return nil
	}
	var names []string
	for name := range by {
		names = append(names, name)
	}
	done := make(chan struct{})
	l.s.spawnOr(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordPatience)
		defer cancel()
		_ = together(len(names), func(i int) error {
			for l.s.leaveAll(ctx, names[i], by[names[i]]) != nil && storeutil.Sleep(ctx, jitter(recordPatience/20)) == nil {
			}
			return nil
		})
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return l.s.wrap("leave a record", ctx.Err())
	}
}

// leaveAll keeps records in a journal, in place of those with their keys.
func (s *Store) leaveAll(ctx context.Context, journal string, records []driver.Record) error {
	return s.shelve(ctx, journal, func(sh *shelf) bool {
		for _, r := range records {
			sh.put(r)
		}
		sh.trim(len(sh.Records), s.opts.Journal)
		return true
	})
}

// recordPatience is how long a record of a place that was given up is tried to be kept.
const recordPatience = 5 * time.Second
