package concurrency_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	v3 "go.etcd.io/etcd/client/v3"
	orig "go.etcd.io/etcd/client/v3/concurrency"

	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// toldFirst watches a session's key. What it returns waits until the key is deleted, and reports
// whether the session was done by then.
func toldFirst(t testing.TB, c *v3.Client, key string, s session) func() bool {
	t.Helper()
	told := make(chan bool, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := c.Watch(ctx, key, v3.WithCreatedNotify())
	<-w
	go func() {
		for r := range w {
			for _, e := range r.Events {
				if e.Type == v3.EventTypeDelete {
					select {
					case <-s.Done():
						told <- true
					default:
						told <- false
					}
					return
				}
			}
		}
	}()
	return func() bool {
		t.Helper()
		return await(t, "the end of "+key, told)
	}
}

const toldLate = "the session was not done when its key was gone"

// TestDoneIsClosedBeforeTheKeyCanGo: an answer to a renewal is late, as it is to a process that was
// paused with it in its socket, and then none come. The original counts from when it reads it.
func TestDoneIsClosedBeforeTheKeyCanGo(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	both(t, func(t *testing.T, k kit) string {
		const ttl = 10
		proxy := etcdtest.NewProxy(t, srv.Addr())
		client, renewed := dialSeeing(t, renewals, proxy.Addr())
		s := k.open(t, client, concurrency.WithTTL(ttl))
		m := k.mutex(s, "late-"+k.name)
		ok(t, "Lock", m.Lock(soon(t)))
		told := toldFirst(t, c, m.Key(), s)
		await(t, "a renewal", renewed)
		if o, ok := s.(*concurrency.Session); ok {
			concurrency.WaitRenewals(t, o, 1) // without the end of one it would not begin the next
		}
		proxy.Hold(etcdtest.Down) // renewals are carried out, and their answers wait
		// The fields 2 and 3 of a LeaseKeepAliveResponse.
		answer := append(binary.AppendUvarint([]byte{2 << 3}, uint64(s.Lease())), 3<<3, ttl)
		eventually(t, "an answer that waits", time.Minute, func() bool { return proxy.Holds(etcdtest.Down, answer) })
		proxy.Seal() // no more of them
		// By its last answer the original believes for some 6 s more, and by the one that waits for
		// 3 s longer than etcd.
		time.Sleep(3 * time.Second)
		select {
		case <-renewed: // one that came before Hold
		default:
		}
		proxy.Heal()
		if k.name == "ours" {
			time.Sleep(200 * time.Millisecond) // its attempt may have ended, and then it reads nothing
		} else {
			await(t, "the late answer", renewed)
		}
		proxy.Hold()
		if !told() {
			return toldLate
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
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	both(t, func(t *testing.T, k kit) string {
		client, renewed := dialSeeing(t, renewals, srv.Endpoint())
		s := k.open(t, client)
		ok(t, "Lock", k.mutex(s, "revoked-"+k.name).Lock(soon(t)))
		if k.name == "original" {
			await(t, "its first renewal", renewed) // the next is a third of the ttl away
		}
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
			if fault := frozen(t, ours, 10, func(*etcdtest.Cluster, <-chan string) int { return i }); fault != "" {
				t.Error(fault)
			}
		})
	}
	t.Run("original", func(t *testing.T) {
		t.Parallel()
		fault := frozen(t, original, 5, func(cluster *etcdtest.Cluster, renewed <-chan string) int {
			at := await(t, "a renewal", renewed)
			return slices.IndexFunc(cluster.Members, func(m *etcdtest.Server) bool { return m.Addr() == at })
		})
		if fault == "" {
			t.Error("the original does not show the fault: this test proves nothing")
		}
		t.Log("as expected: ", fault)
	})
}

// frozen freezes a member of a cluster and returns the fault that it saw. Which one is choose's to
// say, which is told by which member the session is renewed.
func frozen(t *testing.T, k kit, ttl int, choose func(*etcdtest.Cluster, <-chan string) int) (fault string) {
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	client, renewed := dialSeeing(t, renewals, cluster.Endpoints()...)
	s := k.open(t, client, concurrency.WithTTL(ttl))
	m := k.mutex(s, "frozen")
	ok(t, "Lock", m.Lock(soon(t)))
	i := choose(cluster, renewed)
	member := cluster.Members[i]
	member.Stop()
	defer member.Cont()
	enough := time.Duration(ttl)*time.Second + time.Second
	if k.name == "original" {
		enough += 10 * time.Second // it looks at its deadline once a second
	}
	select {
	case <-s.Done():
		member.Cont()
		if k.name == "ours" && revoked(t, cluster, s.Lease()) {
			t.Logf("etcd itself has revoked the session's lease, after member %d froze", i)
			return ""
		}
		return fmt.Sprintf("the session was lost when member %d froze", i)
	case <-time.After(enough):
	}
	member.Cont()
	cluster.WaitLeader()
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
		client, renewed := dialSeeing(t, renewals, cluster.Endpoints()...)
		s := k.open(t, client, concurrency.WithTTL(10))
		m := k.mutex(s, "term-"+k.name)
		ok(t, "Lock", m.Lock(soon(t)))
		told := toldFirst(t, c, m.Key(), s)
		lead := cluster.WaitLeader()
		for _, x := range cluster.Members {
			if x != lead {
				cluster.MoveLeader(x)
				break
			}
		}
		if k.name == "ours" {
			eventually(t, "the key on another lease", time.Minute, func() bool {
				resp, err := c.Get(soon(t), m.Key())
				ok(t, "get", err)
				return len(resp.Kvs) == 1 && v3.LeaseID(resp.Kvs[0].Lease) != s.Lease()
			})
		} else {
			select {
			case <-renewed: // it may be of before
			default:
			}
			await(t, "a renewal", renewed) // the next is some 3 s away
		}
		_, err := c.Revoke(soon(t), s.Lease())
		ok(t, "revoke", err)
		if !told() {
			return toldLate
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
		if kv := next(time.Minute); kv == nil || string(kv.Value) != "one" {
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
