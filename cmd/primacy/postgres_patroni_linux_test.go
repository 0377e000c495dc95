package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// shownCluster is members whose API the tools of Patroni's users find.
type shownCluster struct {
	*pgCluster
	config string // of patronictl
}

func newShownCluster(t *testing.T, members int, ttl string) *shownCluster {
	return newShownClusterOn(t, etcdtest.Options{}, members, ttl)
}

// newShownClusterOn is newShownCluster on an etcd of that kind.
func newShownClusterOn(t *testing.T, o etcdtest.Options, members int, ttl string) *shownCluster {
	programtest.Needs(t, "patronictl") // Debian's package patroni: make tools
	c := &shownCluster{}
	c.pgCluster = postgresClusterOn(t, o, members, ttl, func(m *pgMember) string {
		auth := filepath.Join(filepath.Dir(m.file), "auth")
		err := os.MkdirAll(filepath.Dir(auth), 0o755)
		if err == nil {
			err = os.WriteFile(auth, []byte("tools:secret\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		(&pgCluster{world: &world{T: t}}).own(auth)
		m.api = "127.0.0.1:" + servertest.FreePort(t)
		return fmt.Sprintf("[api]\nlisten = %q\nauth_file = %q\n", m.api, auth)
	})
	c.config = filepath.Join(c.dir, "patronictl.yml")
	text := fmt.Sprintf("scope: orders\nname: ctl\nnamespace: /service/\netcd3:\n  host: %s\nrestapi:\n"+
		"  listen: 127.0.0.1:1\n  connect_address: 127.0.0.1:1\n  auth: tools:secret\n", c.etcd.Addr())
	if err := os.WriteFile(c.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

// ctl runs patronictl, and returns what it says.
func (c *shownCluster) ctl(args ...string) string {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), "patronictl", append([]string{"-c", c.config}, args...)...)
	cmd.Env = append(os.Environ(), "COLUMNS=200")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Errorf("patronictl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	c.Logf("patronictl %s\n%s", strings.Join(args, " "), out)
	return string(out)
}

func (c *shownCluster) says(text string, wants ...string) {
	c.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			c.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// ask makes one request of a member's API.
func (c *shownCluster) ask(m, method, path, body string) (int, string) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), method, "http://"+c.members[m].api+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	if body != "" {
		r.SetBasicAuth("tools", "secret")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// lists waits until all members are shown as they should be, and looks that patronictl agrees.
func (c *shownCluster) lists(leader string) {
	c.Helper()
	c.eventually("a leader and two synchronous standbys are shown", func() bool {
		_, text := c.ask(leader, "GET", "/cluster", "")
		return strings.Contains(text, `"name":"`+leader+`","role":"leader","state":"running"`) &&
			strings.Count(text, `"role":"sync_standby","state":"streaming"`) == 2
	})
	text := c.ctl("list", "-f", "json")
	var all []struct{ Member, Role, State string }
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 3 {
		c.Errorf("patronictl list: %v: %s", err, text)
	}
	for _, m := range all {
		want := []string{"Sync Standby", "running", "streaming"} // the latter by Patroni 4
		if m.Member == leader {
			want = []string{"Leader", "running"}
		}
		if m.Role != want[0] || !slices.Contains(want[1:], m.State) {
			c.Errorf("patronictl lists %+v, want %v", m, want)
		}
	}
}

// balanced is HAProxy before the three members, which asks them OPTIONS /primary. It returns the
// port at which it sends clients to the primary. Without its own timeout a check may take no longer
// than the time between two: on a busy machine all members would be down.
func (c *shownCluster) balanced() (port string) {
	c.Helper()
	programtest.Needs(c, "haproxy")
	port = servertest.FreePort(c)
	text := fmt.Sprintf(`global
    stats socket %s level admin
defaults
    mode tcp
    timeout connect 1s
    timeout client 30s
    timeout server 30s
    timeout check 5s
listen primary
    bind 127.0.0.1:%s
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 100ms fall 2 rise 1 on-marked-down shutdown-sessions
`, filepath.Join(c.dir, "haproxy.sock"), port)
	for name, m := range c.members {
		_, check, _ := net.SplitHostPort(m.api)
		text += fmt.Sprintf("    server %s 127.0.0.1:%s check port %s\n", name, m.port, check)
	}
	file := filepath.Join(c.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.Fatal(err)
	}
	cmd := exec.CommandContext(c.Context(), "haproxy", "-db", "-f", file)
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return port
}

// orders tells HAProxy something over its admin socket.
func (c *pgCluster) orders(line string) {
	c.Helper()
	c.Logf("HAProxy: %s", line)
	conn, err := net.Dial("unix", filepath.Join(c.dir, "haproxy.sock"))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		c.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || strings.TrimSpace(string(answer)) != "" {
		c.Errorf("HAProxy says to %s: %s %v", line, answer, err)
	}
}

// sayPrimary asks the members in turn, until stop is closed, as HAProxy does. It returns who said
// that it is the primary, without repetitions.
func (c *shownCluster) sayPrimary(stop <-chan struct{}) (way []string) {
	for {
		for name := range c.members {
			select {
			case <-stop:
				return way
			case <-time.After(5 * time.Millisecond):
			}
			if code, _ := c.ask(name, "OPTIONS", "/primary", ""); code == http.StatusOK {
				way = slices.Compact(append(way, name))
			}
		}
	}
}

// writesThrough inserts rows through HAProxy, one after another, until stop is closed. It returns
// which members have acknowledged them, without repetitions.
func (c *shownCluster) writesThrough(port string, stop <-chan struct{}) (way []string) {
	one := func() (string, error) {
		ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
		defer cancel()
		conn, err := pgconn.Connect(ctx, "host=127.0.0.1 user=postgres dbname=postgres port="+port)
		if err != nil {
			return "", err
		}
		defer conn.Close(ctx)
		rows, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS t (at timestamptz); INSERT INTO t VALUES (now());"+
			"SHOW port").ReadAll()
		if err != nil {
			return "", err
		}
		return string(rows[len(rows)-1].Rows[0][0]), nil
	}
	last, gap := time.Time{}, time.Duration(0)
	for stopped := false; ; {
		select {
		case <-stop:
			stopped = true
		default:
		}
		if c.Context().Err() != nil || stopped && len(way) > 1 { // rows have found the way to the new primary
			c.Logf("the longest time without a row that came by HAProxy: %v", gap)
			if gap > maxGap {
				c.Errorf("no row came by HAProxy for %v", gap)
			}
			return way
		}
		at, err := one()
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if !last.IsZero() {
			gap = max(gap, time.Since(last))
		}
		last = time.Now()
		for name, m := range c.members {
			if m.port == at {
				way = slices.Compact(append(way, name))
			}
		}
	}
}

// TestPatronisTools: a day with patronictl, and clients that come by HAProxy.
func TestPatronisTools(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	oneDemo(t)
	c := newShownCluster(t, 3, "8s")
	was := c.whole().Primary
	c.lists(was)
	c.says(c.ctl("topology"), "| "+was+" ", "| + ")
	c.eventually("there is a shared configuration", func() bool {
		code, _ := c.ask(was, "GET", "/config", "")
		return code == http.StatusOK
	})
	c.says(c.ctl("show-config"), "synchronous_mode: true")
	c.says(c.ctl("dsn"), "host=127.0.0.1 port="+c.members[was].port)

	port, stop, way := c.balanced(), make(chan struct{}), make(chan []string, 1)
	go func() { way <- c.writesThrough(port, stop) }()
	c.eventually("a row goes through HAProxy", func() bool {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil && c.writes(was) == nil
	})
	c.says(c.ctl("switchover", "--force"), "Successfully switched over to")
	now := c.whole().Primary
	c.lists(now)
	close(stop)
	select {
	case got := <-way:
		if !slices.Equal(got, []string{was, now}) {
			t.Errorf("rows that came by HAProxy were acknowledged by %v, want %s, then %s", got, was, now)
		}
	case <-time.After(limit):
		t.Error("clients that come by HAProxy do not reach the new primary")
	}
	c.says(c.ctl("history"), "was shut down at", now)
	if code, text := c.ask(now, "POST", "/switchover", `{"leader":"`+now+`","candidate":"nobody"}`); code != 412 ||
		!strings.Contains(text, "no member nobody stands") {
		t.Errorf("a switchover to nobody: %d %s", code, text)
	}
	_, text := c.ask(was, "GET", "/patroni", "")
	c.says(text, `"role":"replica"`, `"server_version":1`, `"replayed_timestamp":"2`, `"replication_state":"streaming"`)
	if _, text := c.ask(now, "GET", "/metrics", ""); !strings.Contains(text,
		`patroni_primary{name="`+now+`",scope="orders"} 1`) {
		t.Errorf("/metrics does not say that %s is the primary: %.2000s", now, text)
	}
	if code, text := c.ask(now, "POST", "/restart", ""); code != http.StatusUnauthorized {
		t.Errorf("a restart without a password: %d %s", code, text)
	}

	c.says(c.ctl("pause", "--wait"), "Success: cluster management is paused")
	c.says(c.ctl("list"), "Maintenance mode: on")
	if j := c.list(); j.Record.Paused == nil || j.Primary != now {
		t.Errorf("after patronictl pause: %s", j.Text)
	}
	c.says(c.ctl("switchover", "--force"), "Switchover failed", "resume it first")
	c.says(c.ctl("resume", "--wait"), "Success: cluster management is resumed")

	c.says(c.ctl("reload", "orders", "--force"), "Reload request received for member "+now)
	standby := c.whole().Record.Voters[0]
	c.says(c.ctl("restart", "orders", standby.Name, "--force"), "Success: restart on member "+standby.Name)
	began := time.Now()
	c.pgCluster.ask(now, "ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
	c.pgCluster.ask(now, "SELECT pg_reload_conf()")
	c.schedules(standby.Name)
	c.overridden(now, "synchronous_commit")
	t.Logf("scheduled restarts and an override took %v", time.Since(began))
	c.says(c.ctl("reinit", "orders", standby.Name, "--force"), "Success: reinitialize for member "+standby.Name)
	c.eventually("the member was made anew", func() bool {
		j := c.list()
		m := j.member(standby.Name)
		return j.Record != nil && len(j.Record.Voters) == 2 && m != nil && m.Incarnation != standby.Incarnation &&
			m.Voter
	})
	c.lists(now)

	c.figure(now, `primacy_postgres_failover_seconds{kind="switchover",`, true)
	c.figure(now, `primacy_postgres_failover_seconds{kind="failover",`, false)
	c.figure(standby.Name, `primacy_postgres_seals_total{`, true)
	c.figure(standby.Name, `primacy_postgres_rejoins_total{how="clone",`, true)
	c.members[now].Kill()
	c.eventually("another leads, and the killed member is shown no more", func() bool {
		_, text := c.ask(standby.Name, "GET", "/cluster", "")
		return !strings.Contains(text, `"`+now+`"`) && strings.Contains(text, `"role":"leader"`)
	})
	next := ""
	c.eventually("the next primary says so", func() bool { next = c.list().Primary; return next != "" && next != now })
	c.figure(next, `primacy_postgres_failover_seconds{kind="failover",`, true)
}

// schedules has a member restarted later by patronictl and by the API, and the former put off.
func (c *shownCluster) schedules(m string) {
	c.Helper()
	started := func() string {
		var is struct {
			Started string `json:"postmaster_start_time"`
			State   string
		}
		_, text := c.ask(m, "GET", "/patroni", "")
		if json.Unmarshal([]byte(text), &is) != nil || is.State != "running" {
			return ""
		}
		return is.Started
	}
	shown := func(want bool) {
		c.Helper()
		c.eventually("the scheduled restart is shown, or is not any more", func() bool {
			_, text := c.ask(m, "GET", "/cluster", "")
			return strings.Contains(text, `"scheduled_restart":{`) == want
		})
	}
	later := time.Now().Add(time.Hour).Format("2006-01-02T15:04:05-07:00")
	c.says(c.ctl("restart", "orders", m, "--scheduled", later, "--force"), "Success: restart scheduled on member "+m)
	shown(true)
	c.says(c.ctl("list"), "Scheduled restart", later[:16])
	c.says(c.ctl("flush", "orders", m, "restart", "--force"), "Success: flush scheduled restart for member "+m)
	shown(false)
	was := ""
	c.eventually("when its server was started is known", func() bool { was = started(); return was != "" })
	soon := time.Now().Add(10 * time.Second).Format(time.RFC3339Nano)
	code, text := c.ask(m, "POST", "/restart", `{"schedule":"`+soon+`","role":"replica"}`)
	if code != http.StatusAccepted {
		c.Errorf("a restart at %s: %d %s", soon, code, text)
	}
	c.eventually("the server was restarted", func() bool { is := started(); return is != "" && is != was })
	shown(false)
	c.whole()
}

// overridden waits until it is told that a setting of a member is in force past primacy, with what
// takes it back. That it is told no more then is for the server's tests: a member asks each 5 s.
func (c *shownCluster) overridden(m, setting string) {
	c.Helper()
	series := `primacy_postgres_overridden_setting{name="` + m + `",scope="orders",setting="` + setting + `"} 1`
	c.eventually("list and the metrics tell of an override", func() bool {
		_, text := c.ask(m, "GET", "/metrics", "")
		j := c.list()
		is := j.member(m)
		return is != nil && strings.Contains(text, series) && len(is.Overridden) > 0
	})
	c.verb("list").ends(0).says("psql -c 'ALTER SYSTEM RESET " + setting + "' -c 'SELECT pg_reload_conf()'")
	c.pgCluster.ask(m, "ALTER SYSTEM RESET "+setting)
	c.pgCluster.ask(m, "SELECT pg_reload_conf()")
}

// figure looks whether a metric of a member is above 0.
func (c *shownCluster) figure(m, begins string, above bool) {
	c.Helper()
	_, text := c.ask(m, "GET", "/metrics", "")
	_, rest, ok := strings.Cut(text, "\n"+begins)
	line, _, _ := strings.Cut(rest, "\n")
	c.Logf("%s%s", begins, line)
	if !ok || strings.HasSuffix(line, " 0") == above {
		c.Errorf("%s of %s: %q, want it above 0: %v", begins, m, line, above)
	}
}
