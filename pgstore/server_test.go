package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/pgstore"
)

// TestOnAServer is what one server can show, without harm to it.
func TestOnAServer(t *testing.T) {
	t.Parallel()
	srv := server(t)
	for name, test := range map[string]func(*testing.T, *pgtest.Server){
		"renewals go on while every connection of the pool is taken":  renewalsHaveTheirOwn,
		"renewals go on while the server takes no connection":         renewalsInAFullServer,
		"a lease that ends during a claim has the line of that claim": endDuringClaim,
		"a claim that timed out leaks nothing":                        timeoutLeaksNothing,
		"a claim that begins during its release does not enter":       claimDuringRelease,
		"tables are logged": tablesAreLogged,
		"times are not those of the transaction's start":                timesAreTrue,
		"a wait outlives its listening connection":                      listenerKilled,
		"a role without rights is told what to do":                      plainRole,
		"a role whose transactions are serializable is refused":         wrongIsolation,
		"many processes create the schema at once":                      manyOpen,
		"prefixes are quoted":                                           oddPrefixes,
		"a lease of another server's clock is not judged by this one's": otherTimeline,
		"a renewal under way is waited for":                             renewalUnderWay,
		"a lease that has run out is not renewed":                       runOut,
		"a claim removed with its triggers off is told by a renewal":    removedSilently,
		"an empty or unfit name is refused":                             unfitNames,
		"the doctor finds what is there":                                examined,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, srv)
		})
	}
}

// locked takes the line of name and returns what gives it back.
func locked(t *testing.T, srv *pgtest.Server, name string) func() {
	t.Helper()
	c := connected(t, srv)
	if _, err := c.Exec(soon(t), "SELECT pg_advisory_lock(primacy.key($1))", name); err != nil {
		t.Fatal(err)
	}
	return func() { c.Close(context.Background()) }
}

// queue waits until so many calls wait for the line of name, which somebody has locked.
func queue(t *testing.T, srv *pgtest.Server, name string, n int) {
	t.Helper()
	eventually(t, "calls that wait for the line", func() bool { return queued(srv, name) == fmt.Sprint(n) })
}

// queued counts the calls that wait for the line of name.
func queued(srv *pgtest.Server, name string) string {
	return srv.Query(advisory + " AND NOT granted AND (classid::bigint << 32) + objid::bigint = primacy.key('" + name + "')")
}

func connected(t *testing.T, srv *pgtest.Server) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(soon(t), srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// River issues 695 and 1077: the lease shares the application's pool, and ends when that is
// exhausted.
func renewalsHaveTheirOwn(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL() + "&pool_max_conns=2"})
	l := granted(t, s, steady)
	name := rand.Text()
	unlock := locked(t, srv, name)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() { _, _ = l.Claim(ctx, driver.Claim{Name: name, ID: rand.Text()}) })
	}
	queue(t, srv, name, 2)
	for range 3 {
		if err := l.Renew(soon(t)); err != nil {
			t.Errorf("Renew while the pool is exhausted: %v", err)
		}
	}
	cancel()
	unlock()
	all.Wait()
}

func renewalsInAFullServer(t *testing.T, srv *pgtest.Server) {
	fullUp := "full_up" + rand.Text()
	srv.Exec(`CREATE ROLE "` + fullUp + `" LOGIN CONNECTION LIMIT 6`)
	opened(t, pgstore.Config{DSN: srv.URL()})
	srv.Exec(pgstore.Grants("", fullUp))
	url := strings.Replace(srv.URL(), pgtest.User+"@", fullUp+"@", 1)
	s := opened(t, pgstore.Config{DSN: url + "&pool_max_conns=1"})
	l := granted(t, s, steady)
	full := false
	for range 10 {
		c, err := pgx.Connect(soon(t), url)
		if full = err != nil; full {
			break
		}
		defer c.Close(context.Background())
	}
	if !full {
		t.Fatal("the server took every connection")
	}
	for range 3 {
		if err := l.Renew(soon(t)); err != nil {
			t.Errorf("Renew while the server takes no connection: %v", err)
		}
	}
	// Even when the renewals' own connection is killed and no other is to be had: one of the pool's
	// is borrowed.
	srv.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '` + fullUp + `' AND query LIKE '%renew%'`)
	c, err := pgx.Connect(soon(t), url)
	if err == nil {
		defer c.Close(context.Background())
	}
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew after its connection was killed: %v", err)
	}
}

// GreptimeDB issue 7670: a client's time limit leaks the lock that the server grants later.
func timeoutLeaksNothing(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l, other := granted(t, s, steady), granted(t, s, steady)
	name := rand.Text()
	unlock := locked(t, srv, name)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	c := driver.Claim{Name: name, ID: rand.Text()}
	if _, err := l.Claim(ctx, c); err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrTaken) || errors.Is(err, driver.ErrRefused) {
		t.Fatalf("Claim of a line that does not answer = %v, want an unknown outcome", err)
	}
	unlock()
	if err := l.Release(soon(t), driver.Place{Name: name, ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // for a straggler
	if p := entered(t, other, name); !p.Held {
		t.Errorf("the next claim = %+v, want it held", p)
	}
	_, err := l.Claim(soon(t), c)
	wantGone(t, "the claim that was given up", err)
	// The statement itself, as it arrives when it was held up on its way.
	late := fmt.Sprintf("SELECT code FROM primacy.take('%s', '{%s}', '{\"\"}', '{0}', '{%s}', ARRAY[''::bytea], '{false}', false, '', '', 0, false, '', '', '')", l.ID(), name, c.ID)
	if got := srv.Query(late); got != "spent" {
		t.Errorf("the late claim = %q, want it spent", got)
	}
	if got := srv.Query("SELECT count(*) FROM primacy.claims WHERE name = '" + name + "'"); got != "1" {
		t.Errorf("%s claims stand, want 1", got)
	}
}

func claimDuringRelease(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, steady)
	c := driver.Claim{Name: rand.Text(), ID: rand.Text()}
	places, err := l.Claim(soon(t), c)
	if err != nil {
		t.Fatal(err)
	}
	unlock := locked(t, srv, c.Name)
	released, claimed := make(chan error, 1), make(chan error, 1)
	go func() { released <- l.Release(soon(t), places...) }()
	queue(t, srv, c.Name, 1)
	go func() { _, err := l.Claim(soon(t), c); claimed <- err }()
	eventually(t, "the claim is refused, or waits for the line too", func() bool {
		return len(claimed) == 1 || queued(srv, c.Name) == "2"
	})
	unlock()
	if err := <-released; err != nil {
		t.Errorf("Release: %v", err)
	}
	wantGone(t, "Claim of an ID that is being released", <-claimed)
	if got := srv.Query("SELECT count(*) FROM primacy.claims WHERE name = '" + c.Name + "'"); got != "0" {
		t.Errorf("%s claims stand after the release", got)
	}
}

// Close reads which lines the lease stands in while a claim on another one is under way. Were that
// line changed without its lock, a claim that entered it just then would never be told that it
// holds.
func endDuringClaim(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, steady)
	name := rand.Text()
	entered(t, l, rand.Text())
	take, err := connected(t, srv).Begin(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	var code string
	err = take.QueryRow(soon(t), `SELECT code FROM primacy.take($1, ARRAY[$2], '{""}', '{0}', '{late}',
		ARRAY[''::bytea], '{false}', false, '', '', 0, false, '', '', '')`, l.ID(), name).Scan(&code)
	if err != nil || code != "ok" {
		t.Fatalf("take = %q, %v", code, err)
	}
	closed := make(chan error, 1)
	go func() { closed <- l.Close(soon(t)) }()
	waits := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'" +
		" AND query LIKE '%end_lease%" + l.ID() + "%'"
	eventually(t, "Close waits for the claim", func() bool { return srv.Query(waits) == "1" })
	next := connected(t, srv) // it has the line as soon as the claim has entered
	has := make(chan error, 1)
	go func() {
		_, err := next.Exec(soon(t), "SELECT pg_advisory_lock(primacy.key($1))", name)
		has <- err
	}()
	queue(t, srv, name, 1)
	if err := take.Commit(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-has; err != nil {
		t.Fatal(err)
	}
	eventually(t, "Close waits for the line", func() bool { return len(closed) == 1 || queued(srv, name) == "1" })
	if len(closed) == 1 {
		t.Error("Close has removed a claim while somebody else had the lock of its line")
	}
	next.Close(context.Background())
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	left := "SELECT count(*) FROM primacy.claims WHERE lease = '" + l.ID() + "'"
	if got := srv.Query(left); got != "0" {
		t.Errorf("%s claims stand after Close", got)
	}
	if p := entered(t, granted(t, s, steady), name); !p.Held {
		t.Errorf("the next claim = %+v, want it held", p)
	}
}

// River keeps its leader in an UNLOGGED table: empty after a crash, absent on a standby.
func tablesAreLogged(t *testing.T, srv *pgtest.Server) {
	opened(t, pgstore.Config{DSN: srv.URL()})
	if got := srv.Query("SELECT count(*) FROM pg_class WHERE relnamespace = 'primacy'::regnamespace AND relkind IN ('r', 'S') AND relpersistence = 'p'"); got != "8" {
		t.Errorf("%s logged tables and sequences, want 8", got)
	}
}

// now() is when the transaction began: a lease counted from there ends before its holder thinks.
func timesAreTrue(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, steady)
	c := connected(t, srv)
	tx, err := c.Begin(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(soon(t))
	if _, err := tx.Exec(soon(t), "SELECT pg_sleep(0.5)"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(soon(t), "SELECT primacy.renew($1)", l.ID()); err != nil {
		t.Fatal(err)
	}
	var after float64 // the transaction's start the renewal counts
	err = tx.QueryRow(soon(t), "SELECT extract(epoch FROM expires - ttl - now())::float8 FROM primacy.leases WHERE id = $1", l.ID()).Scan(&after)
	if err != nil || after < 0.5 {
		t.Errorf("a renewal counts from %.3f s after its transaction's start, %v, want 0.5 at least", after, err)
	}
}

func listenerKilled(t *testing.T, srv *pgtest.Server) {
	listens := "listens" + rand.Text()
	holds, waits := opened(t, pgstore.Config{DSN: srv.URL()}), pgstore.Patient(opened(t, pgstore.Config{DSN: srv.URL() + "&application_name=" + listens}))
	l, w := granted(t, holds, steady), granted(t, waits, steady)
	name := rand.Text()
	for i := range 4 {
		p := entered(t, l, name)
		done := waiting(t, w, entered(t, w, name))
		time.Sleep(100 * time.Millisecond)
		srv.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + listens + "' AND (query LIKE 'LISTEN%' OR query LIKE '%pg_backend_pid%' OR query = 'SELECT 1')")
		time.Sleep(time.Duration(i) * 10 * time.Millisecond)
		if err := l.Release(soon(t), p); err != nil {
			t.Fatal(err)
		}
		got := (<-done).must(t)
		if err := w.Release(soon(t), got.place); err != nil {
			t.Fatal(err)
		}
	}
}

func otherTimeline(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, 8*time.Second)
	name := rand.Text()
	p := entered(t, l, name)
	// As after a failover to a server whose clock is far ahead.
	srv.Exec(fmt.Sprintf("UPDATE primacy.leases SET timeline = 'ffffffff', expires = expires - interval '1 hour' WHERE id = '%s'", l.ID()))
	begun := time.Now()
	if ln, err := s.Line(soon(t), name); err != nil || ln.Holder == nil || ln.Holder.Token != p.Token {
		t.Errorf("line = %+v, %v, want the claim to stand", ln, err)
	}
	w := granted(t, s, steady)
	got := (<-waiting(t, w, entered(t, w, name))).must(t)
	if took := got.at.Sub(begun); took < 8*time.Second {
		t.Errorf("taken over after %v, want a whole ttl of this server's clock", took)
	}
	again := granted(t, s, 20*time.Second)
	srv.Exec(fmt.Sprintf("UPDATE primacy.leases SET timeline = 'ffffffff', expires = expires - interval '1 hour' WHERE id = '%s'", again.ID()))
	if err := again.Renew(soon(t)); err != nil {
		t.Errorf("Renew on another server: %v", err)
	}
}

// A take-over that judged from what was committed would end a lease whose renewal is on its way to
// the disk.
func renewalUnderWay(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l, w := granted(t, s, steady), granted(t, s, steady)
	name := rand.Text()
	entered(t, l, name)
	expire(srv, l)
	tx, err := connected(t, srv).Begin(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(soon(t), "UPDATE primacy.leases SET expires = clock_timestamp() + interval '1 minute' WHERE id = $1", l.ID()); err != nil {
		t.Fatal(err)
	}
	done := waiting(t, w, entered(t, w, name))
	time.Sleep(200 * time.Millisecond) // it looks some times
	if _, err := l.Claim(soon(t), driver.Claim{Name: rand.Text(), ID: rand.Text()}); errors.Is(err, driver.ErrGone) {
		t.Errorf("Claim while a renewal is under way = %v, want no final answer", err)
	}
	if ln, err := s.Line(soon(t), name); err != nil || ln.Holder == nil || ln.Holder.Lease != l.ID() {
		t.Errorf("line while a renewal is under way = %+v, %v, want it unchanged", ln, err)
	}
	select {
	case got := <-done:
		t.Fatalf("Wait = %+v while a renewal of the holder is under way", got)
	default:
	}
	if err := tx.Commit(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := l.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	(<-done).must(t)
}

// Nobody has looked at the lease since: its row stands.
func runOut(t *testing.T, srv *pgtest.Server) {
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, 300*time.Millisecond)
	time.Sleep(500 * time.Millisecond)
	wantGone(t, "Renew of a lease that has run out", l.Renew(soon(t)))
	if got := srv.Query("SELECT count(*) FROM primacy.leases WHERE id = '" + l.ID() + "'"); got != "0" {
		t.Error("the row of a lease that was told gone stands: a later renewal could find it")
	}
}

// TestMoreNamesThanTheServerHasLocksFor has a server for itself: the locks that it takes are those
// of everybody.
func TestMoreNamesThanTheServerHasLocksFor(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	srv := harmed(t)
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, 5*time.Minute)
	var claims []driver.Claim
	for range 3000 {
		claims = append(claims, driver.Claim{Name: rand.Text(), ID: rand.Text()})
	}
	places, err := l.Claim(soon(t), claims...)
	if err != nil {
		t.Fatalf("Claim of %d names: %v", len(claims), err)
	}
	if err := l.Renew(soon(t)); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if err := l.Release(soon(t), places[:1500]...); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := l.Close(soon(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := srv.Query("SELECT count(*) FROM primacy.claims WHERE lease = '" + l.ID() + "'"); got != "0" {
		t.Errorf("%s claims stand after Close", got)
	}
}

func removedSilently(t *testing.T, srv *pgtest.Server) {
	s := pgstore.Patient(opened(t, pgstore.Config{DSN: srv.URL()}))
	l := granted(t, s, steady)
	p, q := entered(t, l, rand.Text()), entered(t, l, rand.Text())
	news := make(chan driver.News, 1)
	go func() {
		if all, err := l.News(soon(t)); err == nil {
			news <- all[0]
		}
	}()
	srv.Exec(fmt.Sprintf("SET session_replication_role = replica; DELETE FROM primacy.claims WHERE token = %d", p.Token))
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-news:
		if !n.Gone || n.Place.Token != p.Token {
			t.Errorf("news = %+v, want that %+v is gone", n, p)
		}
	case <-soon(t).Done():
		t.Error("no news after a renewal")
	}
	if err := l.Update(soon(t), q, []byte("x")); err != nil {
		t.Errorf("Update of the other: %v", err)
	}
}
