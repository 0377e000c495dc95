package etcdstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/etcdstore"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/safety"
)

// guarded starts servers with authentication, whose tokens live for two seconds. User "runner"
// may use the prefix "primacy/", user "stranger" another one.
func guarded(t *testing.T, n int, args ...string) *etcdtest.Cluster {
	t.Helper()
	args = append([]string{"--auth-token-ttl", "2", "--bcrypt-cost", "4"}, args...)
	cluster := etcdtest.StartCluster(t, n, etcdtest.Options{Args: args})
	c := plainClient(t, cluster.Endpoints()...)
	step := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	full := clientv3.PermissionType(clientv3.PermReadWrite)
	for user, prefix := range map[string]string{"runner": "primacy/", "stranger": "elsewhere/"} {
		step(c.RoleAdd(soon(t), user))
		step(c.RoleGrantPermission(soon(t), user, prefix, clientv3.GetPrefixRangeEnd(prefix), full))
		step(c.UserAdd(soon(t), user, "secret"))
		step(c.UserGrantRole(soon(t), user, user))
	}
	step(c.UserAdd(soon(t), "root", "secret"))
	step(c.UserGrantRole(soon(t), "root", "root"))
	step(c.AuthEnable(soon(t)))
	cluster.Login("root", "secret")
	return cluster
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	srv := guarded(t, 1).Members[0]
	config := func(user, password string) etcdstore.Config {
		return etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: password}
	}
	refused := func(what string, err error, text string) {
		t.Helper()
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(),
			"\n") {
			t.Errorf("%s = %v, want one line with ErrRefused and %q", what, err, text)
		}
	}
	_, err := etcdstore.Open(soon(t), config("runner", "wrong"))
	refused("Open with a wrong password", err, "invalid user ID or password")
	_, err = etcdstore.Open(soon(t), config("nobody", "secret"))
	refused("Open as nobody", err, "invalid user ID or password")

	stranger := openAt(t, config("stranger", "secret"))
	defer stranger.Close()
	_, err = stranger.Grant(soon(t), "x", time.Minute)
	refused("Grant without permission", err, "permission denied")
	_, err = stranger.Line(soon(t), "x")
	refused("Line without permission", err, "permission denied")
	_, err = stranger.Next(soon(t), "x", 1)
	refused("Next without permission", err, "permission denied")

	s := openAt(t, config("runner", "secret"))
	defer s.Close()
	outlivesTokens(t, s)
}

// outlivesTokens waits in line, with all watches standing, for much longer than an auth token
// lives.
func outlivesTokens(t *testing.T, s *etcdstore.Store) {
	t.Helper()
	first, second := grant(t, s, "a", 30*time.Second), grant(t, s, "b", 5*time.Minute)
	p := claim(t, first, "guarded")
	turn := waiting(t, second, claim(t, second, "guarded"))
	news := make(chan error, 1)
	go func() {
		_, err := first.News(within(t, 5*time.Minute))
		news <- err
	}()
	r := renewEvery(first, time.Second, 2*time.Second)
	time.Sleep(6 * time.Second) // three lives of a token; nothing can be polled for
	// A watch that is opened now is opened on a stream whose token has expired.
	other := claim(t, second, "guarded too")
	if _, err := drivertest.Await(soon(t), second, other); err != nil {
		t.Errorf("Wait: %v", err)
	}
	r.halt()
	if r.renewed.Load() < 2 {
		t.Errorf("%d renewals, the last failed: %v", r.renewed.Load(), r.last)
	}
	// One that meets a token in the moment of its end fails; the next one has a new token.
	eventually(t, "a renewal", time.Minute, func() bool { return first.Renew(soon(t)) == nil })
	release(t, first, p)
	begun, stalls := time.Now(), safety.WatchStalls(5*time.Millisecond)
	if err := receive(t, "Wait", turn, time.Minute); err != nil {
		t.Error(err)
	}
	took := time.Since(begun)
	if _, stood := stalls(); took > 2*time.Second+stood {
		t.Errorf("the turn came %v after the release (stalls: %v): the watch was dead", took, stood)
	}
	select {
	case err := <-news:
		t.Errorf("News returned %v, but there was none", err)
	default:
	}
	if err := first.Close(soon(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := receive(t, "News", news, time.Minute); !errors.Is(err, driver.ErrGone) {
		t.Errorf("News after Close = %v, want ErrGone", err)
	}
}

// clerkAmong starts an etcd with passwords and a user "clerk", who has rights only to these
// directories below "primacy/". It returns a store as "runner", who has all rights, and one as the
// clerk.
func clerkAmong(t *testing.T, dirs ...string) (admin *clientv3.Client, runner, clerk *etcdstore.Store) {
	t.Helper()
	srv := guarded(t, 1).Members[0]
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.Addr()}, Username: "root", Password: "secret",
		Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	_, errRole := admin.RoleAdd(soon(t), "clerk")
	_, errUser := admin.UserAdd(soon(t), "clerk", "secret")
	_, errGrant := admin.UserGrantRole(soon(t), "clerk", "clerk")
	for _, dir := range dirs {
		dir = "primacy/" + dir
		_, err := admin.RoleGrantPermission(soon(t), "clerk", dir, clientv3.GetPrefixRangeEnd(dir),
			clientv3.PermissionType(clientv3.PermReadWrite))
		errGrant = errors.Join(errGrant, err)
	}
	if err := errors.Join(errRole, errUser, errGrant); err != nil {
		t.Fatal(err)
	}
	at := func(user string) *etcdstore.Store {
		s := openAt(t, etcdstore.Config{Endpoints: []string{srv.Addr()}, Username: user, Password: "secret"})
		t.Cleanup(func() { s.Close() })
		return s
	}
	return admin, at("runner"), at("clerk")
}

// forbid takes the rights to a directory below "primacy/" from the clerk.
func forbid(t *testing.T, admin *clientv3.Client, dir string) {
	t.Helper()
	dir = "primacy/" + dir
	if _, err := admin.RoleRevokePermission(soon(t), "clerk", dir, clientv3.GetPrefixRangeEnd(dir)); err != nil {
		t.Fatal(err)
	}
}

// TestOneNameWithoutRights: a user loses the rights to some of the names that its session stands
// for. News tells so of the one that waits, and goes on telling of the others.
func TestOneNameWithoutRights(t *testing.T) {
	t.Parallel()
	admin, runner, clerk := clerkAmong(t, "@session/", "a/", "b/", "c/", "mine/", "lost/")
	holder, l := grant(t, runner, "holder", time.Minute), grant(t, clerk, "clerk", time.Minute)
	var held, waits []driver.Place
	for _, name := range []string{"a", "b", "c"} {
		held, waits = append(held, claim(t, holder, name)), append(waits, claim(t, l, name))
	}
	mine := claim(t, l, "mine")
	claim(t, l, "lost")
	forbid(t, admin, "b/")
	forbid(t, admin, "lost/")
	l.Follow(waits...)
	told := map[string]driver.News{}
	hear := func(name string) driver.News {
		t.Helper()
		for told[name].Place.Name == "" {
			news, err := l.News(soon(t))
			if err != nil {
				t.Fatalf("News = %v before anything was told of %s", err, name)
			}
			for _, n := range news {
				told[n.Place.Name] = n
			}
		}
		return told[name]
	}
	if n := hear("b"); !errors.Is(n.Refused, driver.ErrRefused) || n.Held || n.Gone {
		t.Errorf("news of the name without rights = %+v, want it refused", n)
	}
	for _, i := range []int{0, 2} {
		release(t, holder, held[i])
		if n := hear(held[i].Name); !n.Held || n.Refused != nil {
			t.Errorf("news = %+v, want it held", n)
		}
	}
	if _, err := admin.Delete(soon(t), "primacy/mine/"+l.ID()); err != nil {
		t.Fatal(err)
	}
	if n := hear("mine"); !n.Gone || n.Place.Token != mine.Token {
		t.Errorf("news = %+v, want it gone", n)
	}
	if n := told["lost"]; n.Place.Name != "" {
		t.Errorf("news of a held place that may not be read: %+v", n)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	good, expired := etcdtest.NewCert(t, time.Now().Add(time.Hour)), etcdtest.NewCert(t, time.Now().Add(-time.Hour))
	srv := etcdtest.Start(t, etcdtest.Options{TLS: good})
	old := etcdtest.Start(t, etcdtest.Options{TLS: expired})

	s := openAt(t, etcdstore.Config{Endpoints: []string{srv.Endpoint()}, TLS: good.Client()})
	defer s.Close()
	l := grant(t, s, "a", time.Minute)
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew over TLS: %v", err)
	}
	if p := claim(t, l, "tls"); !p.Held {
		t.Errorf("claim = %+v, want it held", p)
	}

	named, wrong := good.Client(), good.Client()
	named.ServerName, wrong.ServerName = "localhost", "elsewhere.example"
	n, err := etcdstore.Open(soon(t), etcdstore.Config{Endpoints: []string{srv.Endpoint()}, TLS: named})
	if err != nil {
		t.Fatalf("Open with another name of the server: %v", err)
	}
	defer n.Close()

	for what, c := range map[string]etcdstore.Config{
		"certificate has expired": {Endpoints: []string{old.Endpoint()}, TLS: expired.Client()},
		"elsewhere.example":       {Endpoints: []string{srv.Endpoint()}, TLS: wrong},
		"unknown authority":       {Endpoints: []string{srv.Endpoint()}},
	} {
		for _, user := range []string{"", "u"} {
			c.Username, c.Password = user, user
			begun := time.Now()
			_, err := etcdstore.Open(soon(t), c)
			// an attempt that was silent might have come through: the first read of the system's
			// certificates takes seconds on a busy machine
			for range 2 {
				if err != nil && !errors.Is(err, driver.ErrRefused) {
					_, err = etcdstore.Open(soon(t), c)
				}
			}
			if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), what) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("Open (user %q) = %v, want one line with ErrRefused and %q", user, err, what)
			} else if host := strings.TrimPrefix(c.Endpoints[0], "https://"); !strings.Contains(err.Error(), host) {
				t.Errorf("Open = %v, want %s in it", err, host)
			}
			t.Logf("%v: %v", time.Since(begun), err)
		}
	}
	// One bad member among good ones is no reason to refuse.
	mixed := etcdstore.Config{Endpoints: []string{old.Endpoint(), srv.Endpoint()}, TLS: good.Client()}
	m, err := etcdstore.Open(soon(t), mixed)
	if err != nil {
		t.Fatalf("Open with one member whose certificate has expired: %v", err)
	}
	defer m.Close()
	if _, err := m.Line(soon(t), "tls"); err != nil {
		t.Errorf("Line: %v", err)
	}
}
