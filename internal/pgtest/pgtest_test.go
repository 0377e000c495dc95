package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// answers says whether the server at url answers within the limit.
func answers(url string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return c.Ping(ctx)
}

func TestAServerIsKilledFrozenAndStartedAgain(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.Options{Password: "geheim", TLS: true})
	s.Exec("CREATE TABLE kept (a int); INSERT INTO kept VALUES (7)")
	s.Stop()
	if err := answers(s.URL(), 300*time.Millisecond); err == nil {
		t.Error("a frozen server answers")
	}
	s.Cont()
	if err := answers(s.URL(), time.Minute); err != nil {
		t.Errorf("after Cont: %v", err)
	}
	s.Kill()
	if err := answers(s.URL(), time.Second); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if got := s.Query("SELECT a FROM kept"); got != "7" {
		t.Errorf("after a restart the table has %q", got)
	}
}

func TestAStandbyIsPromoted(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	s := pgtest.Start(t, pgtest.Options{})
	b := s.Standby()
	s.Exec("CREATE TABLE kept (a int); INSERT INTO kept VALUES (7)")
	s.Kill()
	b.Promote()
	b.Exec("INSERT INTO kept VALUES (8)")
	if got := b.Query("SELECT sum(a) FROM kept"); got != "15" {
		t.Errorf("after the failover the sum is %q", got)
	}
}

// A backend that outlives its postmaster keeps the next server from starting.
func TestAServerIsStartedAtOnceAfterItsDeath(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.Options{NoFsync: true})
	for range 5 {
		for range 20 { // some are being started just now
			go func() { _ = answers(s.URL(), time.Second) }()
		}
		time.Sleep(5 * time.Millisecond)
		s.Kill()
		s.Restart()
	}
}
