package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// pgCluster is three members, and the etcd that they share.
type pgCluster struct {
	*world
	etcd    *etcdtest.Server
	etcdDir string // its data
	members map[string]*pgMember
	ttl     string                     // of a new member
	more    []func(m *pgMember) string // what else its file says
}

type pgMember struct {
	servertest.Process
	name, file, port string
	api              string // HOST:PORT; empty: it has none
}

// postgresCluster starts so many members, and returns when all but the primary vote. more is what
// else a member's file says.
func postgresCluster(t *testing.T, members int, ttl string, more ...func(m *pgMember) string) *pgCluster {
	return postgresClusterOn(t, etcdtest.Options{}, members, ttl, more...)
}

// postgresClusterOn is postgresCluster on an etcd of that kind.
func postgresClusterOn(t *testing.T, o etcdtest.Options, members int, ttl string,
	more ...func(m *pgMember) string,
) *pgCluster {
	w := postgresWorld(t).without("PGSERVICE").without("PRIMACY_ID").without("PRIMACY_STORE")
	dir := filepath.Join(t.TempDir(), "etcd")
	o.DataDir = func(int) string { return dir }
	c := &pgCluster{world: w, etcd: etcdtest.Start(t, o), etcdDir: dir, members: map[string]*pgMember{}, ttl: ttl,
		more: more}
	// A demo after this test looks for members that were left.
	t.Cleanup(func() {
		for _, m := range c.members {
			m.Kill()
		}
		c.eventually("no process of a member is left", func() bool { return len(membersIn(c.world, c.dir)) == 0 })
	})
	for range members {
		c.joins()
	}
	c.whole()
	return c
}

// joins starts a new member.
func (c *pgCluster) joins() *pgMember {
	c.Helper()
	m := &pgMember{name: fmt.Sprintf("pg%d", len(c.members)+1), port: servertest.FreePort(c)}
	dir, pass := filepath.Join(c.dir, m.name), filepath.Join(c.dir, "pass")
	m.file = filepath.Join(dir, "pg.toml")
	text := fmt.Sprintf(`store = "etcd://%s"
cluster = "orders"
name = "%s"
ttl = "%s"
loop_wait = "200ms"
[server]
data = "%s/data"
bin = "%s"
listen = "127.0.0.1:%s"
socket = "%[4]s"
hba = ["host all postgres 127.0.0.1/32 trust"]
replication = {user = "replicator", passfile = "%[7]s"}
[first]
parameters = {max_connections = 20, shared_buffers = "16MB", min_wal_size = "32MB"}
`, c.etcd.Addr(), m.name, c.ttl, dir, pgtest.Bin(c), m.port, pass)
	for _, f := range c.more {
		text += f(m)
	}
	for path, text := range map[string]string{m.file: text, pass: "*:*:*:*:secret\n"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
		c.own(path)
	}
	c.own(dir)
	c.members[m.name] = m
	c.up(m)
	return m
}

// own gives a file to the user that runs the members.
func (c *pgCluster) own(path string) {
	if os.Getuid() != 0 {
		return
	}
	us, err := ordinaryUser()
	if err == nil {
		err = os.Chown(path, int(us.Uid), int(us.Gid))
	}
	if err != nil {
		c.Fatal(err)
	}
}

func (c *pgCluster) up(m *pgMember) {
	c.Helper()
	cmd := exec.Command("/proc/self/exe", "postgres", "-v", "-f", m.file)
	cmd.Dir, cmd.Env = filepath.Dir(m.file), c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("the end of %s's log:\n%s", m.name, m.LogTail())
		}
	})
	if os.Getuid() == 0 {
		us, err := ordinaryUser()
		if err != nil {
			c.Fatal(err)
		}
		cmd.SysProcAttr.Credential = us.Credential
	}
	if err := m.Run(c.T, cmd, m.file+".log"); err != nil {
		c.Fatal(err)
	}
}

// verb is one of a person's, on that member's file.
func (c *pgCluster) verb(name string, args ...string) *prog {
	c.Helper()
	return c.start(append([]string{"postgres", name, "-f", c.members["pg1"].file}, args...)...).within(3 * limit)
}

// config is a verb on the shared configuration.
func (c *pgCluster) config(name string, args ...string) *prog {
	c.Helper()
	return c.start(append([]string{"postgres", "config", name, "-f", c.members["pg1"].file}, args...)...).
		within(3 * limit)
}

// ask asks a member, once its server listens: on a busy machine one may have lost its primary, and
// start again.
func (c *pgCluster) ask(member, sql string) string {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	var conn *pgconn.PgConn
	c.eventually(member+" listens", func() bool {
		var err error
		conn, err = pgconn.Connect(ctx, "host=127.0.0.1 user=postgres dbname=postgres port="+c.members[member].port)
		return err == nil
	})
	defer conn.Close(ctx)
	all, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		c.Fatalf("%s: %s: %v", member, sql, err)
	}
	if len(all[0].Rows) == 0 {
		return ""
	}
	return string(all[0].Rows[0][0])
}

// list returns no member where there is no cluster yet, or the store does not answer.
func (c *pgCluster) list() clusterJSON {
	c.Helper()
	var out, errs bytes.Buffer
	code := run(c.Context(), []string{"postgres", "list", "-o", "json", "-f", c.members["pg1"].file}, nil, &out, &errs)
	if code == exitUsage {
		c.Fatal(errs.String())
	}
	if out.Len() == 0 {
		return clusterJSON{}
	}
	return decode[clusterJSON](c.world, out.String())
}

// whole waits until there is a primary, and all others vote.
func (c *pgCluster) whole() clusterJSON {
	c.Helper()
	var j clusterJSON
	others := len(c.members) - 1
	c.eventually("a primary and voters", func() bool {
		j = c.list()
		return j.Primary != "" && len(j.Record.Voters) == others && (j.Record.Needed == others || others == 0)
	})
	return j
}

// writes says whether the primary acknowledges a row.
func (c *pgCluster) writes(primary string) error {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	conn, err := pgconn.Connect(ctx, "host=127.0.0.1 user=postgres dbname=postgres port="+c.members[primary].port)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS t (at timestamptz); INSERT INTO t VALUES (now())").ReadAll()
	return err
}

// configure changes the shared configuration in each way.
func (c *pgCluster) configure() {
	c.Helper()
	c.config("set", "acks=2", "parameters.max_connections=120", "parameters.work_mem=5MB", "somebody.else=1").ends(0).
		complains("- synchronous_node_count: 1", "+ synchronous_node_count: 2",
			"pg1 needs a restart for max_connections", "3 members have taken it")
	c.config("set", "parameters.work_mem=6MB", "parameters.nosuch=1").ends(exitNo).
		complains("unrecognized configuration parameter", "was put back")
	c.config("set", "parameters.fsync=off").ends(exitNo).inOneLine().complains("could be lost", "nothing was changed")
	c.config("set", "acks").ends(exitUsage).inOneLine().complains("KEY=VALUE")
	c.verb("list").ends(0).says("needs a restart for max_connections", "a commit needs 2 of")
	store := "--store=etcd://" + c.etcd.Addr()
	c.start("status", store).ends(0).says(": leading, timeline ")
	c.start("status", store, "postgres/orders").ends(0).says(": following, timeline ",
		"primacy postgres list --cluster orders")
	c.start("postgres", "list", store, "--cluster", "orders").ends(0).says("a commit needs 2 of")
	c.verb("restart", "--pending").ends(0).complains("pg1: done", "pg2: done", "pg3: done")
	c.verb("restart", "--pending").ends(0).complains("no member needs a restart")
	for name := range c.members {
		got := c.ask(name, "SELECT current_setting('max_connections') || ' ' || current_setting('work_mem')")
		if got != "120 5MB" {
			c.Errorf("%s has %s", name, got)
		}
	}
	c.config("set", "durability=async").ends(0).complains("durability: async, and was quorum")
	if j := c.list(); j.Record.Durability != core.Async {
		c.Errorf("the record says %s", j.Record.Durability)
	}
	c.config("set", "durability=quorum", "acks=null").ends(0)
	j := c.whole()
	ssn := c.ask(j.Primary, "SHOW synchronous_standby_names")
	if j.Record.Durability != core.Quorum || j.Record.Acks != 1 || !strings.Contains(ssn, " 1 (") {
		c.Errorf("the record is %+v, and commits wait for %s", j.Record, ssn)
	}

	edit := func(script string) *prog {
		path := filepath.Join(c.dir, "editor")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			c.Fatal(err)
		}
		return c.with("EDITOR="+path, "TMPDIR="+c.dir).start("postgres", "config", "edit", "--yes", "-f",
			c.members["pg1"].file).within(3 * limit)
	}
	edit("true").ends(0).complains("nothing was changed")
	edit("sed -i s/work_mem.*/work_mem:\\ 7MB/ $1").ends(0).complains(`+ postgresql.parameters.work_mem: "7MB"`)
	edit("echo synchronous_mode_strict: [ >> $1").ends(exitNo).inOneLine().complains("your text is in")
	c.without("EDITOR").start("postgres", "config", "edit", "-f", c.members["pg1"].file).ends(exitUsage).inOneLine().
		complains("set EDITOR")
	edit("exit 3").ends(exitNo).inOneLine().complains("exit status 3")
	late := edit("sed -i s/work_mem.*/work_mem:\\ 8MB/ $1; touch edited; while [ ! -e go ]; do sleep 0.1; done")
	c.eventually("the editor is open", func() bool {
		_, err := os.Stat(filepath.Join(c.dir, "edited"))
		return err == nil
	})
	c.config("set", "parameters.work_mem=9MB").ends(0)
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o644); err != nil {
		c.Fatal(err)
	}
	late.ends(exitNo).complains("somebody else has changed", "your text is in")
	c.config("show", "-o", "json").ends(0).says(`"work_mem": "9MB"`, `"else": 1`, `"max_connections": 120`,
		`"/service/orders/config"`)
}

// TestThePostgresVerbs is a day of an operator: a pause while the store is away, restarts, a
// standby made anew, and two machines lost at once.
func TestThePostgresVerbs(t *testing.T) {
	t.Parallel()
	oneDemo(t)
	c := postgresCluster(t, 3, "8s")

	was := c.whole()
	c.verb("pause", "--reason", "new disks").ends(0).complains("is paused by", "new disks")
	c.etcd.Kill()
	time.Sleep(10 * time.Second) // longer than the lease and all that is left of it
	if err := c.writes(was.Primary); err != nil {
		t.Errorf("the paused primary without a store: %v", err)
	}
	c.etcd.Restart()
	c.eventually("the paused primary leads again", func() bool { return c.list().Primary == was.Primary })
	c.verb("switchover").ends(exitNo).inOneLine().complains("resume it first")
	c.verb("reinit", was.Primary, "--yes").ends(exitNo).inOneLine().complains("resume it first")
	c.verb("resume").ends(0).complains("resumed")
	j := c.whole()
	if j.Primary != was.Primary || j.Record.Timeline != was.Record.Timeline {
		t.Errorf("%s was promoted during a pause", j.Primary)
	}
	c.verb("switchover").ends(0).complains("is the primary under token", ", on timeline 5")
	if now := c.whole(); now.Primary == was.Primary {
		t.Errorf("%s is the primary after a switchover", now.Primary)
	}

	c.configure()
	c.verb("restart").ends(0).complains("pg1", "pg2", "pg3")
	j = c.whole()
	if j.Record.Timeline == was.Record.Timeline {
		t.Error("the primary was not restarted")
	}
	standby := j.Record.Voters[0]
	c.verb("reinit", standby.Name).ends(exitUsage).inOneLine().complains("--yes")
	c.verb("reinit", j.Primary, "--yes").ends(exitNo).inOneLine().complains("is the primary")
	c.verb("reinit", standby.Name, "--yes").ends(0)
	for _, v := range c.whole().Record.Voters {
		if v == standby {
			t.Errorf("%s was not made anew", v)
		}
	}

	last, left := c.whole(), ""
	for name, m := range c.members {
		if name == last.Primary || left != "" {
			m.Kill()
		} else {
			left = name
		}
	}
	c.eventually("nobody is the primary", func() bool {
		j := c.list()
		return j.Primary == "" && strings.Contains(j.Text, "of the 2 voters") && j.member(left).State == "surveying"
	})
	c.verb("failover", "--to", left).ends(exitNo).inOneLine().complains("nothing was done", "--accept-loss")
	c.verb("failover", "--to", left, "--accept-loss").ends(exitUsage).inOneLine().complains("--yes")
	c.verb("failover", "--to", left, "--accept-loss", "--yes").ends(0).complains(left + " is the primary")
	for name, m := range c.members {
		if name != left {
			c.up(m)
		}
	}
	j = c.whole()
	if err := c.writes(j.Primary); err != nil {
		t.Error(err)
	}
	c.verb("history").ends(0).says("born by initdb", "it went on during the pause", "was shut down at",
		"a loss was accepted by")
}

// TestAKilledMemberIsNotWaitedFor: its lease is long, and its guardian gives it back, also where
// the member was a standby whose claim waited.
func TestAKilledMemberIsNotWaitedFor(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := postgresCluster(t, 2, "5m")
	j := c.whole()
	standby := j.Record.Voters[0].Name
	m := c.members[standby]
	m.Kill()
	c.eventually("the standby's claim is gone", func() bool {
		j = c.list()
		return j.Primary != "" && strings.Contains(j.member(standby).Why, "is not in the election")
	})
	c.up(m)
	was := c.whole().Primary
	c.members[was].Kill()
	c.eventually("the other one is the primary", func() bool { return c.list().Primary == standby })
}
