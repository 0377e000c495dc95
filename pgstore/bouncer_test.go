package pgstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// Behind pgbouncer in transaction mode LISTEN goes to a connection that the next statement does not
// use.
func TestBehindPgbouncer(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{Settings: []string{"max_connections=200"}})
	url := srv.URLAt(srv.Bouncer()) + "&pool_max_conns=4"
	s := opened(t, pgstore.Config{DSN: url})
	if w := strings.Join(s.Caps().Warnings, " "); !strings.Contains(w, "pgbouncer") || s.Caps().Push {
		t.Errorf("Caps = %+v, want a warning of the pooler, and no push", s.Caps())
	}
	a, b := granted(t, s, steady), granted(t, opened(t, pgstore.Config{DSN: url}), steady)
	p := entered(t, a, "n")
	for range 5 {
		done := waiting(t, b, entered(t, b, "n"))
		time.Sleep(50 * time.Millisecond)
		begun := time.Now()
		if err := a.Release(soon(t), p); err != nil {
			t.Fatal(err)
		}
		got := (<-done).must(t)
		if took := got.at.Sub(begun); took > time.Second {
			t.Errorf("hand-over behind pgbouncer took %v", took)
		}
		p, a, b = got.place, b, a
	}
	name := "removed"
	q := entered(t, a, name)
	news := make(chan driver.News, 1)
	go func() {
		if all, err := a.News(soon(t)); err == nil {
			news <- all[0]
		}
	}()
	srv.Exec("DELETE FROM primacy.claims WHERE name = '" + name + "'")
	select {
	case n := <-news:
		if !n.Gone || n.Place.Token != q.Token {
			t.Errorf("news = %+v, want that %+v is gone", n, q)
		}
	case <-time.After(3 * time.Second):
		t.Error("no news of a claim removed by hand, though nothing is pushed")
	}
}
