package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/redisstore"
)

// A cluster of masters and replicas that fail over, and whose slot moves, under who elects and
// locks.

func addrs(all []*redistest.Server) (list []string) {
	for _, s := range all {
		list = append(list, s.Addr())
	}
	return list
}

func clusterConfig(all []*redistest.Server) redisstore.Config {
	return redisstore.Config{Addrs: addrs(all), Cluster: true}
}

// other returns a master of the cluster that does not have the slot.
func other(t *testing.T, all []*redistest.Server) *redistest.Server {
	t.Helper()
	owner := redistest.Owner(all)
	for _, s := range all {
		if s != owner && !s.Exited() && s.Role() == "master" {
			return s
		}
	}
	t.Fatal("no other master")
	return nil
}

// successor returns a replica of the slot's owner.
func successor(t *testing.T, all []*redistest.Server) (owner, replica *redistest.Server) {
	t.Helper()
	owner = redistest.Owner(all)
	eventually(t, "the master to have a replica that is in step", func() bool {
		for _, s := range all {
			if !s.Exited() && s.Role() == "slave" && s.Follows(owner) {
				replica = s
			}
		}
		return replica != nil
	})
	return owner, replica
}

// failOver makes a replica the master. It asks again from time to time: a server gives a failover
// by hand up that has not come to pass in five seconds, as on a busy machine.
func failOver(t *testing.T, replica *redistest.Server) {
	t.Helper()
	var asked time.Time
	eventually(t, "the failover by hand", func() bool {
		if replica.Role() == "master" {
			return true
		}
		if time.Since(asked) > 10*time.Second {
			replica.Do("CLUSTER", "FAILOVER")
			asked = time.Now()
		}
		return false
	})
}

// Masters are killed and come back as replicas, replicas are promoted by hand.
func TestAClusterThatFailsOver(t *testing.T) {
	servertest.Long(t, "race-library")
	long(t)
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			t.Parallel()
			all := redistest.StartCluster(t, 3, 3, redistest.Options{})
			c := clusterConfig(all)
			c.Replicas = replicas
			f := startFleet(t, c, 3, guardTTL)
			for range 2 {
				f.goesOn(5)
				owner, _ := successor(t, all)
				owner.Kill()
				if redistest.Owner(all) == owner {
					t.Fatal("the dead one has the slot")
				}
				if replicas == 0 {
					f.goesOn(5)
				}
				owner.Restart()
				f.goesOn(5)
				_, replica := successor(t, all)
				failOver(t, replica)
			}
			f.goesOn(5)
			f.judge()
		})
	}
}

// The slot goes from master to master, key by key, while it is used.
func TestASlotThatMoves(t *testing.T) {
	long(t)
	t.Parallel()
	all := redistest.StartCluster(t, 3, 0, redistest.Options{})
	f := startFleet(t, clusterConfig(all), 3, guardTTL)
	for i := range 4 {
		f.goesOn(5)
		m := redistest.BeginMove(all, redistest.Owner(all), other(t, all))
		time.Sleep(100 * time.Millisecond) // new keys are refused already
		for n := 0; !m.Keys(1); n++ {
			time.Sleep(time.Duration(i*10) * time.Millisecond)
			if n > 100 {
				t.Fatal("the slot gets no emptier: keys come as fast as they are moved")
			}
		}
		m.End()
	}
	f.goesOn(5)
	f.judge()
	s := openAt(t, clusterConfig(all))
	defer s.Close()
	noGhost(t, s, f.name)
}

// noGhost wants nobody to stand on name for longer than a dead session's ttl.
func noGhost(t *testing.T, s driver.Store, name string) {
	t.Helper()
	time.Sleep(guardTTL + 200*time.Millisecond)
	if ln, err := s.Line(soon(t), name); err != nil || ln.Holder != nil || len(ln.Waiters) > 0 {
		t.Errorf("the line in the end = %+v, %v, want it empty", ln, err)
	}
}

// While the slot moves nothing is done, and nothing is lost: sessions live on behind a move that is
// shorter than their ttl.
func TestSessionsOutliveAMove(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	all := redistest.StartCluster(t, 2, 0, redistest.Options{})
	s := openAt(t, clusterConfig(all))
	t.Cleanup(func() { s.Close() })
	const ttl = time.Minute
	l, second := grant(t, s, ttl), grant(t, s, ttl)
	p, q := enter(t, l, "n", "1"), enter(t, second, "n", "2")
	owner := redistest.Owner(all)
	m := redistest.BeginMove(all, owner, other(t, all))
	for _, key := range []string{"{primacy}:line:n", "{primacy}:server", ""} { // one after the other, the rest last
		switch key {
		case "":
			for !m.Keys(100) {
			}
		default:
			m.Key(key)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		for what, err := range map[string]error{"Renew": l.Renew(ctx), "Release": l.Release(ctx, p)} {
			if err == nil || errors.Is(err, driver.ErrGone) {
				t.Errorf("%s while the slot moves = %v, want an error that leaves it unknown", what, err)
			}
		}
		if _, err := l.Claim(ctx, driver.Claim{Name: "m", ID: "m" + key}); err == nil || errors.Is(err, driver.ErrGone) {
			t.Errorf("Claim while the slot moves = %v, want an error that leaves it unknown", err)
		}
		if ln, err := s.Line(ctx, "n"); err == nil {
			t.Errorf("Line while the slot moves = %+v, want an error", ln)
		}
		cancel()
	}
	m.End()
	for _, l := range []driver.Lease{l, second} {
		eventually(t, "a renewal at the slot's new master", func() bool {
			err := l.Renew(soon(t))
			if errors.Is(err, driver.ErrGone) {
				t.Fatalf("Renew after the move = %v, want the session alive", err)
			}
			return err == nil
		})
		go keepAlive(t.Context(), l)
	}
	if ln, err := s.Line(t.Context(), "n"); err != nil || ln.Holder == nil || ln.Holder.Token != p.Token || len(ln.Waiters) != 1 {
		t.Fatalf("the line after the move = %+v, %v, want it as it was", ln, err)
	}
	if err := l.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	m.To().Do("HSET", "{primacy}:server", "calm", 0, "since", 0) // or it would last for a ttl
	if _, err := drivertest.Await(soon(t), second, q); err != nil {
		t.Fatal(err)
	}
}

// A push finds its way also after the slot has gone to another master, and after a failover by
// hand: both leave connections open that hear nothing more.
func TestPushesFollowTheSlot(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	all := redistest.StartCluster(t, 2, 2, redistest.Options{})
	var stores []*redisstore.Store
	for _, plain := range []bool{false, true} {
		s := openAt(t, clusterConfig(all))
		t.Cleanup(func() { s.Close() })
		if plain {
			s.PlainPushes()
		}
		stores = append(stores, s)
	}
	check := func(when string) {
		t.Helper()
		for i, s := range stores {
			pushed(t, s, fmt.Sprint(when, ", plain ", i == 1), redistest.Owner(all))
		}
	}
	check("at first")
	m := redistest.BeginMove(all, redistest.Owner(all), other(t, all))
	for !m.Keys(100) {
	}
	m.End()
	redistest.Agree(all, m.To())
	check("after the slot has moved")
	_, replica := successor(t, all)
	failOver(t, replica)
	redistest.Agree(all, replica)
	check("after a failover by hand")
}

// pushed wants hand-overs that do not wait for a poll, once the store has had time to notice. It
// ends the hold-off of a server that has just taken over.
func pushed(t *testing.T, s *redisstore.Store, when string, tookOver ...*redistest.Server) {
	t.Helper()
	a, b := grant(t, s, 5*time.Minute), grant(t, s, 5*time.Minute)
	fast := 0
	for i, end := 0, time.Now().Add(time.Minute); fast < 3 && time.Now().Before(end); i++ {
		p, err := a.Claim(soon(t), driver.Claim{Name: "n", ID: fmt.Sprint(a.ID(), i)})
		if err != nil {
			continue
		}
		for _, srv := range tookOver {
			srv.Do("HSET", "{primacy}:server", "calm", 0, "since", 0)
		}
		if p[0], err = drivertest.Await(soon(t), a, p[0]); err != nil {
			t.Fatalf("%s: Wait = %v", when, err)
		}
		q := enter(t, b, "n", fmt.Sprint(i))
		got := make(chan error, 1)
		go func() { _, err := drivertest.Await(soon(t), b, q); got <- err }()
		time.Sleep(30 * time.Millisecond)
		begun := time.Now()
		if err := a.Release(t.Context(), p[0]); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatalf("%s: Wait = %v", when, err)
		}
		if took := time.Since(begun); took < time.Second { // a poll comes after two
			fast++
		}
		if err := b.Release(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if fast < 3 {
		t.Errorf("%s: %d of 3 hand-overs were pushed: waiters hear nothing any more but what they poll", when, fast)
	}
}
