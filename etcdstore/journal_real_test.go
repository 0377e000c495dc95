package etcdstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// withRecord returns p with a record to leave.
func withRecord(p driver.Place, journal, key string) driver.Place {
	p.Journal, p.Record = journal, &driver.Record{Key: key, Value: []byte("v")}
	return p
}

// heldMany claims n names that begin with x.
func heldMany(t *testing.T, l driver.Lease, x string, n int) []driver.Place {
	t.Helper()
	var claims []driver.Claim
	for i := range n {
		claims = append(claims, driver.Claim{Name: fmt.Sprint(x, i), ID: fmt.Sprint(x, i, time.Now())})
	}
	places, err := l.Claim(soon(t), claims...)
	if err != nil {
		t.Fatal(err)
	}
	return places
}

// allFree fails the test unless nobody stands on the names, and there are so many records.
func allFree(t *testing.T, s *etcdstore.Store, places []driver.Place, journal string, want int) {
	t.Helper()
	for _, p := range places {
		if ln := line(t, s, p.Name); ln.Holder != nil {
			t.Errorf("%s is held after its release: %+v", p.Name, ln.Holder)
		}
	}
	if all, err := s.Records(soon(t), journal, "", 1000); err != nil || len(all) != want {
		t.Errorf("%d records in %s, %v, want %d", len(all), journal, err, want)
	}
}

// TestJournalsWithoutRights: a user who may not write records is told so, and its places are
// given up all the same; one who may write some of them does so beside another's that he may not
// write.
func TestJournalsWithoutRights(t *testing.T) {
	t.Parallel()
	srv := guarded(t, 1, "--auth-token-ttl=300", "--bcrypt-cost=4").Members[0] // four users log in here
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	step := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	full := clientv3.PermissionType(clientv3.PermReadWrite)
	for _, user := range []string{"narrow", "half"} {
		step(root.RoleAdd(soon(t), user))
		step(root.RoleGrantPermission(soon(t), user, "primacy/", "primacy/@journal/", full))
		step(root.RoleGrantPermission(soon(t), user, "primacy/@journal0", "primacy0", full))
		step(root.UserAdd(soon(t), user, "secret"))
		step(root.UserGrantRole(soon(t), user, user))
	}
	step(root.RoleGrantPermission(soon(t), "half", "primacy/@journal/terms%2Fmine/", "primacy/@journal/terms%2Fmine0",
		full))
	as := func(user string) *etcdstore.Store {
		s := openAt(t, etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: "secret"})
		t.Cleanup(func() { s.Close() })
		return s
	}
	all := as("runner")
	for _, name := range []string{"terms/mine", "terms/other"} {
		if _, added, err := all.Append(soon(t), name, driver.Record{Key: "1"}, 9); err != nil || !added {
			t.Fatalf("Append = %v, %v", added, err)
		}
	}

	// At each put on a lease this etcd would look at all its keys, while everybody else waits.
	kept, err := root.Get(soon(t), "primacy/@journal/", clientv3.WithPrefix())
	if err != nil || len(kept.Kvs) != 2 {
		t.Fatalf("%d records, %v, want 2", len(kept.Kvs), err)
	}
	for _, kv := range kept.Kvs {
		if kv.Lease != 0 {
			t.Errorf("with passwords %s hangs on lease %x", kv.Key, kv.Lease)
		}
	}

	narrow := as("narrow")
	_, added, err := narrow.Append(soon(t), "terms/mine", driver.Record{Key: "2"}, 9)
	for _, text := range []string{"permission denied", `"primacy/@journal/"`, `"terms/mine"`} {
		if !errors.Is(err, driver.ErrRefused) || added || !strings.Contains(err.Error(), text) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("Append without rights = %v, %v, want one line with ErrRefused and %q", added, err, text)
		}
	}
	t.Log(err)
	if _, err = narrow.Records(soon(t), "terms/mine", "", 9); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Records without rights = %v, want ErrRefused", err)
	}
	finds(t, narrow.Examine(soon(t), "n"), "permissions", driver.Warning, "primacy/@journal/", "no history is kept")
	l := grant(t, narrow, "a", time.Minute)
	places := heldMany(t, l, "x", 50)
	for i := range places {
		places[i] = withRecord(places[i], "terms/mine", fmt.Sprint(i))
	}
	release(t, l, places[0])
	if err := l.Release(soon(t), places[1:]...); err != nil {
		t.Errorf("Release with records that may not be written: %v", err)
	}
	allFree(t, all, places, "terms/mine", 1)
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew: %v", err)
	}

	half := as("half")
	if _, added, err = half.Append(soon(t), "terms/mine", driver.Record{Key: "2"}, 9); err != nil || !added {
		t.Errorf("Append with rights on this journal alone = %v, %v", added, err)
	}
	m := grant(t, half, "b", time.Minute)
	release(t, m, withRecord(claim(t, m, "y"), "terms/mine", "3"))
	allFree(t, all, []driver.Place{{Name: "y"}}, "terms/mine", 3)
}

// TestJournalsWhileEtcdIsFull: real etcd takes no puts. Places that would leave records are given
// up, one by one and together.
func TestJournalsWhileEtcdIsFull(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Args: []string{"--quota-backend-bytes=1048576"}})
	s := open(t, srv.Endpoint())
	l := grant(t, s, "a", 5*time.Minute)
	places := heldMany(t, l, "x", 60)
	for i := range places {
		places[i] = withRecord(places[i], "j", fmt.Sprint(i))
	}
	release(t, l, places[0])
	c := plainClient(t, srv.Endpoint())
	var err error
	for i := 0; err == nil && i < 200; i++ {
		_, err = c.Put(soon(t), fmt.Sprint("filler", i), strings.Repeat("v", 100_000))
	}
	if err == nil {
		t.Fatal("etcd does not become full")
	}
	if _, added, err := s.Append(soon(t), "j", driver.Record{Key: "k"}, 9); err == nil || added {
		t.Errorf("Append while etcd is full = %v, %v", added, err)
	} else {
		t.Log(err)
	}
	release(t, l, places[1])
	if err := l.Release(soon(t), places[2:]...); err != nil {
		t.Errorf("Release while etcd is full: %v", err)
	}
	allFree(t, s, places, "j", 1)
}

// TestATakeOverLogsNoWarning: an etcd client of the user's own logs each request that etcd refuses.
// A store that finds the lease for records granted already must not provoke that.
func TestATakeOverLogsNoWarning(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for i := range 3 {
		warnings, logged := observer.New(zapcore.WarnLevel)
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Logger: zap.New(warnings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := etcdstore.New(soon(t), c, etcdstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l := grant(t, s, fmt.Sprint("owner", i), 10*time.Second)
		places := heldMany(t, l, "x", 1)
		if err := l.Release(soon(t), withRecord(places[0], "journal", fmt.Sprint("key", i))); err != nil {
			t.Fatal(err)
		}
		allFree(t, s, places, "journal", i+1)
		for _, e := range logged.All() {
			t.Errorf("store %d: the client logged %s %v", i, e.Message, e.ContextMap())
		}
		_ = s.Close()
	}
}
