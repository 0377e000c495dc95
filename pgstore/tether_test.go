package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/pgtest"
)

// A session that the server ends after two minutes of silence looks, of a process that is stopped for so long, like its crash: a lease with a longer ttl is tied only
// once the server bears more.
func TestALongLeaseIsTiedToSessionsThatBearIt(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, Config{DSN: srv.URL(), AdvisoryWake: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, ttl := range []time.Duration{2 * time.Second, 20 * time.Minute} {
		l, err := s.Grant(ctx, "a", ttl)
		if err != nil {
			t.Fatal(err)
		}
		for tied := false; !tied; time.Sleep(5 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("the lease of %v is not tied", ttl)
			}
			s.wake.mu.Lock()
			d := s.wake.leases[l.(*lease)]
			tied = d.sure[0] && d.sure[1]
			for i, line := range s.wake.lines {
				if d.perhaps[i] && line.bear < 2*ttl {
					t.Errorf("a lease of %v is tied to a session whose silence the server bears for %v", ttl, line.bear)
				}
			}
			s.wake.mu.Unlock()
		}
	}
	l, err := s.Grant(ctx, "a", 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s.wake.mu.Lock()
	defer s.wake.mu.Unlock()
	if s.wake.leases[l.(*lease)] != nil {
		t.Error("a lease of two hours is tied")
	}
}

// tiedTwice returns a store with a lease that is tied to both sessions.
func tiedTwice(t *testing.T, srv *pgtest.Server) (*Store, *lease, *tied) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, Config{DSN: srv.URL(), AdvisoryWake: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	SlowWake(s)
	granted, err := s.Grant(ctx, "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for l := granted.(*lease); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		s.wake.mu.Lock()
		d := s.wake.leases[l]
		yes := d != nil && d.sure[0] && d.sure[1]
		s.wake.mu.Unlock()
		if yes {
			return s, l, d
		}
	}
	t.Fatal("the lease is not tied")
	return nil, nil, nil
}

// A tie to a session that has ended meanwhile says that the process has crashed, and its holder, who has heard of the end before, would not hear of it again.
func TestALeaseIsNotTiedToASessionThatHasEnded(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	s, l, d := tiedTwice(t, srv)
	s.wake.tieLater(s.wake.lines[0], 4711, l)
	if n := srv.Query("SELECT count(*) FROM primacy.tethers WHERE key = 4711"); n != "0" {
		t.Error("a lease was tied to a session that is not there")
	}

	// And when one session takes the place of a silent one while there is no other, somebody has to hear of the end of either.
	s.wake.mu.Lock()
	d.perhaps[1], d.sure[1] = false, false
	s.wake.mu.Unlock()
	line := s.wake.lines[0]
	line.attach(line.conn, 4712, time.Hour, line.way)
	select {
	case <-l.over:
	case <-time.After(10 * time.Second):
		t.Error("the lease lives on with a session whose end nobody hears of")
	}
}

// A call that ties a lease may come to the server after the store has loosened it: then the sessions have to outlive the store.
func TestACloseDuringATieEndsNoSession(t *testing.T) {
	t.Parallel()
	s, _, d := tiedTwice(t, pgtest.Start(t, pgtest.Options{NoFsync: true}))
	s.wake.mu.Lock()
	d.sure[0] = false
	s.wake.mu.Unlock()
	if s.wake.loosen() {
		t.Error("loosen says that nothing is tied any more, with a call under way")
	}
}
