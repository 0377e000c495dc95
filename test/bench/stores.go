package main

import (
	"context"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/zktest"
)

// storeKind is a way to set up a store.
type storeKind struct {
	kind  string // as in Contender.Store
	start func(*Env, EnvOptions) (servers, error)
}

// stores are all there are, by the name on the command line.
var stores = map[string]storeKind{
	"etcd":        {"etcd", startEtcd},
	"kubernetes":  {"kubernetes", startKubernetes},
	"redis":       {"redis", startRedis(false)},
	"redis-fsync": {"redis", startRedis(true)},
	"postgres":    {"postgres", startPostgres},
	"zookeeper":   {"zookeeper", startZooKeeper},
}

func storeNames() []string { return slices.Sorted(maps.Keys(stores)) }

// servers are the processes of a store that a run measures on.
type servers struct {
	text  string // what they are
	addrs []string
	at    func(addr string) string // what a contender dials for a server at that address
	frame framing                  // of the store's protocol; nil: its servers count requests themselves
}

// endpoints are what contenders dial.
func (s servers) endpoints() []string {
	var all []string
	for _, addr := range s.addrs {
		all = append(all, s.at(addr))
	}
	return all
}

// wired is e with a counting proxy before each server.
func (e *Env) wired() (*Env, []*wire, error) {
	there := &Env{Kind: e.Kind, Cluster: e.Cluster, servers: e.servers, Members: e.Members, Verbose: e.Verbose, box: e.box}
	there.servers.addrs = nil
	there.names.Store(e.names.Add(1000)) // apart from e's
	var all []*wire
	for _, addr := range e.servers.addrs {
		w, err := newWire(addr, e.servers.frame)
		if err != nil {
			return nil, all, err
		}
		all = append(all, w)
		there.servers.addrs = append(there.servers.addrs, w.addr())
	}
	return there, all, nil
}

func etcdServers(c *etcdtest.Cluster, text string) servers {
	s := servers{text: text, at: func(addr string) string { return "http://" + addr }}
	for _, m := range c.Members {
		s.addrs = append(s.addrs, m.Addr())
	}
	return s
}

func startPostgres(e *Env, _ EnvOptions) (servers, error) {
	s := pgtest.Start(e.box, pgtest.Options{})
	return servers{text: "PostgreSQL " + s.Query("SHOW server_version") + " with fsync", addrs: []string{s.Addr()}, at: s.URLAt, frame: postgresFrame}, nil
}

func startZooKeeper(e *Env, _ EnvOptions) (servers, error) {
	s := zktest.Start(e.box, zktest.Options{Tick: time.Second, // sessions of 2 to 20 s
		Java: []string{"-Xmx512m", "-XX:TieredStopAtLevel=4"}}) // instead of what starts fast
	return servers{text: "ZooKeeper, one server, a tick of 1 s,", addrs: []string{s.Addr()}, at: verbatim, frame: zooKeeperFrame}, nil
}

// warm lets what is written in Java, a server or a peer, compile itself before anything is
// measured.
func (e *Env) warm(ctx context.Context, c *Contender) error {
	if e.Kind != "zookeeper" {
		return nil
	}
	for range 4 {
		if _, err := keysMetered(ctx, e, c, 16, nil); err != nil {
			return err
		}
	}
	return nil
}

func verbatim(addr string) string { return addr }

// version asks the first of several programs that is installed what it is.
func version(programs ...string) string {
	for _, p := range programs {
		if out, err := exec.Command(p, "--version").Output(); err == nil {
			if v := regexp.MustCompile(`[0-9]+(\.[0-9]+)+`).Find(out); v != nil {
				return string(v)
			}
		}
	}
	return "of an unknown version"
}
