//go:build linux

package main

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/zktest"
)

// A store URL that leads to a server of another kind ends at once, and says what answers there.
func TestAServerThatSpeaksAnotherProtocolIsNamed(t *testing.T) {
	onlyInVerify(t)
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
		p := w.start("--store", c.scheme+"://u:SWORDFISH@"+addr[c.server]+"/0", "--timeout", "2m", "lock", "n", "true")
		p.within(3 * limit).ends(exitUnreachable).complains(addr[c.server] + " " + c.want)
		if p.took > 100*time.Second { // not for the two minutes that one may wait
			t.Errorf("%v took %v", p, p.took)
		}
		if strings.Contains(p.err.String(), "SWORDFISH") {
			t.Errorf("the password is in %q", p.err.String())
		}
	}
}

// Each store is waited for while its port is closed: a container may start before it.
func TestAStoreThatStartsLaterIsWaitedFor(t *testing.T) {
	onlyInVerify(t)
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
	onlyInVerify(t)
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

// What a store says of a user without rights is followed by what to do.
func TestAStoreThatRefusesSaysWhatToDo(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	etcd := etcdtest.Start(t, etcdtest.Options{Args: []string{"--bcrypt-cost", "4"}})
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	step := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for _, user := range []string{"root", "stranger"} {
		step(c.RoleAdd(ctx, user))
		step(c.UserAdd(ctx, user, "SWORDFISH"))
		step(c.UserGrantRole(ctx, user, user))
	}
	step(c.AuthEnable(ctx))
	all := redistest.Start(t, redistest.Options{Password: "SWORDFISH"})
	some := redistest.Start(t, redistest.Options{User: "alice", Password: "SWORDFISH", Rights: "~* +@connection +info"})
	for _, c := range []struct{ store, want string }{
		{"etcd://" + etcd.Addr(), "user name is empty; this etcd wants a user: give --store etcd://USER:"},
		{"etcd://stranger:SWORDFISH@" + etcd.Addr(), "permission denied; grant the user's role all keys that begin " +
			"with primacy/: etcdctl role grant-permission ROLE readwrite --prefix=true primacy/"},
		{"etcd://stranger:SWORDFISH@" + etcd.Addr() + "/team/a", "readwrite --prefix=true team/a/"},
		{"etcd://stranger:WRONG@" + etcd.Addr(), "invalid user ID or password"},
		{"redis://" + all.Addr(), "give the password: --store redis://:PASSWORD@HOST"},
		{"redis://alice:SWORDFISH@" + some.Addr(), "have the rights that the user needs"},
	} {
		p := w.start("run", "-q", "--store", c.store, "n", "true").ends(exitUnreachable).inOneLine().complains(c.want)
		if strings.Contains(p.err.String(), "SWORDFISH") || p.took > 30*time.Second {
			t.Errorf("%v: after %v %q", p, p.took, p.err.String())
		}
	}
}

// One server of a quorum that asks for a password is told, and the others are a majority.
func TestAMinorityThatRefusesIsTold(t *testing.T) {
	w := newWorld(t).with("PRIMACY_TTL=5s")
	var addrs []string
	for _, password := range []string{"", "SWORDFISH", ""} {
		addrs = append(addrs, redistest.Start(t, redistest.Options{Password: password}).Addr())
	}
	quorum := "redis+quorum://" + strings.Join(addrs, ",") + "?guard=off"
	told := "warning: " + addrs[1] +
		": NOAUTH Authentication required.: this server did not let us in when the store was opened; a majority did"
	w.eventually("it is told", func() bool { // a server that answers after the first moment is told by nobody
		p := w.start("run", "--id", "me", "--store", quorum, "n", "true").ends(0).complains("primacy: me leads n\n")
		if strings.Contains(p.err.String(), "token 0") {
			t.Errorf("a store without tokens: %q", p.err.String())
		}
		return strings.Contains(p.err.String(), told)
	})
	w.start("cron", "-q", "--store", quorum, "x", "@daily", "--", "true").ends(exitUsage).inOneLine().complains(
		"use etcd, PostgreSQL, Redis by redis://, or ZooKeeper")
}

// Two candidates with one ID cannot be told apart by anybody: the second one says so, and status,
// and a transfer to them is refused.
func TestTwoOfOneIDAreTold(t *testing.T) {
	w := newWorld(t).with("PRIMACY_TTL=10s") // it is told after one and a half
	first := w.start("run", "--id", "same", "--value", "web-1", "n", "sleep", "1000").tells("leads n")
	other := w.start("run", "--id", "other", "n", "sleep", "1000").tells("waits for n")
	w.awaitLine("n", 2)
	lease := decode[stateJSON](w, w.start("observe", "--once", "-o", "ndjson", "n").ends(0).out.String()).Leader.Lease
	w.start("run", "--id", "same", "--events", "log", "n", "sleep", "1000").tells(
		"warning: the ID same is in the queue of n already, of another process (lease " + lease +
			", value web-1): give each its own --id")
	for _, p := range []*prog{first, other} {
		if strings.Contains(p.err.String(), "warning") {
			t.Errorf("%v: %q", p, p.err.String())
		}
	}
	w.start("status", "n").ends(0).says("lease " + lease + " has the same ID")
	w.eventually("it is in the events", func() bool {
		return slices.ContainsFunc(w.events("log"), func(m event) bool {
			return m.Event == "duplicate_id" && m.Lease == lease
		})
	})
	w.start("drain", "same").ends(0).says("n: moved: other leads")
	first.ends(exitResigned)
	w.start("run", "--id", "same", "n", "sleep", "1000").tells("waits for n")
	w.awaitLine("n", 3)
	w.start("transfer", "n", "--to", "same").ends(exitNo).inOneLine().complains("several processes have this ID",
		`"same" waits under the leases `, "give each process its own ID")
}

func TestTwoOfOneIDAtALockAreTold(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t).with("PRIMACY_TTL=10s")
	w.start("lock", "--id", "same", "n", "sleep", "1000").tells("holds the lock n")
	w.start("lock", "--id", "same", "n", "sleep", "1000").tells(
		"warning: the ID same is in the queue of the lock n already")
}

func TestObserveOnce(t *testing.T) {
	w := newWorld(t)
	w.start("run", "--id", "me", "n", "sleep", "1000").tells("leads n")
	p := w.start("observe", "--once", "n", "m").ends(0).says("n  me leads  token ", "m  nobody leads")
	if strings.Count(p.out.String(), "\n") != 2 {
		t.Errorf("%q", p.out.String())
	}
	st := decode[stateJSON](w, w.start("observe", "--once", "-o", "ndjson", "n").ends(0).out.String())
	if st.Leader == nil || st.Leader.ID != "me" {
		t.Errorf("%+v", st)
	}
	w.start("list").ends(0).says("NAME", "me")
	w.start("switchover", "n", "--to", "me").ends(0).says("me\n")
}
