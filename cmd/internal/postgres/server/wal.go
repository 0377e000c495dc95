package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// A timeline begins in the middle of a segment of WAL, as a rule. Its primary has a file for that
// segment which begins with a copy of what the former timeline has there, and a standby that
// follows it receives that file from its beginning. So a standby may have two files for one
// segment: a whole one of the former timeline, and the first part of one of the newer timeline.
// PostgreSQL reads the newer one only. What is in the other, and was acknowledged, is then not
// found: after a restart the WAL ends too early, and a promotion ends with PANIC.

// wal is the files of WAL and of histories in a data directory.
type wal struct{ *directory }

// ancestors reads the history of a timeline. There are none in a placeholder of skip.
func (d wal) ancestors(t core.Timeline) ([]walfile.Stretch, error) {
	text, err := os.ReadFile(d.path("pg_wal", walfile.HistoryName(t)))
	if err != nil {
		return nil, err
	}
	return walfile.Ancestors(t, string(text))
}

// newer returns the segments and histories of the timelines after t, the newest first.
func (d wal) newer(t core.Timeline) (segments, histories []walfile.File, err error) {
	all, err := walfile.List(d.path("pg_wal"))
	for _, f := range slices.Backward(all) {
		switch {
		case f.Timeline <= t:
		case f.Kind == walfile.History:
			histories = append(histories, f)
		case f.Kind == walfile.Segment:
			segments = append(segments, f)
		}
	}
	return segments, histories, err
}

// dropParts makes a server that is about to start read all WAL that it has, and follow no timeline
// of which it has nothing. Of a timeline whose first file ends before the timeline begins, that
// file is removed, or takes the place of the former timeline's if that one ends earlier still: what
// is before a timeline's beginning is the same on both, and nothing in such a part was acknowledged
// on its own timeline. A primary that is still there sends it again.
func (d wal) dropParts(ctx context.Context, c Control) error {
	segments, histories, err := d.newer(1)
	if err != nil {
		return err
	}
	// The last timeline of which there is WAL. Up to the one that the control file names the server
	// has replayed, or written.
	last := max(c.Checkpoint.Timeline, c.MinEnd.Timeline)
	written := map[core.Timeline]bool{}            // they have a history that is no placeholder, and no part
	for _, h := range slices.Backward(histories) { // the oldest first: its file may take the place of an older one
		t := h.Timeline
		former, err := d.ancestors(t)
		if err != nil {
			return err
		}
		if len(former) == 0 { // a placeholder
			continue
		}
		written[t] = true
		if t <= last {
			continue
		}
		former = slices.DeleteFunc(former, func(b walfile.Stretch) bool {
			return b.Timeline > 1 && !written[b.Timeline]
		})
		part, err := d.dropPart(ctx, t, former, c.SegSize)
		if err != nil {
			return err
		}
		ofIt := func(f walfile.File) bool { return f.Timeline == t }
		if written[t] = !part; !part && slices.ContainsFunc(segments, ofIt) {
			last = t
		}
	}
	// The histories after that were fetched from a primary that sent no WAL yet, or left by a
	// promotion that did not come about. The server would take the highest for its own timeline,
	// and hang where that is one on which nobody wrote.
	return d.remove(slices.DeleteFunc(histories, func(h walfile.File) bool { return h.Timeline <= last }))
}

// remove removes files. That is on disk when it returns.
func (d wal) remove(files []walfile.File) error {
	for _, f := range files {
		if err := os.Remove(d.path("pg_wal", f.Name)); err != nil {
			return err
		}
	}
	if len(files) == 0 {
		return nil
	}
	return durable.SyncDir(d.path("pg_wal"))
}

// dropPart is dropParts of one timeline. It says whether the timeline's first file was a part. One
// that cannot be judged stays.
func (d wal) dropPart(ctx context.Context, t core.Timeline, former []walfile.Stretch, size uint64,
) (part bool, err error) {
	if len(former) == 0 {
		return false, nil
	}
	parent := former[len(former)-1]
	shared := uint64(parent.End) % size
	first := parent.End - core.LSN(shared)
	own := d.path("pg_wal", walfile.SegmentName(t, first, size))
	if _, err := os.Stat(own); shared == 0 || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	before := "" // the file of the segment before, from which the first record here may come
	for _, b := range slices.Backward(former) {
		path := d.path("pg_wal", walfile.SegmentName(b.Timeline, first-core.LSN(size), size))
		if at, err := walfile.FirstPage(path); err == nil && at == first-core.LSN(size) {
			before = path
			break
		}
	}
	has, end := d.walEnd(ctx, own, before, first, parent.End, size)
	if end != endsEarly {
		return false, ctx.Err()
	}
	from := d.path("pg_wal", walfile.SegmentName(parent.Timeline, first, size))
	other, end := d.walEnd(ctx, from, before, first, parent.End, size)
	switch {
	case end == endUnknown && !missing(from):
		return false, ctx.Err()
	case end == reachesEnd || other >= has:
		err = os.Remove(own)
	default:
		err = os.Rename(own, from)
	}
	if err != nil {
		return false, err
	}
	return true, durable.SyncDir(d.path("pg_wal"))
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// ending is what is known of where the WAL in a file ends.
type ending int

const (
	endUnknown ending = iota // it could not be read
	endsEarly                // before where it was to
	reachesEnd
)

// What pg_waldump says where WAL ends. The LSN is that of the last record, or of the one after it.
var walEnds = regexp.MustCompile(`error in WAL record at ([0-9A-F]+/[0-9A-F]+)`)

// walEnd says whether the WAL in the file of the segment at first goes on to end, and about where
// it ends if not, 0 if it has none. The file of the segment before is for a record that began
// there.
func (d wal) walEnd(ctx context.Context, path, before string, first, end core.LSN, size uint64,
) (at core.LSN, _ ending) {
	switch at, err := walfile.FirstPage(path); {
	case err != nil:
		return 0, endUnknown
	case at != first: // it was kept for later use: it has old content, or none
		return 0, endsEarly
	}
	// pg_waldump reads the files of one timeline: here they are, under such names.
	dir, err := os.MkdirTemp("", "primacy-wal-")
	if err != nil {
		return 0, endUnknown
	}
	defer os.RemoveAll(dir)
	start, names := first, []string{walfile.SegmentName(1, first, size)}
	links := []string{path}
	if before != "" {
		start = first - core.LSN(size)
		names, links = append([]string{walfile.SegmentName(1, start, size)}, names...), []string{before, path}
	}
	for i, to := range links {
		if os.Symlink(to, filepath.Join(dir, names[i])) != nil {
			return 0, endUnknown
		}
	}
	_, err = d.output(ctx, "pg_waldump", append([]string{"-q", "-p", dir, "-t", "1", "-s", start.String(), "-e",
		end.String()}, names...)...)
	if err == nil {
		return end, reachesEnd
	}
	m := walEnds.FindStringSubmatch(err.Error())
	if m == nil {
		return 0, endUnknown
	}
	if at, err = core.ParseLSN(m[1]); err != nil || at > end {
		return 0, endUnknown
	}
	return at, endsEarly
}

// leave removes all WAL of timelines after x, where a sealed standby's own WAL ends. The startup
// process reads its last record once more when it is promoted, and would take it from a newer
// timeline's file, which may have been received only in part.
func (d wal) leave(x core.Position) error {
	segments, histories, err := d.newer(x.Timeline)
	if err != nil {
		return err
	}
	for _, h := range histories {
		former, err := d.ancestors(h.Timeline)
		if err != nil {
			return err
		}
		for _, b := range former {
			if b.Timeline == x.Timeline && b.End != x.LSN {
				return fmt.Errorf("timeline %d begins at %v, and this server, which was to follow it, has WAL up to "+
					"%v: start it again first", h.Timeline, b.End, x.LSN)
			}
		}
	}
	return d.remove(segments)
}
