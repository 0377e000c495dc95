//go:build linux

package golden

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/zktest"
)

// holds is a command that stays until the file go is there or, asked to stop, until the file leave
// is there.
const holds = `trap 'while ! test -e "$0.leave"; do sleep 0.05; done; exit 0' TERM; echo up; while ! test -e "$0.go"; do sleep 0.05; done`

// obeys is a command that stays until it is asked to stop.
const obeys = `trap 'kill $!; exit 0' TERM; echo up; sleep 1000 & wait`

func TestEtcd(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, etcdtest.Options{})
	dump := etcdKeys(t, "http://"+s.Addr())
	w, b := newWorld(t, "etcd://"+s.Addr()), open(t, "etcd")
	scenario(w, b, dump)
	// Below two seconds a session has a heartbeat, which those who wait behind it watch.
	short := []string{"run", "--ttl", "1500ms", "--on-lost", "recampaign", "beaten", "--", "sh", "-c", obeys}
	w.start(append(short[:1:1], append([]string{"--id", "a"}, short[1:]...)...)...).prints("up")
	w.start(append(short[:1:1], append([]string{"--id", "b"}, short[1:]...)...)...)
	b.is("heartbeats", func() string {
		var beaten []string
		for _, line := range strings.Split(dump(), "\n") {
			if !strings.Contains(line, "@journal") {
				beaten = append(beaten, line)
			}
		}
		return sorted(beaten)
	})
}

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.Options{NoFsync: true})
	b := open(t, "postgres")
	w := newWorld(t, s.URL())
	schema := open(t, "postgres-schema")
	scenario(w, b, func() string { return rows(s) })
	schema.is("columns", func() string {
		return lines(s, `SELECT table_name || '.' || column_name || ' ' || data_type || ' null ' || is_nullable || ' default ' || coalesce(column_default, '-')
			FROM information_schema.columns WHERE table_schema = 'primacy'`)
	})
	schema.is("indexes", func() string {
		return lines(s, `SELECT indexdef FROM pg_indexes WHERE schemaname = 'primacy'`)
	})
	schema.is("constraints", func() string {
		return lines(s, `SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN pg_namespace n ON n.oid = connamespace
			WHERE nspname = 'primacy'`)
	})
	schema.is("sequences, views and other relations", func() string {
		return lines(s, `SELECT relkind::text || ' ' || relname || ' ' || relpersistence::text || ' ' || coalesce(reloptions::text, '') FROM pg_class WHERE relnamespace = 'primacy'::regnamespace`)
	})
	schema.is("functions", func() string {
		return lines(s, `SELECT proname || '(' || pg_get_function_arguments(p.oid) || ') ' || coalesce(pg_get_function_result(p.oid), '') FROM pg_proc p
			WHERE pronamespace = 'primacy'::regnamespace`)
	})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	scenario(newWorld(t, s.URL()), open(t, "redis"), func() string { return redisKeys(s) })
}

func TestZooKeeper(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t, zktest.Options{NoSync: true, Config: []string{"maxSessionTimeout=120000"}})
	scenario(newWorld(t, s.URL()), open(t, "zookeeper"), nodes(t, s.Addr()))
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	dir := strings.TrimPrefix(w.url, "embedded:")
	b := open(t, "embedded")
	host := w.start("lock", "--id", "host", "host", "--", "sh", "-c", obeys).prints("up")
	dump := etcdKeys(t, "unix://"+filepath.Join(dir, "etcd.sock"))
	b.is("keys", dump)
	b.is("files", func() string {
		var all []string
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(dir, path)
			if info, err := d.Info(); err == nil && !strings.Contains(name, "member") {
				all = append(all, fmt.Sprintf("%s %s", info.Mode(), name))
			}
			return nil
		})
		return sorted(all)
	})
	b.is("primacy.store", func() string { return read(filepath.Join(dir, "primacy.store")) })
	b.is("primacy.lock", func() string {
		return strings.ReplaceAll(read(filepath.Join(dir, "primacy.lock")), fmt.Sprint(host.cmd.Process.Pid), "PID")
	})
	host.stop()
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return plain(string(text))
}

// scenario does on a store what leaves something there, and compares at each rest.
func scenario(w *world, b *book, dump func() string) {
	w.Helper()
	up := func(args ...string) *proc { w.Helper(); return w.start(args...).prints("up") }
	file := filepath.Join(w.dir, "first")
	b.is("nothing yet", func() string { w.say("status"); return dump() })

	first := up("run", "--id", "web-1", "--value", "v1", "--stop-timeout", "20s", "billing", "--", "sh", "-c", holds, file)
	second := w.start("run", "--id", "web-2", "billing", "--", "sh", "-c", obeys)
	b.is("a leader and one that waits", dump)
	all := []*proc{
		up("lock", "--id", "l1", "backup", "--", "sh", "-c", obeys),
		w.start("lock", "--id", "l2", "backup", "--", "sh", "-c", obeys),
	}
	b.is("a lock and one that waits", dump)
	all = append(all,
		up("lock", "--id", "r1", "-s", "catalog", "--", "sh", "-c", obeys),
		up("lock", "--id", "r2", "-s", "catalog", "--", "sh", "-c", obeys),
		w.start("lock", "--id", "w1", "catalog", "--", "sh", "-c", obeys))
	b.is("readers and a writer that waits", dump)
	all = append(all,
		up("lock", "--id", "s1", "--slots", "2", "build", "--", "sh", "-c", obeys),
		up("lock", "--id", "s2", "--slots", "2", "build", "--", "sh", "-c", obeys),
		w.start("lock", "--id", "s3", "--slots", "2", "build", "--", "sh", "-c", obeys))
	b.is("a semaphore and one that waits", dump)
	all = append(all, up("lock", "--id", "Odd ID/ü", "a/b c%d@e~f+g.ü", "--", "sh", "-c", obeys))
	b.is("an odd name", dump)
	b.is("status", func() string { return w.say("status", "-o", "ndjson") })
	for i := len(all) - 1; i >= 0; i-- { // who waits first
		all[i].stop()
	}

	first.cmd.Process.Signal(syscall.SIGSTOP) // the request waits for it
	asks := w.start("transfer", "billing", "--to", "web-2", "--reason", "closer to the data", "--id", "ops", "--wait", "60s")
	b.is("a leader who has not heard yet that it is asked to hand over", dump)
	first.cmd.Process.Signal(syscall.SIGCONT)
	b.is("a leader who stops its work because it was asked to", dump)
	w.write("first.leave", "")
	asks.ends()
	first.ends()
	second.prints("up")
	b.is("handed over", dump)
	second.stop()
	b.is("all have gone", dump)

	killed := up("run", "--id", "web-3", "billing", "--", "sh", "-c", obeys)
	b.is("a leader again", dump)
	killed.cmd.Process.Signal(syscall.SIGKILL)
	killed.ends()
	b.is("a leader was killed", dump)
}

// etcdKeys returns a function that tells all keys and values of an etcd.
func etcdKeys(t *testing.T, endpoint string) func() string {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func() string {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		got, err := c.Get(ctx, "\x00", clientv3.WithFromKey())
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, kv := range got.Kvs {
			leased := ""
			if kv.Lease != 0 {
				leased = " (leased)"
			}
			all = append(all, fmt.Sprintf("%q%s %q", kv.Key, leased, kv.Value))
		}
		return sorted(all)
	}
}

// lines returns the first column of a query, a row a line.
func lines(s *pgtest.Server, query string) string {
	return sorted(strings.Split(s.Query(`SELECT coalesce(string_agg(x, chr(10)), '') FROM (`+query+`) AS q(x)`), "\n"))
}

// rows returns all rows of all tables of the schema, as JSON.
func rows(s *pgtest.Server) string {
	var all []string
	for _, table := range strings.Fields(s.Query(`SELECT coalesce(string_agg(relname, ' '), '') FROM pg_class WHERE relkind = 'r' AND relnamespace = 'primacy'::regnamespace`)) {
		for _, row := range strings.Split(lines(s, `SELECT to_jsonb(r)::text FROM primacy.`+table+` r`), "\n") {
			if row != "" {
				all = append(all, table+" "+row)
			}
		}
	}
	return sorted(all)
}

// redisKeys returns all keys with their types, fields and values.
func redisKeys(s *redistest.Server) string {
	c, ctx := s.Client(), context.Background()
	defer c.Close()
	keys, err := c.Keys(ctx, "*").Result()
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, key := range keys {
		kind, _ := c.Type(ctx, key).Result()
		says := fmt.Sprintf("%s %s", kind, key)
		switch kind {
		case "hash":
			m, _ := c.HGetAll(ctx, key).Result()
			if strings.Contains(key, ":lease:") {
				delete(m, "w") // only where an answer was late, as on a busy machine
			}
			for f, v := range m {
				all = append(all, fmt.Sprintf("%s %s = %q", says, f, v))
			}
		case "zset":
			zs, _ := c.ZRangeWithScores(ctx, key, 0, -1).Result()
			for _, z := range zs {
				all = append(all, fmt.Sprintf("%s %.0f %q", says, z.Score, z.Member))
			}
		case "list":
			vs, _ := c.LRange(ctx, key, 0, -1).Result()
			all = append(all, fmt.Sprintf("%s %q", says, vs))
		case "set":
			vs, _ := c.SMembers(ctx, key).Result()
			sort.Strings(vs)
			all = append(all, fmt.Sprintf("%s %q", says, vs))
		case "string":
			v, _ := c.Get(ctx, key).Result()
			all = append(all, fmt.Sprintf("%s = %q", says, v))
		default:
			all = append(all, says)
		}
	}
	return sorted(all)
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// nodes returns a function that tells all nodes of a ZooKeeper and their data.
func nodes(t *testing.T, addr string) func() string {
	c, _, err := zk.Connect([]string{addr}, limit, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return func() string {
		var all []string
		var walk func(path string)
		walk = func(path string) {
			children, _, err := c.Children(path)
			if err != nil {
				return
			}
			for _, child := range children {
				full := strings.TrimSuffix(path, "/") + "/" + child
				if full == "/zookeeper" {
					continue
				}
				if data, stat, err := c.Get(full); err == nil {
					kind := "node"
					if stat.EphemeralOwner != 0 {
						kind = "ephemeral"
					}
					all = append(all, fmt.Sprintf("%s %q %q", kind, full, data))
				}
				walk(full)
			}
		}
		walk("/")
		return sorted(all)
	}
}
