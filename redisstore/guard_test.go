package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/redisstore"
)

// guardTTL is longer than the second that Redis's uptime is rounded to.
const guardTTL = 1500 * time.Millisecond

// A server without persistence forgets everything when it is restarted: leases that were renewed a
// moment ago, and its marker.
func TestARestartThatLosesEverything(t *testing.T) {
	long(t)
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	f := startFleet(t, redisstore.Config{Addrs: []string{srv.Addr()}}, 3, guardTTL)
	for range 3 {
		f.goesOn(5)
		srv.Restart()
	}
	f.goesOn(5)
	f.judge()
}

// The power fails, and with appendfsync everysec the last writes never reached the disk: claims,
// renewals, releases.
func TestARestartThatLosesTheLastWrites(t *testing.T) {
	long(t)
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{Persist: "everysec"})
	f := startFleet(t, redisstore.Config{Addrs: []string{srv.Addr()}}, 3, guardTTL)
	for range 3 {
		f.goesOn(3)
		srv.Keep()
		f.goesOn(4)
		srv.Rewind()
	}
	f.goesOn(5)
	f.judge()
}

// A replica that misses the last writes is promoted. Then the former primary comes back as its
// replica, lags, and is promoted again.
func TestAFailoverThatLosesTheLastWrites(t *testing.T) {
	t.Parallel()
	a := redistest.Start(t, redistest.Options{})
	b := redistest.Start(t, redistest.Options{Replica: a})
	at := newBoard(t, a.Addr())
	f := startFleet(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}}, 3, guardTTL)
	for range 3 {
		f.goesOn(3)
		b.Synced()
		b.Lag()
		f.goesOn(4)
		a.Kill()
		b.Promote()
		at.point(b.Addr())
		a.Restart()
		a.Follow(b)
		a, b = b, a
	}
	f.goesOn(5)
	f.judge()
}

// The same with processes that live on: a replica is promoted in place, the former primary becomes
// its replica and loses what it alone had.
func TestAFailoverInPlace(t *testing.T) {
	long(t)
	t.Parallel()
	a := redistest.Start(t, redistest.Options{})
	b := redistest.Start(t, redistest.Options{Replica: a})
	at := newBoard(t, a.Addr())
	f := startFleet(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}}, 3, guardTTL)
	for range 3 {
		f.goesOn(3)
		b.Synced()
		b.Lag()
		f.goesOn(4)
		at.point("127.0.0.1:1")
		b.Promote()
		a.Follow(b)
		a.Synced()
		at.point(b.Addr())
		a, b = b, a
	}
	f.goesOn(5)
	f.judge()
}

// pair is a primary and a replica, behind one address.
func pair(t *testing.T) (a, b *redistest.Server, at *board) {
	t.Helper()
	a = redistest.Start(t, redistest.Options{})
	b = redistest.Start(t, redistest.Options{Replica: a})
	b.Synced()
	return a, b, newBoard(t, a.Addr())
}

func failover(a, b *redistest.Server, at *board) {
	a.Kill()
	b.Promote()
	at.point(b.Addr())
}

// A claim that only the former primary knew: its session lives on at the promoted replica, and must
// not keep a leader alive.
func TestALostClaimEndsItsSession(t *testing.T) {
	t.Parallel()
	a, b, at := pair(t)
	s := openAt(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}})
	t.Cleanup(func() { s.Close() })
	const ttl = 10 * time.Second // so long nobody may lead after the failover: a busy machine must ask within it
	l := grant(t, s, ttl)
	b.Synced()
	b.Lag()
	p := enter(t, l, "n", "1")
	failover(a, b, at)
	asked := time.Now()
	var err error
	for err = l.Renew(t.Context()); err != nil && !errors.Is(err, driver.ErrGone) && time.Since(asked) < time.Minute; err = l.Renew(t.Context()) {
		time.Sleep(10 * time.Millisecond)
	}
	if !errors.Is(err, driver.ErrGone) {
		t.Fatalf("Renew of a session whose leader's claim was lost = %v, want ErrGone", err)
	}
	other := grant(t, s, ttl)
	go keepAlive(t.Context(), other)
	q, err := other.Claim(t.Context(), driver.Claim{Name: "n", ID: "2"})
	if err != nil || q[0].Held {
		t.Fatalf("Claim right after the failover = %+v, %v, want it to wait: the former leader's deadline is not over", q, err)
	}
	if _, err := other.Claim(t.Context(), driver.Claim{Name: "other", ID: "3", Try: true}); !errors.Is(err, driver.ErrTaken) {
		t.Errorf("a try meanwhile = %v, want ErrTaken", err)
	}
	held, err := drivertest.Await(soon(t), other, q[0])
	if took := time.Since(asked); err != nil || took < ttl-100*time.Millisecond {
		t.Errorf("Wait = %v after %v, want it held once the largest ttl has passed", err, took)
	}
	if held.Token <= p.Token {
		t.Errorf("token = %d, want more than %d", held.Token, p.Token)
	}
}

// A share is a place too: in the hold-off nobody is newly granted one, neither of a free name nor
// beside those who held theirs before.
func TestNoShareIsGrantedInTheHoldOff(t *testing.T) {
	t.Parallel()
	a, b, at := pair(t)
	s := openAt(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}})
	t.Cleanup(func() { s.Close() })
	const ttl = 5 * time.Minute // the hold-off lasts as long, and the test does not
	was := grant(t, s, ttl)
	kept, err := was.Claim(t.Context(), driver.Claim{Name: "held", ID: "1", Slots: 3})
	if err != nil || !kept[0].Held {
		t.Fatalf("Claim of a share = %+v, %v, want it held", kept, err)
	}
	b.Synced()
	failover(a, b, at)
	eventually(t, "a lease of the new history", func() bool { return was.Renew(t.Context()) == nil })
	l := grant(t, s, ttl)
	for _, c := range []driver.Claim{
		{Name: "free", ID: "2", Slots: 3},
		{Name: "read", ID: "3", Slots: driver.Unlimited},
		{Name: "held", ID: "4", Slots: 3},
	} {
		p, err := l.Claim(t.Context(), c)
		if err != nil || p[0].Held {
			t.Errorf("Claim of a share of %q in the hold-off = %+v, %v, want it to wait", c.Name, p, err)
		}
	}
	try := driver.Claim{Name: "tried", ID: "5", Slots: 3, Try: true}
	if p, err := l.Claim(t.Context(), try); !errors.Is(err, driver.ErrTaken) {
		t.Errorf("a try for a share in the hold-off = %+v, %v, want ErrTaken", p, err)
	}
	ln, err := s.Line(t.Context(), "held")
	if err != nil || ln.Holder == nil || ln.Holder.Lease != was.ID() || !ln.Holder.Held ||
		len(ln.Waiters) != 1 || ln.Waiters[0].Held {
		t.Errorf("Line = %+v, %v, want the former share held and the new one waiting", ln, err)
	}
}

// A release that only the former primary knew leaves a claim under a session that lives on: it
// would hold the name for nobody, for ever.
func TestALostReleaseLeavesNoGhost(t *testing.T) {
	t.Parallel()
	a, b, at := pair(t)
	s := openAt(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}})
	t.Cleanup(func() { s.Close() })
	const ttl = 10 * time.Second // a failover takes its time on a busy machine, and renewals wait for it
	l, other := grant(t, s, ttl), grant(t, s, ttl)
	go keepAlive(t.Context(), l)
	go keepAlive(t.Context(), other)
	p := enter(t, l, "n", "1")
	b.Synced()
	b.Lag()
	if err := l.Release(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	failover(a, b, at)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var q []driver.Place
	var err error
	for q, err = other.Claim(ctx, driver.Claim{Name: "n", ID: "2"}); err != nil && ctx.Err() == nil; q, err = other.Claim(ctx, driver.Claim{Name: "n", ID: "2"}) {
		time.Sleep(10 * time.Millisecond)
	}
	if err == nil {
		_, err = drivertest.Await(ctx, other, q[0])
	}
	if err != nil {
		t.Fatalf("the claim behind one whose release was lost: %v, want it held", err)
	}
	if err := l.Renew(ctx); err != nil {
		t.Errorf("Renew of the session that released = %v, want nil: it lost nothing", err)
	}
}

// A fresh server may be one that lost everything: it waits for the ttl of who claims, and no
// longer.
func TestAYoungServerWaitsForATTL(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second // a busy machine asks within it
	begun := time.Now()         // before the server's life begins, from which the wait counts
	srv := redistest.Start(t, redistest.Options{Young: true})
	s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}})
	t.Cleanup(func() { s.Close() })
	l := grant(t, s, ttl)
	go keepAlive(t.Context(), l)
	p := enter(t, l, "n", "1")
	if p.Held {
		t.Error("a server that was just started grants a place at once, want it to wait: another may lead since before it was restarted")
	}
	if _, err := drivertest.Await(soon(t), l, p); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < ttl-100*time.Millisecond {
		t.Errorf("granted %v after the start, want the ttl of %v to pass", took, ttl)
	}
	if q := enter(t, l, "m", "2"); !q.Held {
		t.Error("the next claim waits too, want it held at once")
	}
}

// The largest ttl that a young server knows of sends no token into the future: after a restart that
// loses everything a smaller one would be drawn.
func TestALongLeaseMakesNoLaterToken(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := redistest.Start(t, redistest.Options{Young: true})
	s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}})
	t.Cleanup(func() { s.Close() })
	grant(t, s, 30*time.Minute)
	p := enter(t, grant(t, s, ttl), "n", "1")
	// Redis tells its uptime in whole seconds, and the token is rounded up to one of the claim's kind.
	latest := time.Now().Add(ttl + 2*time.Second)
	if at := time.UnixMilli(int64(p.Token / 64)); at.After(latest) {
		t.Errorf("the token is of %v, %v after the hold-off of a lease of %v could end", at, at.Sub(latest), ttl)
	}
}

// A first replica makes the primary draw a new replication ID. Nothing is lost by that, and nobody
// has to wait.
func TestAFirstReplicaIsNoFailover(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s := openAt(t, redisstore.Config{Addrs: []string{srv.Addr()}})
	t.Cleanup(func() { s.Close() })
	l := grant(t, s, time.Minute)
	enter(t, l, "n", "1")
	redistest.Start(t, redistest.Options{Replica: srv}).Synced()
	if p := enter(t, l, "m", "2"); !p.Held {
		t.Error("after a replica came the next claim waits, want it held")
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew = %v", err)
	}
}

// A primary that lives on beside the promoted replica: with Replicas its sessions end, since no
// renewal counts there any more.
func TestReplicasMustAcknowledge(t *testing.T) {
	t.Parallel()
	a, b, at := pair(t)
	s := openAt(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}, Replicas: 1})
	t.Cleanup(func() { s.Close() })
	l := grant(t, s, time.Minute)
	enter(t, l, "n", "1")
	if err := l.Renew(t.Context()); err != nil {
		t.Fatalf("Renew with its replica = %v", err)
	}
	b.Promote() // a knows nothing of it
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := l.Renew(ctx); err == nil || errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew at a primary that has lost its replica = %v, want an error that leaves it unknown", err)
	}
	_ = a
}

// A primary that was made a replica in place answers nothing from what it has: it may be behind.
func TestAFormerPrimaryIsNotRead(t *testing.T) {
	t.Parallel()
	a, b, at := pair(t)
	s := openAt(t, redisstore.Config{Addrs: []string{at.ln.Addr().String()}})
	t.Cleanup(func() { s.Close() })
	enter(t, grant(t, s, time.Minute), "n", "1")
	b.Synced()
	b.Promote()
	a.Follow(b)
	a.Synced()
	if ln, err := s.Line(t.Context(), "n"); err == nil {
		t.Errorf("Line at a former primary = %+v, want an error", ln)
	}
	at.point(b.Addr())
	eventually(t, "the line at the new one", func() bool { ln, err := s.Line(t.Context(), "n"); return err == nil && ln.Holder != nil })
}

func grant(t testing.TB, s driver.Store, ttl time.Duration) driver.Lease {
	t.Helper()
	l, err := s.Grant(t.Context(), "owner", ttl)
	if err != nil {
		t.Fatalf("Grant: %v", err)
	}
	return l
}

func enter(t testing.TB, l driver.Lease, name, id string) driver.Place {
	t.Helper()
	p, err := l.Claim(t.Context(), driver.Claim{Name: name, ID: l.ID() + id})
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return p[0]
}

func keepAlive(ctx context.Context, l driver.Lease) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, l.TTL()/3)
		_ = l.Renew(try)
		cancel()
		pauseFor(ctx, l.TTL()/6)
	}
}
