package main

import (
	"context"
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

	"github.com/primacy-go/primacy/cmd/internal/postgres/pgdemo"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// keptCluster is three servers that Patroni keeps, and the machines' files as the page names them.
type keptCluster struct {
	*pgCluster
	managers map[string]*servertest.Process
	writer   *pgdemo.Writer
}

var machines = []string{"pg1", "pg2", "pg3"}

func newKeptCluster(t *testing.T, dynamic string) *keptCluster {
	programtest.Needs(t, "patroni") // Debian's package: make tools
	w := postgresWorld(t).without("PGSERVICE").without("PRIMACY_ID").without("PRIMACY_STORE")
	c := &keptCluster{pgCluster: &pgCluster{world: w, etcd: etcdtest.Start(t, etcdtest.Options{}),
		members: map[string]*pgMember{}}, managers: map[string]*servertest.Process{}}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.Kill()
			c.managers[m.name].Kill()
			text, _ := os.ReadFile(filepath.Join(c.dir, m.name, "data", "postmaster.pid"))
			first, _, _ := strings.Cut(string(text), "\n")
			if pid, err := strconv.Atoi(first); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGQUIT)
			}
		}
		c.eventually("no process of a server is left", func() bool { return len(membersIn(c.world, c.dir)) == 0 })
	})
	for _, name := range machines {
		m := &pgMember{name: name, port: servertest.FreePort(t), api: "127.0.0.1:" + servertest.FreePort(t)}
		dir := filepath.Join(w.dir, name)
		m.file = filepath.Join(dir, "primacy", "pg.toml")
		if err := os.MkdirAll(filepath.Dir(m.file), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`scope: orders
name: %s
etcd3: {hosts: "%s"}
restapi: {listen: "%s", connect_address: "%[3]s", authentication: {username: tools, password: secret}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 5
%s
    postgresql: {use_pg_rewind: true, parameters: {max_connections: 30, wal_log_hints: "on"}}
  initdb: [{encoding: UTF8}, data-checksums]
postgresql:
  listen: "127.0.0.1:%s"
  connect_address: "127.0.0.1:%[5]s"
  data_dir: %s/data
  bin_dir: %s
  pgpass: %[6]s/pgpass
  authentication:
    replication: {username: replicator, password: "rep:pass"}
    superuser: {username: postgres, password: secret}
  pg_hba:
  - local all all trust
  - local replication all trust
  - host all postgres 127.0.0.1/32 trust
  - host all all 127.0.0.1/32 scram-sha-256
  - host replication replicator 127.0.0.1/32 scram-sha-256
  parameters: {unix_socket_directories: %[6]s, shared_buffers: 16MB, password_encryption: scram-sha-256}
`, name, c.etcd.Addr(), m.api, dynamic, m.port, dir, pgtest.Bin(t))
		if err := os.WriteFile(filepath.Join(dir, "patroni.yml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c.own(dir)
		c.own(filepath.Dir(m.file))
		c.members[name], c.managers[name] = m, &servertest.Process{}
	}
	c.writer = pgdemo.NewWriter(c.servers(), 3*time.Second)
	for _, name := range machines {
		c.patroni(name)
		c.eventually("Patroni keeps "+name, func() bool {
			return strings.Contains(c.ctl("list", "-f", "json"), `"Member": "`+name+`"`) && c.shown() == c.leader() &&
				c.leader() != ""
		})
	}
	return c
}

// patroni starts the Patroni of one machine.
func (c *keptCluster) patroni(name string) {
	c.Helper()
	dir := filepath.Join(c.dir, name)
	cmd := exec.Command("patroni", "patroni.yml")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, append(os.Environ(), "HOME="+dir), &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		us, err := ordinaryUser()
		if err != nil {
			c.Fatal(err)
		}
		cmd.SysProcAttr.Credential = us.Credential
	}
	if err := c.managers[name].Run(c.T, cmd, filepath.Join(dir, "patroni.log")); err != nil {
		c.Fatal(err)
	}
}

func (c *keptCluster) ctl(args ...string) string {
	c.Helper()
	out, err := exec.CommandContext(c.Context(), "patronictl", append([]string{"-c",
		filepath.Join(c.dir, "pg1", "patroni.yml")}, args...)...).CombinedOutput()
	if err != nil {
		c.Logf("patronictl %v: %v: %s", args, err, out)
	}
	return string(out)
}

// leader is the member whose server is out of recovery; empty: none is, or several are.
func (c *keptCluster) leader() string {
	var all []string
	for _, name := range machines {
		ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
		out, err := exec.CommandContext(ctx, "psql", "-h", "127.0.0.1", "-p", c.members[name].port, "-U", "postgres",
			"-Atc",
			"SELECT pg_is_in_recovery()").Output()
		cancel()
		if err == nil && strings.TrimSpace(string(out)) == "f" {
			all = append(all, name)
		}
	}
	return strings.Join(all, " and ")
}

// shown is the leader that patronictl shows.
func (c *keptCluster) shown() string {
	m := regexp.MustCompile(`"Member": "(\w+)"[^}]*"Role": "Leader", "State": "running"`).FindStringSubmatch(
		c.ctl("list", "-f", "json"))
	if m == nil {
		return ""
	}
	return m[1]
}

// onceItSays is a line of the page that does something once a command has said so.
var onceItSays = regexp.MustCompile(`(?m)^(primacy .*) 2>&1 \| while read -r line; do echo "\$line"; ` +
	`case \$line in \*"(.*)"\) (.*);; esac; done$`)

// TestLeavingStopsNothingThatIsRefused: the page's line, typed in a shell, stops the member once
// `leave` says so, however long that takes, and not where it refuses.
func TestLeavingStopsNothingThatIsRefused(t *testing.T) {
	page, err := os.ReadFile("../../docs/postgres-migration.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, dir := onceItSays.FindAllStringSubmatch(string(page), -1), t.TempDir()
	if len(lines) != 2 || lines[0][0] != lines[1][0] {
		t.Fatal("the page is not as this test knows it")
	}
	sh := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, path), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sh("systemctl", `echo "$*" > stopped`)
	for said, want := range map[string]string{
		"pg1: waiting until its member is stopped: stop it now": "disable --now primacy-postgres@orders",
		"nothing was changed: the cluster is not paused":        "",
		"pg1 has left: its server goes on":                      "",
	} {
		// A refusal comes after the store has answered: no wait for it is long enough.
		sh("primacy", `sleep 0.1; echo "primacy: `+said+`" >&2`)
		c := exec.Command("sh", "-c", lines[0][0])
		c.Dir, c.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		stopped, _ := os.ReadFile(filepath.Join(dir, "stopped"))
		if err != nil || strings.TrimSpace(string(stopped)) != want || !strings.Contains(string(out), said) {
			t.Errorf("leave says %q: stopped %q, want %q; %v\n%s", said, stopped, want, err, out)
		}
		_ = os.Remove(filepath.Join(dir, "stopped"))
	}
}

// typed runs one line of the page on a machine.
func (c *keptCluster) typed(machine, line string) {
	c.Helper()
	m := c.members[machine]
	if once := onceItSays.FindStringSubmatch(line); once != nil {
		p := c.primacy(machine, once[1])
		p.tells(once[2] + "\n")
		c.typed(machine, once[3])
		p.ends(0)
		return
	}
	c.Logf("%s $ %s", machine, line)
	switch line {
	case "systemctl disable --now patroni":
		_ = syscall.Kill(c.managers[machine].PID(), syscall.SIGTERM)
		<-c.managers[machine].Done()
		return
	case "systemctl enable --now patroni":
		c.patroni(machine)
		c.eventually("patronictl shows it", func() bool {
			return strings.Contains(c.ctl("list", "-f", "json"), `"Member": "`+machine+`"`) && c.shown() != ""
		})
		return
	case "systemctl disable --now primacy-postgres@orders":
		_ = syscall.Kill(m.PID(), syscall.SIGTERM)
		<-m.Done()
		return
	case "systemctl enable --now primacy-postgres@orders":
		c.up(m)
		return
	}
	name, rest, _ := strings.Cut(line, " ")
	switch name {
	case "echo": // to HAProxy
		order, _, _ := strings.Cut(strings.TrimPrefix(rest, `"`), `"`)
		c.orders(strings.ReplaceAll(order, "pg1", machine))
	case "primacy":
		if strings.HasPrefix(rest, "postgres list") {
			c.whole() // a person looks again
		}
		c.primacy(machine, line).ends(0)
	case "patronictl", "psql":
		line = strings.ReplaceAll(rest, "/etc/patroni/patroni.yml", filepath.Join(c.dir, machine, "patroni.yml"))
		cmd := exec.CommandContext(c.Context(), "sh", "-c", name+" "+line)
		cmd.Env = append(os.Environ(), "PGHOST=127.0.0.1", "PGUSER=postgres", "PGPORT="+m.port)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.Errorf("%s: %v: %s", line, err, out)
		}
	default:
		c.Fatalf("the page has a command that the test does not know: %s", line)
	}
}

// primacy starts one of the page's commands, as the user that owns the data.
func (c *keptCluster) primacy(machine, line string) *prog {
	c.Helper()
	dir := filepath.Join(c.dir, machine)
	line, out, _ := strings.Cut(line, " > ")
	line = strings.NewReplacer("/etc/patroni/patroni.yml", filepath.Join(dir, "patroni.yml"),
		"/etc/primacy/postgres/orders.toml",
		c.members[machine].file, "/etc/primacy/postgres", filepath.Join(dir, "primacy")).Replace(line)
	c.Logf("%s $ %s", machine, line)
	p := c.owner().start(strings.Fields(line)[1:]...).within(5 * limit)
	if out != "" {
		p.ends(0)
		if err := os.WriteFile(c.members[machine].file, []byte(p.out.String()), 0o644); err != nil {
			c.Fatal(err)
		}
		c.own(c.members[machine].file)
	}
	return p
}

// owner is the world of the user that owns the data.
func (c *pgCluster) owner() *world {
	c.Helper()
	owner := *c.world
	if os.Getuid() == 0 {
		us, err := ordinaryUser()
		if err != nil {
			c.Fatal(err)
		}
		owner.attr = &syscall.SysProcAttr{Credential: us.Credential}
	}
	return &owner
}

// bare is a member's file without [api].
func (c *keptCluster) bare(machine string) string {
	c.Helper()
	text, err := os.ReadFile(c.members[machine].file)
	if err != nil {
		c.Fatal(err)
	}
	bare, _, _ := strings.Cut(string(text), "[api]")
	return bare
}

// notTaken looks that a member by itself takes nothing from Patroni, nor does a person too early.
func (c *keptCluster) notTaken(machine string) {
	c.Helper()
	file := c.members[machine].file
	if err := os.WriteFile(file+".bare", []byte(c.bare(machine)), 0o644); err != nil { // Patroni listens there
		c.Fatal(err)
	}
	before := c.leader()
	c.owner().start("postgres", "-f", file+".bare").ends(exitUsage).inOneLine().complains("has not started", "adopt")
	c.owner().start("postgres", "adopt", "-f", file).ends(exitNo).inOneLine().complains("is not paused by Patroni")
	c.owner().start("postgres", "adopt", "--primary", "-f", file).ends(exitNo).inOneLine().complains("is a standby")
	c.owner().start("postgres", "leave", "-f", file).ends(exitNo).inOneLine().complains("is of no member")
	if c.leader() != before {
		c.Errorf("a member that was not to touch anything has: %s was the primary, and now %q", before, c.leader())
	}
}

// block types the lines of one block of the page.
func (c *keptCluster) block(text string) {
	c.Helper()
	on := []string{"pg1"}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		var primary string
		if strings.HasPrefix(line, "#") {
			c.eventually("one server is the primary", func() bool {
				primary = c.leader()
				return slices.Contains(machines, primary)
			})
		}
		switch line {
		case "":
			continue
		case "# on each machine":
			on = machines
		case "# on one machine":
			on = machines[:1]
		case "# on the primary", "# on each HAProxy":
			on = []string{primary}
		case "# on each standby":
			on = slices.DeleteFunc(slices.Clone(machines), func(m string) bool { return m == primary })
		default:
			if strings.HasPrefix(line, "#") {
				c.Fatalf("where is that to be typed? %s", line)
			}
			for _, machine := range on {
				c.typed(machine, line)
			}
		}
	}
}

// TestTheMigrationPageHolds types every command of docs/postgres-migration.md, while a writer
// writes: from Patroni, which waits for standbys strictly, and back.
func TestTheMigrationPageHolds(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	text, err := os.ReadFile("../../docs/postgres-migration.md")
	if err != nil {
		t.Fatal(err)
	}
	there, back, ok := strings.Cut(string(text), "\n## Back\n")
	blocks := regexp.MustCompile("(?s)\n```\n(.*?)\n```\n")
	if !ok || len(blocks.FindAllString(there, -1)) != 4 || len(blocks.FindAllString(back, -1)) != 3 {
		t.Fatal("the page is not as this test knows it")
	}
	c := newKeptCluster(t, "    synchronous_mode: true\n    synchronous_mode_strict: true")
	if err := pgdemo.Prepare(t.Context(), c.servers(), limit); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.writer.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	tools := &shownCluster{pgCluster: c.pgCluster, config: filepath.Join(c.dir, "pg1", "patroni.yml")}
	port, stop, way, said := tools.balanced(), make(chan struct{}), make(chan []string, 1), make(chan []string, 1)
	go func() { way <- tools.writesThrough(port, stop) }()
	go func() { said <- tools.sayPrimary(stop) }()
	primaries := []string{c.leader()}

	for i, b := range blocks.FindAllStringSubmatch(there, -1) {
		c.block(b[1])
		if i == 0 {
			c.notTaken("pg2")
		}
	}
	was := c.whole()
	c.gap("there")
	c.eventually("patronictl shows our primary", func() bool { return c.shown() == was.Primary })
	for range 10 {
		c.whole()
		tools.says(tools.ctl("switchover", "--force"), "Successfully switched over to")
		now := c.whole().Primary
		tools.lists(now)
		primaries = append(primaries, now)
	}
	began := time.Now()
	for _, b := range blocks.FindAllStringSubmatch(back, -1) {
		c.block(b[1])
	}
	c.eventually("Patroni has its standbys", func() bool {
		list := c.ctl("list")
		run := strings.Count(list, "running") + strings.Count(list, "streaming") // the latter by Patroni 4
		return strings.Contains(list, "Sync Standby") && run == len(machines)
	})
	t.Logf("the longest gap on the way back: %v", c.writer.Gap(began))
	c.gap("back")
	cancel()
	<-done
	close(stop)
	for what, ch := range map[string]chan []string{"rows that came by HAProxy were acknowledged by": way,
		"that it is the primary said": said} {
		if got := <-ch; !inOrder(got, primaries) {
			t.Errorf("%s %v; the primaries were %v", what, got, primaries)
		}
	}
	c.judge()
}

// inOrder reports whether these are members that were the primary, one after another, and the last.
func inOrder(these, primaries []string) bool {
	last := primaries[len(primaries)-1]
	for _, name := range these {
		i := slices.Index(primaries, name)
		if i < 0 {
			return false
		}
		primaries = primaries[i:]
	}
	return len(these) > 1 && these[len(these)-1] == last
}

// maxGap is what the page promises, and more for a machine that is busy with other tests.
const maxGap = 2*time.Second + 3*time.Second

// gap checks how long no row was acknowledged.
func (c *keptCluster) gap(way string) {
	c.Helper()
	now := time.Now()
	c.eventually("a row is acknowledged", func() bool { // else the gap has not ended
		_, _, _, at := c.writer.Counts()
		return at.After(now)
	})
	longest := c.writer.Gap(time.Time{})
	acknowledged, unknown, by, _ := c.writer.Counts()
	c.Logf("%s: %d rows acknowledged, %d of unknown outcome, the last by %s; the longest gap is %v", way, acknowledged,
		unknown, by, longest)
	if longest > maxGap {
		c.Errorf("%s: no row was acknowledged for %v", way, longest)
	}
}

func (c *keptCluster) servers() (all []pgdemo.Server) {
	for _, name := range machines {
		all = append(all, pgdemo.Server{Name: name, SocketDir: filepath.Join(c.dir, name), Port: c.members[name].port})
	}
	return all
}

// judge looks that the primary has all acknowledged rows.
func (c *keptCluster) judge() {
	c.Helper()
	primary := c.leader()
	rows := map[string]map[int64]bool{}
	for _, s := range c.servers() {
		if s.Name != primary {
			continue
		}
		var err error
		if rows[s.Name], err = pgdemo.Rows(c.Context(), s, limit); err != nil {
			c.Fatal(err)
		}
	}
	v := c.writer.Judge(primary, rows)
	c.Logf("%d rows acknowledged, %d of unknown outcome, %d lost", v.Acknowledged, v.Unknown, len(v.Lost))
	if len(v.Lost) > 0 || v.Acknowledged == 0 {
		c.Errorf("%s lacks %d acknowledged rows, such as %v", primary, len(v.Lost), v.Lost[:min(5, len(v.Lost))])
	}
}
