package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const storeLost = "the store was wiped or restored"

// swaps ends etcd and these members, changes the data of etcd, and starts it again.
func (c *pgCluster) swaps(command string, too ...*pgMember) {
	c.Helper()
	c.etcd.Kill()
	for _, m := range too {
		m.Kill()
	}
	cmd := exec.Command("sh", "-ec", command)
	cmd.Dir = filepath.Dir(c.etcdDir)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Fatalf("%s: %v: %s", command, err, out)
	}
	c.etcd.Restart()
}

// ends stops an agent as systemd does.
func (c *pgCluster) ends(m *pgMember) {
	c.Helper()
	if err := syscall.Kill(m.PID(), syscall.SIGTERM); err != nil {
		c.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-time.After(limit):
		c.Fatalf("%s does not end", m.name)
	}
}

// says waits until a member's log has a text, from that offset on.
func (c *pgCluster) says(m *pgMember, from int, text string) {
	c.Helper()
	c.eventually(m.name+" says: "+text, func() bool {
		b, err := os.ReadFile(m.file + ".log")
		return err == nil && strings.Contains(string(b[min(from, len(b)):]), text)
	})
}

// said returns how long a member's log is.
func (c *pgCluster) said(m *pgMember) int {
	c.Helper()
	b, err := os.ReadFile(m.file + ".log")
	if err != nil {
		c.Fatal(err)
	}
	return len(b)
}

// lost demands that all members have stopped, for the store was lost, and that each verb says so.
func (c *pgCluster) lost(from map[string]int) {
	c.Helper()
	for _, m := range c.members {
		c.says(m, from[m.name], storeLost)
	}
	c.eventually("list says so", func() bool {
		p := c.verb("list")
		return p.wait() == exitNo && strings.Contains(p.err.String(), storeLost)
	})
	c.verb("list").ends(exitNo).inOneLine().complains(storeLost, "has seen record", "docs/postgres-failover.md")
	c.verb("check").ends(exitNo).says("FAIL  cluster: ", storeLost)
	c.verb("switchover").ends(exitNo).inOneLine().complains(storeLost)
	for name := range c.members {
		if c.writes(name) == nil {
			c.Errorf("%s acknowledges a row", name)
		}
	}
}

// TestTheStoreIsLost: members act neither by an empty store nor by one that was set back, those
// that cannot know it themselves neither, and say what has happened. With the right store all goes
// on.
func TestTheStoreIsLost(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := postgresCluster(t, 3, "8s")
	was := c.whole()
	if err := c.writes(was.Primary); err != nil {
		t.Fatal(err)
	}
	logs := func() map[string]int {
		all := map[string]int{}
		for name, m := range c.members {
			all[name] = c.said(m)
		}
		return all
	}
	back := func() { // the right store again
		for _, m := range c.members {
			c.ends(m)
		}
		c.swaps("rm -r etcd; mv right etcd")
		for _, m := range c.members {
			c.up(m)
		}
	}

	// It is wiped, and before the members know it a new machine comes.
	from := logs()
	c.swaps("mv etcd right")
	for _, m := range c.members {
		c.says(m, from[m.name], storeLost)
	}
	fresh := c.joins()
	c.lost(from)
	if found, _ := filepath.Glob(filepath.Join(filepath.Dir(fresh.file), "data", "*")); len(found) > 0 {
		t.Errorf("a member that knows of nothing has made a database: %q", found)
	}
	back()
	now := c.whole()
	if got := c.ask(now.Primary, "SELECT count(*) FROM t"); got != "1" {
		t.Errorf("%s rows, want 1", got)
	}

	// It is set back. One member has seen nothing newer than that.
	c.swaps("cp -r etcd backup")
	now = c.whole()
	behind, next := now.Record.Voters[0].Name, now.Record.Voters[1].Name
	c.members[behind].Kill()
	c.verb("switchover", "--to", next).ends(0)
	if err := c.writes(next); err != nil {
		t.Fatal(err)
	}
	from = logs()
	c.swaps("mv etcd right; mv backup etcd")
	c.up(c.members[behind])
	c.lost(from)
	back()
	now = c.whole()
	if got := c.ask(now.Primary, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows, want 2", got)
	}
}
