package etcdstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// found returns the finding on a topic that begins so.
func found(t testing.TB, all []driver.Finding, topic string) driver.Finding {
	t.Helper()
	i := slices.IndexFunc(all, func(f driver.Finding) bool { return strings.HasPrefix(f.Topic, topic) })
	if i < 0 {
		t.Fatalf("nothing on %q in %+v", topic, all)
	}
	return all[i]
}

// finds checks one finding.
func finds(t testing.TB, all []driver.Finding, topic string, level driver.Level, texts ...string) {
	t.Helper()
	f := found(t, all, topic)
	if f.Level != level {
		t.Errorf("%s: %+v, want %s", topic, f, level)
	}
	if (f.Level == driver.Fine) != (f.Advice == "") || strings.Contains(f.Found+f.Advice, "\n") || f.Found == "" {
		t.Errorf("%+v: advice belongs to what is not well, and all of it in one line", f)
	}
	for _, s := range texts {
		if !strings.Contains(f.Found+" "+f.Advice, s) {
			t.Errorf("%s: %+v lacks %q", topic, f, s)
		}
	}
}

func TestExamine(t *testing.T) {
	for _, version := range etcdtest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{Version: version})
			s := open(t, srv.Addr())
			all := s.Examine(soon(t), "n")
			finds(t, all, "member "+srv.Addr(), driver.Fine, "etcd "+version, "leads", "data ")
			finds(t, all, "cluster", driver.Fine, "1 voting member", "leader m0", "while it is down nobody leads")
			finds(t, all, "alarms", driver.Fine, "none")
			finds(t, all, "permissions", driver.Fine, `below "primacy/"`, "asks for no user")
			if resp, err := plainClient(t, srv.Endpoint()).Get(soon(t), "", clientv3.WithPrefix()); err != nil ||
				len(resp.Kvs) > 0 || resp.Header.Revision != 1 {
				t.Errorf("it has written: %v, %v", resp, err)
			}
			leftCounts(t, s)
			byHand(t, s)
			if version == etcdtest.Newest {
				if _, err := pb.NewMaintenanceClient(plainClient(t, srv.Endpoint()).ActiveConnection()).Alarm(soon(t),
					&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE}); err != nil {
					t.Fatal(err)
				}
				finds(t, s.Examine(soon(t), "n"), "alarms", driver.Failed, "NOSPACE", "disarm",
					"do not restart etcd's leader")
			}
		})
	}
}

// leftCounts checks that a lease's rest is told in seconds and runs down with time.
func leftCounts(t *testing.T, s driver.Store) {
	t.Helper()
	l := grant(t, s, "a", time.Minute)
	left := func() time.Duration {
		d, step, err := l.(driver.LeaseTimer).Left(soon(t))
		if err != nil || step != time.Second || d%time.Second != 0 {
			t.Errorf("Left = %v in steps of %v, %v", d, step, err)
		}
		return d
	}
	if d := left(); d > time.Minute || d < 50*time.Second {
		t.Errorf("at the beginning %v is left", d)
	}
	if err := l.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.(driver.LeaseTimer).Left(soon(t)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Left of a closed lease: %v, want ErrGone", err)
	}
}

// byHand checks that exactly what is named is removed.
func byHand(t *testing.T, s *etcdstore.Store) {
	t.Helper()
	a, b, c := grant(t, s, "run-1", time.Minute), grant(t, s, "run-2", time.Minute), grant(t, s, "other", time.Minute)
	pa, _ := claim(t, a, "hand"), claim(t, b, "hand")
	claim(t, c, "hand")
	claim(t, a, "hand/other")
	ids, err := s.Leases(soon(t), "run-")
	want := []string{a.ID(), b.ID()}
	slices.Sort(ids)
	slices.Sort(want)
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("Leases = %q, %v, want %q", ids, err, want)
	}
	for range 2 { // the second time it is gone
		if err := s.RemoveClaim(soon(t), "hand", pa.Token); err != nil {
			t.Error(err)
		}
	}
	if err := b.Close(soon(t)); err != nil {
		t.Error(err)
	}
	if ln := line(t, s, "hand"); ln.Holder == nil || ln.Holder.Owner != "other" || len(ln.Waiters) > 0 {
		t.Errorf("the line is %+v, want only the other", ln)
	}
	if ln := line(t, s, "hand/other"); ln.Holder == nil || ln.Holder.Owner != "run-1" {
		t.Errorf("the line of another name is %+v", ln)
	}
	for _, l := range []driver.Lease{a, c} {
		if err := l.Close(soon(t)); err != nil {
			t.Error(err)
		}
	}
}

func TestExamineAStranger(t *testing.T) {
	t.Parallel()
	srv := guarded(t, 1).Members[0]
	for _, c := range []struct {
		user  string
		level driver.Level
		text  string
	}{{"runner", driver.Fine, "etcd asks for a user"}, {"stranger", driver.Failed,
		"--prefix=true readwrite primacy/"}} {
		s := openAt(t, etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: c.user, Password: "secret"})
		all := s.Examine(soon(t), "n")
		finds(t, all, "permissions", c.level, c.text)
		finds(t, all, "member", driver.Fine, "leads")
		finds(t, all, "cluster", driver.Fine, "1 voting member")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestExamineFindsEachRightThatLacks: a user may write all but one of the folders of keys. What is
// told of that is what becomes of those who need it.
func TestExamineFindsEachRightThatLacks(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := guarded(t, 1).Members[0]
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "secret",
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	dirs := []string{"primacy/n/", "primacy/@session/", "primacy/@beat/", "primacy/@journal/", "primacy/@kept/"}
	texts := []string{"", "", "ttl below 2s", "no history", "beyond a term"}
	for i, lacks := range dirs {
		user := fmt.Sprint("lacks-", i)
		_, err := admin.RoleAdd(soon(t), user)
		for _, d := range dirs {
			if d != lacks && err == nil {
				_, err = admin.RoleGrantPermission(soon(t), user, d, clientv3.GetPrefixRangeEnd(d),
					clientv3.PermissionType(clientv3.PermReadWrite))
			}
		}
		if err == nil {
			_, err = admin.UserAdd(soon(t), user, "secret")
		}
		if err == nil {
			_, err = admin.UserGrantRole(soon(t), user, user)
		}
		if err != nil {
			t.Fatal(err)
		}
		at := func(heartbeat bool) *etcdstore.Store {
			s := openAt(t, etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: "secret",
				Options: etcdstore.Options{Heartbeat: heartbeat}})
			t.Cleanup(func() { s.Close() })
			return s
		}
		level := driver.Warning
		if texts[i] == "" {
			level = driver.Failed
		}
		s := at(false)
		finds(t, s.Examine(soon(t), "n"), "permissions", level, lacks, texts[i])
		if lacks != "primacy/@beat/" {
			continue
		}
		if _, err := s.Grant(soon(t), "short", time.Second); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("a session with a heartbeat: %v, want ErrRefused", err)
		}
		grant(t, s, "long", time.Minute)
		finds(t, at(true).Examine(soon(t), "n"), "permissions", driver.Failed, lacks)
	}
}

func TestExamineWithAFrozenMember(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	leader := cluster.WaitLeader()
	s := open(t, cluster.Endpoints()...)
	all := s.Examine(soon(t), "n")
	finds(t, all, "cluster", driver.Fine, "3 voting members")
	i := slices.IndexFunc(cluster.Members, func(m *etcdtest.Server) bool { return m != leader })
	cluster.Members[i].Stop()
	begun := time.Now()
	all = s.Examine(soon(t), "n")
	finds(t, all, "member "+cluster.Members[i].Addr(), driver.Warning, "silent for 2s")
	finds(t, all, "member "+leader.Addr(), driver.Fine, "leads")
	finds(t, all, "cluster", driver.Fine, "3 voting members")
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	cluster.Members[i].Cont()
}
