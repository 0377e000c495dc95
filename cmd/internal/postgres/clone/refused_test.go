package clone

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/durable"
)

// Each of these directories could be somebody's data. All that makes a directory is tried on it,
// and nothing changes.
func TestNothingOfOthersIsTouched(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		make         func(n *node) // from one with a database, without a marker
		looks        bool          // Look refuses it too
		runs         bool          // it takes a database that can run
	}{
		{"a database", "holds a database", func(*node) {}, false, false},
		{"files", "has no PG_VERSION", func(n *node) {
			n.emptied()
			write(n.t, n.path("thesis.txt"), "my only copy")
		}, true, false},
		{"an incomplete database", "no readable global/pg_control", func(n *node) {
			check(n.t, os.Remove(n.path("global", "pg_control")))
		}, true, false},
		{"another major release", "is of PostgreSQL 9", func(n *node) {
			write(n.t, n.path("PG_VERSION"), "9\n")
		}, true, false},
		{"others can enter", "chmod 0700", func(n *node) { check(n.t, os.Chmod(n.cfg.Data, 0o755)) }, true, false},
		{"a file", "is no directory", func(n *node) {
			check(n.t, os.RemoveAll(n.cfg.Data))
			write(n.t, n.cfg.Data, "something")
		}, true, false},
		{"the root of a file system", "is the root of a file system", func(n *node) {
			n.emptied()
			check(n.t, os.Mkdir(n.path("lost+found"), 0o700))
		}, true, false},
		{"a link to nothing", "is a disk not mounted?", func(n *node) {
			check(n.t, errors.Join(os.Rename(n.cfg.Data, n.home+"/other"), os.Symlink(n.home+"/away", n.cfg.Data)))
		}, true, false},
		{"another owner", "belongs to user 0", func(n *node) {
			cfg := n.cfg
			cfg.Data = "/usr/lib"
			check(n.t, n.Close())
			n.open(cfg)
		}, true, false},
		{"a marker that cannot be read", "is damaged", func(n *node) {
			write(n.t, n.markerPath(), "{")
		}, true, false},
		{"another directory under the marker", "is not the directory in which", func(n *node) {
			check(n.t, n.reinit())
			check(n.t, os.Rename(n.cfg.Data, n.home+"/other"))
			copyTree(n.t, n.cfg.Data, n.home+"/other")
		}, true, false},
		{"another database under the marker", "and the reinit that did not end was of", func(n *node) {
			check(n.t, n.reinit())
			f, err := os.OpenFile(n.path("global", "pg_control"), os.O_RDWR, 0)
			check(n.t, err)
			_, err = f.WriteAt([]byte("8 bytes!"), 0)
			check(n.t, errors.Join(err, f.Close()))
		}, true, false},
		{"an older database under the marker of an initdb", "which is older than the initdb", func(n *node) {
			check(n.t, n.mark(byInitdb, ""))
			m, err := n.marker()
			check(n.t, err)
			m.Began = m.Began.Add(time.Hour)
			check(n.t, durable.WriteJSON(n.markerPath(), m))
		}, true, false},
		{"WAL elsewhere", "is a link to", func(n *node) {
			check(n.t, n.reinit())
			check(n.t, os.Rename(n.path("pg_wal"), n.home+"/wal"))
			check(n.t, os.Symlink(n.home+"/wal", n.path("pg_wal")))
		}, false, false},
		{"a tablespace", "is a tablespace", func(n *node) {
			check(n.t, n.reinit())
			check(n.t, os.Mkdir(n.home+"/space", 0o700))
			check(n.t, os.Symlink(n.home+"/space", n.path("pg_tblspc", "16384")))
		}, false, false},
		{"a server runs", "a server runs in", func(n *node) {
			n.start()
			n.sql("CREATE TABLE mine ()")
			check(n.t, n.reinit())
		}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if c.runs {
				n = filled(t)
			} else {
				n.sketch()
			}
			c.make(n)
			before := tree(t, n.home)
			ctx := t.Context()
			nobody := Source{Conninfo: "host=" + n.home + " port=1"}
			state, err := n.Look()
			if c.looks && (!errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), c.reason)) {
				t.Errorf("it looks %v, %v", state, err)
			} else if !c.looks && err != nil {
				t.Error(err)
			}
			if _, err := n.Initdb(ctx); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("initdb: %v", err)
			}
			if err := n.begin(byClone, "1"); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("clone: %v", err)
			}
			if err := n.Clone(ctx, nobody, nil); err == nil {
				t.Error("clone: no error")
			}
			if _, err := n.Rewind(ctx, nobody, nil); err == nil {
				t.Error("rewind: no error")
			}
			if err := n.Finish("1"); err != nil && c.reason != "is damaged" {
				t.Error(err)
			}
			if !c.runs {
				same(t, before, tree(t, n.home))
				return
			}
			n.stop(syscall.SIGINT)
			n.start()
			if got := n.sql("SELECT count(*) FROM pg_class WHERE relname = 'mine'"); got != "1" {
				t.Errorf("the table is gone: %s", got)
			}
		})
	}
}

// sketch makes what has all the looks of a database.
func (n *node) sketch() {
	n.t.Helper()
	for _, dir := range []string{"", "base/1", "global", "pg_wal", "pg_tblspc"} {
		check(n.t, os.MkdirAll(n.path(dir), 0o700))
	}
	id := binary.NativeEndian.AppendUint64(nil, uint64(time.Now().Unix())<<32|1)
	write(n.t, n.path("global", "pg_control"), string(id)+"and more")
	write(n.t, n.path("PG_VERSION"), strconv.Itoa(n.major)+"\n")
	write(n.t, n.path("base", "1", "2619"), "rows")
	write(n.t, n.path("pg_wal", "000000010000000000000001"), "the last commits")
	n.looks(core.DataReady)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for path, was := range before {
		if is, ok := after[path]; !ok || is != was {
			t.Errorf("%s is gone or changed", path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s is new", path)
		}
	}
}

// emptied empties the directory by hand.
func (n *node) emptied() {
	n.t.Helper()
	check(n.t, n.empty())
}

func TestAMissingDiskIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.sketch()
	disk, err := os.MkdirTemp("/dev/shm", "pgclone-")
	if err != nil {
		t.Skip("it needs a second file system:", err)
	}
	t.Cleanup(func() { os.RemoveAll(disk) })
	one, err := filesystemOf(disk)
	check(t, err)
	if other, err := filesystemOf(n.home); err != nil || one == other {
		t.Skip("it needs a second file system", err)
	}
	// On the same file system an empty directory is one that somebody emptied.
	n.emptied()
	n.looks(core.DataEmpty)
	check(t, os.Remove(n.cfg.Data))
	n.looks(core.DataEmpty)
	// The link stands for a mount point: an empty directory of another file system is there now.
	check(t, os.Symlink(disk, n.cfg.Data))
	refused := func(reason string) {
		t.Helper()
		before := tree(t, n.home)
		_, err := n.Look()
		_, err2 := n.Initdb(t.Context())
		err3 := n.begin(byClone, "1")
		for _, err := range []error{err, err2, err3} {
			if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), reason) {
				t.Errorf("%v", err)
			}
		}
		same(t, before, tree(t, n.home))
		if entries, err := os.ReadDir(disk); err != nil || len(entries) > 0 {
			t.Errorf("the other file system has %v, %v", entries, err)
		}
	}
	refused("is its disk mounted?")
	// Where not even the mount point's parent is there, nothing is made either.
	cfg := n.cfg
	check(t, n.Close())
	cfg.Data = filepath.Join(n.home, "not", "mounted")
	n.open(cfg)
	refused("is a disk not mounted?")
	// The file says what to remove where the disk was replaced.
	check(t, n.Close())
	cfg.Data = filepath.Join(n.home, "data")
	n.open(cfg)
	check(t, os.Remove(n.filesystemPath()))
	n.looks(core.DataEmpty)
}

// A member must notice that its data were put back from a backup, and nothing else must look so.
func TestACopyOfADirectoryIsAnotherOne(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.sketch()
	was, system := n.Identity()
	if was == "" || system == "" {
		t.Fatalf("%q, %q", was, system)
	}
	again := func(what string, same bool) {
		t.Helper()
		if now, s := n.Identity(); (now == was) != same || s != system {
			t.Errorf("%s: %q, %s; it was %q, %s", what, now, s, was, system)
		}
	}
	write(t, n.path("postgresql.conf"), "port = 1\n")
	check(t, os.Rename(n.path("postgresql.conf"), n.path("x")))
	check(t, os.Mkdir(n.path("pg_dynshmem"), 0o700))
	again("other files in it", true)
	backup := filepath.Join(n.home, "backup")
	copied := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	copied(n.cfg.Data, backup)
	check(t, os.RemoveAll(n.path("global")))
	copied(filepath.Join(backup, "global"), n.path("global"))
	again("its content was replaced", false)
	was, _ = n.Identity()
	check(t, os.RemoveAll(n.cfg.Data))
	copied(backup, n.cfg.Data)
	again("a copy", false)
	check(t, os.RemoveAll(n.cfg.Data))
	if now, s := n.Identity(); now != "" || s != "" {
		t.Errorf("none: %q, %q", now, s)
	}
}

func TestTwoDoNotWorkOnOneDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	before := tree(t, n.home)
	if _, err := Open(n.cfg); !errors.Is(err, ErrHeld) {
		t.Fatalf("the second: %v", err)
	}
	same(t, before, tree(t, n.home))
	if state, err := Look(n.cfg); err != nil || state != core.DataEmpty {
		t.Errorf("a look without the lock: %v, %v", state, err)
	}
	check(t, n.Close())
	n.open(n.cfg)
}

func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for reason, change := range map[string]func(*Config){
		"absolute path":      func(c *Config) { c.Data = "data" },
		"inside the data":    func(c *Config) { c.Folder = c.Data + "/.primacy" },
		"need a name":        func(c *Config) { c.Superuser = "" },
		"--version":          func(c *Config) { c.Bin = n.home },
		"make that folder":   func(c *Config) { c.Folder = n.home + "/a/b" },
		"no such file":       func(c *Config) { c.Replication.Passfile = n.home + "/none" },
		"has no line for":    func(c *Config) { c.Replication.User = "somebody" },
		"has a line break":   func(c *Config) { c.HBA = []string{"host all all all trust\nlocal all all trust"} },
		"others can read":    func(c *Config) { check(t, os.Chmod(c.Replication.Passfile, 0o644)) },
		"invalid locale nam": func(c *Config) { c.Locale = "nowhere" },
	} {
		cfg := n.cfg
		check(t, os.Chmod(cfg.Replication.Passfile, 0o600))
		change(&cfg)
		check(t, n.Close())
		d, err := reopen(cfg)
		if err == nil {
			_, err = d.Initdb(t.Context())
			d.Close()
		}
		if err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", reason, err)
		}
		n.open(n.cfg)
	}
}

func TestAProgramEndsWithItsContextAndAllItStarted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.cfg.Bin = n.home
	check(t, os.WriteFile(n.program("prog"), []byte("#!/bin/sh\nenv\nsleep 600 &\necho started\nwait\n"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lines []string
	done := make(chan error, 1)
	go func() {
		done <- n.run(ctx, program{name: "prog", each: func(line string) {
			if lines = append(lines, line); line == "started" {
				cancel()
			}
		}})
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("what the program has started holds up its end")
	}
}

func TestProgramsGetNoSecretsAndSpeakEnglish(t *testing.T) {
	t.Setenv("PGPASSWORD", "secret")
	t.Setenv("PRIMACY_STORE", "secret")
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	for _, one := range environment() {
		if strings.Contains(one, "secret") || strings.HasPrefix(one, "LC_ALL=") && one != "LC_ALL=C" {
			t.Error(one)
		}
	}
}
