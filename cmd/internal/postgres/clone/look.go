package clone

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// What a marker says is under way.
const (
	byInitdb = "initdb"
	byClone  = "clone"
	byRewind = "rewind"
	byReinit = "reinit" // nothing yet: the directory is to be made anew
)

// marker says that the directory is being made.
type marker struct {
	What     string    `json:"what"`
	Began    time.Time `json:"began"`
	Dir      identity  `json:"directory"`
	SystemID string    `json:"system_id,omitempty"` // of the database system that is made; empty: not known yet
}

// identity tells a directory from another one that stands under its name later. It survives a
// restart of the machine, which the number of a device does not.
type identity struct {
	Inode uint64 `json:"inode,string"`
	Born  string `json:"born,omitempty"` // empty where the file system does not tell
}

type filesystem struct {
	ID string `json:"id"`
}

func (d *Dir) markerPath() string     { return d.folder("unfinished.json") }
func (d *Dir) filesystemPath() string { return d.folder("filesystem.json") }

// read returns nil where there is no such file. todo is what to do where it is damaged.
func read[T any](path, todo string) (*T, error) {
	var v T
	there, err := durable.ReadJSON(path, &v, todo)
	switch {
	case err != nil:
		return nil, unfit("%w", err)
	case !there:
		return nil, nil
	}
	return &v, nil
}

// marker returns nil where there is none.
func (d *Dir) marker() (*marker, error) {
	return read[marker](d.markerPath(), "if another member is the primary, empty "+d.cfg.Data+
		" and remove this file; if nobody is, remove nothing")
}

// mark writes the marker, for the directory as it is now. It is on disk when mark returns.
func (d *Dir) mark(what, systemID string) error {
	id, err := identify(d.cfg.Data)
	if err != nil {
		return err
	}
	return durable.WriteJSON(d.markerPath(), marker{what, time.Now().UTC().Truncate(time.Second), id, systemID})
}

// unmark is for a directory that is whole, and on disk.
func (d *Dir) unmark() error {
	if err := d.remember(); err != nil {
		return err
	}
	return durable.Remove(d.markerPath())
}

// whole ends a clone or a rewind. Whoever starts a server in the directory now starts a standby,
// also where it is done by hand.
func (d *Dir) whole() error {
	if err := durable.Replace(d.path("standby.signal"), nil); err != nil {
		return err
	}
	return d.unmark()
}

// filesystem returns nil where none is written down.
func (d *Dir) filesystem() (*filesystem, error) {
	return read[filesystem](d.filesystemPath(), "if the disk of "+d.cfg.Data+" is mounted, remove this file")
}

// remember writes down on which file system the directory is.
func (d *Dir) remember() error {
	id, err := filesystemOf(d.cfg.Data)
	if err != nil {
		return err
	}
	if had, err := d.filesystem(); err == nil && had != nil && had.ID == id {
		return nil
	}
	return durable.WriteJSON(d.filesystemPath(), filesystem{id})
}

// Look says what a data directory holds, as [Dir.Look] does, without the lock: another process may
// change it meanwhile. It touches nothing.
func Look(cfg Config) (core.DataState, error) {
	d, err := newDir(cfg)
	if err != nil {
		return core.DataEmpty, err
	}
	return d.look()
}

// Look says what the data directory holds. DataPartial is what bears the marker: an initdb that
// [Dir.Finish] was not called for, a clone or a rewind that did not end. Every directory that is
// neither empty nor known to be ours is an [ErrUnfit] with the reason, and so is an empty one where
// a file system seems not to be mounted.
func (d *Dir) Look() (core.DataState, error) {
	state, err := d.look()
	if err == nil && state == core.DataReady {
		err = d.remember()
	}
	return state, err
}

// Peek is [Dir.Look] that touches nothing. It may be called at any time, also while another method
// runs, and costs some reads of files.
func (d *Dir) Peek() (core.DataState, error) { return d.look() }

// Identity returns what tells the directory from another one that stands in its place later, also
// after a restart of the machine, and which database system is in it. Each is empty where it cannot
// be read. A directory that was put back from a backup by copying is another one.
func (d *Dir) Identity() (directory, systemID string) {
	systemID, _ = d.systemID()
	for _, path := range []string{d.cfg.Data, d.path("global")} {
		id, err := identify(path)
		if err != nil {
			return "", systemID
		}
		directory += fmt.Sprintf("%d@%s ", id.Inode, id.Born)
	}
	return strings.TrimSpace(directory), systemID
}

func (d *Dir) look() (core.DataState, error) {
	dir := d.cfg.Data
	m, err := d.marker()
	if err != nil {
		return core.DataEmpty, err
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return core.DataEmpty, d.missing()
	} else if err != nil {
		return core.DataEmpty, unfit("%w", err)
	}
	if !info.IsDir() {
		return core.DataEmpty, unfit("%s is no directory", dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
		return core.DataEmpty, unfit("%s belongs to user %d and we are user %d: run primacy as its owner", dir, st.Uid,
			os.Getuid())
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return core.DataEmpty, unfit("%w", err)
	case len(entries) == 0:
		return core.DataEmpty, d.mounted(dir)
	case m != nil:
		return core.DataPartial, d.marked(m)
	case len(entries) == 1 && entries[0].Name() == "lost+found":
		return core.DataEmpty, unfit("%s is the root of a file system: give a directory in it as data", dir)
	}
	return core.DataReady, d.ours(info, entries)
}

// missing is for a directory that is not there: it may be made unless its disk is missing.
func (d *Dir) missing() error {
	if target, err := os.Readlink(d.cfg.Data); err == nil {
		return unfit("%s is a link to %s, which is missing: is a disk not mounted?", d.cfg.Data, target)
	}
	parent := filepath.Dir(d.cfg.Data)
	if _, err := os.Stat(parent); err != nil {
		return unfit("%w: is a disk not mounted? If not, make %s and give it to the user that runs primacy", err,
			parent)
	}
	return d.mounted(parent)
}

// mounted refuses an empty directory, or the place for one, on another file system than the one
// where a whole directory was before: most likely that one is not mounted. A database made there
// would be hidden by the next mount, and fill a small disk.
func (d *Dir) mounted(path string) error {
	had, err := d.filesystem()
	if err != nil || had == nil {
		return err
	}
	if id, err := filesystemOf(path); err != nil {
		return unfit("%w", err)
	} else if id != had.ID {
		return unfit("%s is empty and on another file system than the database that was there: is its disk mounted? "+
			"If the disk was replaced, remove %s", d.cfg.Data, d.filesystemPath())
	}
	return nil
}

// marked says why what bears the marker is not ours to empty after all.
func (d *Dir) marked(m *marker) error {
	const way = "If its content can be deleted, empty it; if it is to be kept, remove %s"
	if id, err := identify(d.cfg.Data); err != nil {
		return unfit("%w", err)
	} else if id != m.Dir {
		return unfit("%s is not the directory in which the %s of %v did not end. "+way, d.cfg.Data, m.What,
			m.Began.Format(time.DateTime), d.markerPath())
	}
	system, ok := d.systemID()
	switch {
	case !ok: // it did not get so far
		return nil
	case m.SystemID != "" && system != m.SystemID:
		return unfit("%s holds database system %s, and the %s that did not end was of %s. "+way, d.cfg.Data, system,
			m.What, m.SystemID, d.markerPath())
	case m.SystemID == "" && born(system).Before(m.Began.Add(-time.Second)):
		return unfit("%s holds database system %s, which is older than the %s that did not end. "+way, d.cfg.Data,
			system, m.What, d.markerPath())
	}
	return nil
}

// ours says why a directory without a marker is no data directory for this server.
func (d *Dir) ours(info fs.FileInfo, entries []fs.DirEntry) error {
	dir := d.cfg.Data
	if mode := info.Mode().Perm(); mode&0o027 != 0 {
		return unfit("others can enter %s (mode %04o): chmod 0700 %[1]s", dir, mode)
	}
	text, err := os.ReadFile(d.path("PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return unfit("%s is not empty and has no PG_VERSION: it is no data directory (it holds %s)", dir, some(entries))
	} else if err != nil {
		return unfit("%w", err)
	}
	if v := strings.TrimSpace(string(text)); v != strconv.Itoa(d.major) {
		return unfit("%s is of PostgreSQL %s and %s is of %d: set bin to the programs of %[2]s", dir, v, d.cfg.Bin,
			d.major)
	}
	if _, ok := d.systemID(); !ok {
		return unfit("%s has no readable global/pg_control: its database is not whole. Restore or empty it", dir)
	}
	return nil
}

func some(entries []fs.DirEntry) string {
	var names []string
	for _, e := range entries[:min(3, len(entries))] {
		names = append(names, e.Name())
	}
	if len(entries) > len(names) {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// systemID reads the system identifier. In all versions it stands first in the control file.
func (d *Dir) systemID() (string, bool) {
	b, err := os.ReadFile(d.path("global", "pg_control"))
	if err != nil || len(b) < 8 {
		return "", false
	}
	id := binary.NativeEndian.Uint64(b)
	return strconv.FormatUint(id, 10), id != 0
}

// born returns when initdb made a database system: its identifier begins with that time.
func born(system string) time.Time {
	id, _ := strconv.ParseUint(system, 10, 64)
	return time.Unix(int64(id>>32), 0)
}

// Reinit marks a directory that is ready as one to be made anew: from now on it is DataPartial, and
// a clone deletes what it holds. Nothing of that is saved. Where the directory cannot be emptied,
// or the primary cannot be copied, nothing is changed, and the error says why: it is an [ErrUnfit],
// or of the connection.
func (d *Dir) Reinit(ctx context.Context, from Source) error {
	if state, err := d.Look(); err != nil || state != core.DataReady {
		return err
	}
	if err := d.emptiable(); err != nil {
		return err
	}
	if _, err := from.copied(ctx, d.major); err != nil {
		return err
	}
	return d.reinit()
}

func (d *Dir) reinit() error {
	system, _ := d.systemID()
	return d.mark(byReinit, system)
}

// Finish ends the [Dir.Initdb] of that database system: the directory is ready. Call it when the
// cluster's record names that system, and again after a restart: what was made by initdb is deleted
// by the next clone unless it is finished. It does nothing where no such initdb is unfinished.
func (d *Dir) Finish(systemID string) error {
	m, err := d.marker()
	if err != nil || m == nil || m.What != byInitdb || m.SystemID == "" || m.SystemID != systemID {
		return err
	}
	if err := d.marked(m); err != nil {
		return err
	}
	return d.unmark()
}

// begin makes the directory empty and marks it, for an initdb or a clone. What is deleted bears the
// marker already.
func (d *Dir) begin(what, systemID string) error {
	state, err := d.Look()
	switch {
	case err != nil:
		return err
	case state == core.DataReady:
		return unfit("%s holds a database: primacy deletes none (to make it anew: primacy postgres reinit)", d.cfg.Data)
	case state == core.DataPartial:
		if err := d.emptiable(); err != nil {
			return err
		}
	}
	if err := os.Mkdir(d.cfg.Data, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return unfit("%w", err)
	}
	if state == core.DataPartial {
		if err := d.empty(); err != nil {
			return err
		}
	}
	if err := os.Chmod(d.cfg.Data, 0o700); err != nil {
		return unfit("%w", err)
	}
	if err := durable.SyncDir(filepath.Dir(d.cfg.Data)); err != nil {
		return err
	}
	return d.mark(what, systemID)
}

// emptiable says why what bears the marker cannot be emptied.
func (d *Dir) emptiable() error {
	if pid, ok := d.busy(); ok {
		return unfit("a server runs in %s (process %d): end it first", d.cfg.Data, pid)
	}
	root, err := os.Stat(d.cfg.Data)
	if err != nil {
		return unfit("%w", err)
	}
	if target, err := os.Readlink(d.path("pg_wal")); err == nil {
		return unfit("%s is a link to %s, and primacy deletes nothing outside the data directory: empty both by hand",
			d.path("pg_wal"), target)
	}
	if links, _ := filepath.Glob(d.path("pg_tblspc", "*")); len(links) > 0 {
		return unfit("%s is a tablespace, and primacy deletes nothing outside the data directory: empty both by hand",
			links[0])
	}
	return filepath.WalkDir(d.cfg.Data+"/", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return unfit("%w", err)
		}
		if !e.IsDir() {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return unfit("%w", err)
		}
		if info.Sys().(*syscall.Stat_t).Dev != root.Sys().(*syscall.Stat_t).Dev {
			return unfit("%s is another file system, and primacy deletes nothing outside the data directory: "+
				"empty both by hand", path)
		}
		return nil
	})
}

func (d *Dir) empty() error {
	entries, err := os.ReadDir(d.cfg.Data)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(d.path(e.Name())); err != nil {
			return fmt.Errorf("empty %s: %w", d.cfg.Data, err)
		}
	}
	return durable.SyncDir(d.cfg.Data)
}

// busy returns a process that runs postgres in the directory. Each process of a server does. The
// number in postmaster.pid is not asked: it may have become that of another program.
func (d *Dir) busy() (int, bool) {
	data, err := os.Stat(d.cfg.Data)
	if err != nil {
		return 0, false
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != "postgres" {
			continue
		}
		cwd, err := os.Stat(filepath.Join(filepath.Dir(link), "cwd"))
		if err == nil && os.SameFile(cwd, data) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			return pid, err == nil
		}
	}
	return 0, false
}
