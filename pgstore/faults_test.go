package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// final says whether err is an answer of the store.
func final(err error) bool {
	return errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrNoSuccessor)
}

// pglock keeps its leader for up to two heartbeats too long when the link falls silent: two held
// for a second.
func TestASilentLinkHasNoTwoHolders(t *testing.T) {
	t.Parallel()
	srv := server(t)
	p := drivertest.NewProxy(t, srv.Addr())
	const ttl = 6 * time.Second // a busy machine renews in time
	l := granted(t, opened(t, pgstore.Config{DSN: srv.URLAt(p.Addr)}), ttl)
	var trusted atomic.Int64 // until when the holder may lead: a ttl after the last renewal that succeeded was called
	stop := make(chan struct{})
	go func() {
		for {
			called := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
			if err := l.Renew(ctx); err == nil {
				trusted.Store(called.Add(ttl).UnixNano())
			}
			cancel()
			select {
			case <-stop:
				return
			case <-time.After(ttl / 5):
			}
		}
	}()
	defer close(stop)
	w := granted(t, opened(t, pgstore.Config{DSN: srv.URL()}), steady)
	place := entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	time.Sleep(ttl / 2)
	p.Cut(true)
	got := (<-done).must(t)
	if until := time.Unix(0, trusted.Load()); got.at.Before(until) {
		t.Errorf("the next one holds %v before the former's time is over", until.Sub(got.at))
	}
	p.Cut(false)
	eventually(t, "the cut-off lease is told gone", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return errors.Is(l.Renew(ctx), driver.ErrGone)
	})
	if _, err := drivertest.Await(soon(t), l, place); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Wait under the lease that ended = %v, want ErrGone", err)
	}
}

func TestAFrozenServerEndsNoLease(t *testing.T) {
	t.Parallel()
	srv := harmed(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l, w := granted(t, s, steady), granted(t, s, steady)
	p := entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	srv.Stop()
	for what, do := range map[string]func(context.Context) error{
		"Renew": l.Renew,
		"Claim": func(ctx context.Context) error {
			_, err := l.Claim(ctx, driver.Claim{Name: "x", ID: rand.Text()})
			return err
		},
		"Line": func(ctx context.Context) error { _, err := s.Line(ctx, "n"); return err },
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		begun := time.Now()
		if err := do(ctx); err == nil || final(err) || time.Since(begun) > 30*time.Second {
			t.Errorf("%s of a frozen server = %v after %v, want an unknown outcome when its context ends", what, err, time.Since(begun))
		}
		cancel()
	}
	srv.Cont()
	eventually(t, "a renewal after the thaw", func() bool {
		err := l.Renew(soon(t))
		if errors.Is(err, driver.ErrGone) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "the release", func() bool { return l.Release(soon(t), p) == nil }) // a connection may be broken
	(<-done).must(t)
}

// An acknowledged claim that a crash forgets lets its token be given out twice: synchronous_commit
// = off must not reach our writes.
func TestACrashForgetsNothing(t *testing.T) {
	t.Parallel()
	srv := harmed(t)
	s := opened(t, pgstore.Config{DSN: role(srv, "synchronous_commit = off")})
	if !strings.Contains(strings.Join(s.Caps().Warnings, " "), "synchronous_commit is off") {
		t.Errorf("warnings = %q, want synchronous_commit named", s.Caps().Warnings)
	}
	var last uint64
	l := granted(t, s, steady)
	srv.Exec("CHECKPOINT") // what a crash may forget is the claim alone
	for range 3 {
		p := entered(t, l, "n")
		srv.Restart() // killed the moment the claim was acknowledged
		var ln driver.Line
		eventually(t, "the line after a crash", func() bool {
			var err error
			ln, err = s.Line(soon(t), "n")
			return err == nil
		})
		if ln.Holder == nil || ln.Holder.Token != p.Token || p.Token <= last {
			t.Fatalf("line after a crash = %+v, want token %d, more than %d", ln, p.Token, last)
		}
		last = p.Token
		eventually(t, "the release", func() bool { return l.Release(soon(t), p) == nil })
	}
}

func TestSecretsAndTLS(t *testing.T) {
	t.Parallel()
	const password = "s3cr&t/wörd"
	srv := pgtest.Start(t, pgtest.Options{Password: password, TLS: true})
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	if p := entered(t, granted(t, s, steady), "n"); !p.Held {
		t.Errorf("place = %+v", p)
	}
	bare := strings.Replace(srv.URL(), pgtest.User+":", pgtest.User+":wr0ng", 1)
	opened(t, pgstore.Config{DSN: bare, Password: password})
	plain := strings.Replace(srv.URL(), "verify-ca", "disable", 1)
	for what, c := range map[string]pgstore.Config{
		"a wrong password":    {DSN: bare},
		"a wrong password 2":  {DSN: srv.URL(), Password: "0ther"},
		"no TLS":              {DSN: plain},
		"no such database":    {DSN: strings.Replace(srv.URL(), "/"+pgtest.Database, "/nowhere", 1)},
		"a broken DSN":        {DSN: "postgres://u:" + "s3cr" + "@h:99999999/x"},
		"another broken DSN":  {DSN: "host=x password=s3cr sslmode=perhaps"},
		"an unknown password": {DSN: "postgres://nobody:s3cr@" + srv.Addr() + "/postgres?sslmode=require"},
	} {
		_, err := pgstore.Open(soon(t), c)
		if !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Open with %s = %v, want ErrRefused", what, err)
			continue
		}
		if says := map[string]string{"a broken DSN": "invalid port", "another broken DSN": "sslmode is invalid"}[what]; !strings.Contains(err.Error(), says) {
			t.Errorf("Open with %s = %v, want %q named", what, err, says)
		}
		for _, secret := range []string{"s3cr", "wr0ng", "0ther", "wörd", "\n"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("Open with %s shows %q: %v", what, secret, err)
			}
		}
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = pgstore.Open(ctx, pgstore.Config{DSN: "postgres://u@" + addr + "/d?sslmode=disable"})
	if took := time.Since(begun); err == nil || final(err) || !strings.Contains(err.Error(), addr) || took < 400*time.Millisecond || took > 30*time.Second {
		t.Errorf("Open of a server that does not answer = %v after %v, want its address when the context ends", err, took)
	}
	ln.Close()
	begun = time.Now()
	_, err = pgstore.Open(soon(t), pgstore.Config{DSN: "postgres://u@" + addr + "/d?sslmode=disable"})
	if took := time.Since(begun); err == nil || final(err) || !strings.Contains(err.Error(), addr) || strings.Contains(err.Error(), "\n") || took > 30*time.Second {
		t.Errorf("Open of a server that refuses connections = %v after %v, want its address at once, in one line", err, took)
	}
}

// Who hands over to the dead leaves the name without a leader until the dead one's time is over;
// and a late transfer of an earlier term must not hand over the present one.
func TestATransferIsOfThisTermAndToTheLiving(t *testing.T) {
	t.Parallel()
	srv := server(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l, dead, w := granted(t, s, 5*time.Minute), granted(t, s, 5*time.Minute), granted(t, s, 5*time.Minute)
	p, q, r := entered(t, l, "n"), entered(t, dead, "n"), entered(t, w, "n")
	earlier := p
	earlier.Token--
	wantGone(t, "Transfer of an earlier term", l.(driver.Transferer).Transfer(soon(t), earlier, r.Token))
	expire(srv, dead)
	if err := l.(driver.Transferer).Transfer(soon(t), p, q.Token); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("Transfer to a claim whose lease has run out = %v, want ErrNoSuccessor", err)
	}
	if ln, err := s.Line(soon(t), "n"); err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("Line = %+v, %v, want the leader as before", ln, err)
	}
	if err := l.(driver.Transferer).Transfer(soon(t), p, r.Token); err != nil {
		t.Errorf("Transfer to one who lives: %v", err)
	}
}

func TestTTLsBeyondTheStoresAreRefused(t *testing.T) {
	t.Parallel()
	s := opened(t, pgstore.Config{DSN: server(t).URL()})
	for _, ttl := range []time.Duration{-1, 0, s.Caps().MaxTTL + 1} {
		if _, err := s.Grant(soon(t), "owner", ttl); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Grant(%v) = %v, want ErrRefused", ttl, err)
		}
	}
}
