package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPatronictlsOtherVerbs is what patronictl can do that TestPatronisTools does not use. It holds
// for version 3.0 and for 4.1: the one in PATH is used.
func TestPatronictlsOtherVerbs(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := newShownCluster(t, 3, "8s")
	was := c.whole().Primary
	c.lists(was)
	standby := c.whole().Record.Voters[0].Name

	c.says(c.ctl("version", "orders"), "patronictl version ", standby+": Patroni 4.1.0 PostgreSQL 1")
	for _, format := range []string{"json", "tsv", "yaml", "pretty"} {
		c.says(c.ctl("list", "-e", "-f", format), was, standby, "Sync Standby")
	}
	c.says(c.ctl("history", "-f", "json"), "born by initdb", was)
	c.says(c.ctl("dsn", "-m", standby), "host=127.0.0.1 port="+c.members[standby].port)
	c.says(c.ctl("dsn", "-r", "replica"), "host=127.0.0.1 port=")
	query := []string{"query", "-U", "postgres", "-d", "postgres", "-c", "SELECT pg_is_in_recovery() AS r", "--format",
		"tsv"}
	c.says(c.ctl(append(query, "-m", standby)...), "True")
	c.says(c.ctl(append(query, "-m", was)...), "False")
	c.says(c.ctl(append(query, "-r", "replica")...), "True")

	c.edits()
	c.forgets(was)

	later := time.Now().Add(time.Hour).Format("2006-01-02T15:04:05-07:00")
	c.says(c.ctl("switchover", "--candidate", standby, "--scheduled", later, "--force"), "Switchover scheduled")
	c.says(c.ctl("list"), "Switchover scheduled at: "+later[:16], "to: "+standby)
	c.says(c.ctl("flush", "orders", "switchover", "--force"), "Success: scheduled switchover deleted")
	if text := c.ctl("list"); strings.Contains(text, "scheduled") {
		t.Errorf("a switchover is still scheduled: %s", text)
	}
	c.says(c.ctl("failover", "--candidate", standby, "--force"), `Successfully failed over to "`+standby+`"`)
	if j := c.whole(); j.Primary != standby {
		t.Errorf("after patronictl failover: %s", j.Text)
	}
	c.lists(standby)
	text := c.ctl("restart", "orders", "--force")
	for name := range c.members {
		c.says(text, "Success: restart on member "+name)
	}
	c.whole()

	voter := c.whole().Record.Voters[0]
	c.says(c.ctl("reinit", "orders", voter.Name, "--wait", "--force"), "Reinitialize is completed on: "+voter.Name)
	j := c.list()
	if m := j.member(voter.Name); m == nil || m.Incarnation == voter.Incarnation {
		t.Errorf("patronictl says that %s was made anew: %+v", voter.Name, m)
	}

	// Two of three are lost: who is left may lack commits.
	was = c.whole().Primary
	c.members[was].Kill()
	next := ""
	c.eventually("another is the primary", func() bool { next = c.list().Primary; return next != "" && next != was })
	left := ""
	for name := range c.members {
		if name != was && name != next {
			left = name
		}
	}
	c.members[next].Kill()
	c.eventually("nobody is the primary", func() bool {
		j := c.list()
		_, text := c.ask(left, "GET", "/cluster", "")
		return j.Primary == "" && strings.Contains(j.Text, "waits for") && !strings.Contains(text, `"leader"`)
	})
	c.says(c.ctl("failover", "--candidate", left, "--force"), "Failover failed, details: 412",
		"nobody is the primary: 'primacy postgres list' says why")
	if j := c.list(); j.Primary != "" {
		t.Errorf("patronictl failover has promoted a member that may lack commits: %s", j.Text)
	}
}

// edits has patronictl change the shared configuration, by each way that needs no editor.
func (c *shownCluster) edits() {
	c.Helper()
	everywhere := func(want string) {
		c.Helper()
		for name := range c.members {
			c.eventually(name+" has work_mem = "+want, func() bool {
				return c.pgCluster.ask(name, "SHOW work_mem") == want
			})
		}
	}
	c.says(c.ctl("edit-config", "-p", "work_mem=5MB", "-s", "mine.key=1", "--force"), "work_mem",
		"Configuration changed")
	everywhere("5MB")
	file := filepath.Join(c.dir, "apply.yml")
	if err := os.WriteFile(file, []byte("postgresql: {parameters: {work_mem: 6MB}}\n"), 0o644); err != nil {
		c.Fatal(err)
	}
	c.says(c.ctl("edit-config", "--apply", file, "--force"), "Configuration changed")
	everywhere("6MB")
	c.says(c.ctl("show-config"), "work_mem: 6MB", "key: 1")

	// patronictl asks nobody: what is bad comes into the store, and is in force nowhere.
	c.ctl("edit-config", "-p", "fsync=off", "-p", "work_mem=7MB", "--force")
	refused := 0
	c.eventually("each member refuses it", func() bool {
		refused = 0
		for _, m := range c.list().Members {
			if strings.Contains(m.Refused, "fsync") {
				refused++
			}
		}
		return refused == len(c.members)
	})
	c.verb("list").ends(0).says("refuses the shared configuration, and keeps the last good one: ")
	everywhere("6MB")
	c.ctl("edit-config", "-p", "fsync=null", "--force")
	everywhere("7MB")
}

// forgets has patronictl remove the cluster's keys: nothing rests on them.
func (c *shownCluster) forgets(primary string) {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "patronictl", "-c", c.config, "remove", "orders")
	cmd.Stdin = strings.NewReader("orders\nYes I am aware\n" + primary + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Errorf("patronictl remove: %v\n%s", err, out)
	}
	if err := c.writes(primary); err != nil {
		c.Errorf("after patronictl remove: %v", err)
	}
	if code, _ := c.ask(primary, "GET", "/primary", ""); code != http.StatusOK {
		c.Errorf("after patronictl remove /primary is %d", code)
	}
	c.lists(primary)
	c.eventually("the shared configuration is back", func() bool {
		_, text := c.ask(primary, "GET", "/config", "")
		var is struct {
			PostgreSQL struct{ Parameters map[string]any }
		}
		return json.Unmarshal([]byte(text), &is) == nil && is.PostgreSQL.Parameters["work_mem"] == "7MB"
	})
	if j := c.whole(); j.Primary != primary {
		c.Errorf("after patronictl remove: %s", j.Text)
	}
}
