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
