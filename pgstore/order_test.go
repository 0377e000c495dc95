package pgstore

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/primacy-go/primacy/internal/pgtest"
)

func TestTheOrderOfHosts(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig("postgres://u@a:1,b:2,c:3/d?sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	var o hostOrder
	check := func(after, want string, doubt bool) {
		t.Helper()
		c := cfg.Copy()
		lead(&c.Config, o.sorted(&c.Config, doubt)...)
		var keys []string
		for _, h := range hostsIn(&c.Config) {
			keys = append(keys, h.key())
			if len(h) != 2 || h[0].TLSConfig == nil || h[1].TLSConfig != nil {
				t.Errorf("after %s: host %s is not tried with TLS and then without", after, h.key())
			}
		}
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("after %s: hosts %s, want %s", after, got, want)
		}
	}
	check("nothing", "a:1 b:2 c:3", true)
	o.connected("c:3")
	check("c is the primary", "c:3 a:1 b:2", true)
	if !o.answered("b:2") {
		t.Error("b is the primary in place of c, and that was not told")
	}
	check("b has answered", "b:2 a:1 c:3", true)
	o.unanswered("b:2")
	check("b was silent", "a:1 c:3 b:2", true)
	check("b was silent, for a pool", "b:2 a:1 c:3", false) // it may have been slow once, and a be lost
	o.connected("b:2")                                      // its kernel may say so
	check("b lets a connection be made", "a:1 c:3 b:2", true)
	o.connected("a:1")
	o.unanswered("a:1")
	check("a was silent", "b:2 c:3 a:1", true)
	if o.answered("a:1") {
		t.Error("a is the primary as before, and it was told that another was")
	}
	check("a has answered again", "a:1 b:2 c:3", true)
}

// A short lease waits less for a renewal than a connection may take to be made: it has to be there
// for the next one.
func TestAConnectionIsMadeBesideTheRenewals(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.Shared(t, "calm").URL())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newSchema("")
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int32
	gate := make(chan struct{}, 1)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		select {
		case <-gate:
			return new(net.Dialer).DialContext(ctx, network, addr)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	d := newDB(cfg, c)
	defer d.cancel()
	r := newRenewConn(d, nil)
	short, stop := context.WithCancel(context.Background())
	stop()
	for n := 1; ; n++ {
		dials.Store(0)
		for range 3 { // they wait for less than connecting takes
			if _, err := r.dial(short, time.Second); err == nil {
				t.Fatal("a connection before there is one")
			}
		}
		gate <- struct{}{}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		conn, err := r.dial(ctx, time.Second)
		cancel()
		discard(conn)
		if err == nil && dials.Load() != 1 {
			t.Errorf("connected %d times, want one connection that all have waited for", dials.Load())
		}
		if err == nil {
			return
		}
		if n == 5 { // a busy machine may take longer than a connection may
			t.Fatal(err)
		}
		select {
		case <-gate:
		default:
		}
	}
}
