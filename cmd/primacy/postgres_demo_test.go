//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// postgresWorld is a world in a folder that the demo's ordinary user may enter. It ends a test
// where PostgreSQL is not installed.
func postgresWorld(t *testing.T) *world {
	w := plainWorld(t)
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_rewind")
	if _, err := exec.LookPath("pg_rewind"); err != nil && len(found) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("PostgreSQL is not installed")
		}
		t.Skip("NOT TESTED: PostgreSQL is not installed: apt-get install postgresql")
	}
	dir, err := os.MkdirTemp("/tmp", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		us, err := ordinaryUser()
		if err != nil {
			t.Fatal(err)
		}
		if !us.reaches(dir) {
			t.Fatalf("user %s cannot enter %s", us.name, dir)
		}
	}
	w = w.with("TMPDIR="+dir, "PGHOST=127.0.0.1", "PGPORT=1", "PGUSER=nobody", "PGSERVICE=none", "PRIMACY_ID=x",
		"PRIMACY_STORE=etcd://127.0.0.1:1")
	w.dir = dir
	return w
}

var startedServer = regexp.MustCompile(`\[(\d+)\] LOG:  starting PostgreSQL`)

// membersIn returns the processes of PostgreSQL's members whose directories begin so, and every one
// that runs as the ordinary user: its guardians are in no directory after their server has ended.
func membersIn(w *world, dirs string) (all []string) {
	w.Helper()
	self, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range found {
		cwd, _ := os.Readlink(filepath.Join(dir, "cwd"))
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		info, err := os.Stat(dir)
		dropped := err == nil && exe == self && int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid()
		if strings.Contains(cwd+" "+string(cmdline), dirs) || dropped {
			all = append(all, fmt.Sprintf("%s in %s: %q", dir, cwd, clip(strings.TrimRight(string(cmdline), "\x00"))))
		}
	}
	return all
}

// nothingLeft checks that a demo left no file, no process and no shared memory. logs is where it
// kept its members' logs, and began when it was started.
func nothingLeft(w *world, logs string, began time.Time) {
	w.Helper()
	if found, _ := filepath.Glob(filepath.Join(w.dir, pgDemoDir+"*")); len(found) > 0 {
		w.Errorf("left behind: %q", found)
	}
	for _, p := range membersIn(w, w.dir+"/"+pgDemoDir) {
		w.Errorf("still runs: %s", p)
	}
	text := ""
	for _, name := range []string{"pg1.log", "pg2.log", "pg3.log"} {
		b, err := os.ReadFile(filepath.Join(logs, name))
		if err != nil {
			w.Error(err)
		}
		text += string(b)
	}
	var servers []string
	for _, m := range startedServer.FindAllStringSubmatch(text, -1) {
		servers = append(servers, m[1])
	}
	if len(servers) == 0 {
		w.Error("no server has ever started")
	}
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(segments)) {
		// key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime …
		f := strings.Fields(line)
		if len(f) < 14 || !slices.Contains(servers, f[4]) || f[6] != "0" {
			continue
		}
		// What is older is of a process that had the same number.
		if made, err := strconv.ParseInt(f[13], 10, 64); err != nil || made >= began.Unix() {
			w.Errorf("a server's shared memory is left: %s", line)
		}
	}
}

func TestThePostgresDemoLosesNothingAndLeavesNothing(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	w := postgresWorld(t)
	logs, began := filepath.Join(w.dir, "logs"), time.Now()
	p := w.start("postgres", "demo", "--keep", logs).within(pgDemoLimit + limit).ends(0)
	p.says("loses power", "freezes", " thaws: ", "only the agent of", "is asked to hand over", "\nlost: 0\n")
	counts := regexp.MustCompile(`(?s)\nrows acknowledged: (\d+)\n.*\non all three servers: (\d+)\n`).
		FindStringSubmatch(p.out.String())
	if counts == nil || counts[1] != counts[2] || counts[1] == "0" {
		t.Errorf("rows acknowledged, and on all three: %q", counts)
	}
	fault := regexp.MustCompile(`(?m)^(machine (lost|frozen)|agent killed|switchover) +pg\d +pg\d +\d+ +\d+ +\S+$`)
	if rows := fault.FindAllString(p.out.String(), -1); len(rows) != 4 {
		t.Errorf("the table has %d faults, want 4", len(rows))
	}
	if s := p.out.String(); strings.ContainsAny(s, "\x1b\r█") {
		t.Errorf("no terminal, and yet: %q", s)
	}
	nothingLeft(w, logs, began)
}

func TestAnInterruptedPostgresDemoLeavesNothing(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	w := postgresWorld(t)
	m := newTmux(w)
	modes := m.shell("stty -g")
	m.clears()
	logs, began := filepath.Join(w.dir, "logs"), time.Now()
	m.types("primacy postgres demo --keep "+logs, "Enter")
	m.eventually("a picture of three", func() bool {
		s := m.screen()
		return strings.Contains(s, "LAST ROW") && strings.Contains(s, "PRIMARY") && strings.Contains(s, "standby") &&
			strings.Contains(s, "pg3")
	})
	m.shows("loses power") // the killed server has removed nothing by itself
	m.shows("no row for")  // a standby was promoted
	m.types("", "C-c")
	if got := m.status(); got != 130 {
		t.Errorf("exit %d after ^C", got)
	}
	if s := m.screen(); strings.Contains(s, "LAST ROW") || !strings.Contains(s, "the demo was interrupted") {
		t.Errorf("the screen after ^C:\n%s", s)
	}
	if got := m.shell("stty -g"); got != modes {
		t.Errorf("the terminal's modes are %s, were %s", got, modes)
	}
	nothingLeft(w, logs, began)
}

func TestThePostgresDemoSaysWhatIsMissing(t *testing.T) {
	w := postgresWorld(t)
	empty := filepath.Join(w.dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	w.start("postgres", "demo", "--bin", empty).ends(exitUsage).inOneLine().complains("postgres is not in "+empty,
		"install PostgreSQL's server package")
	w.start("postgres", "demo", "--ttl", "20s").ends(exitUsage).inOneLine().complains("--ttl 20s: use 300ms to 10s")
	w.start("postgres", "demo", "surplus").ends(exitUsage).inOneLine()
	if found, _ := filepath.Glob(filepath.Join(w.dir, pgDemoDir+"*")); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
}

// TestADemoKeepsNoFileOfOthers: root copies the logs out of a directory of an ordinary user, who
// may have put there what he cannot read himself.
func TestADemoKeepsNoFileOfOthers(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "shadow")
	for path, text := range map[string]string{outside: "secret", filepath.Join(dir, "pg1.log"): "ours"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link.log")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int][]string{os.Geteuid(): {"pg1.log"}, os.Geteuid() + 1: nil} {
		o := postgresDemoOptions{keep: t.TempDir()}
		err := o.keepLogs(dir, uid)
		var kept []string
		for _, path := range given(t, o.keep)[1:] {
			kept = append(kept, filepath.Base(path))
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", path, info, err)
			}
		}
		if err == nil || !slices.Equal(kept, want) {
			t.Errorf("of user %d %q was kept, want %q; it says %v", uid, kept, want, err)
		}
	}
}
