package patroni

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
)

// What Debian's pg_createconfig_patroni writes for PostgreSQL 15, cluster main, with etcd in
// /etc/patroni/dcs.yml.
const debian = `scope: "15-main"
namespace: "/postgresql-common/"
name: db1
etcd3:
  host: 10.0.0.5:2379
restapi:
  listen: 10.0.0.1:8008
  connect_address: 10.0.0.1:8008
bootstrap:
  method: pg_createcluster
  pg_createcluster:
    command: /usr/share/patroni/pg_createcluster_patroni
  dcs:
    ttl: 30
postgresql:
  create_replica_method:
    - pg_clonecluster
  pg_clonecluster:
    command: /usr/share/patroni/pg_clonecluster_patroni
  listen: "*:5432"
  connect_address: 10.0.0.1:5432
  use_unix_socket: true
  data_dir: /var/lib/postgresql/15/main
  bin_dir: /usr/lib/postgresql/15/bin
  config_dir: /etc/postgresql/15/main
  pgpass: /var/lib/postgresql/15-main.pgpass
  authentication:
    replication:
      username: "replicator"
      password: "rep-pass"
    superuser:
      username: "postgres"
      password:
  parameters:
    unix_socket_directories: '/var/run/postgresql/'
    logging_collector: 'on'
    log_filename: 'postgresql-15-main.log'
`

const byHand = `scope: orders
name: pg1
log: {level: INFO}
etcd3:
  hosts: ["https://10.0.0.1:2379", 10.0.0.2]
  protocol: https
  cacert: /etc/ssl/etcd-ca.pem
  username: patroni
  password: "s3cret"
restapi:
  listen: 0.0.0.0:8008
  connect_address: 10.0.0.1:8008
  certfile: /etc/ssl/api.pem
  keyfile: /etc/ssl/api.key
  cafile: /etc/ssl/ca.pem
  verify_client: required
  authentication: {username: admin, password: "p:w"}
postgresql:
  listen: 10.0.0.1:5432
  connect_address: 10.0.0.1:5432
  data_dir: /data/pg
  bin_dir: /usr/pgsql-16/bin
  authentication:
    replication: {username: repl, password: "a:b\\c", sslmode: require}
    superuser: {username: admin, password: zalando}
    rewind: {username: rewind}
  pg_hba: ["host all all 0.0.0.0/0 md5"]
  parameters: {archive_command: "cp %p /arch/%f"}
  callbacks: {on_role_change: '/usr/local/bin/vip "a b" c\d', on_stop: bin/vip, on_start: 'vip "', on_boot: /x}
watchdog: {mode: automatic}
tags: {nofailover: true, noloadbalance: false, nosync: true, failover_priority: 5, clonefrom: true}
`

// TestConvert: a file of ours that is taken, and a line for all that could not be taken over. No
// password is in the file.
func TestConvert(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		yaml    string
		says    []string
		secrets map[string]string
		notes   []string
	}{
		"Debian": {debian, []string{`store = "etcd://10.0.0.5:2379"`, `cluster = "15-main"`, `name = "db1"`,
			`namespace = "/postgresql-common/"`, `data = "/var/lib/postgresql/15/main"`,
			`bin = "/usr/lib/postgresql/15/bin"`,
			`listen = "10.0.0.1:5432"`, `socket = "/var/run/postgresql"`,
			`{user = "replicator", passfile = "/s/pgpass"}`},
			map[string]string{"/s/pgpass": "*:*:*:replicator:rep-pass\n"},
			[]string{"bootstrap: ", "postgresql.create_replica_method: ", "postgresql.listen = *:5432: ",
				"postgresql.parameters.log_filename: ", "postgresql.parameters.logging_collector: ",
				"postgresql.pg_clonecluster: "}},
		"by hand": {byHand, []string{
			`store = "etcds://patroni@10.0.0.1:2379,10.0.0.2:2379?ca=%2Fetc%2Fssl%2Fetcd-ca.pem&` +
				`password-file=%2Fs%2Fetcd-password"`,
			`superuser = "admin"`, `tags = {priority = 5, nosync = true, nofailover = true}`,
			`auth_file = "/s/api-auth"`,
			`tls_cert = "/etc/ssl/api.pem"`, `tls_key = "/etc/ssl/api.key"`, `client_ca = "/etc/ssl/ca.pem"`,
			`advertise = "10.0.0.1:8008"`, "[callbacks]\non_role_change = [\"/usr/local/bin/vip\", \"a b\", \"cd\"]\n"},
			map[string]string{"/s/pgpass": `*:*:*:repl:a\:b\\c` + "\n", "/s/api-auth": "admin:p:w\n",
				"/s/etcd-password": "s3cret\n"},
			[]string{"log: ", "postgresql.authentication.replication.sslmode: ", "postgresql.authentication.rewind: ",
				"postgresql.authentication.superuser.password: ", "postgresql.callbacks.on_boot: ",
				`postgresql.callbacks.on_start = vip ": it ends`,
				"postgresql.callbacks.on_stop = bin/vip: give the abs",
				"postgresql.callbacks: ",
				"postgresql.parameters.archive_command: ", "postgresql.parameters.unix_socket_directories is not there",
				"postgresql.pg_hba: ", "restapi.verify_client = required: ", "tags.clonefrom: ", "watchdog: "}},
	} {
		c, err := Convert([]byte(x.yaml), "/s")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f, err := pgfile.Parse("pg.toml", c.TOML)
		if err != nil || f.Store == "" {
			t.Errorf("%s: the file is refused: %v\n%s", name, err, c.TOML)
		}
		for _, want := range x.says {
			if !strings.Contains(c.TOML, want) {
				t.Errorf("%s: there is no %s in\n%s", name, want, c.TOML)
			}
		}
		for _, password := range []string{"rep-pass", "a:b", "p:w", "s3cret", "zalando"} {
			if strings.Contains(c.TOML+strings.Join(c.Notes, ""), password) {
				t.Errorf("%s: the file has the password %s", name, password)
			}
		}
		for path, want := range x.secrets {
			if c.Secrets[path] != want {
				t.Errorf("%s: %s holds %q, want %q", name, path, c.Secrets[path], want)
			}
		}
		if len(c.Secrets) != len(x.secrets) || len(c.Notes) != len(x.notes) {
			t.Errorf("%s: %d secrets and %d notes: %q", name, len(c.Secrets), len(c.Notes), c.Notes)
			continue
		}
		for i, want := range x.notes {
			if !strings.HasPrefix(c.Notes[i], want) || strings.ContainsAny(c.Notes[i], "\n") {
				t.Errorf("%s: the note is %q, want %q", name, c.Notes[i], want)
			}
		}
	}
}

// TestConvertRefuses: one line says what is missing or wrong.
func TestConvertRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"scope: [":                 "yaml",
		"a":                        "no table",
		"name: pg1":                "scope is not there",
		"scope: orders\nname: pg1": "postgresql.data_dir is not there",
		"scope: orders":            "name is not there",
		strings.Replace(byHand, "scope: orders", "scope: a b", 1): `cluster = "a b"`,
		strings.Replace(byHand, "/data/pg", "data", 1):            `server.data = "data"`,
	} {
		_, err := Convert([]byte(text), "/s")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.30q: %v, want one line with %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		strings.Replace(debian, "etcd3:\n  host: 10.0.0.5:2379", "zookeeper: {hosts: a}", 1): "zookeeper: primacy",
		strings.Replace(debian, "etcd3:", "etcd:", 1):                                        "etcd: there Patroni",
	} {
		c, err := Convert([]byte(text), "/s")
		if err != nil || !strings.Contains(strings.Join(c.Notes, "\n"), want) {
			t.Errorf("%v, %q, want %q", err, c.Notes, want)
		}
	}
}

// TestConvertKeepsPasswords: that of etcd out of the text, also where it stands in a URL, and each
// as it is: a standby with a password that lacks its blanks does not get in.
func TestConvertKeepsPasswords(t *testing.T) {
	t.Parallel()
	const etcd = "etcd3:\n  host: 10.0.0.5:2379"
	for with, want := range map[string]struct{ store, password string }{
		"etcd3: {url: 'http://root:S3cr@et:x@10.0.0.1:2379/'}":     {"etcd://root@10.0.0.1:2379?", "S3cr@et:x"},
		"etcd3: {url: 'https://root:S3cret@h', hosts: [10.0.0.9]}": {"etcds://root@h:2379?", "S3cret"},
		"etcd3: {hosts: 'http://a:1,http://root:S3cret@[::1]:2'}":  {"etcd://root@a:1,[::1]:2?", "S3cret"},
		"etcd3: {host: h, username: root, password: ' S3cret '}":   {"etcd://root@h:2379?", " S3cret "},
		"etcd3: {hosts: ['10.0.0.1:2379', 'http://S3cret/x?']}":    {`etcd://10.0.0.1:2379"`, ""},
	} {
		c, err := Convert([]byte(strings.Replace(debian, etcd, with, 1)), "/s")
		if err != nil {
			t.Errorf("%s: %v", with, err)
			continue
		}
		if password := strings.TrimSuffix(c.Secrets["/s/etcd-password"], "\n"); password != want.password ||
			!strings.Contains(c.TOML, `store = "`+want.store) {
			t.Errorf("%s: the password is %q, want %+v, in\n%s", with, password, want, c.TOML)
		}
		if all := c.TOML + strings.Join(c.Notes, "\n"); strings.Contains(all, "S3cr") {
			t.Errorf("%s: the password is in\n%s", with, all)
		}
		if said := strings.Contains(strings.Join(c.Notes, "\n"), "cannot be read"); said != (want.password == "") {
			t.Errorf("%s: the notes are %q", with, c.Notes)
		}
	}
	text := strings.NewReplacer("rep-pass", " p w ", "connect_address: 10.0.0.1:8008",
		"authentication: {username: u, password: ' p '}").Replace(debian)
	c, err := Convert([]byte(text), "/s")
	if err != nil || c.Secrets["/s/pgpass"] != "*:*:*:replicator: p w \n" || c.Secrets["/s/api-auth"] != "u: p \n" {
		t.Errorf("%v, and the files are %q", err, c.Secrets)
	}
	_, err = Convert([]byte(strings.Replace(debian, "rep-pass", `a\nb`, 1)), "/s")
	if err == nil || !strings.Contains(err.Error(), "replication.password has a line break") {
		t.Errorf("a password of two lines: %v", err)
	}
}

// TestConvertSuggestsWhatIsMeant: the command of a note sets the very value, whatever YAML and the
// shell make of one.
func TestConvertSuggestsWhatIsMeant(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`"$user", public`, "%m [%p] ", "x #y", "a: b", "", " ", "null", "0640", "200", "4MB",
		"it's", `'%m'`, `"quoted"`, "a\nb\tc", "1e3", "~", `\`} {
		yaml := strings.Replace(debian, "logging_collector: 'on'", "tried: "+quoted(value), 1)
		c, err := Convert([]byte(yaml), "/s")
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(c.Notes, func(n string) bool { return strings.Contains(n, "parameters.tried: ") })
		_, line, ok := strings.Cut(c.Notes[max(0, at)], "config set ")
		out, err := exec.Command("sh", "-c", "printf %s "+line).Output()
		key, typed, _ := strings.Cut(string(out), "=")
		got, err2 := config.ParseFor(key, []byte(typed))
		if err != nil || err2 != nil || !ok || fmt.Sprint(got) != value || key != "parameters.tried" {
			t.Errorf("%q: config set %s sets %s to %#v: %v, %v", value, line, key, got, err, err2)
		}
	}
	for value, want := range map[string]string{"on": "=true", "true": "=true", "'on'": "=on"} {
		c, err := Convert([]byte(strings.Replace(debian, "logging_collector: 'on'", "tried: "+value, 1)), "/s")
		if err != nil || !strings.Contains(strings.Join(c.Notes, "\n")+"\n", "parameters.tried"+want+"\n") {
			t.Errorf("%s: %v, %q", value, err, c.Notes)
		}
	}
}
