package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/primacy-go/primacy/driver"
)

var journalClauses = []Clause{
	{Name: "of many who append one key one adds it and all are told its record", Check: appendOnce},
	{Name: "an append of a key that is there changes nothing", Check: appendThere},
	{Name: "records come with the largest keys first and page by page", Check: recordsInOrder},
	{Name: "a journal never used is empty", Check: journalEmpty},
	{Name: "so many records as are to be kept are kept", Check: journalKeeps},
	{Name: "most records beyond those to be kept are removed", Check: journalForgets},
	{Name: "an append that keeps nothing is refused", Check: keepNothing},
	{Name: "a record whose key or value cannot be kept is refused", Check: recordRefused},
	{Name: "the largest record and the longest key are kept as they are", Check: recordLargest},
	{Name: "journals are listed by prefix and in order, without those that have no records", Check: journalsListed},
	{Name: "journals whose names resemble each other have their own records", Check: journalNames},
	{Name: "a journal has nothing to do with the line of its name", Check: journalNoLine},
}

// journals returns the journals of a store.
func journalsOf(t *testing.T, s driver.Store) driver.Journal {
	t.Helper()
	j, ok := s.(driver.Journal)
	need(t, ok, "a store that is a driver.Journal")
	return j
}

// add appends a record that is not there yet.
func add(t *testing.T, j driver.Journal, name, key, value string, keep int) {
	t.Helper()
	there, added, err := j.Append(soon(t), name, driver.Record{Key: key, Value: []byte(value)}, keep)
	if err != nil || !added || there.Key != key || string(there.Value) != value {
		t.Fatalf("Append of %s to %q = %q, %v, %v, want it added", key, name, there, added, err)
	}
}

// records returns all records of a journal as "key=value", the largest key first.
func records(t *testing.T, j driver.Journal, name string) (all []string) {
	t.Helper()
	got, err := j.Records(soon(t), name, "", 1000)
	if err != nil {
		t.Fatalf("Records of %q: %v", name, err)
	}
	for _, r := range got {
		all = append(all, r.Key+"="+string(r.Value))
	}
	return all
}

// want fails the test unless the journal has those records.
func wantRecords(t *testing.T, j driver.Journal, name string, want ...string) {
	t.Helper()
	if got := records(t, j, name); !slices.Equal(got, want) {
		t.Errorf("records of %q = %q, want %q", name, got, want)
	}
}

func appendOnce(t *testing.T, h Harness) {
	const many = 8
	name := unique()
	var all [many]driver.Journal
	for i := range all {
		if i%2 == 0 {
			all[i] = journalsOf(t, open(t, h))
		} else {
			all[i] = all[i-1] // and twice by the same client
		}
	}
	for _, key := range []string{"first", "second", "third"} {
		var there [many]driver.Record
		var added [many]bool
		var errs [many]error
		var done sync.WaitGroup
		ctx := soon(t)
		for i, j := range all {
			done.Go(func() {
				there[i], added[i], errs[i] = j.Append(ctx, name, driver.Record{Key: key, Value: fmt.Appendf(nil, "of %d", i)}, many)
			})
		}
		done.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatalf("Append: %v", err)
		}
		winner := slices.Index(added[:], true)
		if winner < 0 || slices.Contains(added[winner+1:], true) {
			t.Fatalf("added = %v, want it of exactly one", added)
		}
		for i, r := range there {
			if want := fmt.Sprintf("of %d", winner); r.Key != key || string(r.Value) != want {
				t.Errorf("caller %d was told %q, want %q", i, r, want)
			}
		}
	}
}

func appendThere(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	add(t, j, name, "k", "old", 9)
	value := []byte("new")
	there, added, err := j.Append(soon(t), name, driver.Record{Key: "k", Value: value}, 9)
	if err != nil || added || there.Key != "k" || string(there.Value) != "old" {
		t.Errorf("Append of a key that is there = %q, %v, %v, want the old record", there, added, err)
	}
	wantRecords(t, j, name, "k=old")
	there, added, err = j.Append(soon(t), name, driver.Record{Key: "j", Value: value}, 9)
	if err != nil || !added {
		t.Fatalf("Append = %q, %v, %v, want it added", there, added, err)
	}
	value[0] = 'X' // the caller's again
	wantRecords(t, j, name, "k=old", "j=new")
}

func recordsInOrder(t *testing.T, h Harness) {
	s := open(t, h)
	j, other, name := journalsOf(t, s), journalsOf(t, open(t, h)), unique()
	keys := []string{"+", "-", ".", "0", "00", "1", ":", "A", "Z", "_", "a", "a-", "aa", "b", "z"} // in the order of bytes
	for i := range keys {
		add(t, j, name, keys[i*7%len(keys)], "v", 100)
	}
	slices.Reverse(keys)
	for _, size := range []int{1, 4, len(keys), 100} {
		var got []string
		for before := ""; ; {
			some, err := other.Records(soon(t), name, before, size)
			if err != nil || len(some) > size {
				t.Fatalf("Records before %q, at most %d = %d records, %v", before, size, len(some), err)
			}
			if len(some) == 0 {
				break
			}
			for _, r := range some {
				got = append(got, r.Key)
			}
			before = some[len(some)-1].Key
			if len(got) > len(keys) {
				break
			}
		}
		if !slices.Equal(got, keys) {
			t.Errorf("keys, %d at a time = %q, want %q", size, got, keys)
		}
	}
	for _, before := range []string{"aa0", "b"} { // before a key that is not there, and before one that is
		some, err := other.Records(soon(t), name, before, 1)
		if err != nil || len(some) != 1 || some[0].Key != "aa" || string(some[0].Value) != "v" {
			t.Errorf("Records before %q, at most 1 = %q, %v, want aa", before, some, err)
		}
	}
	if some, err := other.Records(soon(t), name, "", 0); err != nil || len(some) > 0 {
		t.Errorf("Records, at most 0 = %q, %v, want none", some, err)
	}
}

func journalEmpty(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	wantRecords(t, j, name)
	if got, err := j.Journals(soon(t), name); err != nil || len(got) > 0 {
		t.Errorf("Journals = %q, %v, want none", got, err)
	}
}

// fill appends n records, the largest keys last, and returns them in the order of Records.
func fill(t *testing.T, j driver.Journal, name string, n, keep int) (all []string) {
	t.Helper()
	for i := range n {
		add(t, j, name, fmt.Sprintf("%03d", i), "v", keep)
		all = append(all, fmt.Sprintf("%03d=v", i))
	}
	slices.Reverse(all)
	return all
}

func journalKeeps(t *testing.T, h Harness) {
	j := journalsOf(t, open(t, h))
	for _, keep := range []int{1, 7} {
		name := unique()
		all := fill(t, j, name, 30, keep)
		add(t, j, name, "+", "the smallest of all", keep)
		for range 3 {
			if got := records(t, j, name); len(got) < keep || !slices.Equal(got[:keep], all[:keep]) {
				t.Fatalf("keep %d: the largest records are %q, want %q", keep, got, all[:keep])
			}
			pause(t.Context())
		}
	}
}

func journalForgets(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	const keep, many = 4, 40
	fill(t, j, name, many, keep)
	eventually(t, "most of the records beyond those to be kept are removed", func() bool {
		n := len(records(t, j, name))
		return n >= keep && n-keep <= (many-keep)/2
	})
}

func keepNothing(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	for _, keep := range []int{0, -1} {
		if _, added, err := j.Append(soon(t), name, driver.Record{Key: "k"}, keep); !errors.Is(err, driver.ErrRefused) || added {
			t.Errorf("Append that keeps %d = %v, %v, want ErrRefused", keep, added, err)
		}
	}
	wantRecords(t, j, name)
}

// badRecords are records that cannot be kept.
var badRecords = []driver.Record{
	{}, {Key: strings.Repeat("k", 65)}, {Key: "a/b"}, {Key: "a b"}, {Key: "ä"}, {Key: "k\x00"}, {Key: "@k"}, {Key: "%41"},
	{Key: "k", Value: make([]byte, driver.MaxRecord+1)},
}

func recordRefused(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	for _, r := range badRecords {
		if _, added, err := j.Append(soon(t), name, r, 9); !errors.Is(err, driver.ErrRefused) || added {
			t.Errorf("Append of key %q and %d bytes = %v, %v, want ErrRefused", r.Key, len(r.Value), added, err)
		}
	}
	if _, added, err := j.Append(soon(t), "", driver.Record{Key: "k"}, 9); !errors.Is(err, driver.ErrRefused) || added {
		t.Errorf("Append to a journal without a name = %v, %v, want ErrRefused", added, err)
	}
	wantRecords(t, j, name)
}

func recordLargest(t *testing.T, h Harness) {
	j, name := journalsOf(t, open(t, h)), unique()
	key, value := strings.Repeat("Zz9-.:+_", 8), bytes.Repeat([]byte{0, 0xff, '\n', '%'}, driver.MaxRecord/4)
	if _, added, err := j.Append(soon(t), name, driver.Record{Key: key, Value: value}, 9); err != nil || !added {
		t.Fatalf("Append = %v, %v, want it added", added, err)
	}
	all, err := j.Records(soon(t), name, "", 9)
	if err != nil || len(all) != 1 || all[0].Key != key || !bytes.Equal(all[0].Value, value) {
		t.Errorf("Records = %d records, %v, want the one as it was", len(all), err)
	}
}

func journalsListed(t *testing.T, h Harness) {
	j, base := journalsOf(t, open(t, h)), unique()
	names := []string{base + "/a", base + "/a b", base + "/a/", base + "/a/b", base + "/aa", base + "/ä", base + "/\xff"}
	for i := range names {
		name := names[i*3%len(names)]
		add(t, j, name, "k", "v", 3)
		add(t, j, name, "l", "v", 3)
	}
	for prefix, want := range map[string][]string{
		base: names, base + "/": names, base + "/a": names[:5], base + "/a/": names[2:4], base + "/aa": names[4:5], base + "/aab": nil,
	} {
		if got, err := j.Journals(soon(t), prefix); err != nil || !slices.Equal(got, want) {
			t.Errorf("Journals that begin with %q = %q, %v, want %q", prefix, got, err, want)
		}
	}
	all, err := j.Journals(soon(t), "")
	if err != nil || !slices.IsSorted(all) || !slices.Contains(all, names[0]) {
		t.Errorf("all Journals = %q, %v, want them in order, and among them %q", all, err, names[0])
	}
}

func journalNames(t *testing.T, h Harness) {
	j, base := journalsOf(t, open(t, h)), unique()
	names := []string{base, base + "/", base + "//", base + "/k", base + "k", base + "%2F", base + "%2Fk", base + "%", base + "@", base + "\x00", base + "\xff",
		base + "\xc3", base + "ä", base + "a\u0308", strings.ToLower(base), base + " ", base + "~", base + "/../" + base}
	for _, name := range names {
		add(t, j, name, "k", "of "+name, 3)
	}
	for _, name := range names {
		wantRecords(t, j, name, "k=of "+name)
	}
}

func journalNoLine(t *testing.T, h Harness) {
	s := open(t, h)
	j, name := journalsOf(t, s), unique()
	add(t, j, name, "k", "v", 3)
	if ln := line(t, s, name); ln.Holder != nil || len(ln.Waiters) > 0 {
		t.Errorf("the line of %q = %+v, want it empty", name, ln)
	}
	l := grant(t, s, "a")
	if p := enter(t, l, name); !p.Held {
		t.Errorf("a claim on %q = %+v, want it held", name, p)
	}
	wantRecords(t, j, name, "k=v")
	add(t, j, name+"/only a journal", "k", "v", 3)
	lines, err := s.Lines(soon(t), name)
	if err != nil || len(lines) != 1 || lines[0].Name != name || len(lines[0].Waiters) > 0 {
		t.Errorf("Lines = %+v, %v, want the one of %q with its one claim", lines, err, name)
	}
	all, err := s.Lines(soon(t), "")
	if err != nil {
		t.Errorf("Lines: %v", err)
	}
	for _, ln := range all {
		if strings.Contains(ln.Name, "only a journal") {
			t.Errorf("the journal %q is listed as a line", ln.Name)
		}
	}
}
