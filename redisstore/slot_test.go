package redisstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// A master dies without a replica, and its slot is given to another one, as "redis-cli --cluster
// fix" does it: that one has none of the keys, and has run for long. Who led at the dead one may do
// so still, for a ttl.
func TestASlotThatComesWithoutItsKeys(t *testing.T) {
	t.Parallel()
	all := redistest.StartCluster(t, 3, 0, redistest.Options{})
	for _, srv := range all {
		srv.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	s := openAt(t, clusterConfig(all))
	t.Cleanup(func() { s.Close() })
	const ttl = 5 * time.Second // a busy machine renews in time
	time.Sleep(ttl)             // so that all of them have run for longer, to the second
	enter(t, grant(t, s, ttl), "n", "1")
	owner, heir := redistest.Owner(all), other(t, all)
	slot := owner.Do("CLUSTER", "KEYSLOT", "{primacy}:server")
	owner.Kill()
	s.Close() // or it would be the first to ask the slot's new server
	heir.Do("CLUSTER", "SETSLOT", slot, "NODE", heir.Do("CLUSTER", "MYID"))
	heir.Do("CLUSTER", "BUMPEPOCH")
	redistest.Agree(all, heir)
	asked := time.Now() // the slot's new server cannot know of a renewal before this
	next := openAt(t, redisstore.Config{Addrs: []string{heir.Addr()}, Cluster: true})
	t.Cleanup(func() { next.Close() })
	l := grant(t, next, ttl)
	go keepAlive(t.Context(), l)
	p, err := l.Claim(soon(t), driver.Claim{Name: "n", ID: "2"})
	if err == nil {
		_, err = drivertest.Await(soon(t), l, p[0])
	}
	if took := time.Since(asked); err != nil || took < ttl {
		t.Errorf("the next leader: %v, %v after the slot was asked for, want a ttl of %v to pass", err, took, ttl)
	}
}

// Nodes that tell no address of their own are where they were asked.
func TestAClusterWithoutAddresses(t *testing.T) {
	t.Parallel()
	all := redistest.StartCluster(t, 1, 0, redistest.Options{})
	all[0].Do("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
	s := openAt(t, clusterConfig(all))
	t.Cleanup(func() { s.Close() })
	if p := enter(t, grant(t, s, time.Minute), "n", "1"); !p.Held {
		t.Error("the first claim waits, want it held")
	}
}
