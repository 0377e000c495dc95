package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// fails opens a store and wants an error that names the server, is refused or not, and tells no
// password.
func fails(t *testing.T, c redisstore.Config, refused bool, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := redisstore.Open(ctx, c)
	if err == nil {
		s.Close()
		t.Fatalf("Open(%+v) = nil, want %s", c.Addrs, want)
	}
	text := err.Error()
	if errors.Is(err, driver.ErrRefused) != refused || !strings.Contains(text, want) || strings.Contains(text, "s3cret") || strings.Contains(text, "\n") {
		t.Errorf("Open = %v, want it refused %v, with %q, in one line and without the password", err, refused, want)
	}
	if len(c.Addrs) > 0 && !strings.Contains(text, c.Addrs[0]) {
		t.Errorf("Open = %v, want the server named", err)
	}
}

func TestOpenSaysWhyNot(t *testing.T) {
	t.Parallel()
	cert := etcdtest.NewCert(t, time.Now().Add(time.Hour))
	plain := redistest.Start(t, redistest.Options{})
	locked := redistest.Start(t, redistest.Options{Password: "s3cret-right"})
	secure := redistest.Start(t, redistest.Options{TLS: cert})
	replica := redistest.Start(t, redistest.Options{Replica: plain})
	node := redistest.StartCluster(t, 1, 0, redistest.Options{})[0]
	poor := redistest.Start(t, redistest.Options{User: "bob", Password: "s3cret", Rights: "~other:* +@all"})
	at := func(s *redistest.Server) redisstore.Config { return redisstore.Config{Addrs: []string{s.Addr()}} }
	replica.Synced()

	fails(t, redisstore.Config{}, true, "no addresses")
	fails(t, redisstore.Config{Addrs: []string{"127.0.0.1:1"}}, false, "connection refused")
	fails(t, redisstore.Config{Addrs: []string{plain.Addr(), "b:1"}}, true, "2 addresses")
	fails(t, redisstore.Config{Addrs: []string{plain.Addr()}, Prefix: "a}b"}, true, "braces")
	c := at(locked)
	fails(t, c, true, "NOAUTH")
	c.Password = "s3cret-wrong"
	fails(t, c, true, "WRONGPASS")
	c = at(plain)
	c.Cluster = true
	fails(t, c, true, "cluster")
	fails(t, at(node), true, "cluster mode")
	fails(t, at(replica), true, "the server is a replica")
	c = at(secure)
	c.TLS = etcdtest.NewCert(t, time.Now().Add(time.Hour)).Client()
	fails(t, c, false, "certificate")
	c = at(poor)
	c.Username, c.Password = "bob", "s3cret"
	s := openAt(t, c) // it may look at the server, but not use the keys
	defer s.Close()
	if _, err := s.Grant(t.Context(), "x", time.Minute); !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Grant without the right = %v, want it refused", err)
	}
	found := s.Examine(t.Context(), "n")
	if last := found[len(found)-1]; last.Level != driver.Failed || !strings.Contains(last.Advice, "~{primacy}:*") {
		t.Errorf("Examine without the right = %+v, want it said", last)
	}
}

// A server that takes connections and says nothing is waited for until the context ends.
func TestOpenWaitsForASilentServer(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = redisstore.Open(ctx, redisstore.Config{Addrs: []string{ln.Addr().String()}})
	if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took < 250*time.Millisecond || took > quick {
		t.Errorf("Open = %v after %v, want the context's end", err, took)
	}
}

// All keys of a store are under its prefix, and a store that was closed answers no more.
func TestAPrefixOfItsOwn(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	srv.Age("mine")
	s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}, Prefix: "mine"})
	enter(t, grant(t, s, time.Minute), "n", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := srv.Do("EXISTS", "{mine}:line:n"); n != int64(1) {
		t.Errorf("the line exists %v times under its prefix, want it there", n)
	}
	if _, err := s.Line(t.Context(), "n"); err == nil {
		t.Error("Line after Close = nil, want an error")
	}
}

// Sentinels say where the primary is, also after a failover.
func TestSentinels(t *testing.T) {
	t.Parallel()
	a := redistest.Start(t, redistest.Options{})
	b := redistest.Start(t, redistest.Options{Replica: a})
	b.Synced()
	sentinel := redistest.StartSentinel(t, "main", a)
	eventually(t, "the sentinel to know the replica", func() bool {
		got, ok := sentinel.Do("SENTINEL", "REPLICAS", "main").([]any)
		return ok && len(got) == 1
	})
	s := openAt(t, redisstore.Config{Addrs: []string{sentinel.Addr()}, Sentinel: "main"})
	defer s.Close()
	l := grant(t, s, 5*time.Minute) // outlives a failover on a busy machine
	enter(t, l, "n", "1")
	b.Synced() // what it lost would end the session
	a.Kill()
	eventually(t, "a renewal at the new primary", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return l.Renew(ctx) == nil
	})
}

func TestExamine(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Persist: "everysec"})
	redistest.Start(t, redistest.Options{Replica: srv}).Synced()
	s := store(t, srv.Addr())
	text := ""
	for _, f := range s.Examine(t.Context(), "n") {
		text += string(f.Level) + " " + f.Topic + ": " + f.Found + " -> " + f.Advice + "\n"
	}
	for _, want := range []string{"ok Redis " + srv.Addr() + ": Redis 7", "primary of 1 replicas", "ok eviction", "warning persistence: appendfsync is everysec",
		"warning replicas: 1 replicas", "ok the queue of n: can be read"} {
		if !strings.Contains(text, want) {
			t.Errorf("Examine does not say %q:\n%s", want, text)
		}
	}
	srv.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if f := s.Examine(ctx, "n"); len(f) != 1 || f[0].Level != driver.Failed {
		t.Errorf("Examine of a dead server = %+v", f)
	}
}

// After a restart nobody new leads for a while, and the examination is what says so.
func TestExamineTellsOfAHoldOff(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Persist: "always"})
	s := store(t, srv.Addr())
	holdOff := func() (text string) {
		for _, f := range s.Examine(t.Context(), "n") {
			if f.Topic == "hold-off" {
				text += string(f.Level) + " " + f.Found
			}
		}
		return text
	}
	grant(t, s, 10*time.Minute)
	if text := holdOff(); text != "" {
		t.Errorf("a server that runs for long is said to hold off: %s", text)
	}
	srv.Restart()
	eventually(t, "a lease on the restarted server", func() bool {
		_, err := s.Grant(t.Context(), "o", time.Second)
		return err == nil
	})
	if text := holdOff(); !strings.HasPrefix(text, "warning") || !strings.Contains(text, "nobody new leads") {
		t.Errorf("of the hold-off Examine says %q", text)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for: %s", what)
		}
	}
}
