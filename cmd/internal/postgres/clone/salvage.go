package clone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
	"github.com/primacy-go/primacy/cmd/internal/postgres/walfile"
)

// Loss is what a rewind discarded: WAL that the primary has not. The WAL is saved, with the control
// file, so pg_waldump can show all of it.
type Loss struct {
	Dir      string        `json:"-"` // where it is saved
	At       time.Time     `json:"at"`
	SystemID string        `json:"system_id"`
	Timeline core.Timeline `json:"timeline"` // on which it begins
	From     core.LSN      `json:"from"`     // where the primary's WAL left
	Last     core.LSN      `json:"last"`     // of the last record
	Bytes    uint64        `json:"bytes,string"`
	// Commits is how many transactions were committed or prepared. List has the first of them.
	Commits int      `json:"commits"`
	List    []Commit `json:"list"`
	// Incomplete says why there may be more. Empty: there is not.
	Incomplete string `json:"incomplete,omitempty"`
}

// Commit is the record of a transaction that was committed or, for two-phase commit, prepared.
type Commit struct {
	Time     time.Time     `json:"time"` // zero: the record does not tell
	XID      uint32        `json:"xid"`
	LSN      core.LSN      `json:"lsn"`
	Timeline core.Timeline `json:"timeline"`
	Prepared bool          `json:"prepared,omitempty"` // it was not committed yet
}

// listed is how many commits a loss names.
const listed = 10_000

// Lost returns what rewinds have discarded, oldest first, from the folder beside a data directory.
func Lost(folder string) ([]Loss, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "lost", "*", "loss.json"))
	if err != nil {
		return nil, err
	}
	var all []Loss
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(filepath.Dir(path)), ".") {
			continue // not whole
		}
		l, err := read[Loss](path, "move it away")
		if err != nil {
			return nil, err
		}
		if l != nil {
			l.Dir = filepath.Dir(path)
			all = append(all, *l)
		}
	}
	slices.SortFunc(all, func(a, b Loss) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Dir, b.Dir)) })
	return all, nil
}

// segment is a file of WAL.
type segment struct {
	walfile.File
	begin, end core.LSN
}

// salvage saves what the directory has and the primary has not, and returns nil if no commit is in
// that. It is on disk when salvage returns, under its name only when it is whole.
func salvage(ctx context.Context, d *Dir, from Source, control map[string]string) (*Loss, error) {
	texts, last, err := from.histories(ctx)
	if err != nil {
		return nil, err
	}
	theirs, err := walfile.Ancestors(last, texts[last]) // timeline 1 has no text
	if err != nil {
		return nil, fmt.Errorf("the primary: %w", err)
	}
	theirs = append(theirs, walfile.Stretch{Timeline: last, Begin: endOf(theirs), End: ^core.LSN(0)})
	size, err := strconv.ParseUint(control["Bytes per WAL segment"], 10, 64)
	if err != nil || size == 0 {
		return nil, fmt.Errorf("pg_controldata says %q for the size of a WAL segment", control["Bytes per WAL segment"])
	}
	all, err := segments(d.path("pg_wal"), size)
	if err != nil {
		return nil, err
	}
	loss := &Loss{At: time.Now().UTC().Truncate(time.Second), SystemID: control["Database system identifier"],
		List: []Commit{}}
	var keep []string
	for len(all) > 0 { // timeline by timeline
		n := slices.IndexFunc(all, func(s segment) bool { return s.Timeline != all[0].Timeline })
		if n < 0 {
			n = len(all)
		}
		one := all[:n]
		all = all[n:]
		begin := leaves(d.path("pg_wal"), one, theirs)
		one = slices.DeleteFunc(slices.Clone(one), func(s segment) bool { return s.end <= begin })
		if len(one) == 0 {
			continue
		}
		read, err := loss.read(ctx, d, one, begin)
		if err != nil {
			return nil, err
		}
		if read {
			for _, s := range one {
				keep = append(keep, s.Name)
			}
		}
	}
	if loss.Commits == 0 && loss.Incomplete == "" {
		return nil, nil
	}
	return loss, loss.save(d, keep)
}

// leaves returns from where on the primary has nothing of a timeline.
func leaves(wal string, all []segment, theirs []walfile.Stretch) core.LSN {
	t, begin := all[0].Timeline, core.LSN(0)
	known := t == 1
	if text, err := os.ReadFile(filepath.Join(wal, walfile.HistoryName(t))); err == nil {
		if own, err := walfile.Ancestors(t, string(text)); err == nil && len(own) > 0 {
			begin, known = endOf(own), true
		}
	}
	for _, s := range theirs {
		if s.Timeline == t && (!known || s.Begin == begin) {
			return s.End
		}
	}
	if !known {
		return all[0].begin
	}
	return begin
}

// endOf returns where WAL ends: 0 where there is none.
func endOf(all []walfile.Stretch) core.LSN {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].End
}

// segments returns the files of WAL in the order of timelines and LSNs, without those that were
// made for later use: they have old content, or none.
func segments(wal string, size uint64) (all []segment, err error) {
	files, err := walfile.List(wal)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Kind == walfile.History {
			continue
		}
		begin := f.Begin(size)
		if at, err := walfile.FirstPage(filepath.Join(wal, f.Name)); err != nil {
			return nil, err
		} else if at == begin {
			all = append(all, segment{f, begin, begin + core.LSN(size)})
		}
	}
	return all, nil
}

// What pg_waldump says where WAL ends: after the last record there is none, or none that is whole.
var walEnds = regexp.MustCompile(`error in WAL record|could not find a valid record|could not (find|open) file`)

// read adds what a timeline has from begin on. It says whether that is any record, or may
// be.
func (l *Loss) read(ctx context.Context, d *Dir, all []segment, begin core.LSN) (bool, error) {
	t := all[0].Timeline
	records, end := 0, begin
	args := []string{"-p", d.path("pg_wal"), "-t", strconv.FormatUint(uint64(t), 10), "-s", begin.String()}
	err := d.run(ctx, program{name: "pg_waldump", args: args, out: func(line string) {
		r, ok := parseRecord(line)
		if !ok {
			return
		}
		records++
		if l.Bytes == 0 || begin < l.From {
			l.Timeline, l.From = t, begin
		}
		end = r.lsn + core.LSN(r.length)
		l.Bytes += r.length
		l.Last = r.lsn
		if r.commit != nil {
			r.commit.Timeline = t
			l.add(*r.commit)
		}
	}})
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	why, size := "", all[0].end-all[0].begin
	var failed *failure
	switch {
	case err != nil && !errors.As(err, &failed):
		return false, err
	case failed != nil && !walEnds.MatchString(failed.words):
		why = failed.Error()
	// A record that was being written when the server was killed may reach into the next file.
	case all[len(all)-1].begin >= end/size*size+2*size:
		why = fmt.Sprintf("WAL of timeline %d cannot be read from %v on", t, end)
	case records == 0 && all[0].begin > begin:
		why = fmt.Sprintf("WAL of timeline %d is missing from %v on", t, begin)
	}
	if why != "" {
		l.Incomplete = why
		if records == 0 && l.Bytes == 0 {
			l.Timeline, l.From, l.Last = t, begin, begin
		}
	}
	return records > 0 || why != "", nil
}

func (l *Loss) add(c Commit) {
	l.Commits++
	if len(l.List) < listed {
		l.List = append(l.List, c)
	}
}

// walRecord is a line of pg_waldump.
type walRecord struct {
	lsn    core.LSN
	length uint64
	commit *Commit // nil: it commits nothing
}

var (
	recordLine = regexp.MustCompile(`^rmgr: (\w+) .*?len \(rec/tot\): +\d+/ *(\d+), tx: +(\d+), ` +
		`lsn: ([0-9A-F]+/[0-9A-F]+), .*?desc: (.*)`)
	preparedXID  = regexp.MustCompile(`^COMMIT_PREPARED (\d+): (.*)`)
	preparesGID  = regexp.MustCompile(`^PREPARE gid .*?: (\d{4}-.*)`)
	plainCommit  = regexp.MustCompile(`^COMMIT (.*)`)
	timeOfCommit = regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC`)
)

func parseRecord(line string) (r walRecord, ok bool) {
	m := recordLine.FindStringSubmatch(line)
	if m == nil {
		return r, false
	}
	var err error
	if r.lsn, err = core.ParseLSN(m[4]); err != nil {
		return r, false
	}
	r.length, _ = strconv.ParseUint(m[2], 10, 64)
	if m[1] != "Transaction" {
		return r, true
	}
	xid, rest, c := m[3], "", &Commit{LSN: r.lsn}
	if x := plainCommit.FindStringSubmatch(m[5]); x != nil {
		rest = x[1]
	} else if x := preparedXID.FindStringSubmatch(m[5]); x != nil {
		xid, rest = x[1], x[2]
	} else if x := preparesGID.FindStringSubmatch(m[5]); x != nil {
		rest, c.Prepared = x[1], true
	} else {
		return r, true
	}
	n, _ := strconv.ParseUint(xid, 10, 32)
	c.XID = uint32(n)
	c.Time, _ = time.Parse("2006-01-02 15:04:05 MST", timeOfCommit.FindString(rest))
	r.commit = c
	return r, true
}

// save copies a loss, these files of WAL and all histories into a folder of its own, unless a try
// before has.
func (l *Loss) save(d *Dir, keep []string) error {
	before, err := Lost(d.cfg.Folder)
	if err != nil {
		return err
	}
	for _, b := range before {
		if b.SystemID == l.SystemID && b.Timeline == l.Timeline && b.From == l.From && b.Last == l.Last &&
			b.Bytes == l.Bytes && b.Incomplete == l.Incomplete {
			*l = b
			return nil
		}
	}
	lost, unfinished := d.folder("lost"), d.folder("lost/.unfinished")
	l.Dir = filepath.Join(lost, fmt.Sprintf("%s-%d-%s", l.At.Format("20060102T150405Z"), l.Timeline,
		strings.ReplaceAll(l.From.String(), "/", "-")))
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	wal := filepath.Join(unfinished, "pg_wal")
	if err := os.MkdirAll(wal, 0o700); err != nil {
		return err
	}
	histories, _ := filepath.Glob(d.path("pg_wal", "*.history"))
	for _, path := range histories {
		keep = append(keep, filepath.Base(path))
	}
	for _, name := range keep {
		if err := copyFile(filepath.Join(wal, name), d.path("pg_wal", name)); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(unfinished, "pg_control"), d.path("global", "pg_control")); err != nil {
		return err
	}
	err = errors.Join(durable.WriteJSON(filepath.Join(unfinished, "loss.json"), l), durable.SyncDir(wal),
		durable.SyncDir(unfinished))
	if err != nil {
		return err
	}
	if err := os.Rename(unfinished, l.Dir); err != nil {
		return err
	}
	return errors.Join(durable.SyncDir(lost), durable.SyncDir(d.cfg.Folder))
}

// copyFile makes a durable copy; its name becomes durable with its directory.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
