package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
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

	"github.com/jackc/pgx/v5/pgconn"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// played is a cluster on which scenarios of Patroni's own acceptance tests are played, one after
// another: docs/postgres-scenarios.md is the table of all of them.
type played struct {
	*shownCluster
	keys *clientv3.Client
}

// newPlayed returns a cluster whose leases a busy machine does not lose: scenarios name who leads.
func newPlayed(t *testing.T, members int) *played {
	p := &played{shownCluster: newShownCluster(t, members, "10s")}
	var err error
	p.keys, err = clientv3.New(clientv3.Config{Endpoints: []string{p.etcd.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.keys.Close() })
	return p
}

// scenario plays one scenario. Its name is the feature's and its own, as the table has them.
func (p *played) scenario(name string, play func()) {
	p.Helper()
	p.Logf("--- %s", name)
	began := time.Now()
	play()
	if p.Failed() { // what comes after it would be played on a cluster that is not as it should be
		p.Fatalf("failed: %s", name)
	}
	p.Logf("    took %v", time.Since(began).Round(time.Millisecond))
}

// answers waits until a path of a member's API answers with that code.
func (p *played) answers(member, path string, code int) {
	p.Helper()
	got, text := 0, ""
	defer func() {
		if got != code {
			p.Logf("%s answers to %s: %d %s", member, path, got, text)
		}
	}()
	p.eventually(fmt.Sprintf("%s answers to %s with %d", member, path, code), func() bool {
		got, text = p.ask(member, "GET", path, "")
		return got == code
	})
}

// shows waits until the answer to a path has that text, or has it no more.
func (p *played) shows(member, path, text string, yes bool) {
	p.Helper()
	p.eventually(fmt.Sprintf("%q in %s's answer to %s: %v", text, member, path, yes), func() bool {
		code, body := p.ask(member, "GET", path, "")
		return code != 0 && strings.Contains(body, text) == yes
	})
}

// leads waits until a member is the primary, and says so by each way.
func (p *played) leads(member string) {
	p.Helper()
	p.answers(member, "/primary", http.StatusOK)
	p.answers(member, "/replica", http.StatusServiceUnavailable)
	p.eventually("the store says that "+member+" is the primary", func() bool {
		return p.key("leader") == member && p.list().Primary == member
	})
	if got := p.query(member, "SELECT pg_is_in_recovery()"); got != "f" {
		p.Errorf("%s is in recovery: %s", member, got)
	}
}

// follows waits until a member is a standby that streams.
func (p *played) follows(member string) {
	p.Helper()
	p.answers(member, "/replica", http.StatusOK)
	p.shows(member, "/patroni", `"replication_state":"streaming"`, true)
	if code, _ := p.ask(member, "GET", "/primary", ""); code != http.StatusServiceUnavailable {
		p.Errorf("%s follows, and answers to /primary with %d", member, code)
	}
}

// request makes a request that writes, which must be answered with that code.
func (p *played) request(member, method, path, body string, code int, texts ...string) {
	p.Helper()
	got, text := p.ask(member, method, path, body)
	if got != code {
		p.Errorf("%s %s %s: %d %s, want %d", method, path, body, got, text, code)
	}
	p.says(text, texts...)
}

func (p *played) patch(member, body string) {
	p.Helper()
	p.request(member, "PATCH", "/config", body, http.StatusOK)
}

// refuses has patronictl do what must fail.
func (p *played) refuses(text string, args ...string) {
	p.Helper()
	out, err := exec.CommandContext(p.Context(), "patronictl", append([]string{"-c", p.config}, args...)...).
		CombinedOutput()
	if err == nil {
		p.Errorf("patronictl %s did not fail", strings.Join(args, " "))
	}
	p.says(string(out), text)
}

// key is the value of one of Patroni's keys.
func (p *played) key(name string) string {
	p.Helper()
	resp, err := p.keys.Get(p.Context(), "/service/orders/"+name)
	if err != nil {
		p.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

// synchronous waits until the key sync names the primary, its standbys and the quorum, and the
// primary waits for them.
func (p *played) synchronous(primary, standbys string, acks int) {
	p.Helper()
	names := strings.Split(standbys, ",")
	sync := struct {
		Leader  string `json:"leader"`
		Standby string `json:"sync_standby"`
		Quorum  int    `json:"quorum"`
	}{}
	waits, was := "", ""
	defer func() { p.Logf("sync is %s, and %s waits for %s", was, primary, waits) }()
	p.eventually("commits wait for "+standbys, func() bool {
		was = p.key("sync")
		if json.Unmarshal([]byte(was), &sync) != nil {
			return false
		}
		waits, _ = p.try(primary, "SHOW synchronous_standby_names")
		return sync.Leader == primary && sync.Standby == standbys && sync.Quorum == len(names)-acks &&
			strings.HasPrefix(waits, fmt.Sprintf("ANY %d (", acks)) && strings.Count(waits, ",") == len(names)-1
	})
}

// try asks a server, which may not run.
func (p *played) try(member, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(p.Context(), 5*time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, "host=127.0.0.1 user=postgres dbname=postgres port="+p.members[member].port)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	all, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(all) == 0 || len(all[0].Rows) == 0 {
		return "", err
	}
	return string(all[0].Rows[0][0]), nil
}

func (p *played) query(member, sql string) string {
	p.Helper()
	return p.pgCluster.ask(member, sql)
}

// replicates writes a table on the primary, and waits until others have it.
func (p *played) replicates(table, primary string, to ...string) {
	p.Helper()
	if err := p.exec(primary, "CREATE TABLE "+table+" AS SELECT 1"); err != nil {
		p.Errorf("%s: %v", primary, err)
	}
	p.arrives(table, to...)
}

func (p *played) arrives(table string, at ...string) {
	p.Helper()
	for _, m := range at {
		p.eventually("the table "+table+" is on "+m, func() bool {
			got, err := p.try(m, "SELECT to_regclass('"+table+"') IS NOT NULL")
			return err == nil && got == "t"
		})
	}
}

// exec has a server do what returns no rows.
func (p *played) exec(member, sql string) error {
	ctx, cancel := context.WithTimeout(p.Context(), limit)
	defer cancel()
	conn, err := pgconn.Connect(ctx, "host=127.0.0.1 user=postgres dbname=postgres port="+p.members[member].port)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql).ReadAll()
	return err
}

// hangs begins a commit, and returns when it waits for a standby. done says how it has ended.
func (p *played) hangs(primary, table string) (done <-chan error) {
	p.Helper()
	end := make(chan error, 1)
	go func() { end <- p.exec(primary, "CREATE TABLE "+table+" AS SELECT 1") }()
	p.eventually("a commit waits", func() bool {
		got, err := p.try(primary, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' "+
			"AND query LIKE 'CREATE TABLE "+table+"%'")
		return err == nil && got == "1"
	})
	return end
}

func (p *played) acknowledged(done <-chan error) {
	p.Helper()
	select {
	case err := <-done:
		if err != nil {
			p.Errorf("a commit that waited: %v", err)
		}
	case <-time.After(limit):
		p.Error("a commit still waits")
	}
}

// down ends an agent as systemd does, and its server with it.
func (p *played) down(member string) {
	p.Helper()
	m := p.members[member]
	if err := syscall.Kill(m.PID(), syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-time.After(limit):
		p.Fatalf("%s does not end", member)
	}
}

func (p *played) starts(members ...string) {
	p.Helper()
	for _, m := range members {
		p.up(p.members[m])
	}
}

// tagged restarts a standby's agent with other tags, and waits until the primary has seen that: it
// hands over to whom it has seen.
func (p *played) tagged(member, tags string) {
	p.Helper()
	p.down(member)
	seen := func(yes bool) {
		p.eventually(fmt.Sprintf("the primary sees %s: %v", member, yes), func() bool {
			return strings.Contains(p.key("status"), `"`+member+`":`) == yes
		})
	}
	seen(false)
	m := p.members[member]
	text, err := os.ReadFile(m.file)
	if err != nil {
		p.Fatal(err)
	}
	next := regexp.MustCompile(`(?m)^tags = .*\n`).ReplaceAllString(string(text), "")
	next = strings.Replace(next, "[server]\n", "[server]\ntags = {"+tags+"}\n", 1)
	if err := os.WriteFile(m.file, []byte(next), 0o600); err != nil {
		p.Fatal(err)
	}
	p.starts(member)
	p.follows(member)
	seen(true)
}

// postmaster is the process of a member's server.
func (p *played) postmaster(member string) int {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, member, "data", "postmaster.pid"))
	if err != nil {
		p.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		p.Fatalf("postmaster.pid of %s: %q", member, text)
	}
	return pid
}

func (p *played) killServer(member string) {
	p.Helper()
	if err := syscall.Kill(p.postmaster(member), syscall.SIGKILL); err != nil {
		p.Fatal(err)
	}
}

// alone has a server that does not run execute SQL, without any other process.
func (p *played) alone(member, sql string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(pgtest.Bin(p.T), "postgres"), "--single", "-D",
		filepath.Join(p.dir, member, "data"), "-c", "synchronous_standby_names=", "-c", "synchronous_commit=local",
		"postgres")
	cmd.Dir, cmd.Stdin, cmd.SysProcAttr = filepath.Join(p.dir, member), strings.NewReader(sql+"\n"), p.owner().attr
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
		p.Fatalf("%s: %v: %s", sql, err, out)
	}
}

// without is the names of all members but these.
func (p *played) without(these ...string) (others []string) {
	for name := range p.members {
		if !slices.Contains(these, name) {
			others = append(others, name)
		}
	}
	return others
}

// whole waits until all others vote and stream: a voter that was restarted a moment ago votes, and
// has nothing yet.
func (p *played) whole() (j clusterJSON) {
	p.Helper()
	p.eventually("all others stream", func() bool {
		j = p.pgCluster.whole()
		n, err := p.try(j.Primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
		return err == nil && n == strconv.Itoa(len(p.members)-1)
	})
	return j
}

// ledBy waits until all is well, and has a member lead if it does not.
func (p *played) ledBy(member string) {
	p.Helper()
	p.eventually(member+" is the primary", func() bool {
		if p.whole().Primary != member { // it may be refused while another one has just ended
			p.verb("switchover", "--to", member).wait()
		}
		return p.list().Primary == member
	})
	p.leads(member)
	p.whole()
}

// scheduled is a time as patronictl takes it.
func scheduled(in time.Duration) string { return time.Now().Add(in).Format(time.RFC3339) }

// TestPatronisScenariosOfReplication begins with one member, as Patroni's do, and ends with three
// of which one is not waited for.
func TestPatronisScenariosOfReplication(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	p := newPlayed(t, 1)

	p.scenario("patroni_api: check API requests on a stand-alone server", func() {
		p.leads("pg1")
		p.shows("pg1", "/", `"state":"running","postmaster_start_time"`, true)
		p.shows("pg1", "/", `"role":"primary"`, true)
		p.answers("pg1", "/standby_leader", http.StatusServiceUnavailable)
		p.answers("pg1", "/health", http.StatusOK)
		p.request("pg1", "POST", "/reinitialize", `{"force": true}`, http.StatusServiceUnavailable, "is the primary")
		p.refuses("No candidates found to switchover to", "switchover", "--master", "pg1", "--force")
		p.request("pg1", "POST", "/switchover", `{"leader": "pg1"}`, http.StatusPreconditionFailed)
		p.request("pg1", "POST", "/failover", `{}`, http.StatusBadRequest)
		p.request("pg1", "POST", "/failover", `{"foo": "bar"}`, http.StatusBadRequest,
			"Failover could be performed only to a specific candidate")
		p.leads("pg1")
	})
	p.scenario("quorum_commit: check enable quorum commit and that the only leader promotes after restart", func() {
		p.patch("pg1", `{"ttl": 20, "synchronous_mode": "quorum", "synchronous_mode_strict": null,
			"primacy": {"alone_after": "1s"}}`)
		if err := p.exec("pg1", "CREATE TABLE alone AS SELECT 1"); err != nil {
			t.Error(err)
		}
		p.down("pg1")
		p.starts("pg1")
		p.leads("pg1")
		p.patch("pg1", `{"synchronous_mode_strict": true}`)
		p.acknowledged(func() <-chan error {
			done := p.hangs("pg1", "strict")
			p.joins()
			return done
		}())
	})
	p.scenario("basic_replication: check replication of a single table", func() {
		p.joins()
		p.replicates("foo", "pg1", "pg2", "pg3")
		p.synchronous("pg1", "pg2,pg3", 1)
	})
	p.scenario("patroni_api: check local configuration reload", func() {
		p.request("pg1", "POST", "/reload", "{}", http.StatusAccepted)
	})
	p.scenario("patroni_api: check dynamic configuration change via DCS", func() {
		p.patch("pg2", `{"ttl": 20, "postgresql": {"parameters": {"max_connections": "101"}}}`)
		for name := range p.members {
			p.shows(name, "/patroni", `"pending_restart":true`, true)
		}
		p.shows("pg1", "/config", `"ttl":20`, true)
	})
	p.scenario("patroni_api: check the scheduled restart", func() {
		in := func(name, filters string) {
			p.request(name, "POST", "/restart", `{"schedule": "`+scheduled(10*time.Second)+`", `+filters+`}`,
				http.StatusAccepted)
			p.shows(name, "/patroni", `"scheduled_restart":{`, false) // any more
		}
		in("pg1", `"role": "replica"`)
		p.shows("pg1", "/patroni", `"pending_restart":true`, true)
		p.request("pg1", "POST", "/restart", `{"role": "replica"}`, http.StatusServiceUnavailable,
			"conditions are not satisfied")
		for i, name := range []string{"pg2", "pg3", "pg1"} {
			p.whole()
			if i == 1 {
				p.request(name, "POST", "/restart", `{"restart_pending": true}`, http.StatusOK)
			} else {
				in(name, `"restart_pending": "True"`)
			}
			p.shows(name, "/patroni", `"pending_restart":true`, false)
			p.eventually(name+" has the parameter", func() bool {
				got, err := p.try(name, "SHOW max_connections")
				return err == nil && got == "101"
			})
		}
		p.ledBy("pg1")
	})
	p.scenario("basic_replication: check restart of sync replica", func() {
		p.down("pg3")
		p.synchronous("pg1", "pg2", 1)
		p.starts("pg3")
		p.synchronous("pg1", "pg2,pg3", 1)
		p.down("pg2")
		p.synchronous("pg1", "pg3", 1)
		p.starts("pg2")
		p.shows("pg2", "/patroni", `"state":"running"`, true)
		p.answers("pg3", "/sync", http.StatusOK)
		p.answers("pg2", "/sync", http.StatusOK)
		p.answers("pg2", "/async", http.StatusServiceUnavailable)
	})
	p.scenario("basic_replication: check stuck sync replica", func() {
		p.patch("pg1", `{"maximum_lag_on_syncnode": 15000000,
			"postgresql": {"parameters": {"synchronous_commit": "remote_apply"}}}`)
		p.replicates("mytest", "pg1", "pg2", "pg3")
		p.query("pg3", "SELECT pg_wal_replay_pause()::text")
		err := p.exec("pg1", "CREATE TABLE large AS SELECT repeat('x', 100) FROM generate_series(1, 50000)")
		if err != nil {
			t.Errorf("commits wait for a standby that replays nothing: %v", err)
		}
		p.synchronous("pg1", "pg2,pg3", 1)
		p.query("pg3", "SELECT pg_wal_replay_resume()::text")
		p.arrives("large", "pg3")
		p.patch("pg1", `{"maximum_lag_on_syncnode": -1, "postgresql": {"parameters": {"synchronous_commit": "on"}}}`)
	})
	three := func() {
		p.patch("pg1", `{"synchronous_node_count": 2}`)
		p.synchronous("pg1", "pg2,pg3", 2)
		p.patch("pg1", `{"synchronous_node_count": 1}`)
		p.synchronous("pg1", "pg2,pg3", 1)
	}
	p.scenario("quorum_commit: check behavior with three nodes and different replication factor", three)
	p.scenario("basic_replication: check multi sync replication", func() {
		p.patch("pg1", `{"synchronous_node_count": 2}`)
		p.synchronous("pg1", "pg2,pg3", 2)
		p.down("pg2")
		p.synchronous("pg1", "pg3", 1) // both are wanted, and one is all that is left
		p.starts("pg2")
		p.synchronous("pg1", "pg2,pg3", 2)
		p.patch("pg1", `{"synchronous_node_count": 1}`)
		p.synchronous("pg1", "pg2,pg3", 1)
	})
	p.scenario("quorum_commit: switch from quorum replication to good old multisync and back", func() {
		p.patch("pg1", `{"synchronous_mode": true}`)
		p.synchronous("pg1", "pg2,pg3", 1)
		p.patch("pg1", `{"synchronous_mode": "quorum"}`)
		p.synchronous("pg1", "pg2,pg3", 1)
	})
	p.scenario("quorum_commit: REST API and patronictl", func() {
		if n := strings.Count(p.ctl("list"), "Sync Standby"); n != 2 {
			t.Errorf("patronictl list shows %d standbys that are waited for", n)
		}
		p.answers("pg2", "/quorum", http.StatusOK)
		p.answers("pg3", "/quorum", http.StatusOK)
	})

	p.scenario("patroni_api: check API requests for the primary-replica pair in the pause mode", func() {
		p.ctl("pause", "--wait")
		p.killServer("pg2")
		p.answers("pg2", "/replica", http.StatusServiceUnavailable)
		p.follows("pg2") // its agent has started it again
		p.replicates("inpause", "pg1", "pg2")
		p.says(p.ctl("restart", "orders", "pg2", "--force"), "Failed: restart for member pg2", "resume it first")
		p.says(p.ctl("reinit", "orders", "pg2", "--force"), "Failed: reinitialize for member pg2", "resume it first")
		p.leads("pg1")
	})
	p.scenario("patroni_api: check the switchover via the API in the pause mode", func() {
		p.request("pg1", "POST", "/switchover", `{"leader": "pg1", "candidate": "pg2"}`,
			http.StatusPreconditionFailed, "resume it first")
		p.leads("pg1")
	})
	p.scenario("patroni_api: check the scheduled switchover", func() {
		p.refuses("Can't schedule switchover in the paused state", "switchover", "--master", "pg1", "--candidate",
			"pg2", "--scheduled", scheduled(time.Hour), "--force")
		p.ctl("resume", "--wait")
		p.whole()
		p.ctl("switchover", "--master", "pg1", "--candidate", "pg2", "--scheduled",
			scheduled(20*time.Second), "--force")
		p.leads("pg2")
		p.follows("pg1")
		p.replicates("aftertime", "pg2", "pg1", "pg3")
		p.whole()
	})
	now := ""
	p.scenario("basic_replication: check the basic failover in synchronous mode", func() {
		p.ctl("pause", "--wait")
		p.down("pg2")
		p.verb("resume", "--wait", "1s").ends(exitNotAcquired).complains("if it is lost for good: --force")
		p.verb("resume", "--force").ends(0)
		p.eventually("another is the primary", func() bool { now = p.list().Primary; return now != "" })
		p.leads(now)
		p.patch(now, `{"master_start_timeout": 0}`)
		p.shows(now, "/history", `"`+now+`"]]`, true)
		p.shows(now, "/config", "master_start_timeout", true)
		p.replicates("bar", now, p.without(now, "pg2")...)
	})
	p.scenario("basic_replication: check rejoin of the former primary with pg_rewind", func() {
		p.alone("pg2", "CREATE TABLE splitbrain AS SELECT 1")
		p.starts("pg2")
		p.follows("pg2")
		p.replicates("buz", now, "pg2")
		if got := p.query("pg2", "SELECT to_regclass('splitbrain') IS NULL"); got != "t" {
			t.Errorf("what the former primary alone had is still there")
		}
		p.owner().start("postgres", "lost", "-f", p.members["pg2"].file).ends(0).says("pg2")
		p.whole()
		p.figure("pg2", "primacy_postgres_discarded_bytes_total{", true)
		p.figure("pg2", `primacy_postgres_rejoins_total{how="rewind",`, true)
		p.figure(now, "primacy_postgres_discarded_bytes_total{", false)
	})
	p.scenario("basic_replication: check graceful rejection when two nodes have the same name", func() {
		first := p.members["pg3"]
		again := &pgMember{name: first.name, file: filepath.Join(p.dir, "again", "pg.toml")}
		text, err := os.ReadFile(first.file)
		if err != nil {
			t.Fatal(err)
		}
		api := "127.0.0.1:" + servertest.FreePort(t)
		next := strings.NewReplacer("auth_file", "# auth_file", filepath.Join(p.dir, "pg3"), filepath.Dir(again.file),
			first.port, servertest.FreePort(t), first.api, api).Replace(string(text))
		err = os.MkdirAll(filepath.Dir(again.file), 0o755)
		if err == nil {
			err = os.WriteFile(again.file, []byte(next), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.own(again.file)
		p.own(filepath.Dir(again.file))
		p.up(again)
		p.eventually("the second pg3 runs", func() bool {
			resp, err := http.Get("http://" + api + "/health")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil
		})
		p.replicates("twin", now, "pg3")
		if j := p.list(); j.Primary != now {
			t.Errorf("with a second pg3: %s", j.Text)
		}
		p.Logf("%s", p.list().Text)
		again.Kill()
		p.whole()
		p.replicates("afterit", now, "pg2", "pg3")
	})
}
