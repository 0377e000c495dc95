package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/pgstore"
)

// keeper renews a lease, and knows until when its holder may lead.
type keeper struct {
	trusted atomic.Int64
	gone    atomic.Bool
	stop    context.CancelFunc
}

func keep(l driver.Lease) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{stop: cancel}
	k.trusted.Store(time.Now().UnixNano())
	go func() {
		for ctx.Err() == nil && !k.gone.Load() {
			called := time.Now()
			c, done := context.WithTimeout(ctx, l.TTL()/2)
			err := l.Renew(c)
			done()
			if err == nil {
				k.trusted.Store(called.Add(l.TTL()).UnixNano())
			}
			k.gone.Store(errors.Is(err, driver.ErrGone))
			time.Sleep(l.TTL() / 10)
		}
	}()
	return k
}

// failover runs a primary with a synchronous standby, ends or freezes the primary and promotes the
// standby.
func failover(t *testing.T, leave func(*pgtest.Server)) (old, now *pgtest.Server) {
	t.Helper()
	old = pgtest.Start(t, pgtest.Options{})
	now = old.Standby()
	s := opened(t, pgstore.Config{DSN: old.URLAt(now.Addr() + "," + old.Addr())}) // the standby first: it must be passed over
	if c := s.Caps(); len(c.Warnings) > 0 || c.BestEffort != "" {
		t.Errorf("with a synchronous standby: warnings %q, BestEffort %q", c.Warnings, c.BestEffort)
	}
	l, w := granted(t, s, 6*time.Second), granted(t, s, steady)
	p, q := entered(t, l, "kept"), entered(t, w, "kept")
	turn := waiting(t, w, q)
	k, kw := keep(l), keep(w)
	defer k.stop()
	defer kw.stop()
	last := entered(t, w, "other") // acknowledged just before
	leave(old)
	now.Promote()
	eventually(t, "the line on the new primary", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		ln, err := s.Line(ctx, "kept")
		if err == nil && (ln.Holder == nil || ln.Holder.Token != p.Token && !k.gone.Load()) {
			t.Errorf("line after the failover = %+v, want token %d to hold", ln, p.Token)
		}
		return err == nil
	})
	if ln, err := s.Line(soon(t), "other"); err != nil || ln.Holder == nil || ln.Holder.Token != last.Token {
		t.Errorf("line after the failover = %+v, %v, want token %d, which was acknowledged", ln, err, last.Token)
	}
	eventually(t, "renewals go on, or the lease has ended", func() bool { return k.gone.Load() || time.Until(time.Unix(0, k.trusted.Load())) > 4*time.Second })
	k.stop() // and dies
	got := (<-turn).must(t)
	if until := time.Unix(0, k.trusted.Load()); got.at.Before(until) {
		t.Errorf("the next one holds %v before the former's time is over", until.Sub(got.at))
	}
	if next := entered(t, w, rand.Text()); next.Token <= last.Token {
		t.Errorf("token %d after the failover, want more than %d", next.Token, last.Token)
	}
	return old, now
}

func TestFailoverToASynchronousStandby(t *testing.T) {
	long(t)
	t.Parallel()
	failover(t, func(s *pgtest.Server) { s.Kill() })
}

func TestAnOldPrimaryAcknowledgesNothing(t *testing.T) {
	long(t)
	t.Parallel()
	old, _ := failover(t, func(s *pgtest.Server) { s.Stop() })
	old.Cont() // and it believes that it is the primary still
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	s, err := pgstore.Open(ctx, pgstore.Config{DSN: old.URL()})
	if err != nil {
		return // no better
	}
	defer s.Close()
	if l, err := s.Grant(ctx, "a", time.Second); err == nil {
		t.Errorf("the old primary has granted lease %s", l.ID())
	}
}

// The server answers "success" when the wait for the standby is cancelled, with a warning.
func TestACommitThatDidNotWaitForTheStandbyIsUnknown(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := harmed(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, steady)
	standbys(t, srv, "nobody")
	cancelling, stop := context.WithCancel(context.Background())
	defer stop()
	operator := connected(t, srv)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for cancelling.Err() == nil {
			_, _ = operator.Exec(cancelling, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	for what, do := range map[string]func(context.Context) error{
		"Renew": l.Renew,
		"Claim": func(ctx context.Context) error {
			_, err := l.Claim(ctx, driver.Claim{Name: "n", ID: rand.Text()})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := do(ctx); err == nil || final(err) {
			t.Errorf("%s whose wait for the standby was cancelled = %v, want an unknown outcome", what, err)
		}
		cancel()
	}
	stop()
	<-ended
	standbys(t, srv, "")
	eventually(t, "renewals are answered again", func() bool { return l.Renew(soon(t)) == nil })
}

func TestAnAsynchronousStandbyIsWarnedOf(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	b := srv.Standby()
	srv.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "the setting", func() bool { return srv.Query("SHOW synchronous_standby_names") == "" })
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	if w := fmt.Sprint(s.Caps().Warnings); w == "[]" {
		t.Error("no warning of a standby that is not synchronous")
	}
	if best := s.Caps().BestEffort; best != "a failover to a standby that lags" {
		t.Errorf("BestEffort = %q with a standby that is not synchronous", best)
	}
	// And a standby alone is no store.
	if _, err := pgstore.Open(soon(t), pgstore.Config{DSN: b.URL()}); err == nil {
		t.Error("Open of a standby = nil")
	}
}
