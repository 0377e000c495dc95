package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
)

// late sends the script of a Claim as it was sent first: it was held up in the network, and arrives
// now.
func late(t *testing.T, l *lease, settled, n uint64, id string) string {
	t.Helper()
	got, err := l.s.run(t.Context(), l.s.calls, claimScript, false, l.id, l.epoch, settled, 1, "n", "", 0, n, id, "", false)
	if err != nil {
		t.Fatal(err)
	}
	return got.str(0)
}

// A Claim that arrives after its place was released may not enter, and the server remembers that by
// a number, not by each ID.
func TestALateClaimDoesNotEnter(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, err := Open(t.Context(), Config{Addrs: []string{srv.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dl, err := s.Grant(t.Context(), "x", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := dl.(*lease)
	// What the lease asks when its pushes begin is over: it gives up what it finds and no longer
	// knows, which takes a number. A push that has it ask, and has been answered, came behind.
	for srv.Do("PUBSUB", "NUMSUB", s.listener.own()).([]any)[1].(int64) == 0 {
		time.Sleep(time.Millisecond)
	}
	srv.Do("HSET", "{primacy}:lease:"+l.id, "g", "1")
	srv.Do("PUBLISH", s.listener.own(), "s "+l.id)
	for asked := false; !asked; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		asked = l.changes == "1" && !l.syncer.running
		l.mu.Unlock()
	}
	for _, id := range []string{"1", "2", "3"} {
		p, err := l.Claim(t.Context(), driver.Claim{Name: "n", ID: id})
		if err == nil {
			err = l.Release(t.Context(), p...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := late(t, l, 1, 2, "2"); got != "GONE" {
		t.Errorf("the Claim of an ID that was released, come late = %s, want GONE", got)
	}
	// The fourth has an unknown outcome, so the fifth is remembered by itself, until the fourth is
	// settled.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Claim(ctx, driver.Claim{Name: "n", ID: "4"}); err == nil {
		t.Fatal("Claim with a context that has ended = nil")
	}
	time.Sleep(50 * time.Millisecond)
	if err := l.Release(t.Context(), driver.Place{Name: "n", ID: "never"}); err != nil {
		t.Fatal(err)
	}
	if got := late(t, l, 3, 5, "never"); got != "GONE" {
		t.Errorf("the Claim of an ID that was released before an earlier one was settled = %s, want GONE", got)
	}
	if n := srv.Do("ZCARD", "{primacy}:spent:"+l.id).(int64); n != 1 {
		t.Errorf("%d IDs are remembered, want one", n)
	}
	if err := l.Release(t.Context(), driver.Place{Name: "n", ID: "4"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := srv.Do("ZCARD", "{primacy}:spent:"+l.id).(int64); n != 0 {
		t.Errorf("%d IDs are remembered once all are settled, want none", n)
	}
	if got := late(t, l, 3, 4, "4"); got != "GONE" {
		t.Errorf("the late Claim of the fourth = %s, want GONE", got)
	}
}
