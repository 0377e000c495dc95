package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/redisstore"
)

// watched is a primary with two replicas, and three sentinels that have a password of their own.
type watched struct {
	servers, sentinels []*redistest.Server
}

func watch(t *testing.T, cert *etcdtest.Cert) (w watched, c redisstore.Config) {
	t.Helper()
	a := redistest.Start(t, redistest.Options{Password: "s3cret", TLS: cert})
	w.servers = []*redistest.Server{a}
	for range 2 {
		w.servers = append(w.servers, redistest.Start(t, redistest.Options{Password: "s3cret", Replica: a, TLS: cert}))
	}
	w.sentinels = redistest.StartSentinels(t, "main", a, redistest.Sentinels{N: 3, Password: "s3cret-too", TLS: cert}, w.servers[1:]...)
	c = redisstore.Config{Addrs: addrs(w.sentinels), Sentinel: "main", Password: "s3cret", SentinelPassword: "s3cret-too"}
	if cert != nil {
		c.TLS = cert.Client()
	}
	return w, c
}

// primary returns what most sentinels name.
func (w watched) primary() *redistest.Server {
	for _, s := range w.servers {
		n := 0
		for _, by := range w.sentinels {
			if !by.Exited() && fmt.Sprint(by.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")) == "[127.0.0.1 "+s.Addr()[len("127.0.0.1:"):]+"]" {
				n++
			}
		}
		if n > 1 {
			return s
		}
	}
	return nil
}

// changed waits for another primary.
func (w watched) changed(t *testing.T, from *redistest.Server) (to *redistest.Server) {
	t.Helper()
	eventually(t, "another primary", func() bool { to = w.primary(); return to != nil && to != from })
	return to
}

// Primaries are killed, and come back as replicas, under a fleet. Then failovers by hand, which
// leave the former primary up for some seconds: that is a case for Replicas, and without them two
// leaders may be seen; see docs/redis.md.
func TestSentinelsThatFailOver(t *testing.T) {
	long(t)
	t.Parallel()
	for _, byHand := range []bool{false, true} {
		t.Run(fmt.Sprint("by hand ", byHand), func(t *testing.T) {
			t.Parallel()
			w, c := watch(t, nil)
			if byHand {
				c.Replicas = 2
			}
			f := startFleet(t, c, 3, guardTTL)
			for range 3 {
				f.goesOn(5)
				was := w.primary()
				if byHand {
					eventually(t, "the failover to begin", func() bool {
						_, err := w.sentinels[0].Client().Do(t.Context(), "SENTINEL", "FAILOVER", "main").Result()
						return err == nil
					})
					w.changed(t, was)
					f.goesOn(5) // once both others follow the new one
					continue
				}
				was.Kill()
				w.changed(t, was)
				f.goesOn(5)
				was.Restart()
			}
			f.goesOn(5)
			f.judge()
		})
	}
}

// A sentinel that is frozen, and one that is dead, hold nobody up, neither at the start nor at a
// failover: TLS, and passwords of both kinds.
func TestAFrozenSentinel(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	w, c := watch(t, etcdtest.NewCert(t, time.Now().Add(time.Hour)))
	w.sentinels[0].Stop()
	defer w.sentinels[0].Cont()
	s := openAt(t, c)
	t.Cleanup(func() { s.Close() })
	l := grant(t, s, 5*time.Minute) // outlives a failover on a busy machine
	enter(t, l, "n", "1")
	for _, r := range w.servers[1:] {
		r.Synced()
	}
	w.servers[0].Kill()
	eventually(t, "a renewal at the new primary", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		return l.Renew(ctx) == nil
	})
	if s.Caps().BestEffort == "" {
		t.Error("Caps promise too much: there are replicas")
	}
}

// What is wrong with sentinels is said in one line, without a password.
func TestSentinelsSayWhyNot(t *testing.T) {
	t.Parallel()
	_, c := watch(t, nil)
	wrong := c
	wrong.SentinelPassword = "s3cret-wrong"
	fails(t, wrong, true, "WRONGPASS")
	wrong.SentinelPassword = ""
	fails(t, wrong, true, "NOAUTH")
	wrong = c
	wrong.Sentinel = "other"
	fails(t, wrong, true, `knows no primary "other"`)
	wrong = c
	wrong.Password = "s3cret-wrong"
	fails(t, wrong, true, "WRONGPASS")
}

// At a failover by hand the former primary serves on for some seconds, until a sentinel makes it a
// replica. Who has heard of the new one leaves it at once.
func TestAFailoverByHandIsHeard(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	w, c := watch(t, nil)
	s := openAt(t, c)
	t.Cleanup(func() { s.Close() })
	grant(t, s, time.Minute)
	was := w.primary()
	eventually(t, "the failover to begin", func() bool {
		_, err := w.sentinels[0].Client().Do(t.Context(), "SENTINEL", "FAILOVER", "main").Result()
		return err == nil
	})
	now := w.changed(t, was)
	eventually(t, "a lease at the new primary", func() bool {
		serves := was.Role() == "master"
		l, err := s.Grant(soon(t), "x", time.Minute)
		there := err == nil && fmt.Sprint(now.Do("EXISTS", "{primacy}:lease:"+l.ID())) == "1"
		if !serves {
			t.Fatal("the store has used the former primary until that was made a replica")
		}
		return there
	})
}
