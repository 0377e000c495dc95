package pgfile_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/callbacks"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
)

const whole = `store = "etcd://10.0.0.1:2379"
cluster = "orders"
name = "pg1"
ttl = "2s"
[server]
data = "/data"
bin = "/bin"
listen = "10.0.0.1:5432"
socket = "/run"
replication = {user = "replicator", passfile = "/pass"}
tags = {priority = 10, nosync = true}
[first]
durability = "available"
acks = 2
parameters = {max_connections = 200, work_mem = "4MB", jit = false}
`

func TestParse(t *testing.T) {
	f, err := pgfile.Parse("pg.toml", whole+`[callbacks]
on_start = ["/vip", "my ip"]
on_role_change = ["vip"]
primary = "master"
`)
	if err != nil {
		t.Fatal(err)
	}
	p, x, c := f.First.Parameters, f.First, f.Callbacks
	if f.Name != "pg1" || f.TTL != 2*time.Second || f.ReplicationUser != "replicator" || f.Priority != 10 ||
		!f.NoSync || x.Durability != core.Available || x.Acks != 2 || x.DropAfter != 3*time.Second ||
		c.Primary != "master" || !slices.Equal(c.Commands[callbacks.OnStart], []string{"/vip", "my ip"}) ||
		len(c.Commands) != 2 || p["max_connections"] != "200" || p["jit"] != "false" || p["work_mem"] != "4MB" {
		t.Errorf("got %+v", f)
	}
}

// TestMistakes: each is one line that says where, what, and what to do.
func TestMistakes(t *testing.T) {
	top, _, _ := strings.Cut(whole, "[server]")
	servers := strings.TrimPrefix(whole, top)
	for _, test := range []struct{ old, new, want string }{
		{`ttl = "2s"`, `tll = "2s"`, "pg.toml:4: tll: there is no such key; did you mean ttl?"},
		{`ttl = "2s"`, `ttl = 2`, `pg.toml:4: ttl: give a duration, such as "3s"`},
		{`ttl = "2s"`, `ttl = "-2s"`, `pg.toml:4: ttl: give a duration, such as "3s"`},
		{`ttl = "2s"`, `ttl = "2ms"`, `pg.toml: ttl = "2ms": use 300ms to 5m`},
		{`data = "/data"`, `dat = "/data"`, "pg.toml:6: server.dat: there is no such key; did you mean data?"},
		{`data = "/data"`, `data = "data"`, `pg.toml: server.data = "data": give an absolute path`},
		{`ttl = "2s"`, `loop_wait = "1ns"`, `pg.toml: loop_wait = "1ns": use 100ms to 1m`},
		{`listen = "10.0.0.1:5432"`, `listen = "0.0.0.0:5432"`,
			`pg.toml: server.listen = "0.0.0.0:5432": give this member's own HOST:PORT, by which the others reach it`},
		{`listen = "10.0.0.1:5432"`, `listen = "[::]:5432"`, `pg.toml: server.listen = "[::]:5432": give`},
		{`listen = "10.0.0.1:5432"`, `listen = ":5432"`, `pg.toml: server.listen = ":5432": give`},
		{`listen = "10.0.0.1:5432"`, `listen = "*:5432"`, `pg.toml: server.listen = "*:5432": give`},
		{`listen = "10.0.0.1:5432"`, `listen = "10.0.0.1,10.0.0.2:5432"`,
			`pg.toml: server.listen = "10.0.0.1,10.0.0.2:5432": give`},
		{`listen = "10.0.0.1:5432"`, `listen = "5432"`,
			`pg.toml: server.listen = "5432": give this member's own HOST:PORT`},
		{`priority = 10`, `priority = "high"`, "pg.toml:11: server.tags.priority: give a whole number"},
		{`"available"`, `"always"`, `pg.toml: first.durability = "always": use quorum, available or async`},
		{`acks = 2`, `acks = 0`, "pg.toml: first.acks = 0: at least 1 standby must have a commit"},
		{"[first]", "[api]\nlisten = \"8008\"\n[first]", `pg.toml: api.listen = "8008": give HOST:PORT`},
		{"[first]", "[api]\nlisten = \"0.0.0.0:8008\"\n[first]", `pg.toml: api.listen = "0.0.0.0:8008" is no address`},
		{"[first]", "[api]\nlisten = \"a:1\"\ntls_cert = \"/c\"\n[first]", `pg.toml: give api.tls_cert and`},
		{"[first]", "[api]\nlisten = \"a:1\"\nauth_file = \"c\"\n[first]", `pg.toml: api.auth_file = "c": give`},
		{"[first]", "[api]\nlisten = \"a:1\"\nclient_ca = \"/c\"\n[first]", `pg.toml: api.client_ca: give api`},
		{"[first]", "[api]\nauth = \"c\"\n[first]", `pg.toml:13: api.auth: there is no such key`},
		{"[first]", "[callbacks]\non_start = \"/a b\"\n[first]",
			`pg.toml:13: callbacks.on_start: give a list: ["/path`},
		{"[first]", "[callbacks]\non_stop = []\n[first]", `pg.toml:13: callbacks.on_stop: give a list`},
		{"[first]", "[callbacks]\non_stat = [\"/a\"]\n[first]",
			`pg.toml:13: callbacks.on_stat: there is no such key; did you mean on_start?`},
		{"[first]", "[callbacks]\non_stop = [\"./vip\"]\n[first]", `pg.toml: callbacks.on_stop = "./vip": give an abs`},
		{"[first]", "[callbacks]\nprimary = \"leader\"\n[first]", `pg.toml: callbacks.primary = "leader": use primary`},
		{`jit = false`, `fsync = false`,
			`pg.toml: first.parameters: fsync = "false": an acknowledged commit could be lost`},
		{`jit = false`, `jit = [1]`, "pg.toml:15: first.parameters.jit: give a string, a number, true or false"},
		{`name = "pg1"`, `name = "pg 1"`, `pg.toml: name = "pg 1": give up to 41 letters, digits, '_', '.' or '-'`},
		{`name = "pg1"`, `name = pg1`, "pg.toml:3: "},
		{`user = "replicator", `, ``, "pg.toml: server.replication.user: give the role as which standbys log in"},
		{`tags = {priority = 10, nosync = true}`, `tags = 5`, "pg.toml:11: server.tags: give a table: [server.tags]"},
		{`parameters = {max_connections = 200, work_mem = "4MB", jit = false}`, `parameters = 5`,
			"pg.toml:15: first.parameters: give a table of PostgreSQL's parameters"},
		{`[first]`, `[[first]]`, "pg.toml:12: first: give a table: [first]"},
		{servers, `server = 5`, "pg.toml:5: server: give a table: [server]"},
	} {
		text := strings.Replace(whole, test.old, test.new, 1)
		if text == whole {
			t.Fatalf("%q is not in the file", test.old)
		}
		_, err := pgfile.Parse("pg.toml", text)
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", test.new, err, test.want)
		}
	}
}
