package etcdstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Another process sees how much is left of a lease: of ours, of one that was moved to another
// lease, and of a stranger's. Not of one whose waiters go by a heartbeat: etcd's figure would be
// a lie.
func TestRemaining(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, watcher := open(t, srv.Addr()), open(t, srv.Addr())
	beating, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: []string{srv.Addr()},
		Options: etcdstore.Options{Heartbeat: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { beating.Close() })
	grant := func(s *etcdstore.Store, ttl time.Duration) driver.Lease {
		l, err := s.Grant(soon(t), "me", ttl)
		if err == nil {
			_, err = l.Claim(soon(t), driver.Claim{Name: l.ID(), ID: l.ID()})
		}
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	plain, closed, fast := grant(s, 30*time.Second), grant(s, 30*time.Second), grant(beating, 2*time.Second)
	if err := closed.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	stranger, err := plainClient(t, srv.Endpoint()).Grant(soon(t), 100)
	if err != nil {
		t.Fatal(err)
	}
	strange := etcdstore.Hex(int64(stranger.ID))
	time.Sleep(1100 * time.Millisecond)
	got, err := watcher.Remaining(soon(t), plain.ID(), closed.ID(), fast.ID(), strange, "", "zz")
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v: want those of %s and %s", got, err, plain.ID(), strange)
	}
	if r := got[plain.ID()]; r.TTL != 30*time.Second || r.Left > 29*time.Second || r.Left < 20*time.Second ||
		r.Step != time.Second {
		t.Errorf("ours: %+v", r)
	}
	if r := got[strange]; r.TTL != 100*time.Second || r.Left > 99*time.Second || r.Left < 80*time.Second {
		t.Errorf("the stranger's: %+v", r)
	}
	if err := plain.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	if again, err := watcher.Remaining(soon(t), plain.ID()); err != nil ||
		again[plain.ID()].Left <= got[plain.ID()].Left-time.Second {
		t.Errorf("renewed: %+v, %v; was %+v", again, err, got)
	}
}
