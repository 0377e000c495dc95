package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// The user loses the right to one name while its lease waits for two. News tells so of that place,
// and goes on with the other.
func TestARefusedNameIsToldAlone(t *testing.T) {
	t.Parallel()
	for how, look := range map[string]func(*redistest.Server){
		"looked at":  func(*redistest.Server) {},
		"asked anew": func(srv *redistest.Server) { srv.Do("CLIENT", "KILL", "TYPE", "pubsub") },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t, redistest.Options{User: "alice", Password: "secret", Rights: rights})
			s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}, Username: "alice", Password: "secret"})
			t.Cleanup(func() { s.Close() })
			holds, waits := grant(t, s, time.Minute), grant(t, s, time.Minute)
			good := enter(t, holds, "good", "1")
			enter(t, holds, "bad", "2")
			q, bad := enter(t, waits, "good", "3"), enter(t, waits, "bad", "4")
			waits.Follow(q, bad)
			srv.Do("ACL", "SETUSER", "alice", "resetkeys", "~{primacy}:server", "~{primacy}:names", "~{primacy}:lease:*", "~{primacy}:spent:*",
				"~{primacy}:asks:*", "~{primacy}:*:good")
			look(srv)
			news, err := waits.News(soon(t))
			if err != nil || len(news) != 1 || news[0].Place.ID != bad.ID || !errors.Is(news[0].Refused, driver.ErrRefused) {
				t.Fatalf("News = %+v, %v, want that bad is refused", news, err)
			}
			if _, err := waits.Claim(soon(t), driver.Claim{Name: "good", Seat: "b", ID: "5"}, driver.Claim{Name: "bad", Seat: "b", ID: "6"}); !errors.Is(err, driver.ErrRefused) {
				t.Errorf("Claim = %v, want it refused", err)
			}
			if ln, err := s.Line(soon(t), "good"); err != nil || len(ln.Waiters) != 1 {
				t.Errorf("the line of good = %+v, %v, want nothing left of a Claim that was refused", ln, err)
			}
			if err := holds.Release(soon(t), good); err != nil {
				t.Fatal(err)
			}
			news, err = waits.News(soon(t))
			if err != nil || len(news) != 1 || news[0].Place.ID != q.ID || !news[0].Held {
				t.Errorf("News = %+v, %v, want that good is held", news, err)
			}
			if err := waits.Renew(soon(t)); err != nil {
				t.Errorf("Renew = %v", err)
			}
		})
	}
}
