package redisstore

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/redistest"
)

// kept returns a field of {p}:server in milliseconds.
func kept(t *testing.T, srv *redistest.Server, field string) time.Duration {
	t.Helper()
	ms, err := strconv.ParseInt(fmt.Sprint(srv.Do("HGET", "{primacy}:server", field)), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", field, err)
	}
	return time.Duration(ms) * time.Millisecond
}

// later makes the present period one that began an hour ago.
func later(srv *redistest.Server) {
	srv.Do("HSET", "{primacy}:server", "mt", time.Now().Add(-time.Hour-time.Second).UnixMilli())
}

// One long lease makes restarts long while it may live, and for two hours at most after it. One
// that is renewed counts for as long as it is.
func TestTheLargestTTLIsForgotten(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	const long, short = 30 * time.Minute, time.Minute
	_, rare := opened(t, srv, long)
	_, usual := opened(t, srv, short)
	for i, step := range []struct {
		do   func()
		by   *lease
		want time.Duration
	}{
		{func() {}, usual, long},
		{func() { later(srv) }, usual, long}, // granted in the period before
		{func() { later(srv) }, rare, long},  // it lives, and says so
		{func() { later(srv) }, usual, long},
		{func() {}, usual, long},
		{func() { later(srv) }, usual, short}, // two periods without it
		{func() {}, rare, long},
		{func() { later(srv) }, usual, long},
		// Another history: what is known is kept for a whole period, though by this server's clock
		// the present one is long over.
		{func() { later(srv); forgets(srv) }, usual, long},
		{func() {}, usual, long},
		{func() { later(srv) }, usual, short},
	} {
		step.do()
		if step.by == usual { // it may have ended
			_, usual = opened(t, srv, short)
			step.by = usual
		}
		if err := step.by.Renew(t.Context()); err != nil {
			t.Fatalf("step %d: Renew = %v", i, err)
		}
		if got := kept(t, srv, "max"); got != step.want {
			t.Errorf("step %d: the largest ttl is %v, want %v", i, got, step.want)
		}
	}
	forgets(srv)
	_, l := opened(t, srv, short)
	if wait := kept(t, srv, "calm") - time.Duration(time.Now().UnixMilli())*time.Millisecond; wait > short || wait < 0 {
		t.Errorf("the calm is %v long, want the ttl of those that are there", wait)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A store of an earlier version has written no periods: what it knew counts for one from now on.
func TestALargestTTLWithoutAPeriod(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	srv.Do("HSET", "{primacy}:server", "max", 60000)
	_, l := opened(t, srv, 30*time.Second)
	if got := kept(t, srv, "max"); got != time.Minute {
		t.Errorf("the largest ttl is %v, want that of before", got)
	}
	later(srv)
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := kept(t, srv, "max"); got != 30*time.Second {
		t.Errorf("the largest ttl is %v a period later, want 30s", got)
	}
}

// A server whose memory is full when it takes over has to write down that it did. Sessions must not
// end for that.
func TestAFullServerThatTookOver(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	_, l := opened(t, srv, time.Minute)
	stand(t, l, "n", "1")
	srv.Do("CONFIG", "SET", "maxmemory", "1")
	srv.Do("HDEL", "{primacy}:server", "id") // so that it goes on as another one, as forgets does it where there is room
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew at a full server that took over = %v, want nil", err)
	}
}

// So it is where its clock was set back: that too is written down.
func TestAFullServerWhoseClockWasSetBack(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	_, l := opened(t, srv, time.Minute)
	stand(t, l, "n", "1")
	for range 20 { // a call in the background may find the clock set back before the server is full
		srv.Do("HSET", "{primacy}:server", "since", time.Now().Add(time.Hour).UnixMilli())
		srv.Do("CONFIG", "SET", "maxmemory", "1")
		if err := l.Renew(t.Context()); err != nil {
			t.Fatalf("Renew at a full server whose clock was set back = %v, want nil", err)
		}
		srv.Do("CONFIG", "SET", "maxmemory", "0")
	}
}

// A clock that was set back begins a hold-off: while it was ahead, leases may have ended early that
// their owners count on. It is as long as the largest ttl, not that of who claims.
func TestAClockThatWasSetBackBeginsAHoldOff(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	opened(t, srv, 10*time.Minute)
	_, l := opened(t, srv, time.Minute)
	srv.Do("HSET", "{primacy}:server", "since", time.Now().Add(time.Hour).UnixMilli())
	begun := time.Duration(time.Now().UnixMilli()) * time.Millisecond
	if p := stand(t, l, "n", "1"); p.Held {
		t.Error("a free name is granted at once after the clock was set back")
	}
	if calm := kept(t, srv, "calm"); calm < begun+10*time.Minute {
		t.Errorf("the hold-off ends %v after the clock was set back, want the largest ttl, 10m", calm-begun)
	}
}
