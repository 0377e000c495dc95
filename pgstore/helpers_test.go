package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// server is a database of its own on the server of the tests that harm nobody.
func server(t *testing.T) *pgtest.Server {
	t.Helper()
	return pgtest.Shared(t, "calm").Fresh()
}

// harmed is a database of its own on the server of the tests that stop it or set it up otherwise,
// one after the other. A killed server has lost nothing that the kernel has: without fsync it need
// not write all its files again before it starts, which takes long where disks are busy.
func harmed(t *testing.T) *pgtest.Server {
	t.Helper()
	return pgtest.Exclusive(t, "harmed", "wal_writer_delay=10s", "autovacuum=off", "fsync=off").Fresh()
}

// role makes a superuser with settings of its own, and returns the store URL under which it comes.
func role(srv *pgtest.Server, settings ...string) string {
	name := "r" + strings.ToLower(rand.Text())
	srv.Exec("CREATE ROLE " + name + " LOGIN SUPERUSER")
	for _, set := range settings {
		srv.Exec("ALTER ROLE " + name + " SET " + set)
	}
	return strings.Replace(srv.URL(), pgtest.User+"@", name+"@", 1)
}

// expire has a lease end now by the server's clock. Nobody has looked at it yet.
func expire(srv *pgtest.Server, l driver.Lease) {
	srv.Exec("UPDATE primacy.leases SET expires = clock_timestamp() WHERE id = '" + l.ID() + "'")
}

// long skips a test that is not for every run.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("PRIMACY_PG_LONG") == "" {
		t.Skip("set PRIMACY_PG_LONG=1")
	}
}

// A busy machine with a slow disk takes a minute to start a killed server again.
const (
	patience = 3 * time.Minute  // after which a call that should have returned is a failure
	steady   = 10 * time.Minute // ttl of leases that must outlive their test without a renewal
)

// soon is a context for a call that must not hang.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func granted(t testing.TB, s driver.Store, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := s.Grant(soon(t), "owner", ttl)
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	return l
}

func entered(t testing.TB, l driver.Lease, name string) driver.Place {
	t.Helper()
	places, err := l.Claim(soon(t), driver.Claim{Name: name, ID: rand.Text()})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return places[0]
}

// outcome is what a Wait returned.
type outcome struct {
	place driver.Place
	err   error
	at    time.Time
}

// waiting waits for a place in the background, again where the outcome is unknown.
func waiting(t testing.TB, l driver.Lease, p driver.Place) <-chan outcome {
	done, ctx := make(chan outcome, 1), soon(t)
	go func() {
		for {
			got, err := drivertest.Await(ctx, l, p)
			if err == nil || errors.Is(err, driver.ErrGone) || ctx.Err() != nil {
				done <- outcome{got, err, time.Now()}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return done
}

// must fails the test unless the Wait was told that the place holds.
func (o outcome) must(t testing.TB) outcome {
	t.Helper()
	if o.err != nil || !o.place.Held {
		t.Fatalf("Wait = %+v, %v, want it held", o.place, o.err)
	}
	return o
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come: %s", what)
		}
	}
}

func wantGone(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrGone) {
		t.Errorf("%s = %v, want ErrGone", what, err)
	}
}
