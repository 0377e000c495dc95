package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/primacy-go/primacy/cmd/internal/procfs"
)

// process is what /proc tells of one.
type process struct {
	pid, parent int
	title       string // what ps shows; empty if it has no title of its own yet
}

// processes returns the processes of the server, or what a former one has left: they run postgres
// and work in the data directory. Each process of PostgreSQL does, and the shell of a person who
// looks around there does not run postgres. Those that are dead and not yet buried do not count.
func (d *directory) processes() (all []process) {
	data, err := os.Stat(d.data)
	if err != nil {
		return nil
	}
	for _, pid := range procfs.PIDs() {
		if !worksIn(pid, data) {
			continue
		}
		if p, ok := look(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

var recovering = regexp.MustCompile(`startup +recovering ([0-9A-F]{24})`)

// Recovering returns the name of the file of WAL that the server replays, or has replayed last. It
// is empty where that is not known. It needs no SQL: a server takes none before its data are
// consistent.
func (d *directory) Recovering() string {
	for _, p := range d.processes() {
		if m := recovering.FindStringSubmatch(p.title); m != nil {
			return m[1]
		}
	}
	return ""
}

// worksIn says whether a process runs postgres in that directory.
func worksIn(pid int, data os.FileInfo) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	// A postgres that was upgraded while it ran is "…/postgres (deleted)".
	if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != "postgres" {
		return false
	}
	cwd, err := os.Stat(filepath.Join(dir, "cwd"))
	return err == nil && os.SameFile(cwd, data)
}

// look reads what a process is called and who started it.
func look(pid int) (process, bool) {
	is, ok := procfs.Look(pid)
	if !ok || is.Dead() {
		return process{}, false
	}
	p := process{pid: pid, parent: is.Parent}
	cmdline, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if title, ok := strings.CutPrefix(strings.TrimRight(string(cmdline), "\x00 "), "postgres: "); ok {
		p.title = title
	}
	return p, true
}

// is says whether the process is of that kind: "startup", "walreceiver". Before the kind its title
// may have cluster_name and a colon.
func (p process) is(kind string) bool {
	rest := p.title
	for {
		if after, ok := strings.CutPrefix(rest, kind); ok && (after == "" || after[0] == ' ') {
			return true
		}
		_, after, ok := strings.Cut(rest, ": ")
		if !ok {
			return false
		}
		rest = after
	}
}

// signal sends a signal to a process of the server, and to nobody who got its number later: the
// handle is held before the process is looked at.
func (d *directory) signal(pid int, sig syscall.Signal) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer func() { _ = p.Release() }()
	data, err := os.Stat(d.data)
	return err == nil && worksIn(pid, data) && p.Signal(sig) == nil
}
