package walfile_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

func TestNamesOfSegments(t *testing.T) {
	for _, c := range []struct {
		timeline core.Timeline
		at       string
		size     uint64
		name     string
		begin    string
	}{
		{1, "0/1000000", 16 << 20, "000000010000000000000001", "0/1000000"},
		{3, "2/FFFFFFFF", 16 << 20, "0000000300000002000000FF", "2/FF000000"},
		{0xABCDEF01, "FFFFFFFF/1000", 16 << 20, "ABCDEF01FFFFFFFF00000000", "FFFFFFFF/0"},
		{2, "1/23456789", 1 << 20, "000000020000000100000234", "1/23400000"},
		{2, "1/23456789", 64 << 20, "000000020000000100000008", "1/20000000"},
		{2, "1/C0000000", 1 << 30, "000000020000000100000003", "1/C0000000"},
	} {
		at, err := core.ParseLSN(c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := walfile.SegmentName(c.timeline, at, c.size); got != c.name {
			t.Errorf("%s in segments of %d: %s, want %s", c.at, c.size, got, c.name)
		}
		f, ok := walfile.Parse(c.name)
		if !ok || f.Name != c.name || f.Kind != walfile.Segment || f.Timeline != c.timeline ||
			f.Begin(c.size).String() != c.begin {
			t.Errorf("%s: %+v, %v, begins at %v, want %s", c.name, f, ok, f.Begin(c.size), c.begin)
		}
	}
}

func TestWhatIsInADirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"00000002.history", "000000020000000000000003.partial", "000000020000000000000003", "0000000A.history",
		"000000010000000100000000", "0000000100000000000000FF",
		// Not these:
		"archive_status", "00000003.history.primacy", "0000000a.history", "000000010000000000000002.00000028.backup",
		"00000001000000000000001", "xlogtemp.12", "RECOVERYHISTORY", "00000001000000000000000G", "003.history",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := walfile.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range all {
		got = append(got, f.Name)
		want := walfile.Segment
		switch {
		case strings.HasSuffix(f.Name, ".partial"):
			want = walfile.Partial
		case strings.HasSuffix(f.Name, ".history"):
			want = walfile.History
			if name := walfile.HistoryName(f.Timeline); name != f.Name {
				t.Errorf("the history of timeline %d is %s, and %s was read", f.Timeline, name, f.Name)
			}
		}
		if f.Kind != want {
			t.Errorf("%s is of kind %d, want %d", f.Name, f.Kind, want)
		}
	}
	want := []string{"0000000100000000000000FF", "000000010000000100000000", "00000002.history",
		"000000020000000000000003", "000000020000000000000003.partial", "0000000A.history"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := walfile.List(filepath.Join(dir, "pg_wal")); err == nil {
		t.Error("a directory that is missing is empty")
	}
}

func TestFirstPage(t *testing.T) {
	page := binary.NativeEndian.AppendUint64([]byte{0x10, 0xD1, 7, 0, 3, 0, 0, 0}, 0x1_2300_0000)
	for _, c := range []struct {
		what string
		text []byte
		at   core.LSN
	}{
		{"a segment", append(page, "and more"...), 0x1_2300_0000},
		{"its header", page, 0x1_2300_0000},
		{"less", page[:15], 0},
		{"nothing", nil, 0},
		{"zeros", make([]byte, 8192), 0},
	} {
		path := filepath.Join(t.TempDir(), "000000030000000100000023")
		if err := os.WriteFile(path, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if at, err := walfile.FirstPage(path); err != nil || at != c.at {
			t.Errorf("%s: %v, %v, want %v", c.what, at, err, c.at)
		}
	}
	if _, err := walfile.FirstPage(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a file that is missing has a page")
	}
	if _, err := walfile.FirstPage(t.TempDir()); err == nil {
		t.Error("what cannot be read has no page")
	}
}

func TestAncestors(t *testing.T) {
	for _, c := range []struct {
		text string
		want []walfile.Stretch
	}{
		{walfile.Unused, nil},
		{"", nil},
		{"1\t0/3000000\tno recovery target specified\n\n2\tA/28\tat restore point \"#2\"\n",
			[]walfile.Stretch{{Timeline: 1, End: 0x300_0000}, {Timeline: 2, Begin: 0x300_0000, End: 0xA_0000_0028}}},
		{"# written by hand\n  # and edited\n4294967295 0/28", []walfile.Stretch{{Timeline: 1<<32 - 1, End: 0x28}}},
	} {
		if got, err := walfile.Ancestors(5, c.text); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
}

// Taken for a placeholder it would be removed, and what was written on its timeline would not be
// found.
func TestAHistoryThatIsDamaged(t *testing.T) {
	for _, line := range []string{
		"1", "1\t", "one\t0/28", "4294967296\t0/28", "-1\t0/28", "1\t28", "1\t0/x", "1 # 0/28", "1\t0/28#",
		"\x00\x00\x00",
	} {
		_, err := walfile.Ancestors(5, "# first\n1\t0/20\tx\n"+line+"\n")
		if err == nil || !strings.HasPrefix(err.Error(), "history of timeline 5: line ") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", line, err)
		}
	}
}
