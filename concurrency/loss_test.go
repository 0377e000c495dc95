package concurrency_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// deleted returns where the instant arrives at which a key is deleted.
func deleted(t testing.TB, c *v3.Client, key string) <-chan time.Time {
	t.Helper()
	at := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := c.Watch(ctx, key, v3.WithCreatedNotify())
	<-w
	go func() {
		for r := range w {
			for _, e := range r.Events {
				if e.Type == v3.EventTypeDelete {
					at <- time.Now()
					return
				}
			}
		}
	}()
	return at
}

// doneAt returns where the instant arrives at which a session is done.
func doneAt(s session) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		<-s.Done()
		at <- time.Now()
	}()
	return at
}

// order waits for both instants and says by how much the key was gone before the session was told.
func order(t testing.TB, gone, told <-chan time.Time) time.Duration {
	t.Helper()
	var g, d time.Time
	limit := time.After(40 * time.Second)
	for g.IsZero() || d.IsZero() {
		select {
		case g = <-gone:
		case d = <-told:
		case <-limit:
			t.Fatalf("not within 40 s: key gone %v, session done %v", !g.IsZero(), !d.IsZero())
		}
	}
	return d.Sub(g)
}

// TestDoneIsClosedBeforeTheKeyCanGo: replies are late, as they are to a process that was paused
// with one in its socket, and then none come. The original counts from when it reads a reply.
func TestDoneIsClosedBeforeTheKeyCanGo(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	both(t, func(t *testing.T, k kit) string {
		proxy := etcdtest.NewProxy(t, srv.Addr())
		s := k.open(t, dial(t, proxy.Addr()), concurrency.WithTTL(6))
		m := k.mutex(s, "late-"+k.name)
		ok(t, "Lock", m.Lock(soon(t)))
		gone, told := deleted(t, c, m.Key()), doneAt(s)
		time.Sleep(1500 * time.Millisecond)
		proxy.Hold(etcdtest.Down) // renewals are carried out, and their replies wait
		time.Sleep(1200 * time.Millisecond)
		proxy.Seal() // no more of them
		time.Sleep(2800 * time.Millisecond)
		proxy.Heal()
		time.Sleep(20 * time.Millisecond) // the replies are read
		proxy.Hold()
		late := order(t, gone, told)
		t.Logf("done %v after the key was gone", late)
		if late > 0 {
			return fmt.Sprintf("the session was done %v after its key was gone", late)
		}
		return ""
	})
}

func TestADeletedKeyEndsTheSession(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	both(t, func(t *testing.T, k kit) string {
		s := k.open(t, c)
		m := k.mutex(s, "deleted-"+k.name)
		ok(t, "Lock", m.Lock(soon(t)))
		time.Sleep(300 * time.Millisecond)
		_, err := c.Delete(soon(t), m.Key())
		ok(t, "delete", err)
		select {
		case <-s.Done():
			return ""
		case <-time.After(k.limit()):
			return "the holder was not told that its key was deleted"
		}
	})
}

func TestARevokedLeaseIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	c := dial(t, concurrency.SharedServer(t).Endpoint())
	both(t, func(t *testing.T, k kit) string {
		s := k.open(t, c)
		ok(t, "Lock", k.mutex(s, "revoked-"+k.name).Lock(soon(t)))
		time.Sleep(300 * time.Millisecond)
		_, err := c.Revoke(soon(t), s.Lease())
		ok(t, "revoke", err)
		select {
		case <-s.Done():
			return ""
		case <-time.After(k.limit()):
			return "the holder was not told that its lease was revoked"
		}
	})
}

func TestNewSessionIsBounded(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	both(t, func(t *testing.T, k kit) string {
		proxy := etcdtest.NewProxy(t, srv.Addr())
		proxy.Cut()
		c := dial(t, proxy.Addr())
		done := async(func() error { _, err := k.session(c, concurrency.WithTTL(5)); return err })
		err, came := in(10*time.Second+k.limit(), done)
		if !came {
			return "NewSession had not returned after 13 s"
		}
		t.Log(err)
		if err == nil {
			return "a session without etcd"
		}
		return ""
	})
}

// TestAFrozenMemberEndsNoSession freezes a member of three, for longer than the ttl. The quorum is
// healthy throughout.
func TestAFrozenMemberEndsNoSession(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		t.Run(fmt.Sprintf("ours/%d", i), func(t *testing.T) {
			t.Parallel()
			if fault := frozen(t, ours, 10, i); fault != "" {
				t.Error(fault)
			}
		})
	}
	t.Run("original", func(t *testing.T) {
		t.Parallel()
		fault := frozen(t, original, 5, 0, 1, 2)
		if fault == "" {
			t.Error("the original does not show the fault: this test proves nothing")
		}
		t.Log("as expected: ", fault)
	})
}

// frozen freezes members of a cluster, one after another, and returns the fault that it saw.
func frozen(t *testing.T, k kit, ttl int, members ...int) (fault string) {
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	s := k.open(t, dial(t, cluster.Endpoints()...), concurrency.WithTTL(ttl))
	m := k.mutex(s, "frozen")
	ok(t, "Lock", m.Lock(soon(t)))
	for _, i := range members {
		member := cluster.Members[i]
		member.Stop()
		select {
		case <-s.Done():
			member.Cont()
			if k.name == "ours" && revoked(t, cluster, s.Lease()) {
				t.Logf("etcd itself has revoked the session's lease, after member %d froze", i)
				return ""
			}
			return fmt.Sprintf("the session was lost when member %d froze", i)
		case <-time.After(time.Duration(ttl)*time.Second + time.Second):
		}
		member.Cont()
		cluster.WaitLeader()
	}
	ok(t, "Unlock", m.Unlock(soon(t)))
	return ""
}

// revoked reports whether etcd has the lease no more. One that was not renewed lives on for a
// while when its session has ended: so it was revoked, which a leader that wakes up does now and
// then. No client can help that, for the session's own lease must keep its ID.
func revoked(t *testing.T, cluster *etcdtest.Cluster, id v3.LeaseID) bool {
	t.Helper()
	cluster.WaitLeader()
	left, err := dial(t, cluster.Endpoints()...).TimeToLive(soon(t), id)
	ok(t, "TimeToLive", err)
	return left.TTL < 0
}

// TestALeaseOfAnEarlierRaftTermIsNotReliedOn: a leader of etcd's that was paused may revoke, as
// it wakes up, every lease it knew. What it would do is done here, after etcd's leader has
// changed.
func TestALeaseOfAnEarlierRaftTermIsNotReliedOn(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, k kit) string {
		cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
		c := dial(t, cluster.Endpoints()...)
		s := k.open(t, c, concurrency.WithTTL(10))
		m := k.mutex(s, "term-"+k.name)
		ok(t, "Lock", m.Lock(soon(t)))
		lead := cluster.WaitLeader()
		for _, x := range cluster.Members {
			if x != lead {
				cluster.MoveLeader(x)
				break
			}
		}
		if k.name == "ours" {
			eventually(t, "the key on another lease", 20*time.Second, func() bool {
				resp, err := c.Get(soon(t), m.Key())
				ok(t, "get", err)
				return len(resp.Kvs) == 1 && v3.LeaseID(resp.Kvs[0].Lease) != s.Lease()
			})
		} else {
			time.Sleep(4 * time.Second) // a renewal
		}
		gone, told := deleted(t, c, m.Key()), doneAt(s)
		_, err := c.Revoke(soon(t), s.Lease())
		ok(t, "revoke", err)
		if late := order(t, gone, told); late > 0 {
			return fmt.Sprintf("the session was done %v after its key was gone", late)
		}
		return ""
	})
}

// TestObserveSurvivesCompaction: an observer that has not heard of anything for long reconnects
// after a compaction.
func TestObserveSurvivesCompaction(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	c := dial(t, srv.Endpoint())
	both(t, func(t *testing.T, k kit) string {
		pfx := "observe-" + k.name
		proxy := etcdtest.NewProxy(t, srv.Addr())
		e := k.election(k.open(t, c), pfx)
		ok(t, "Campaign", e.Campaign(soon(t), "one"))
		next := k.observe(t, dial(t, proxy.Addr()), pfx)
		if kv := next(20 * time.Second); kv == nil || string(kv.Value) != "one" {
			t.Fatalf("observed %v", kv)
		}
		time.Sleep(200 * time.Millisecond)
		proxy.Cut()
		ok(t, "Proclaim", e.Proclaim(soon(t), "two"))
		compact(t, c)
		proxy.Heal()
		kv := next(15 * time.Second)
		if kv == nil || string(kv.Value) != "two" {
			return fmt.Sprintf("it observed %v", kv)
		}
		return ""
	})
}

// observe returns what waits for the next key observed; nil: none came.
func (k kit) observe(t testing.TB, c *v3.Client, pfx string) func(time.Duration) *mvccpb.KeyValue {
	s := k.open(t, c)
	out := make(chan *mvccpb.KeyValue)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		defer close(out)
		if k.name == "ours" {
			for r := range concurrency.NewElection(s.(*concurrency.Session), pfx).Observe(ctx) {
				out <- r.Kvs[0]
			}
			return
		}
		for r := range orig.NewElection(s.(*orig.Session), pfx).Observe(ctx) {
			out <- r.Kvs[0]
		}
	}()
	return func(d time.Duration) *mvccpb.KeyValue {
		select {
		case kv := <-out:
			return kv
		case <-time.After(d):
			return nil
		}
	}
}
