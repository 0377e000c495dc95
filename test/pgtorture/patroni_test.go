//go:build linux

package pgtorture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/pgtest"
)

// patroni is the peer, as a distribution ships it: in its strict synchronous mode, with times from
// the environment.
type patroni struct {
	program string
	version string
	ttl     time.Duration
	loop    time.Duration
	retry   time.Duration
}

// newPatroni skips the test where Patroni cannot run.
func newPatroni(t testing.TB) *patroni {
	p := &patroni{ttl: forHow(t, "PGTORTURE_TTL", 20*time.Second)}
	// Its own bounds: ttl at least 20 s and loop_wait + 2 retry_timeout, retry_timeout 3 s.
	p.loop = p.ttl / 4
	if p.ttl >= 30*time.Second { // what it has where nobody says otherwise: 30, 10, 10
		p.loop = p.ttl / 3
	}
	p.retry = p.loop
	var err error
	if p.program, err = exec.LookPath("patroni"); err == nil {
		var out []byte
		out, err = exec.Command(p.program, "--version").CombinedOutput()
		p.version = strings.TrimSpace(string(out))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "pgtorture: THE PEER IS NOT MEASURED: Patroni does not run here: %v; on Debian: "+
			"apt-get install patroni\n", err)
		t.Skipf("the peer is not measured: %v", err)
	}
	fmt.Fprintf(os.Stderr, "pgtorture: the peer is %s, ttl %v, loop_wait %v, retry_timeout %v, "+
		"synchronous_mode_strict\n", p.version, p.ttl, p.loop, p.retry)
	return p
}

func (p *patroni) name() string { return "patroni" }

func (p *patroni) promises() bool { return false }

// times: it takes the loops of two members until a successor has a synchronous standby.
func (p *patroni) times(testing.TB) (life, more, stable time.Duration) {
	return p.ttl, 3 * p.loop, 2 * time.Second
}

// install needs machines of their own: all members have their API on the same port.
func (p *patroni) install(c *cluster) {
	if c.network == nil {
		fmt.Fprintln(os.Stderr, "pgtorture: THE PEER IS NOT MEASURED: it needs a network namespace for each machine")
		c.tb.Skip("the peer is not measured: it needs network namespaces")
	}
}

const patroniAPI = "8008"

func (p *patroni) agent(c *cluster, m *machine, endpoints []string, subnet string) (map[string]string, []string) {
	yml := filepath.Join(m.dir, "patroni.yml")
	indent := func(by, text string) string {
		return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
	}
	return map[string]string{yml: fmt.Sprintf(`scope: %s
name: %s
restapi: {listen: "%[3]s:%[4]s", connect_address: "%[3]s:%[4]s"}
etcd3: {hosts: "%[5]s"}
bootstrap:
  dcs:
    ttl: %[6]d
    loop_wait: %[7]d
    retry_timeout: %[8]d
    maximum_lag_on_failover: 1048576
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
%[9]s
  initdb: [{encoding: UTF8}, data-checksums]
postgresql:
  listen: "%[3]s:%[10]s"
  connect_address: "%[3]s:%[10]s"
  data_dir: %[11]s
  bin_dir: %[12]s
  pgpass: %[13]s
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
  authentication:
    replication: {username: replicator, password: secret}
    superuser: {username: postgres, password: secret}
  parameters: {unix_socket_directories: %[14]s}
  pg_hba: [local all all trust, host all postgres %[15]s trust, host replication replicator %[15]s trust]
`, scope, m.name, m.host, patroniAPI, strings.Join(endpoints, ","), int(p.ttl.Seconds()), int(p.loop.Seconds()),
		int(p.retry.Seconds()), indent("        ", parameters(": ")), m.port, m.data(), pgtest.Bin(c.tb),
		filepath.Join(m.dir, "pgpass"), filepath.Join(m.dir, "s"), subnet)}, []string{p.program, yml}
}

// primary is whom the leader key names. While the store knows no synchronous standby, some loops
// longer than PostgreSQL, Patroni promotes nobody: a fault then would show what no user chose.
func (p *patroni) primary(c *cluster) (*machine, uint32, error) {
	leader, err := p.key(c, "leader")
	if err != nil {
		return nil, 0, err
	}
	m := c.machine(leader)
	if m == nil {
		return nil, 0, fmt.Errorf("the leader key names %q", leader)
	}
	if next, err := p.synchronous(c, leader); next == nil {
		return m, 0, errors.Join(errors.New("the store knows no synchronous standby"), err)
	}
	return m, 0, nil
}

// synchronous returns a leader's synchronous standby as the store has it, nil if there is none.
func (p *patroni) synchronous(c *cluster, leader string) (*machine, error) {
	text, err := p.key(c, "sync")
	if err != nil {
		return nil, err
	}
	var sync struct {
		Leader  string `json:"leader"`
		Standby string `json:"sync_standby"`
	}
	if err := json.Unmarshal([]byte(text), &sync); err != nil || sync.Leader != leader {
		return nil, err
	}
	return c.machine(sync.Standby), nil
}

func (p *patroni) key(c *cluster, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r, err := c.client.Get(ctx, "/service/"+scope+"/"+name)
	if err != nil {
		return "", err
	}
	if len(r.Kvs) == 0 {
		return "", fmt.Errorf("there is no key %s", name)
	}
	return string(r.Kvs[0].Value), nil
}

// standbys is true of all of them as soon as one of them is the synchronous one.
func (p *patroni) standbys() string {
	return "EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming')"
}

// next is the synchronous standby: Patroni refuses another.
func (p *patroni) next(r *round) (*machine, error) {
	m, err := p.synchronous(r.cluster, r.primary.name)
	if m == nil {
		return nil, fmt.Errorf("%w: the store knows no synchronous standby: %w", errMissed, err)
	}
	return m, nil
}

func (p *patroni) switchover(r *round, next *machine) (string, error) {
	body, err := json.Marshal(map[string]string{"leader": r.primary.name, "candidate": next.name})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://"+address(r.primary.host, patroniAPI)+"/switchover", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(text), err
}

// mend removes the key of the synchronous standby. Some leaders say in each loop that somebody else
// has changed it, also after a restart, and name no standby any more.
func (p *patroni) mend(c *cluster) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, _ = c.client.Delete(ctx, "/service/"+scope+"/sync")
}

func (p *patroni) judge(*cluster) []string { return nil }

func (p *patroni) left(*cluster) []string { return nil }

// comparable are the faults that mean the same for both.
var comparable = regexp.MustCompile(`^(` + strings.Join([]string{
	"primary's machine killed", "primary's machine frozen", "standby's machine killed",
	"agent killed", "agent killed, not started again", "agent frozen", "postmaster killed",
	"primary cut from etcd", "primary cut from both", "standby cut off", "etcd's leader killed", "switchover",
}, "|") + `)$`)
