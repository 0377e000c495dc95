package pgstore_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

func plainRole(t *testing.T, srv *pgtest.Server) {
	plain := "plain" + rand.Text()
	srv.Exec(`CREATE ROLE "` + plain + `" LOGIN`)
	c := pgstore.Config{DSN: strings.Replace(srv.URL(), pgtest.User+"@", plain+"@", 1), Prefix: "theirs"}
	_, err := pgstore.Open(soon(t), c)
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "pgstore.Schema") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Open without the right to create = %v, want ErrRefused and what to do, in one line", err)
	}
	c.NoMigrate = true
	if _, err := pgstore.Open(soon(t), c); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("Open with NoMigrate = %v, want ErrRefused", err)
	}
	srv.Exec("BEGIN;" + pgstore.Schema("theirs") + "COMMIT")
	s, err := pgstore.Open(soon(t), c)
	if err == nil {
		_, err = s.Grant(soon(t), "a", time.Second)
		s.Close()
	}
	if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "permission") {
		t.Errorf("without rights on the tables = %v, want ErrRefused", err)
	}
	srv.Exec(pgstore.Grants("theirs", plain))
	s = opened(t, c)
	l := granted(t, s, steady)
	p := entered(t, l, "n")
	if err := l.Renew(soon(t)); err != nil || !p.Held {
		t.Errorf("%+v, Renew: %v", p, err)
	}
	for _, f := range s.Examine(soon(t), "n") {
		if f.Level == driver.Failed {
			t.Errorf("Examine: %+v", f)
		}
	}
}

func wrongIsolation(t *testing.T, srv *pgtest.Server) {
	opened(t, pgstore.Config{DSN: srv.URL()})
	s := opened(t, pgstore.Config{DSN: role(srv, "default_transaction_isolation = 'serializable'")})
	if _, err := s.Grant(soon(t), "a", time.Second); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "read committed") {
		t.Errorf("Grant = %v, want ErrRefused that names the isolation", err)
	}
}

func manyOpen(t *testing.T, srv *pgtest.Server) {
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			s, err := pgstore.Open(soon(t), pgstore.Config{DSN: srv.URL() + "&pool_max_conns=1", Prefix: "crowd"})
			if err != nil {
				t.Errorf("Open: %v", err)
				return
			}
			s.Close()
		})
	}
	all.Wait()
}

func oddPrefixes(t *testing.T, srv *pgtest.Server) {
	for _, prefix := range []string{`we"ird'na\me`, "$primacy$ {S} $$", "'); DROP TABLE x; --", "ümläut", strings.Repeat("x", 63), "{NAME}{Q}"} {
		s := opened(t, pgstore.Config{DSN: srv.URL(), Prefix: prefix})
		l := granted(t, s, steady)
		p := entered(t, l, "n")
		if ln, err := s.Line(soon(t), "n"); err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
			t.Errorf("line in schema %q = %+v, %v", prefix, ln, err)
		}
		tx, err := connected(t, srv).Begin(soon(t))
		if err == nil {
			err = pgstore.Fence(soon(t), tx, prefix, "n", p.Token)
		}
		if err != nil {
			t.Errorf("Fence in schema %q: %v", prefix, err)
		}
		_ = tx.Rollback(soon(t))
		again := opened(t, pgstore.Config{DSN: srv.URL(), Prefix: prefix, NoMigrate: true})
		if lines, err := again.Lines(soon(t), ""); err != nil || len(lines) != 1 {
			t.Errorf("lines in schema %q = %+v, %v, want one", prefix, lines, err)
		}
	}
	for _, prefix := range []string{strings.Repeat("x", 64), "a\x00b", "\xff"} {
		if _, err := pgstore.Open(soon(t), pgstore.Config{DSN: srv.URL(), Prefix: prefix}); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Open with prefix %q = %v, want ErrRefused", prefix, err)
		}
	}
}

func unfitNames(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, steady)
	for _, name := range []string{"", "a\x00b", "\xff\xfe", strings.Repeat(rand.Text(), 2000)} {
		_, err := l.Claim(soon(t), driver.Claim{Name: name, ID: rand.Text()})
		if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Claim of a name of %d bytes = %v, want ErrRefused in one line", len(name), err)
		}
	}
}

func examined(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL() + "&pool_max_conns=1"})
	topics := ""
	for _, f := range s.Examine(soon(t), "some name") {
		topics += f.Topic + " "
		if f.Level != driver.Fine {
			t.Errorf("finding on a sound server: %+v", f)
		}
	}
	for _, want := range []string{"server 127.0.0.1:", "durability", "notifications", "permission"} {
		if !strings.Contains(topics, want) {
			t.Errorf("topics %s, want %s too", topics, want)
		}
	}
	if w := s.Caps().Warnings; len(w) > 0 {
		t.Errorf("warnings on a sound server: %q", w)
	}
}
