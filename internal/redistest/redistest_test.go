package redistest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
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

func TestCluster(t *testing.T) { redistest.StartCluster(t, 2, redistest.Options{}) }
