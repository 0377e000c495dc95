package pgstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/pgstore"
)

// A lease that was written by a server whose clock was an hour ahead, or before this one's clock was set back, ends a ttl after it is seen, not in an hour.
func TestAnotherClocksLeaseEndsInItsTTL(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	for name, set := range map[string]string{
		"failover": "expires = clock_timestamp() + interval '1 hour', timeline = '00000000'",
		"set back": "expires = clock_timestamp() + interval '1 hour'",
	} {
		dead, w := granted(t, s, 4*time.Second), granted(t, s, time.Minute)
		entered(t, dead, name)
		srv.Exec("UPDATE primacy.leases SET " + set + " WHERE id = '" + dead.ID() + "'")
		begun := time.Now()
		got := (<-waiting(t, w, entered(t, w, name))).must(t)
		if took := got.at.Sub(begun); took > 15*time.Second || took < 3500*time.Millisecond {
			t.Errorf("%s: taken over after %v with a ttl of 4 s", name, took)
		}
	}
}
