package drivertest_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/memstore"
)

// keeping returns a cheat in the journals of a store.
func keeping(cheat func(s *memstore.Store) driver.Journal) func(*memstore.Store) driver.Store {
	return func(s *memstore.Store) driver.Store { return keeps{s, cheat(s)} }
}

// keeps is a store with other journals than its own.
type keeps struct {
	driver.Store
	driver.Journal
}

// giving returns a cheat in the leases of a store with journals.
func giving(cheat func(s *memstore.Store, l driver.Lease) driver.Lease) func(*memstore.Store) driver.Store {
	return func(s *memstore.Store) driver.Store {
		return keeps{brokenStore{s, func(l driver.Lease) driver.Lease { return cheat(s, l) }}, s}
	}
}

var journalBreaks = []broken{
	{name: "adds for everybody", clause: "of many who append one key one adds it and all are told its record",
		store: keeping(func(s *memstore.Store) driver.Journal { return addsForAll{s} })},
	{name: "tells what was brought", clause: "an append of a key that is there changes nothing",
		store: keeping(func(s *memstore.Store) driver.Journal { return tellsBrought{s} })},
	{name: "reads from the beginning", clause: "records come with the largest keys first and page by page",
		store: keeping(func(s *memstore.Store) driver.Journal { return backwards{s} })},
	{name: "misses journals", clause: "a journal never used is empty",
		store: keeping(func(s *memstore.Store) driver.Journal { return missesEmpty{s} })},
	{name: "keeps one less", clause: "so many records as are to be kept are kept",
		store: keeping(func(s *memstore.Store) driver.Journal { return keepsOther{s, func(n int) int { return max(1, n-1) }} })},
	{name: "keeps all", clause: "most records beyond those to be kept are removed",
		store: keeping(func(s *memstore.Store) driver.Journal { return keepsOther{s, func(n int) int { return n * 1000 }} })},
	{name: "keeps one at least", clause: "an append that keeps nothing is refused",
		store: keeping(func(s *memstore.Store) driver.Journal { return keepsOther{s, func(n int) int { return max(1, n) }} })},
	{name: "takes every record", clause: "a record whose key or value cannot be kept is refused",
		store: keeping(func(s *memstore.Store) driver.Journal { return takesAll{s} })},
	{name: "cuts values off", clause: "the largest record and the longest key are kept as they are",
		store: keeping(func(s *memstore.Store) driver.Journal { return cutsOff{s} })},
	{name: "lists all journals", clause: "journals are listed by prefix and in order, without those that have no records",
		store: keeping(func(s *memstore.Store) driver.Journal { return allJournals{s} })},
	{name: "knows no capitals", clause: "journals whose names resemble each other have their own records",
		store: keeping(func(s *memstore.Store) driver.Journal { return small{s} })},
	{name: "shows journals as lines", clause: "a journal has nothing to do with the line of its name",
		store: func(s *memstore.Store) driver.Store { return journalLines{s} }},
	{name: "leaves no records", clause: "a release leaves its record where it removed the place",
		store: giving(func(_ *memstore.Store, l driver.Lease) driver.Lease {
			return leaves{l, func(int, driver.Place) bool { return false }}
		})},
	{name: "appends the record", clause: "a release leaves its record in place of one with its key",
		store: giving(func(s *memstore.Store, l driver.Lease) driver.Lease { return appendsAfter{l, s} })},
	{name: "leaves records of what is gone", clause: "a release of what is gone or of another's leaves no record",
		store: giving(func(s *memstore.Store, l driver.Lease) driver.Lease { return appendsAfter{l, s} })},
	{name: "leaves records of known tokens only", clause: "a place without a token leaves its record too",
		store: giving(func(_ *memstore.Store, l driver.Lease) driver.Lease {
			return leaves{l, func(_ int, p driver.Place) bool { return p.Token != 0 }}
		})},
	{name: "leaves the first record", clause: "each of many places that are released together leaves its record",
		store: giving(func(_ *memstore.Store, l driver.Lease) driver.Lease {
			return leaves{l, func(i int, _ driver.Place) bool { return i == 0 }}
		})},
	{name: "transfers without the record", clause: "a transfer leaves the record of the place it gave up and none where it gave up none",
		store: giving(func(_ *memstore.Store, l driver.Lease) driver.Lease { return transfersBare{l} })},
	{name: "stays for want of a record", clause: "a record that cannot be kept keeps no place from being given up",
		store: giving(func(_ *memstore.Store, l driver.Lease) driver.Lease { return staysFor{l} })},
	{name: "forgets with the lease", clause: "records outlive the lease that was used beside them",
		store: func(s *memstore.Store) driver.Store {
			return keeps{brokenStore{s, func(l driver.Lease) driver.Lease { return closing{l, s} }}, forgetful{s}}
		}},
	{name: "repeats without the record", clause: "a release whose answer was cut off has left its record once it is repeated",
		store: func(s *memstore.Store) driver.Store { return s },
		lease: func(l driver.Lease) driver.Lease {
			return leaves{l, func(int, driver.Place) bool { return false }}
		}},
}

type addsForAll struct{ *memstore.Store }

func (s addsForAll) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	there, _, err := s.Store.Append(ctx, name, r, keep)
	return there, true, err
}

type tellsBrought struct{ *memstore.Store }

func (s tellsBrought) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	_, added, err := s.Store.Append(ctx, name, r, keep)
	return r, added, err
}

type backwards struct{ *memstore.Store }

func (s backwards) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	all, err := s.Store.Records(ctx, name, before, 1<<30)
	slices.Reverse(all)
	return all[:min(limit, len(all))], err
}

type missesEmpty struct{ *memstore.Store }

func (s missesEmpty) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	all, err := s.Store.Records(ctx, name, before, limit)
	if err == nil && len(all) == 0 {
		err = errors.New("no such journal")
	}
	return all, err
}

type keepsOther struct {
	*memstore.Store
	n func(int) int
}

func (s keepsOther) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	return s.Store.Append(ctx, name, r, s.n(keep))
}

type takesAll struct{ *memstore.Store }

func (s takesAll) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	there, added, err := s.Store.Append(ctx, name, r, keep)
	if errors.Is(err, driver.ErrRefused) {
		return r, true, nil
	}
	return there, added, err
}

type cutsOff struct{ *memstore.Store }

func (s cutsOff) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	all, err := s.Store.Records(ctx, name, before, limit)
	for i := range all {
		all[i].Value, _, _ = bytes.Cut(all[i].Value, []byte{0})
	}
	return all, err
}

type allJournals struct{ *memstore.Store }

func (s allJournals) Journals(ctx context.Context, _ string) ([]string, error) {
	return s.Store.Journals(ctx, "")
}

type small struct{ *memstore.Store }

func (s small) Append(ctx context.Context, name string, r driver.Record, keep int) (driver.Record, bool, error) {
	_, _, err := s.Store.Append(ctx, strings.ToLower(name), r, keep)
	return r, true, err
}

func (s small) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	return s.Store.Records(ctx, strings.ToLower(name), before, limit)
}

type journalLines struct{ *memstore.Store }

func (s journalLines) Lines(ctx context.Context, prefix string) ([]driver.Line, error) {
	lines, err := s.Store.Lines(ctx, prefix)
	names, _ := s.Journals(ctx, prefix)
	for _, name := range names {
		lines = append(lines, driver.Line{Name: name})
	}
	return lines, err
}

// leaves takes the records off those places that it does not want.
type leaves struct {
	driver.Lease
	want func(i int, p driver.Place) bool
}

func (l leaves) Release(ctx context.Context, places ...driver.Place) error {
	for i := range places {
		if !l.want(i, places[i]) {
			places[i].Record = nil
		}
	}
	return l.Lease.Release(ctx, places...)
}

// appendsAfter appends records by itself.
type appendsAfter struct {
	driver.Lease
	s *memstore.Store
}

func (l appendsAfter) Release(ctx context.Context, places ...driver.Place) error {
	for _, p := range places {
		if p.Record != nil {
			_, _, _ = l.s.Append(ctx, p.Journal, *p.Record, 1000)
		}
	}
	return leaves{l.Lease, func(int, driver.Place) bool { return false }}.Release(ctx, places...)
}

type transfersBare struct{ driver.Lease }

func (l transfersBare) Transfer(ctx context.Context, p driver.Place, successor uint64) error {
	p.Record = nil
	return l.Lease.(driver.Transferer).Transfer(ctx, p, successor)
}

type staysFor struct{ driver.Lease }

func (l staysFor) Release(ctx context.Context, places ...driver.Place) error {
	for _, p := range places {
		if p.Record == nil || len(p.Record.Key) != 0 {
			if err := l.Lease.Release(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetful loses all records when a lease is closed.
type forgetful struct{ *memstore.Store }

// lost holds the stores of which a lease was closed.
var lost sync.Map

func (s forgetful) Records(ctx context.Context, name, before string, limit int) ([]driver.Record, error) {
	if _, all := lost.Load(s.Store); all {
		return nil, nil
	}
	return s.Store.Records(ctx, name, before, limit)
}

type closing struct {
	driver.Lease
	s *memstore.Store
}

func (l closing) Close(ctx context.Context) error {
	lost.Store(l.s, true)
	return l.Lease.Close(ctx)
}
