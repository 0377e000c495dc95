package pgstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// renewed renews until an answer comes, ten times at most, and waits for no one call for long.
func renewed(t *testing.T, l driver.Lease) {
	t.Helper()
	for n := 1; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		err := l.Renew(ctx)
		cancel()
		if err == nil {
			return
		}
		if n == 10 {
			t.Fatalf("none of %d renewals was answered: %v", n, err)
		}
	}
}

// A lost machine that the connection string names first used up every attempt of a renewal: the
// others were never asked.
func TestRenewalsReachTheHostBehindSilentOnes(t *testing.T) {
	t.Parallel()
	srv := server(t)
	first, second := drivertest.NewProxy(t, srv.Addr()), drivertest.NewProxy(t, srv.Addr())
	dsn := srv.URLAt(first.Addr+","+second.Addr+","+srv.Addr()) + "&connect_timeout=100"
	s := opened(t, pgstore.Config{DSN: dsn})
	l := granted(t, s, steady)
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	first.Cut(true)
	second.Cut(true)
	renewed(t, l)
	// The pool begins with the host that has answered: trying the silent ones takes 100 s each.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := s.Line(ctx, "n"); err != nil {
		t.Errorf("Line over a new connection: %v", err)
	}
	opened(t, pgstore.Config{DSN: dsn}) // nor does a new store wait for them
}

// A former primary that its standby has left takes connections, and answers no renewal.
func TestRenewalsLeaveAHostThatAnswersNone(t *testing.T) {
	t.Parallel()
	srv := server(t)
	var mute atomic.Bool
	dsn := srv.URLAt(muteAt(t, srv, "renew(", 5, &mute) + "," + srv.Addr())
	l := granted(t, opened(t, pgstore.Config{DSN: dsn}), steady)
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	mute.Store(true)
	renewed(t, l)
}

func TestARenewalAfterCloseReturns(t *testing.T) {
	t.Parallel()
	s := open(t, pgstore.Config{DSN: server(t).URL()})
	l := granted(t, s, steady)
	s.Close()
	done := make(chan error, 1)
	go func() { done <- l.Renew(context.Background()) }()
	select {
	case err := <-done:
		if err == nil || final(err) {
			t.Errorf("Renew after Close = %v, want that the store was closed", err)
		}
	case <-soon(t).Done():
		t.Error("Renew after Close does not return")
	}
}

// The primary is frozen and named first, as where its machine is lost.
func TestFailoverFromAFrozenHostNamedFirst(t *testing.T) {
	long(t)
	t.Parallel()
	old := pgtest.Start(t, pgtest.Options{})
	now := old.Standby()
	s := opened(t, pgstore.Config{DSN: old.URLAt(old.Addr() + "," + now.Addr())})
	l := granted(t, s, time.Minute)
	k := keep(l)
	defer k.stop()
	p := entered(t, l, "kept")
	old.Stop()
	now.Promote()
	promoted := time.Now()
	eventually(t, "a renewal on the new primary", func() bool {
		return k.gone.Load() || time.Unix(0, k.trusted.Load()).Add(-l.TTL()).After(promoted)
	})
	if k.gone.Load() {
		t.Fatal("the lease has ended")
	}
	if ln, err := s.Line(soon(t), "kept"); err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("line = %+v, %v, want token %d to hold", ln, err, p.Token)
	}
}
