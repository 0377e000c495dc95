//go:build linux

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/zktest"
)

// A store URL that leads to a server of another kind ends at once, and says what answers there.
func TestAServerThatSpeaksAnotherProtocolIsNamed(t *testing.T) {
	w := newWorld(t)
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	addr := map[string]string{"etcd": w.server.Addr(), "PostgreSQL": pgtest.Start(t, pgtest.Options{}).Addr(),
		"Redis": redistest.Start(t, redistest.Options{}).Addr(), "ZooKeeper": zktest.Start(t, zktest.Options{}).Addr(),
		"etcd, TLS": etcdtest.Start(t, etcdtest.Options{TLS: cert}).Addr()}
	for _, c := range []struct{ scheme, server, want string }{
		{"etcd", "Redis", "speaks Redis, not etcd: is the port in --store right?"},
		{"etcd", "PostgreSQL", "speaks PostgreSQL, not etcd"},
		{"etcd", "ZooKeeper", "speaks ZooKeeper, not etcd"},
		{"etcd", "etcd, TLS", "speaks TLS: use etcds://"},
		{"etcds", "etcd", "speaks etcd without TLS: use etcd://"},
		{"redis", "etcd", "speaks etcd, not Redis"},
		{"redis", "etcd, TLS", "speaks TLS: use rediss://"},
		{"redis+quorum", "ZooKeeper", "speaks ZooKeeper, not Redis"},
		{"redis+plain", "PostgreSQL", "speaks PostgreSQL, not Redis"},
		{"rediss", "Redis", "speaks Redis without TLS: use redis://"},
		{"rediss+quorum", "Redis", "speaks Redis without TLS: use redis+quorum://"},
		{"postgres", "Redis", "speaks Redis, not PostgreSQL"},
		{"postgres", "etcd", "speaks etcd, not PostgreSQL"},
		{"zk", "etcd", "speaks etcd, not ZooKeeper"},
		{"zk", "Redis", "speaks Redis, not ZooKeeper"},
		{"zks", "ZooKeeper", "speaks ZooKeeper without TLS: use zk://"},
	} {
		p := w.start("--store", c.scheme+"://u:SWORDFISH@"+addr[c.server]+"/0", "--timeout", "45s", "lock", "n", "true")
		p.ends(exitUnreachable).complains(addr[c.server] + " " + c.want)
		if p.took > 30*time.Second { // not for the 45 s that one may wait
			t.Errorf("%v took %v", p, p.took)
		}
		if strings.Contains(p.err.String(), "SWORDFISH") {
			t.Errorf("the password is in %q", p.err.String())
		}
	}
}

// Each store is waited for while its port is closed: a container may start before it.
func TestAStoreThatStartsLaterIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	type server interface {
		Kill()
		Restart()
	}
	etcd, redis := etcdtest.Start(t, etcdtest.Options{}), redistest.Start(t, redistest.Options{})
	pg, zk := pgtest.Start(t, pgtest.Options{}), zktest.Start(t, zktest.Options{})
	for store, s := range map[string]server{"etcd://" + etcd.Addr(): etcd, pg.URL(): pg, zk.URL(): zk,
		redis.URL(): redis, "redis+quorum://" + redis.Addr() + "?guard=off": redis} {
		s.Kill()
		in := w.with("PRIMACY_STORE="+store, "PRIMACY_TTL=5s")
		long := in.start("run", "--timeout", "1m", "n", "sleep", "1000").tells("waiting for the store for up to 1m")
		short := in.start("leader", "--timeout", "1m", "--wait", "1m", "n").tells("waiting for the store")
		s.Restart()
		long.tells(" leads n")
		short.ends(0)
		if n := strings.Count(long.err.String(), "waiting for the store"); n != 1 {
			t.Errorf("%v: told %d times: %q", long, n, long.err.String())
		}
		long.signal(syscall.SIGTERM).ends(128 + 15)
	}
}

// A wait for the store ends by a signal too, and a wrong password does not make one wait.
func TestAWaitForTheStoreEnds(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--store", "etcd://127.0.0.1:1", "n", "true").tells("waiting for the store for up to 1m0s")
	p.signal(syscall.SIGTERM).ends(128 + 15)
	locked := redistest.Start(t, redistest.Options{Password: "SWORDFISH"})
	for _, url := range []string{"redis://", "redis://:WRONG@", "redis+quorum://", "redis+quorum://:WRONG@"} {
		p := w.start("run", "--store", url+locked.Addr(), "n", "true").ends(exitUnreachable).inOneLine()
		if p.took > 30*time.Second {
			t.Errorf("%v took %v", p, p.took)
		}
	}
}
