package pgstore_test

import (
	"testing"
	"time"

	"github.com/primacy-go/primacy/pgstore"
)

// A lease that was written by a server whose clock was an hour ahead, or before this one's clock
// was set back, ends a ttl after it is seen, not in an hour.
func TestAnotherClocksLeaseEndsInItsTTL(t *testing.T) {
	t.Parallel()
	srv := server(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	for name, set := range map[string]string{
		"failover": "expires = clock_timestamp() + interval '1 hour', timeline = '00000000'",
		"set back": "expires = clock_timestamp() + interval '1 hour'",
	} {
		dead, w := granted(t, s, steady), granted(t, s, steady)
		entered(t, dead, name)
		srv.Exec("UPDATE primacy.leases SET ttl = interval '2 seconds', " + set + " WHERE id = '" + dead.ID() + "'")
		begun := time.Now()
		got := (<-waiting(t, w, entered(t, w, name))).must(t)
		if took := got.at.Sub(begun); took < 1900*time.Millisecond {
			t.Errorf("%s: taken over after %v with a ttl of 2 s", name, took)
		}
	}
}
