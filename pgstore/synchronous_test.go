package pgstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/pgstore"
)

// standbys sets which synchronous standbys the server waits for, and returns when commits do wait
// for them. Of "nobody" none is there.
func standbys(t *testing.T, srv *pgtest.Server, names string) {
	t.Helper()
	if names != "" {
		t.Cleanup(func() { standbys(t, srv, "") })
	}
	srv.Exec(fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", names))
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "the setting", func() bool { return srv.Query("SHOW synchronous_standby_names") == names })
	if names != "" {
		awaitSyncRep(t, srv)
	}
}

// awaitSyncRep returns when a commit waits for a standby. A server shows the setting before that:
// its commits return at once until its checkpointer, too, has read it.
func awaitSyncRep(t *testing.T, srv *pgtest.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ctx.Err() == nil; n++ {
			if c, err := pgx.Connect(ctx, srv.URL()); err == nil {
				_, _ = c.Exec(ctx, fmt.Sprintf("CREATE TABLE probe%d_%d ()", time.Now().UnixNano(), n))
				_ = c.Close(context.Background())
			}
		}
	}()
	eventually(t, "a commit that waits for the standby", func() bool {
		return srv.Query("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "t"
	})
	cancel()
	<-ended
}

// What is on the primary's disk only may be missing on the standby that was promoted. A call that
// was given up while it waited for the standby leaves its write in sight of everybody: nobody may
// be told of it before the standby has it.
func TestWhatTheStandbyDoesNotHaveIsNotTold(t *testing.T) {
	t.Parallel()
	srv := harmed(t)
	s, o := opened(t, pgstore.Config{DSN: srv.URL()}), pgstore.Patient(opened(t, pgstore.Config{DSN: srv.URL()}))
	l, w := granted(t, s, steady), granted(t, o, steady)
	p := entered(t, l, "n")
	q := entered(t, w, "n")
	turn := waiting(t, w, q)
	standbys(t, srv, "nobody")
	brief := func(do func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		return do(ctx)
	}
	c := driver.Claim{Name: "m", ID: rand.Text()}
	// Both have to be in sight of everybody before anything is proved: a call that was given up
	// earlier on a slow machine has not got there.
	arrived := func(n int) bool {
		return srv.Query(fmt.Sprintf("SELECT count(*) FROM primacy.claims WHERE name = 'm' OR token = %d", p.Token)) == "1" && srv.Query("SELECT count(*) FROM primacy.claims WHERE name = 'm'") == "1" || n > 20
	}
	for n := 0; n < 2 || !arrived(n); n++ {
		if err := brief(func(ctx context.Context) error { return l.Release(ctx, p) }); err == nil || final(err) {
			t.Errorf("Release %d without the standby = %v, want an unknown outcome", n, err)
		}
		if err := brief(func(ctx context.Context) error { _, err := l.Claim(ctx, c); return err }); err == nil || final(err) {
			t.Errorf("Claim %d without the standby = %v, want an unknown outcome", n, err)
		}
		if err := brief(func(ctx context.Context) error { _, err := s.Line(ctx, "n"); return err }); err == nil || final(err) {
			t.Errorf("Line %d without the standby = %v, want an unknown outcome", n, err)
		}
	}
	select {
	case got := <-turn:
		t.Fatalf("Wait = %+v, %v, though the standby does not have the release", got.place, got.err)
	default:
	}
	standbys(t, srv, "")
	(<-turn).must(t)
	if places, err := l.Claim(soon(t), c); err != nil || !places[0].Held {
		t.Errorf("Claim after the standby came back = %+v, %v", places, err)
	}
}

// A role may have set that it does not hear warnings: then a commit that did not wait for the
// standby would look like any other.
func TestWarningsAreHeardWhateverTheRoleSets(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := harmed(t)
	s := opened(t, pgstore.Config{DSN: role(srv, "client_min_messages = error")})
	l := granted(t, s, steady)
	standbys(t, srv, "nobody")
	cancelling, stop := context.WithCancel(context.Background())
	operator, ended := connected(t, srv), make(chan struct{})
	go func() {
		defer close(ended)
		for cancelling.Err() == nil {
			_, _ = operator.Exec(cancelling,
				"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.Renew(ctx); err == nil || final(err) {
		t.Errorf("Renew whose wait for the standby was cancelled = %v, want an unknown outcome", err)
	}
	stop()
	<-ended
	standbys(t, srv, "")
}

// A role may have set that its commits wait for less than the disks of this server and of the
// standby. A renewal that was acknowledged so would be missing on the standby that is promoted.
func TestNoRoleWaitsForLessThanTheStandby(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := harmed(t)
	leases := map[string]driver.Lease{}
	for set, want := range map[string]string{
		"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply",
	} {
		url := role(srv, "synchronous_commit = "+set)
		leases[set] = granted(t, opened(t, pgstore.Config{DSN: url}), 5*time.Minute)
		conn, err := pgx.Connect(soon(t), url)
		if err != nil {
			t.Fatal(err)
		}
		err = pgx.BeginFunc(soon(t), conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(soon(t), "SELECT primacy.verb()"); err != nil {
				return err
			}
			var got string
			if err := tx.QueryRow(soon(t), "SHOW synchronous_commit").Scan(&got); err != nil || got != want {
				t.Errorf("a role that sets %s: calls commit with %q, %v, want %q", set, got, err, want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		conn.Close(soon(t))
	}
	standbys(t, srv, "nobody")
	for set, l := range leases {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		if err := l.Renew(ctx); err == nil || final(err) {
			t.Errorf("Renew of a role that sets %s without the standby = %v, want an unknown outcome", set, err)
		}
		cancel()
	}
	standbys(t, srv, "")
}
