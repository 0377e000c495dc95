package servertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// CgroupRoot returns the folder of version 2 of cgroups in which this process can make groups, and
// "" if there is none.
func CgroupRoot() string {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup2" {
			continue
		}
		dir, err := os.MkdirTemp(f[1], "primacy-test-")
		if err == nil {
			os.Remove(dir)
			return f[1]
		}
	}
	return ""
}

// Cgroup is a group of processes that a test freezes. No signal but SIGKILL reaches them then.
type Cgroup struct {
	tb  testing.TB
	dir string
}

// NewCgroup moves processes into a group of their own, with all that they start later. At the end
// of the test it thaws them and waits until they have ended.
func NewCgroup(tb testing.TB, pids ...int) *Cgroup {
	tb.Helper()
	dir, err := os.MkdirTemp(CgroupRoot(), "primacy-test-")
	if err != nil {
		tb.Fatal(err)
	}
	g := &Cgroup{tb, dir}
	tb.Cleanup(func() {
		g.Thaw()
		g.eventually("an empty cgroup", func() bool { return os.Remove(dir) == nil })
	})
	for _, pid := range pids {
		g.write("cgroup.procs", strconv.Itoa(pid))
	}
	return g
}

// Freeze returns when all of them have stopped.
func (g *Cgroup) Freeze() {
	g.tb.Helper()
	g.write("cgroup.freeze", "1")
	g.eventually("a frozen cgroup", func() bool {
		events, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
		return strings.Contains(string(events), "frozen 1")
	})
}

// Thaw lets them go on.
func (g *Cgroup) Thaw() {
	g.tb.Helper()
	g.write("cgroup.freeze", "0")
}

func (g *Cgroup) write(file, text string) {
	g.tb.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0); err != nil {
		g.tb.Error(err)
	}
}

func (g *Cgroup) eventually(what string, ok func() bool) {
	g.tb.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			g.tb.Fatalf("waited a minute for %s", what)
		}
	}
}
