package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// Finding 10, second half, CURATOR-460 and CURATOR-696: a holder whose session ended is told, has
// no right from its ttl on, and a new session works.
func TestASessionThatEndedIsToldAndANewOneWorks(t *testing.T) {
	t.Parallel()
	p, far, near, _ := behind(t)
	l := grantAt(t, far, "a", 4*time.Second)
	mine := enterAt(t, l, t.Name(), "one")
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	news := make(chan error, 1)
	go func() {
		_, err := l.News(within(t, time.Minute))
		news <- err
	}()
	other := grantAt(t, near, "b", 20*time.Second)
	keep(t, other)
	q := enterAt(t, other, t.Name(), "two")
	p.Hold()
	var promised time.Time
	go func() {
		for range 100 {
			called := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			if l.Renew(ctx) == nil {
				promised = called.Add(l.TTL())
			}
			cancel()
			time.Sleep(50 * time.Millisecond)
		}
	}()
	if _, err := drivertest.Await(within(t, time.Minute), other, q); err != nil {
		t.Fatal(err)
	}
	if !promised.IsZero() {
		t.Errorf("a renewal was answered while the link was cut")
	}
	p.Cut()
	p.Heal()
	if err := <-news; !errors.Is(err, driver.ErrGone) {
		t.Errorf("News = %v, want ErrGone", err)
	}
	if err := l.Renew(within(t, time.Minute)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew = %v, want ErrGone", err)
	}
	if err := l.Release(within(t, time.Minute), mine); err != nil {
		t.Errorf("Release = %v", err)
	}
	again := grantAt(t, far, "a", 20*time.Second)
	if got := enterAt(t, again, t.Name(), "three"); got.Held || got.Token <= q.Token {
		t.Errorf("a claim of a new session = %+v, want it behind token %d", got, q.Token)
	}
}

// Finding 10, first half: a foreign child makes go-zookeeper's Lock fail, and leave a node each
// time.
func TestAForeignChildIsIgnoredAndShown(t *testing.T) {
	_, _, near, srv := behind(t)
	c := plain(t, srv.Addr())
	l := grantAt(t, near, "a", 20*time.Second)
	name := rand.Text()
	p := enterAt(t, l, name, "one")
	if err := l.Release(within(t, time.Minute), p); err != nil {
		t.Fatal(err)
	}
	for _, child := range []string{"readme", "_c_0123456789abcdef0123456789abcdef-lock-0000000001", "p1-x", "p1-0000000000000000-0-0-0-x"} {
		if _, err := c.Create("/primacy/"+name+"/"+child, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	if p := enterAt(t, l, name, "two"); !p.Held {
		t.Errorf("claim = %+v, want it held", p)
	}
	ln, err := near.Line(within(t, time.Minute), name)
	if err != nil || ln.Holder == nil || len(ln.Waiters) != 4 || ln.Waiters[0].Note == "" || ln.Waiters[0].Held {
		t.Errorf("line = %+v, %v, want the others shown with a note", ln, err)
	}
}

// A name that we may not read ends the wait for that name, and for no other.
func TestARefusedNameIsToldAndTheOthersAreFollowed(t *testing.T) {
	p, far, near, srv := behind(t)
	holder, waiter := grantAt(t, near, "a", 20*time.Second), grantAt(t, far, "b", 20*time.Second)
	keep(t, waiter)
	names := []string{rand.Text(), rand.Text()}
	var mine []driver.Place
	for _, name := range names {
		mine = append(mine, enterAt(t, holder, name, "one"))
	}
	waits := []driver.Place{enterAt(t, waiter, names[0], "two"), enterAt(t, waiter, names[1], "two")}
	unreadable := zk.WorldACL(zk.PermAll &^ zk.PermRead)
	if _, err := plain(t, srv.Addr()).SetACL("/primacy/"+names[0], unreadable, -1); err != nil {
		t.Fatal(err)
	}
	p.Cut() // by a new connection it looks at the lines itself
	p.Heal()
	for err := errors.New("not asked"); err != nil; { // the first one may have been on the connection that was cut
		if err = waiter.Renew(within(t, time.Minute)); driver.IsFinal(err) {
			t.Fatal(err)
		}
	}
	waiter.Follow(waits...)
	told := func() driver.News {
		t.Helper()
		news, err := waiter.News(within(t, time.Minute))
		if err != nil || len(news) != 1 {
			t.Fatalf("News = %+v, %v, want one piece", news, err)
		}
		return news[0]
	}
	if n := told(); n.Place.Name != names[0] || n.Place.ID != "two" || n.Held || n.Gone ||
		!errors.Is(n.Refused, driver.ErrRefused) {
		t.Errorf("news = %+v, want the first place refused", n)
	}
	if err := holder.Release(within(t, time.Minute), mine...); err != nil {
		t.Fatal(err)
	}
	if n := told(); n.Place.Name != names[1] || !n.Held || n.Refused != nil {
		t.Errorf("news = %+v, want the second place held", n)
	}
	if err := waiter.Release(within(t, time.Minute), waits...); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func TestOddPlacesLeaveNothing(t *testing.T) {
	srv := shared(t)
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	name := t.Name()
	l := grantAt(t, s, "a", 20*time.Second)
	// A seat is part of a path, and of what is read back from it.
	for _, seat := range []string{"a/b", "a-b", "..", "ü", "\x00", "0123456789abcdefg"} {
		if _, err := l.Claim(within(t, time.Minute), driver.Claim{Name: name, ID: "i" + seat, Seat: seat}); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Claim with seat %q = %v, want it refused", seat, err)
		}
	}
	ln, err := s.Line(within(t, time.Minute), name)
	if err != nil || ln.Holder != nil {
		t.Errorf("line = %+v, %v, want it empty", ln, err)
	}
	if n, err := zkstore.WatchedGone(l, "/primacy/gone/node"); n != 0 || err != nil {
		t.Errorf("%d watches wait for nodes that never come again, %v", n, err)
	}
}

// Two of three servers fall silent, the one that has the session and the next one: as after a loss
// of power, nothing closes a connection. The lease is renewed by the third before a term must stop
// its work, at eight tenths of the ttl.
func TestSilentServersCostNoTerm(t *testing.T) {
	t.Parallel()
	srv := shared(t)
	var ps []*proxy.Proxy
	var addrs []string
	for range 3 {
		p, err := proxy.Listen(srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		ps, addrs = append(ps, p), append(addrs, p.Addr())
	}
	l := grantAt(t, stopAtEnd(t, openAt(t, addrs...)), "a", 10*time.Second)
	var renewed time.Time // when the last renewal that counts was called
	renew := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		called := time.Now()
		err := l.Renew(ctx)
		if err == nil {
			renewed = called
		}
		return err
	}
	for end := time.Now().Add(time.Minute); renew() != nil; {
		if time.Now().After(end) {
			t.Fatal("no renewal")
		}
	}
	for i, p := range ps {
		if p.Hold(); renew() != nil {
			ps[(i+1)%len(ps)].Hold()
			break
		}
		p.Heal()
	}
	last := renewed
	for renewed.Equal(last) {
		if err := renew(); errors.Is(err, driver.ErrGone) {
			t.Fatal(err)
		}
		if passed := time.Since(last); passed > l.TTL()*8/10 {
			t.Fatalf("no renewal for %v, while one of three servers answers", passed)
		}
	}
	t.Logf("renewed %v after the last renewal", time.Since(last))
}

// A process slept, or was cut off, for so long that the servers ended the session of the calls that
// belong to no lease. Of that they find out when they have a connection again. No lease and no term
// has ended with it: each call does its work in another session.
func TestCallsOfTheStoreOutliveTheirSession(t *testing.T) {
	srv := shared(t)
	p, err := proxy.Listen(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	at := func(server string) *zkstore.Store { // apart from names that other tests forbid to read
		return openWith(t, zkstore.Config{Servers: []string{server}, Root: t.Name()})
	}
	far, near := at(p.Addr()), at(srv.Addr())
	stopAtEnd(t, far)
	stopAtEnd(t, near)
	l := grantAt(t, near, "a", 60*time.Second)
	keep(t, l)
	held, removed := enterAt(t, l, t.Name(), "one"), enterAt(t, l, t.Name()+"2", "two")
	other, err := near.Grant(within(t, time.Minute), "b", 60*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"Ask": func(ctx context.Context) error {
			return far.Ask(ctx, t.Name(), driver.Request{Token: held.Token, By: "x"})
		},
		"Line":    func(ctx context.Context) error { return second(far.Line(ctx, t.Name())) },
		"Lines":   func(ctx context.Context) error { return second(far.Lines(ctx, t.Name())) },
		"Next":    func(ctx context.Context) error { return second(far.Next(ctx, t.Name(), 0)) },
		"later":   func(ctx context.Context) error { return second(far.Next(ctx, t.Name(), 1)) },
		"Revoke":  func(ctx context.Context) error { return far.Revoke(ctx, other.ID()) },
		"Leases":  func(ctx context.Context) error { return second(far.Leases(ctx, "a")) },
		"Records": func(ctx context.Context) error { return second(far.Records(ctx, t.Name(), "", 9)) },
		"Append": func(ctx context.Context) error {
			_, _, err := far.Append(ctx, t.Name(), driver.Record{Key: rand.Text(), Value: []byte("v")}, 9)
			return err
		},
		"Journals":    func(ctx context.Context) error { return second(far.Journals(ctx, "")) },
		"RemoveClaim": func(ctx context.Context) error { return far.RemoveClaim(ctx, t.Name()+"2", removed.Token) },
	}
	for _, early := range []bool{false, true} { // before the connection is known to be lost
		p.Hold()
		if err := zkstore.EndOwnSession(far, srv.Addr()); err != nil {
			t.Fatal(err)
		}
		p.Cut()
		for !early && zkstore.IsOwnConnected(far) {
			time.Sleep(time.Millisecond)
		}
		var work sync.WaitGroup
		for what, call := range calls {
			work.Go(func() {
				err := call(within(t, time.Minute))
				for early && err != nil && !driver.IsFinal(err) { // it was lost under the call
					err = call(within(t, time.Minute))
				}
				if err != nil {
					t.Errorf("%s = %v, want it done in another session", what, err)
				}
			})
		}
		time.Sleep(50 * time.Millisecond) // most of them wait for a connection now
		p.Heal()
		work.Wait()
	}
	if err := other.Renew(within(t, time.Minute)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew of a lease that was revoked = %v, want ErrGone", err)
	}
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Errorf("Renew: %v", err)
	}
}

// Servers that come back empty, or from an older snapshot, refuse every session that has seen more,
// and never say that it has ended. A process that runs reads and stands again all the same.
func TestAStoreOutlivesServersThatLostTheirData(t *testing.T) {
	t.Parallel()
	briefly := []string{"maxSessionTimeout=2000"} // and so the session of the store's own calls
	srv := zktest.Start(t, zktest.Options{NoSync: true, Config: briefly, Tick: 100 * time.Millisecond})
	s := stopAtEnd(t, openAt(t, srv.Addr()))
	for seen := 0; seen < 100; { // it sees more than the servers will know after their loss
		switch _, err := s.Line(within(t, time.Minute), t.Name()); {
		case err == nil:
			seen++
		case driver.IsFinal(err): // a busy server loses a session that is so short
			t.Fatal(err)
		}
	}
	srv.Kill()
	if err := os.RemoveAll(filepath.Join(srv.Dir(), "data", "version-2")); err != nil {
		t.Fatal(err)
	}
	srv.Restart()
	ctx := within(t, time.Minute)
	for {
		_, err := s.Line(ctx, t.Name())
		if err == nil {
			break
		}
		if ctx.Err() != nil || driver.IsFinal(err) {
			t.Fatalf("Line: %v", err)
		}
	}
	for {
		_, err := s.Grant(ctx, "a", time.Second)
		if err == nil {
			break
		}
		if ctx.Err() != nil || driver.IsFinal(err) {
			t.Fatalf("Grant: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
