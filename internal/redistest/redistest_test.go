package redistest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// Each kind of server is what was asked for.
func TestServers(t *testing.T) {
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	for name, o := range map[string]redistest.Options{
		"plain": {}, "always": {Persist: "always"}, "password": {Password: "secret"}, "user": {User: "alice", Password: "secret"}, "tls": {TLS: cert},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t, o)
			s.Do("SET", "a", "1")
			s.Restart()
			kept := fmt.Sprint(s.Do("EXISTS", "a")) == "1"
			if kept != (o.Persist == "always") {
				t.Errorf("a key is there after a restart = %v with persistence %q", kept, o.Persist)
			}
		})
	}
}

func TestReplica(t *testing.T) {
	p := redistest.Start(t, redistest.Options{})
	r := redistest.Start(t, redistest.Options{Replica: p})
	p.Do("SET", "a", "1")
	r.Synced()
	if got := fmt.Sprint(r.Do("GET", "a")); got != "1" || r.Role() != "slave" {
		t.Errorf("the replica is a %s and has %q, want a slave with 1", r.Role(), got)
	}
	r.Promote()
	if r.Role() != "master" {
		t.Errorf("role after the promotion = %s", r.Role())
	}
}

// A cluster fails over by itself, and its slot can be moved.
func TestCluster(t *testing.T) {
	servertest.Long(t, "race-library")
	all := redistest.StartCluster(t, 2, 1, redistest.Options{})
	if all[2].Role() != "slave" {
		t.Fatalf("the third server is a %s, want a replica", all[2].Role())
	}
	first := redistest.Owner(all)
	from, to := first, all[0]
	if to == from {
		to = all[1]
	}
	m := redistest.BeginMove(all, from, to)
	for !m.Keys(1) {
	}
	m.End()
	if now := redistest.Owner(all); now != to {
		t.Errorf("the slot is at %s, want it at %s", now.Addr(), to.Addr())
	}
	all[0].Kill()
	if all[0] == to {
		if now := redistest.Owner(all); now != all[2] {
			t.Errorf("after the failover the slot is at %s, want it at the replica", now.Addr())
		}
	}
}

func TestSentinels(t *testing.T) {
	servertest.Long(t, "race-library")
	a := redistest.Start(t, redistest.Options{Password: "secret"})
	b := redistest.Start(t, redistest.Options{Password: "secret", Replica: a})
	all := redistest.StartSentinels(t, "main", a, redistest.Sentinels{N: 3, Password: "other"}, b)
	if got := fmt.Sprint(all[2].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")); got != "[127.0.0.1 "+a.Addr()[len("127.0.0.1:"):]+"]" {
		t.Errorf("the primary is %s, want %s", got, a.Addr())
	}
}
