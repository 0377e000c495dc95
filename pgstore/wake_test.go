package pgstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/pgstore"
)

func TestACrashIsTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	rounds := 3
	if os.Getenv("PRIMACY_PG_LONG") != "" {
		rounds = 20
	}
	srv := pgtest.Start(t, pgtest.Options{})
	s := opened(t, waking(srv.URL()))
	if c := s.Caps(); !strings.Contains(c.BestEffort, "advisory-wake") || len(c.Warnings) > 0 {
		t.Errorf("Caps = %+v, want BestEffort to name advisory-wake", c)
	}
	if !slices.ContainsFunc(s.Examine(soon(t), "n"), func(f driver.Finding) bool { return f.Topic == "advisory wake" }) {
		t.Error("Examine says nothing of advisory-wake")
	}
	var all []time.Duration
	for range rounds {
		h := held(t, srv.URL(), "n", 30*time.Second)
		w := granted(t, s, time.Minute)
		p := entered(t, w, "n")
		done := waiting(t, w, p)
		armed(t, srv, h.lease, true)
		begun := time.Now()
		_ = h.cmd.Process.Kill()
		took := (<-done).must(t).at.Sub(begun)
		if all = append(all, took); took > 5*time.Second {
			t.Errorf("taken over %v after the crash, with a ttl of 30 s", took)
		}
		if err := w.Close(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	t.Logf("%d crashes, taken over after %v at the median, %v at most", rounds, all[len(all)/2], all[len(all)-1])
}

// A stopped process has not crashed: its connections are silent, and it leads on by its own clock until the ttl is over.
func TestSilenceIsNoCrash(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	srv.Exec("ALTER ROLE " + pgtest.User + " SET idle_session_timeout = 2500")
	const ttl = 4 * time.Second
	s := opened(t, waking(srv.URL()))
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		w := granted(t, s, time.Minute)
		h := held(t, srv.URL(), "stopped", ttl)
		done := waiting(t, w, entered(t, w, "stopped"))
		armed(t, srv, h.lease, false)
		time.Sleep(time.Second)
		_ = h.cmd.Process.Signal(syscall.SIGSTOP)
		begun := time.Now()
		if took := (<-done).must(t).at.Sub(begun); took < ttl*3/4 || took > ttl+4*time.Second {
			t.Errorf("taken over %v after the holder was stopped, with a ttl of %v", took, ttl)
		}
		_ = h.cmd.Process.Signal(syscall.SIGCONT)
		<-h.gone
	})
	t.Run("cut off", func(t *testing.T) {
		t.Parallel()
		w := granted(t, s, time.Minute)
		p, err := proxy.Listen(srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		l := granted(t, opened(t, waking(srv.URLAt(p.Addr()))), ttl)
		entered(t, l, "cut")
		done := waiting(t, w, entered(t, w, "cut"))
		k := keep(l)
		armed(t, srv, l.ID(), false)
		time.Sleep(time.Second)
		k.stop()
		begun := time.Now()
		if err := l.Renew(soon(t)); err != nil {
			t.Fatal(err)
		}
		p.Hold()
		if took := (<-done).must(t).at.Sub(begun); took < ttl || took > ttl+4*time.Second {
			t.Errorf("taken over %v after the link was cut, with a ttl of %v", took, ttl)
		}
	})
}

// What ends connections and not the process: operators, a restart. The lease lives on, and is tied again.
func TestTheEndOfConnectionsIsNoCrash(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	a, b := opened(t, waking(srv.URL())), opened(t, waking(srv.URL()))
	pgstore.SlowWake(a)
	pgstore.SlowWake(b)
	l, w := granted(t, a, time.Minute), granted(t, b, time.Minute)
	entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	armed(t, srv, l.ID(), true)
	if n := ends(srv, l.ID(), 1); n != "1" {
		t.Fatalf("%s sessions ended, want 1", n)
	}
	still(t, "one session ended", done, 1300*time.Millisecond)
	for range 2 {
		armed(t, srv, l.ID(), true)
		if n := ends(srv, l.ID(), 2); n != "2" {
			t.Fatalf("%s sessions ended, want 2", n)
		}
		still(t, "both sessions ended", done, 1300*time.Millisecond)
		if err := l.Renew(soon(t)); err != nil {
			t.Fatalf("Renew after both sessions have ended: %v", err)
		}
	}
	for _, clean := range []bool{false, true} {
		armed(t, srv, l.ID(), true)
		if clean {
			shutdown(t, srv)
		}
		srv.Restart()
		still(t, "the server restarted", done, 1500*time.Millisecond)
		eventually(t, "a renewal after the restart", func() bool {
			err := l.Renew(soon(t))
			if errors.Is(err, driver.ErrGone) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	armed(t, srv, l.ID(), true)
	if err := l.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	(<-done).must(t)
}

// A restart ends the sessions of a stopped process too, and it can tie its lease to no new ones.
func TestARestartIsNoCrashOfAStoppedProcess(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{})
	h := held(t, srv.URL(), "n", time.Minute)
	s := opened(t, waking(srv.URL()))
	pgstore.SlowWake(s)
	w := granted(t, s, time.Minute)
	done := waiting(t, w, entered(t, w, "n"))
	for _, clean := range []bool{false, true} {
		armed(t, srv, h.lease, true)
		_ = h.cmd.Process.Signal(syscall.SIGSTOP)
		if clean {
			shutdown(t, srv)
		}
		srv.Restart()
		still(t, "the server restarted", done, 2500*time.Millisecond)
		_ = h.cmd.Process.Signal(syscall.SIGCONT)
	}
	armed(t, srv, h.lease, true)
	_ = h.cmd.Process.Kill()
	(<-done).must(t)
}

// A holder whose connections are ended by what stands in between, and that gets no new ones, gives up before another takes over.
func TestAHolderWithoutSessionsGivesUp(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	p, err := proxy.Listen(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	holds, next := opened(t, waking(srv.URLAt(p.Addr()))), opened(t, waking(srv.URL()))
	pgstore.SlowWake(holds)
	pgstore.SlowWake(next)
	if got := strings.Join(holds.Caps().Warnings, " "); !strings.Contains(got, "proxy") {
		t.Errorf("warnings = %q, want the proxy named", got)
	}
	l, w := granted(t, holds, time.Minute), granted(t, next, time.Minute)
	entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	told := make(chan time.Time, 1)
	go func() {
		if _, err := l.News(soon(t)); errors.Is(err, driver.ErrGone) {
			told <- time.Now()
		}
	}()
	armed(t, srv, l.ID(), true)
	p.Close()
	got := (<-done).must(t)
	select {
	case at := <-told:
		if late := at.Sub(got.at); late > 0 {
			t.Errorf("the former holder heard of it %v after the next one held", late)
		}
	case <-time.After(5 * time.Second):
		t.Error("the former holder does not hear that its lease has ended")
	}
	wantGone(t, "Renew", l.Renew(soon(t)))
}

// What remains: both connections end while the holder is stopped. It wakes up as leader, and only the fence keeps its writes out.
func TestAStoppedHolderWhoseSessionsWereEndedIsFenced(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	h := held(t, srv.URL(), "n", 30*time.Second)
	w := granted(t, opened(t, waking(srv.URL())), time.Minute)
	done := waiting(t, w, entered(t, w, "n"))
	armed(t, srv, h.lease, true)
	_ = h.cmd.Process.Signal(syscall.SIGSTOP)
	if n := ends(srv, h.lease, 2); n != "2" {
		t.Fatalf("%s sessions ended, want 2", n)
	}
	got := (<-done).must(t)
	fence := func(token uint64) error {
		tx, err := connected(t, srv).Begin(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(soon(t)) }()
		return pgstore.Fence(soon(t), tx, "", "n", token)
	}
	wantGone(t, "Fence of the former holder", fence(h.token))
	if err := fence(got.place.Token); err != nil {
		t.Errorf("Fence of the next: %v", err)
	}
	_ = h.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-h.gone:
	case <-time.After(10 * time.Second):
		t.Error("the former holder does not hear that its lease has ended")
	}
}

// Closing a store says nothing of the work: its leases have their ttl.
func TestAClosedStoreIsNoCrash(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	s := open(t, waking(srv.URL()))
	l := granted(t, s, 4*time.Second)
	w := granted(t, opened(t, waking(srv.URL())), time.Minute)
	entered(t, l, "n")
	done := waiting(t, w, entered(t, w, "n"))
	k := keep(l)
	armed(t, srv, l.ID(), true)
	k.stop()
	begun := time.Now()
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := (<-done).must(t).at.Sub(begun); took < 4*time.Second {
		t.Errorf("taken over %v after the store was closed, with a ttl of 4 s", took)
	}
}

// However many leases and claims there are, a process has two sessions for its own leases and one for those before it. With several before it
// a crash is found by asking.
func TestManyLeasesHaveFewConnections(t *testing.T) {
	long(t)
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	name := rand.Text()
	holds, others := opened(t, waking(srv.URL()+"&application_name=holds&pool_max_conns=2")), opened(t, waking(srv.URL()+"&application_name=others&pool_max_conns=2"))
	s := open(t, waking(srv.URL()+"&application_name=waits&pool_max_conns=2"))
	w := granted(t, s, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var leases []driver.Lease
	for i := range 60 {
		from := holds
		if i%2 == 0 {
			from = others
		}
		l := granted(t, from, time.Minute)
		leases = append(leases, l)
		at := fmt.Sprint(name, i)
		entered(t, l, at)
		q := entered(t, w, at)
		go func() { _, _ = w.Wait(ctx, q) }()
	}
	h := held(t, srv.URL()+"&application_name=crashes", name, time.Minute)
	done := waiting(t, w, entered(t, w, name))
	for _, l := range leases {
		armed(t, srv, l.ID(), false)
	}
	armed(t, srv, h.lease, false)
	time.Sleep(1500 * time.Millisecond)
	for app, most := range map[string]int{"holds": 2 + 2 + 2, "waits": 2 + 2 + 2 + 1} { // the renewals' and the listening one, the pool's, the sessions, the vigil
		n, _ := strconv.Atoi(srv.Query("SELECT count(*) FROM pg_stat_activity WHERE application_name = '" + app + "'"))
		if n > most || n < most-2 {
			t.Errorf("%s has %d connections, want %d", app, n, most)
		}
	}
	begun := time.Now()
	_ = h.cmd.Process.Kill()
	if took := (<-done).must(t).at.Sub(begun); took > 10*time.Second {
		t.Errorf("taken over %v after the crash, with a ttl of a minute", took)
	} else {
		t.Logf("behind 61 leases taken over %v after the crash", took)
	}
	cancel()
	s.Close()
	eventually(t, "a closed store has no connections", func() bool {
		return srv.Query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waits'") == "0"
	})
}

// The last word before a lease is ended: what shows that there was no crash.
func TestALeaseThatHasNotCrashedIsNotEnded(t *testing.T) {
	t.Parallel()
	srv := pgtest.Start(t, pgtest.Options{NoFsync: true})
	s := opened(t, pgstore.Config{DSN: srv.URL()})
	l := granted(t, s, time.Minute)
	entered(t, l, "n")
	expires := func() string {
		return srv.Query("SELECT (extract(epoch FROM expires) * 1000000)::bigint FROM primacy.leases WHERE id = '" + l.ID() + "'")
	}
	ended := func(seen string) string { return srv.Query("SELECT primacy.wake('" + l.ID() + "', " + seen + ")") }
	if got := ended(expires()); got != "f" {
		t.Errorf("wake of a lease that was never tied = %s", got)
	}
	srv.Exec("INSERT INTO primacy.tethers VALUES ('" + l.ID() + "', 1, pg_postmaster_start_time() - interval '1 hour')")
	if got := ended(expires()); got != "f" {
		t.Errorf("wake of a lease that was tied before the server's start = %s", got)
	}
	srv.Exec("INSERT INTO primacy.tethers VALUES ('" + l.ID() + "', 2, pg_postmaster_start_time()), ('" + l.ID() + "', 3, pg_postmaster_start_time())")
	before := expires()
	if err := l.Renew(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := ended(before); got != "f" {
		t.Errorf("wake of a lease that was renewed meanwhile = %s", got)
	}
	hold, err := connected(t, srv).Begin(soon(t))
	if err == nil {
		_, err = hold.Exec(soon(t), "UPDATE primacy.leases SET expires = expires")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := ended(expires()); got != "f" {
		t.Errorf("wake of a lease whose renewal is under way = %s", got)
	}
	_ = hold.Rollback(soon(t))
	if _, err := hold.Conn().Exec(soon(t), "SELECT pg_advisory_lock(2)"); err != nil {
		t.Fatal(err)
	}
	if got := ended(expires()); got != "f" {
		t.Errorf("wake of a lease with one of two sessions = %s", got)
	}
	_ = hold.Conn().Close(soon(t))
	eventually(t, "the lease without sessions ends", func() bool { return ended(expires()) == "t" })
	wantGone(t, "Renew", l.Renew(soon(t)))
}
