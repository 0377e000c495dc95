//go:build linux

package pgtorture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/programtest"
)

// ours is `primacy postgres`.
type ours struct {
	durability string // quorum, if empty
	program    string // in place of the one that is built

	mu     sync.Mutex
	bin    string
	record record // the newest that was seen
	grants []grant
}

// record is what the harness needs of the cluster's record.
type record struct {
	Seq      uint64 `json:"seq,string"`
	Token    uint64 `json:"token,string"`
	Timeline uint32 `json:"timeline"`
	Primary  struct {
		Name string `json:"name"`
	} `json:"primary"`
	Voters []struct {
		Name string `json:"name"`
	} `json:"voters"`
	Paused *struct{} `json:"paused"`
}

func (o *ours) name() string { return "primacy" }

func (o *ours) promises() bool { return true }

func (o *ours) mend(c *cluster) { c.tb.Fatal("it was to do without") }

func (o *ours) times(t testing.TB) (life, more, stable time.Duration) {
	return forHow(t, "PGTORTURE_TTL", ttl), 5 * time.Second, 500 * time.Millisecond
}

// install puts the program where everybody may run it, and follows the cluster's record.
func (o *ours) install(c *cluster) {
	o.durability = cmp.Or(o.durability, os.Getenv("PGTORTURE_DURABILITY"), "quorum")
	if !slices.Contains([]string{"quorum", "available", "async"}, o.durability) {
		c.tb.Fatalf("PGTORTURE_DURABILITY=%q: want quorum or available", o.durability)
	}
	from := cmp.Or(o.program, os.Getenv("PGTORTURE_PROGRAM"))
	if from == "" {
		var err error
		if from, err = programtest.Program(); err != nil {
			c.tb.Fatal(err)
		}
	}
	o.bin = filepath.Join(c.dir, "primacy")
	in, err := os.Open(from)
	if err != nil {
		c.tb.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(o.bin, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(out, in)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		c.tb.Fatal(err)
	}
	watching, stop := context.WithCancel(context.Background())
	c.tb.Cleanup(stop)
	go o.watch(watching, c.client)
}

func (o *ours) agent(c *cluster, m *machine, endpoints []string, subnet string) (map[string]string, []string) {
	toml := m.file()
	return map[string]string{
		filepath.Join(m.dir, "pgpass"): "*:*:*:*:secret\n",
		toml: fmt.Sprintf(`store = "etcd://%s%s"
cluster = %q
name = %q
ttl = %q
[server]
data = %q
bin = %q
listen = "%s:%s"
socket = %q
replication = {user = "replicator", passfile = %q}
hba = ["host all postgres %s trust"]
[first]
durability = %q
acks = 1
[first.parameters]
%s`, strings.Join(endpoints, ","), os.Getenv("PGTORTURE_STORE"), scope, m.name, c.ttl, m.data(), pgtest.Bin(c.tb),
			m.host, m.port,
			filepath.Join(m.dir, "s"), filepath.Join(m.dir, "pgpass"), subnet, o.durability, parameters(" = ")),
	}, []string{o.bin, "postgres", "-v", "-f", toml}
}

// parameters are PostgreSQL's, the same for all keepers. Little WAL is kept beside what slots need:
// pg_rewind copies all of it, and each timeline begins a segment of its own.
func parameters(is string) string {
	var b strings.Builder
	for _, p := range [][2]string{{"max_connections", "60"}, {"shared_buffers", `"16MB"`}, {"min_wal_size", `"32MB"`},
		{"max_wal_size", `"256MB"`}, {"wal_keep_size", `"0"`}} {
		fmt.Fprintf(&b, "%s%s%s\n", p[0], is, p[1])
	}
	return b.String()
}

// watch follows the cluster's record.
func (o *ours) watch(ctx context.Context, client *clientv3.Client) {
	for ctx.Err() == nil {
		for r := range client.Watch(clientv3.WithRequireLeader(ctx), "", clientv3.WithPrefix(), clientv3.WithRev(1)) {
			for _, e := range r.Events {
				if strings.Contains(string(e.Kv.Key), "@kept/") {
					o.saw(e.Kv.Value)
				}
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (o *ours) saw(value []byte) {
	var r record
	if json.Unmarshal(value, &r) != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Seq <= o.record.Seq {
		return // the watch has begun anew
	}
	paused := o.record.Paused != nil
	o.record = r
	g := grant{r.Token, r.Timeline, r.Primary.Name}
	if n := len(o.grants); n > 0 && paused && o.grants[n-1].Timeline == g.Timeline && o.grants[n-1].Node == g.Node {
		o.grants[n-1] = g // it went on through the pause, and has a term again: that is no promotion
		return
	}
	if n := len(o.grants); n == 0 || o.grants[n-1] != g {
		o.grants = append(o.grants, g)
	}
}

func (o *ours) known() (record, []grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.record, append([]grant(nil), o.grants...)
}

func (o *ours) primary(c *cluster) (*machine, uint32, error) {
	rec, _ := o.known()
	p := c.machine(rec.Primary.Name)
	if p == nil {
		return nil, 0, errors.New("there is no primary")
	}
	if len(rec.Voters) != members-1 && o.durability != "async" {
		return nil, 0, fmt.Errorf("voters: %v", rec.Voters)
	}
	return p, rec.Timeline, nil
}

func (o *ours) standbys() string {
	if o.durability == "async" {
		return "true"
	}
	return "sync_state <> 'async'"
}

func (o *ours) next(r *round) (*machine, error) { return r.standby(), nil }

func (o *ours) switchover(r *round, next *machine) (string, error) {
	return o.cli(r.cluster, 20*time.Second, "transfer", election, "--to", next.name, "--wait", "6s")
}

// cli runs the program as a user does. A file says itself which store it is.
func (o *ours) cli(c *cluster, limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var hosts []string
	for _, s := range c.etcd.Members {
		hosts = append(hosts, s.Addr())
	}
	if !slices.Contains(args, "-f") {
		args = append(args, "--store", "etcd://"+strings.Join(hosts, ","))
	}
	cmd := exec.CommandContext(ctx, o.bin, args...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (o *ours) judge(c *cluster) []string {
	_, grants := o.known()
	return judgeGrants(c.reigns.all(), grants)
}

// left returns the claims and slots that are nobody's.
func (o *ours) left(c *cluster) (wrong []string) {
	for _, m := range c.machines {
		slots, err := c.ask(m, "SELECT slot_name FROM pg_replication_slots"+
			" WHERE slot_name NOT IN ('pg1', 'pg2', 'pg3')")
		if err != nil || len(slots) > 0 {
			wrong = append(wrong, fmt.Sprintf("slots of %s: %v %v", m.name, slots, err))
		}
	}
	return wrong
}

// claimsLeft returns the keys in the store that a lease keeps.
func (c *cluster) claimsLeft() (left []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		left = nil
		r, err := c.client.Get(ctx, "", clientv3.WithPrefix())
		if err != nil {
			return []string{err.Error()}
		}
		for _, kv := range r.Kvs {
			if kv.Lease != 0 && !strings.Contains(string(kv.Key), "@journal/") {
				left = append(left, "left in the store: "+string(kv.Key))
			}
		}
		if len(left) == 0 {
			return nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	return left
}
