package pgstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// losing is a holder whose sessions both end while the server has no room for others, and no other connection of it says so.
func losing(t *testing.T, srv *pgtest.Server, s *pgstore.Store, l driver.Lease, between func()) {
	t.Helper()
	gone := make(chan error, 1)
	go func() {
		_, err := l.News(soon(t))
		gone <- err
	}()
	armed(t, srv, l.ID(), false)
	srv.Exec("ALTER ROLE few CONNECTION LIMIT 1")
	between()
	if n := ends(srv, l.ID(), 2); n != "2" {
		t.Fatalf("%s sessions ended, want 2", n)
	}
	select {
	case err := <-gone:
		if !errors.Is(err, driver.ErrGone) {
			t.Errorf("News = %v, want ErrGone", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("a holder without sessions leads on")
	}
}

// fewer returns a store of a role whose connections can be limited, by any addresses.
func fewer(t *testing.T, srv *pgtest.Server, addrs ...string) *pgstore.Store {
	t.Helper()
	opened(t, pgstore.Config{DSN: srv.URL()})
	srv.Exec("CREATE ROLE few LOGIN;" + pgstore.Grants("", "few"))
	c, err := pgxpool.ParseConfig(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	c.ConnConfig.User = "few"
	c.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return addrs, nil }
	pool, err := pgxpool.NewWithConfig(soon(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := pgstore.New(soon(t), pool, pgstore.Options{AdvisoryWake: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	pgstore.SlowWake(s)
	return s
}

// A host's name may stand for two servers. That one of them is just starting does not say that the other one takes no connections.
func TestAnotherServerThatStartsKeepsNoLease(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	_, port, _ := net.SplitHostPort(srv.Addr())
	starting, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { starting.Close() })
	go func() {
		for {
			c, err := starting.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1000))
			_, _ = io.WriteString(c, "E\x00\x00\x00\x1dSFATAL\x00C57P03\x00Mstarting\x00\x00")
			c.Close()
		}
	}()
	s := fewer(t, srv, "127.0.0.2", "127.0.0.1")
	losing(t, srv, s, granted(t, s, time.Minute), func() {})
}

// A session that was silent for some seconds and answers again is watched until there is another, which a full server does not give.
func TestASessionThatWasSilentIsWatched(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	s := fewer(t, srv, "127.0.0.1")
	losing(t, srv, s, granted(t, s, time.Minute), func() {
		srv.Stop()
		time.Sleep(9 * time.Second) // a ping, and its limit
		srv.Cont()
		time.Sleep(2 * time.Second)
	})
}
