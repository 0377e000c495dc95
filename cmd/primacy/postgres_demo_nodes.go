package main

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgdemo"
	pgserver "github.com/primacy-go/primacy/cmd/internal/postgres/server"
	"github.com/primacy-go/primacy/internal/onethread"
)

// members finds PostgreSQL and writes what three members need. It starts nothing.
func (d *postgresDemo) members(o *postgresDemoOptions, dir string) error {
	pass := filepath.Join(dir, "pgpass")
	if err := os.WriteFile(pass, []byte("*:*:*:*:"+rand.Text()+"\n"), 0o600); err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	for i, port := range ports {
		id := fmt.Sprintf("pg%d", i+1)
		n := &pgNode{node: &node{id: id, dir: filepath.Join(dir, id), doing: "not started"}}
		n.server = pgdemo.Server{Name: id, SocketDir: n.dir, Port: port}
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	if err := d.findPostgres(o.bin, pass); err != nil {
		return err
	}
	for _, n := range d.nodes {
		file := filepath.Join(n.dir, "pg.toml")
		text := fmt.Sprintf(`store = %q
cluster = %q
name = %q
ttl = %q
[server]
data = %q
bin = %q
listen = "127.0.0.1:%s"
socket = %q
replication = {user = "replicator", passfile = %q}
[first]
parameters = {max_connections = 20, shared_buffers = "16MB", min_wal_size = "32MB", dynamic_shared_memory_type = "mmap"}
`, embeddedScheme+filepath.Join(dir, "store"), demoName, n.id, d.ttl, filepath.Join(n.dir, "data"), d.bin,
			n.server.Port, n.dir, pass)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		n.start = func() (*exec.Cmd, error) {
			c := ourselves("postgres", "-v", "-f", file)
			c.Dir, c.Env, c.SysProcAttr = n.dir, foreign(), nodeAttr()
			log, err := os.OpenFile(filepath.Join(dir, n.id+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, err
			}
			defer log.Close()
			c.Stdout, c.Stderr = log, log
			onethread.Do(func() { err = c.Start() })
			return c, err
		}
	}
	return nil
}

// up starts a member. What it does then, it says itself.
func (d *postgresDemo) up(n *pgNode) error {
	d.starting.Lock()
	defer d.starting.Unlock()
	err := n.up()
	d.started[n.pid()] = true
	n.set("")
	return err
}

var errNoPostgres = errors.New("there is no PostgreSQL server in /usr/lib/postgresql/*/bin or PATH: install it " +
	"(Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server), or give --bin DIR")

var digits = regexp.MustCompile(`\d+`)

// findPostgres takes the newest installed server that fits.
func (d *postgresDemo) findPostgres(bin, pass string) error {
	var places []string
	if bin != "" {
		abs, err := filepath.Abs(bin)
		if err != nil {
			return err
		}
		places = []string{abs}
	} else {
		for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
			found, _ := filepath.Glob(pattern)
			places = append(places, found...)
		}
		release := func(path string) int { n, _ := strconv.Atoi(digits.FindString(path)); return n }
		slices.SortFunc(places, func(a, b string) int { return cmp.Compare(release(b), release(a)) })
		if path, err := exec.LookPath("postgres"); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				places = append(places, filepath.Dir(path))
			}
		}
	}
	err := errNoPostgres
	for _, place := range places {
		version, unfit := d.examine(place, pass)
		if unfit == nil {
			d.bin, d.version = place, version
			return nil
		}
		if errors.Is(err, errNoPostgres) {
			err = unfit
		}
	}
	return err
}

// examine says which release is in a directory, or why it cannot be used.
func (d *postgresDemo) examine(bin, pass string) (version string, err error) {
	for _, name := range []string{"postgres", "initdb", "pg_basebackup", "pg_rewind"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("%s is not in %s: install PostgreSQL's server package, or give --bin DIR", name, bin)
		}
	}
	n := d.nodes[0]
	s, err := pgserver.New(pgserver.Config{Data: filepath.Join(n.dir, "data"), Bin: bin,
		Listen: net.JoinHostPort("127.0.0.1", n.server.Port), SocketDir: n.dir, Superuser: "postgres",
		Replication: libpq.Replication{User: "replicator", Passfile: pass}}, pgserver.Exec{})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%d", s.Version().Major, s.Version().Minor), nil
}

// freePorts returns ports below those that the kernel gives to clients: a server that is away for a
// while finds its own free.
func freePorts(n int) (ports []string, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for try := 0; len(ports) < n; try++ {
		port := strconv.Itoa(10_000 + mathrand.IntN(20_000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			if try > 100 {
				return nil, err
			}
			continue
		}
		held, ports = append(held, l), append(ports, port)
	}
	return ports, nil
}

// saidOf returns what a member says of itself in the election.
func saidOf(line primacy.State, id string) string {
	entries := line.Waiting
	if line.Leader != nil {
		entries = append([]primacy.Entry{*line.Leader}, entries...)
	}
	for _, e := range entries {
		var said agent.Said
		if e.ID == id && json.Unmarshal(e.Value, &said) == nil {
			return cmp.Or(phases[said.Phase], string(said.Phase))
		}
	}
	return "starts"
}
