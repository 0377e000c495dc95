package etcdstore

import (
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdwire"
)

// FuzzJournalKeys: the keys of two journals are never in each other's range, nor in that of any
// line, session or heartbeat, nor taken for a claim; from a key the name comes back; and names
// are in a prefix's range exactly where they begin with it.
func FuzzJournalKeys(f *testing.F) {
	for _, pair := range [][2]string{{"a", "a/b"}, {"a", "a%2Fb"}, {"a/", "a//"}, {"terms/x", "terms/xy"},
		{"@session", "@"}, {"\xff", "\xff\xff"}, {"ä", "a\u0308"},
		{"x\x00", "x"}, {"../a", "a"}, {"@journal/a", "a"}, {"", "a"}} {
		f.Add(pair[0], pair[1], "k", "")
		f.Add(pair[0], pair[1], "2026-11-21T22:31:50+01:00", pair[0])
	}
	s := &Store{layout: layout{"primacy/"}}
	within := func(key, dir string) bool { return key >= dir && key < etcdwire.PrefixEnd(dir) }
	f.Fuzz(func(t *testing.T, a, b, key, prefix string) {
		if driver.CheckRecord(a, driver.Record{Key: key}) != nil {
			t.Skip()
		}
		full := s.journalDir(a) + key
		if !within(full, s.journalDir(a)) || !within(full, s.journalsDir()) || b != "" && within(full,
			s.journalDir(b)) != (a == b) {
			t.Errorf("the record %q of %q has the key %q, which is not in its own range, or is in that of %q", key, a,
				full, b)
		}
		if within(full, s.lineDir(b)) || within(full, s.prefix+sessions) || within(full, s.prefix+beats) ||
			s.isClaim(full) {
			t.Errorf("the key %q is a line's of %q, a session's or a claim's", full, b)
		}
		if within(full, s.prefix[:len(s.prefix)-1]+"/A") || full < s.prefix+nonLine || full >= s.prefix+nonLineEnd {
			t.Errorf("the key %q is among those of lines", full)
		}
		for _, claim := range []string{s.lineDir(b) + hex(7), slotsDir(s.lineDir(b), 3) + hex(7), s.sessionKey(7),
			askKey(s.sessionKey(7), b), s.beatKey(hex(7))} {
			if within(claim, s.journalsDir()) {
				t.Errorf("the key %q is among the journals", claim)
			}
			if line := strings.HasPrefix(claim, s.lineDir(b)); line == (claim >= s.prefix+nonLine &&
				claim < s.prefix+nonLineEnd) {
				t.Errorf("the key %q of %q is left out of the lines, or not left out", claim, b)
			}
		}
		dir, rest, _ := strings.Cut(strings.TrimPrefix(full, s.journalsDir()), "/")
		if name, ok := unescape(dir); !ok || name != a || rest != key {
			t.Errorf("from %q come %q and %q, want %q and %q", full, name, rest, a, key)
		}
		if within(full, s.journalsDir()+escape(prefix)) != strings.HasPrefix(a, prefix) {
			t.Errorf("%q is in the range of the prefix %q, or is not, against what the names are", full, prefix)
		}
		keys := []string{full, s.journalDir(a) + key + "0"}
		if !slices.IsSorted(keys) || within(keys[1], s.journalDir(b)) != (a == b) && b != "" {
			t.Errorf("keys out of order: %q", keys)
		}
	})
}
