package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

func put(key, value string) etcdstore.BesideWrite {
	return etcdstore.BesideWrite{Key: key, Value: []byte(value)}
}

// beside reads all keys below prefix.
func beside(t *testing.T, s *etcdstore.Raw, prefix string) map[string]string {
	t.Helper()
	all, err := s.Beside(soon(t), prefix)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, k := range all {
		got[k.Key] = string(k.Value)
	}
	return got
}

// TestBeside: keys outside the store's prefix are written while a claim stands, all or none, and
// those that are under its lease or a session's go with it.
func TestBeside(t *testing.T) {
	t.Parallel()
	ctx, s := soon(t), open(t, etcdtest.Start(t, etcdtest.Options{}).Addr())
	raw := s.Raw()
	member, l := grant(t, s, "m", 10*time.Second), grant(t, s, "a", 10*time.Second)
	p := claim(t, l, "postgres/orders")
	key, err := s.ClaimKey(ctx, p.Name, p.Token)
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/service/orders/"
	leader := put(dir+"leader", "a")
	leader.Claim = true
	of := put(dir+"members/m", "{}")
	of.Lease = member.ID()
	write := func(writes ...etcdstore.BesideWrite) {
		t.Helper()
		if ok, err := raw.WriteBeside(ctx, key, p.Token, writes...); !ok || err != nil {
			t.Fatalf("got %v, %v", ok, err)
		}
	}
	write(leader, of, put(dir+"status", "1"))
	before, _ := raw.Beside(ctx, dir)
	write(leader, of, put(dir+"status", "2"))
	after, _ := raw.Beside(ctx, dir)
	for i, k := range after {
		if same := k.Version == before[i].Version; same != (k.Key != dir+"status") {
			t.Errorf("%s: version %d, then %d: what does not change is not written", k.Key, before[i].Version,
				k.Version)
		}
	}

	gone := etcdstore.BesideWrite{Key: dir + "status", Only: func(k etcdstore.BesideKey) bool {
		return k.Version == before[2].Version
	}}
	write(gone)
	if got := beside(t, raw, dir); got[dir+"status"] != "2" {
		t.Errorf("a key was deleted that has changed since it was read: %v", got)
	}
	gone.Only = nil
	write(gone, put(dir+"history", "[]"))
	if got := beside(t, raw, dir); len(got) != 3 || got[dir+"history"] != "[]" {
		t.Errorf("got %v", got)
	}

	release(t, l, p)
	if _, err := raw.WriteBeside(ctx, key, p.Token, put(dir+"leader", "late")); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a write under a claim that is gone: got %v, want ErrGone", err)
	}
	next := claim(t, l, p.Name)
	if _, err := raw.WriteBeside(ctx, key, p.Token, put(dir+"leader", "late")); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a write of a former term of the same session: got %v, want ErrGone", err)
	}
	if ok, err := raw.WriteBeside(ctx, key, next.Token, leader); !ok || err != nil {
		t.Errorf("a write of the next term: got %v, %v", ok, err)
	}
	for _, x := range []driver.Lease{l, member} {
		if err := x.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := beside(t, raw, dir); len(got) != 1 {
		t.Errorf("after the leases have ended there is %v, want the history alone", got)
	}
	if _, err := raw.WriteBeside(ctx, "", 0, of); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a key of a lease that is gone: got %v, want ErrGone", err)
	}
	if ok, err := raw.WriteBeside(ctx, "", 0, put(dir+"status", "3")); !ok || err != nil {
		t.Errorf("without a claim: got %v, %v", ok, err)
	}
}
