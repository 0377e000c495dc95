package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
)

// calledFor is what a callback of a member was called for, and its process.
type calledFor struct {
	pid  int
	what string
}

// calls returns what a member's callbacks were called for. One that was ended at once is not in it.
func (c *pgCluster) calls(member string) (all []calledFor) {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(c.members[member].file), "calls"))
	for line := range strings.Lines(string(text)) {
		pid, what, whole := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.Atoi(pid); err == nil && whole && strings.HasSuffix(line, "\n") {
			all = append(all, calledFor{n, what})
		}
	}
	return all
}

// calledLast waits until the last call of a member that is not for a reload is this one.
func (c *pgCluster) calledLast(member, want string) {
	c.Helper()
	c.eventually(member+" calls back: "+want, func() bool {
		last := ""
		for _, x := range c.calls(member) {
			if !strings.HasPrefix(x.what, string(callbacks.OnReload)) {
				last = x.what
			}
		}
		return last == want+" orders"
	})
}

// TestPostgresCallbacks: each of them hangs. They are called as Patroni calls them, and nothing
// waits for them: no switchover, no restart, no end of a member, no start of the next one.
func TestPostgresCallbacks(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := postgresCluster(t, 2, "3s", func(*pgMember) string {
		text := "[callbacks]\n"
		for _, action := range callbacks.Actions {
			text += fmt.Sprintf("%s = [%q, %q, %q, %q]\n", action, "/bin/sh", "-c",
				`echo "heard $1"; echo "$$ $*" >> calls; exec sleep 300`, "sh")
		}
		return text
	})
	t.Cleanup(func() { // before those of the cluster, which wait until nothing is left
		for name, m := range c.members {
			m.Kill()
			for _, x := range c.calls(name) {
				if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", x.pid)); cwd == filepath.Dir(m.file) {
					_ = syscall.Kill(x.pid, syscall.SIGKILL)
				}
			}
		}
	})
	j := c.whole()
	first, second := j.Primary, j.Record.Voters[0].Name
	c.calledLast(first, "on_role_change primary")
	c.calledLast(second, "on_start replica")
	c.verb("switchover").ends(0)
	c.whole()
	c.calledLast(second, "on_role_change primary")
	c.calledLast(first, "on_role_change replica")
	c.verb("restart", first).ends(0)
	c.calledLast(first, "on_restart replica")
	c.config("set", "parameters.work_mem=5MB").ends(0)
	c.eventually("a reload calls back", func() bool {
		all := c.calls(first)
		return all[len(all)-1].what == "on_reload replica orders"
	})

	m := c.members[first]
	if err := syscall.Kill(m.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.eventually("the member ends", m.Exited)
	c.calledLast(first, "on_stop replica")
	all := c.calls(first)
	last := all[len(all)-1].pid
	for _, x := range all {
		reload := strings.HasPrefix(x.what, string(callbacks.OnReload)) // the last one hangs beside the others
		if err := syscall.Kill(x.pid, 0); (err == nil) != (x.pid == last) && !reload {
			t.Errorf("%+v: %v; %d was called last", x, err, last)
		}
	}
	if text, err := os.ReadFile(m.file + ".log"); err != nil || !strings.Contains(string(text),
		`msg="a callback says" callback=on_restart role=replica line="heard on_restart"`) {
		t.Errorf("what a callback prints is not in the log (%v)", err)
	}
	c.up(m)
	c.whole()
	c.calledLast(first, "on_start replica")
}
