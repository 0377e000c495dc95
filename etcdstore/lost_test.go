package etcdstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// Whoever deletes a session's record by hand ends the session, but not at once for others: its
// holder has yet to hear of it and to stop.
func TestADeletedRecordLetsNobodyLeadBeforeTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := open(t, srv.Addr())
	l := grant(t, s, "a", 5*time.Second)
	p := claim(t, l, "n")
	next := grant(t, s, "b", time.Minute)
	waits := waiting(t, next, claim(t, next, "n"))
	c := plainClient(t, srv.Endpoint())

	renewed := time.Now()
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(soon(t), "primacy/@session/"+l.ID()); err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(soon(t)); !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Renew without a record: got %v, want ErrGone", err)
	}
	if err := receive(t, "the next in the line", waits, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if early := l.TTL() - time.Since(renewed); early > 0 {
		t.Errorf("the next led %v before the lease of token %d had run out", early, p.Token)
	}
}
