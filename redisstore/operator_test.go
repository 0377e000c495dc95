package redisstore_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/redisstore"
)

// What operators do to a server that lose none of its data: its scripts, statistics, connections
// and marker go, and it reads its data anew.
func TestAnOperatorWhoLosesNothing(t *testing.T) {
	long(t)
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Args: []string{"--enable-debug-command", "yes"}})
	f := startFleet(t, redisstore.Config{Addrs: []string{srv.Addr()}}, 3, guardTTL)
	for _, act := range [][]any{{"SCRIPT", "FLUSH"}, {"CONFIG", "RESETSTAT"}, {"DEBUG", "RELOAD"}, {"CLIENT", "KILL", "TYPE", "normal"},
		{"CLIENT", "KILL", "TYPE", "pubsub"}, {"DEL", "{primacy}:server"}, {"DEL", "{primacy}:names"}, {"HDEL", "{primacy}:server", "n"}} {
		f.goesOn(2)
		if act[0] == "CLIENT" {
			act = append(act, "SKIPME", "yes")
		}
		srv.Do(act...)
	}
	f.goesOn(5)
	f.judge()
}

// Two failovers in a row, the second within the calm of the first, to a replica that lags behind
// both.
func TestTwoFailoversInARow(t *testing.T) {
	servertest.Long(t, "race-library")
	long(t)
	t.Parallel()
	a := redistest.Start(t, redistest.Options{})
	b := redistest.Start(t, redistest.Options{Replica: a})
	c := redistest.Start(t, redistest.Options{Replica: a})
	at := newBoard(t, a.Addr())
	f := startFleet(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}}, 3, guardTTL)
	for range 2 {
		f.goesOn(3)
		b.Synced()
		c.Synced()
		c.Lag()
		f.goesOn(3)
		b.Lag()
		f.goesOn(1)
		a.Kill()
		b.Promote()
		at.point(b.Addr())
		time.Sleep(guardTTL / 2)
		b.Kill()
		c.Promote()
		at.point(c.Addr())
		a.Restart()
		a.Follow(c)
		b.Restart()
		b.Follow(c)
		a, b, c = c, a, b
	}
	f.goesOn(5)
	f.judge()
}

// A store that is closed leaves no goroutine and no connection behind, whatever went on.
func TestCloseLeavesNothing(t *testing.T) {
	srv := redistest.Start(t, redistest.Options{})
	connected := func() int {
		return strings.Count(fmt.Sprint(srv.Do("CLIENT", "LIST")), "id=")
	}
	goroutines := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "redisstore.(*")
	}
	conns, before := connected(), goroutines()
	for i := range 3 {
		s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}})
		l, other := grant(t, s, time.Minute), grant(t, s, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		enter(t, l, "n", fmt.Sprint(i))
		q := enter(t, other, "n", fmt.Sprint(i, "b"))
		for range 5 {
			go func() { _, _ = drivertest.Await(ctx, other, q) }()
			go func() { _, _ = s.Next(ctx, "n", 1<<60) }()
			go func() { _, _ = l.News(ctx) }()
		}
		other.Follow(q)
		time.Sleep(50 * time.Millisecond)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Renew(t.Context()); err == nil {
			t.Error("Renew after Close = nil")
		}
		cancel()
	}
	eventually(t, "all goroutines and connections to go", func() bool { return goroutines() <= before && connected() <= conns })
}
