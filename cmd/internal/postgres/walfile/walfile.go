// Package walfile knows the files in pg_wal: their names, where the first page of a segment begins,
// and what the history of a timeline says.
//
//	00000003000000010000002A           a segment of WAL: timeline, and where it begins
//	00000003000000010000002A.partial   the last segment of a timeline whose server was promoted
//	00000003.history                   the ancestors of a timeline
package walfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
)

// Kind is what a file is.
type Kind int

const (
	Segment Kind = iota // of WAL
	Partial             // a segment that PostgreSQL has set aside, and does not read
	History             // of a timeline
)

// File is what the name of a file says.
type File struct {
	Name     string
	Kind     Kind
	Timeline core.Timeline
	high     uint64 // of the LSN at which a segment begins: its upper 32 bits
	nth      uint64 // which segment it is of those with the same upper 32 bits
}

// Begin returns where a segment of that size begins, in bytes.
func (f File) Begin(size uint64) core.LSN { return core.LSN(f.high<<32 + f.nth*size) }

// SegmentName returns the name of the segment in which an LSN lies, for segments of that size.
func SegmentName(t core.Timeline, at core.LSN, size uint64) string {
	n, each := uint64(at)/size, uint64(1)<<32/size
	return fmt.Sprintf("%08X%08X%08X", uint32(t), n/each, n%each)
}

// HistoryName returns the name of a timeline's history.
func HistoryName(t core.Timeline) string { return fmt.Sprintf("%08X.history", uint32(t)) }

// names has a match for each name of a segment or history. PostgreSQL writes capital letters only.
var names = regexp.MustCompile(`^([0-9A-F]{8})(?:([0-9A-F]{8})([0-9A-F]{8})(\.partial)?|\.history)$`)

// Parse reads a name. It says whether it is that of a segment or a history.
func Parse(name string) (File, bool) {
	m := names.FindStringSubmatch(name)
	if m == nil {
		return File{}, false
	}
	number := func(hex string) uint64 {
		n, _ := strconv.ParseUint(hex, 16, 32)
		return n
	}
	f := File{Name: name, Timeline: core.Timeline(number(m[1])), high: number(m[2]), nth: number(m[3])}
	switch {
	case m[2] == "":
		f.Kind = History
	case m[4] != "":
		f.Kind = Partial
	}
	return f, true
}

// List returns the segments and histories in a directory by their names: by timeline, and those of
// WAL by where they begin.
func List(dir string) (all []File, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if f, ok := Parse(e.Name()); ok {
			all = append(all, f)
		}
	}
	return all, err
}

// FirstPage returns where the first page of a segment begins, as it says itself. That is not where
// the name says while a file is kept for later use: it has old content then, or none, which is 0.
func FirstPage(path string) (core.LSN, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var header [16]byte // magic, flags: 2 bytes each; timeline: 4; LSN: 8
	_, err = io.ReadFull(f, header[:])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return core.LSN(binary.NativeEndian.Uint64(header[8:])), nil
}

// Unused is the history of a timeline on which nobody ever wrote.
const Unused = "# primacy: timeline never used\n"

// Stretch is a part of the WAL that a server has: what lies on one timeline.
type Stretch struct {
	Timeline   core.Timeline
	Begin, End core.LSN
}

// Ancestors reads the history of a timeline: the WAL that lies before its beginning, the oldest
// first. There is none in [Unused].
func Ancestors(t core.Timeline, text string) (all []Stretch, err error) {
	begin := core.LSN(0)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		former, err := strconv.ParseUint(fields[0], 10, 32)
		end, errEnd := core.ParseLSN(append(fields, "")[1])
		if err != nil || errEnd != nil {
			return nil, fmt.Errorf("history of timeline %d: line %q: want the number of a timeline, and the LSN where "+
				"it ends: copy the file from another member", t, strings.TrimSpace(line))
		}
		all = append(all, Stretch{core.Timeline(former), begin, end})
		begin = end
	}
	return all, nil
}
