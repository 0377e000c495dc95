//go:build linux

package pgtorture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// scope is the name of the PostgreSQL cluster, election that of its election.
const (
	scope    = "orders"
	election = "postgres/" + scope
)

// config is what kind of cluster to torture.
type config struct {
	keeper  keeper
	writers int
}

// cluster is three machines, the writers, and what was seen of them.
type cluster struct {
	tb       testing.TB
	cfg      config
	keeper   keeper
	ttl      time.Duration // of the lease
	more     time.Duration // than that a fault lasts, at most
	stable   time.Duration // how long it must be well
	dir      string
	disks    bool // each machine has a file system of its own
	network  *etcdtest.Network
	etcd     *etcdtest.Cluster
	etcdData []string // by member
	machines []*machine
	client   *clientv3.Client
	round    atomic.Uint64
	acks     acks
	reigns   reigns // of the acks that were verified
	verified int    // of the acks
	conns    map[*machine]*pgconn.PgConn
	stop     func() // ends the writers
	log      *os.File
}

const members = 3

// newCluster starts everything, and returns when rows are written.
func newCluster(tb testing.TB, cfg config) *cluster {
	tb.Helper()
	programtest.Needs(tb, "ip", "setpriv")
	c := &cluster{tb: tb, cfg: cfg, keeper: cfg.keeper, conns: map[*machine]*pgconn.PgConn{}}
	c.ttl, c.more, c.stable = c.keeper.times(tb)
	c.room()
	var err error
	if c.network, err = etcdtest.TryNetwork(tb, members); err != nil {
		fmt.Fprintf(os.Stderr, "pgtorture: no network namespaces, so on loopback, with few of the cuts: %v\n", err)
	}
	// Its own disk, as it is to have one: three members, three servers with fsync and whatever else
	// runs here on one disk make etcd miss its heartbeats. It outlives a kill there.
	o := etcdtest.Options{DataDir: c.fast}
	if c.network != nil {
		o = c.network.Options(o)
	}
	c.etcd = etcdtest.StartCluster(tb, members, o)
	c.client, err = clientv3.New(clientv3.Config{Endpoints: c.etcd.Endpoints(), DialTimeout: 5 * time.Second,
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.client.Close() })
	c.keeper.install(c)
	c.disks = canMount(c)
	for i := range members {
		c.machines = append(c.machines, c.newMachine(i))
	}
	for _, m := range c.machines {
		if err := m.on(); err != nil {
			tb.Fatal(err)
		}
	}
	c.write()
	return c
}

// fast returns an empty folder in memory for a member's data, or one of the cluster's where there
// is none.
func (c *cluster) fast(i int) string {
	dir, err := os.MkdirTemp("/dev/shm", "pgtorture-")
	if err != nil {
		dir = filepath.Join(c.dir, fmt.Sprintf("etcd%d", i))
	} else {
		c.tb.Cleanup(func() { os.RemoveAll(dir) })
	}
	if len(c.etcdData) <= i { // a cluster that did not come up is planned anew
		c.etcdData = append(c.etcdData, "")
	}
	c.etcdData[i] = filepath.Join(dir, "etcd")
	return c.etcdData[i]
}

// room makes a folder that PostgreSQL's user may enter, on a real disk.
func (c *cluster) room() {
	dir, err := os.MkdirTemp("/var/tmp", "pgtorture-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		c.tb.Fatal(err)
	}
	c.dir = dir
	c.tb.Cleanup(func() {
		if c.tb.Failed() || os.Getenv("PGTORTURE_KEEP") != "" {
			fmt.Fprintf(os.Stderr, "pgtorture: kept %s with the members' logs\n", dir)
			return
		}
		os.RemoveAll(dir)
	})
}

// newMachine makes the files of a machine, and its cgroup.
func (c *cluster) newMachine(i int) *machine {
	c.tb.Helper()
	name := fmt.Sprintf("pg%d", i+1)
	m := &machine{name: name, dir: filepath.Join(c.dir, name), host: "127.0.0.1", etcd: c.etcd.Members[i], port: "5432"}
	endpoints, net := c.etcd.Endpoints(), "127.0.0.1/32"
	if c.network != nil {
		m.host, net = c.network.Host(i), c.network.Subnet()
	} else {
		m.port = servertest.FreePort(c.tb)
		for j, s := range c.etcd.Members {
			m.links = append(m.links, etcdtest.NewProxy(c.tb, s.Addr()))
			endpoints[j] = m.links[j].Addr()
		}
	}
	for j := range endpoints {
		endpoints[j] = strings.TrimPrefix(endpoints[j], "http://")
	}
	if err := errors.Join(os.MkdirAll(m.dir, 0o755), c.mount(m)); err != nil {
		c.tb.Fatal(err)
	}
	files, line := c.keeper.agent(c, m, endpoints, net)
	m.line = line
	err := os.MkdirAll(filepath.Join(m.dir, "s"), 0o755)
	for path, text := range files {
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
	}
	if err != nil {
		c.tb.Fatal(err)
	}
	if os.Getuid() == 0 {
		m.line = append(c.asPostgres(m.dir), m.line...)
	}
	if c.network != nil {
		m.line = c.network.On(i, m.line)
	}
	c.confine(m)
	c.tb.Cleanup(func() {
		m.thaw()
		if err := m.off(); err != nil {
			c.tb.Error(err)
		}
	})
	return m
}

// asPostgres gives a folder to PostgreSQL's user, and returns what runs a command as that.
func (c *cluster) asPostgres(dir string) []string {
	u, err := user.Lookup("postgres")
	if err != nil {
		c.tb.Skipf("PostgreSQL does not run as root: %v", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, uid, gid))
	})
	if err != nil {
		c.tb.Fatal(err)
	}
	return []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups", "--pdeathsig", "KILL"}
}

// confine makes the machine's cgroup, if it can be had.
func (c *cluster) confine(m *machine) {
	root := servertest.CgroupRoot()
	if root == "" {
		return
	}
	dir, err := os.MkdirTemp(root, "primacy-test-")
	if err != nil {
		c.tb.Fatal(err)
	}
	m.group = dir
	if err := m.join(m.etcd.PID()); err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() {
		for end := time.Now().Add(20 * time.Second); os.Remove(dir) != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				c.tb.Errorf("something is left in %s", dir)
				return
			}
		}
	})
}

// write starts the writers: some that find the primary, and one pinned to each node.
func (c *cluster) write() {
	c.tb.Helper()
	p := c.settle(settleWithin, false)
	if _, err := c.ask(p, "CREATE TABLE IF NOT EXISTS rows (id bigint PRIMARY KEY)"); err != nil {
		c.tb.Fatal(err)
	}
	w := writer{names: map[string]string{}, round: &c.round, acks: &c.acks}
	for _, m := range c.machines {
		w.hosts, w.ports = append(w.hosts, m.host), append(w.ports, m.port)
		w.names[address(m.host, m.port)] = m.name
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range c.cfg.writers + members {
		x := w
		x.number = uint64(i)
		if i >= c.cfg.writers {
			m := c.machines[i-c.cfg.writers]
			x.pinned, x.hosts, x.ports = m.name, []string{m.host}, []string{m.port}
		}
		all.Go(func() { x.run(ctx) })
	}
	c.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	c.tb.Cleanup(c.stop)
}

// ask runs one statement on a machine.
func (c *cluster) ask(m *machine, sql string) ([][]string, error) {
	limit := 3 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn := c.conns[m]
	if conn == nil || conn.IsClosed() {
		var err error
		if conn, err = connect(ctx, m); err != nil {
			return nil, err
		}
		c.conns[m] = conn
	}
	return query(ctx, conn, sql)
}

// connect connects to a machine's server.
func connect(ctx context.Context, m *machine) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable "+
		"connect_timeout=1 application_name=harness", m.host, m.port))
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

func (c *cluster) machine(name string) *machine {
	for _, m := range c.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (c *cluster) without(m *machine) (others []*machine) {
	for _, x := range c.machines {
		if x != m {
			others = append(others, x)
		}
	}
	return others
}

// repair ends all faults and starts what does not run.
func (c *cluster) repair() {
	if c.network != nil {
		c.network.Heal()
	}
	for _, m := range c.machines {
		for _, l := range m.links {
			l.Heal()
		}
		m.thaw()
	}
	for _, m := range c.machines {
		if text := m.unexpected(); text != "" {
			c.tb.Error(text)
		}
		if err := m.on(); err != nil {
			c.tb.Error(err)
		}
	}
}
