package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// needAll skips a test that takes long, unless PRIMACY_ZK=all.
func needAll(t *testing.T) {
	t.Helper()
	if os.Getenv("PRIMACY_ZK") != "all" {
		t.Skip("PRIMACY_ZK=all runs it")
	}
}

// behind returns a server, a store that reaches it through a proxy, and one that reaches it directly.
func behind(t *testing.T) (p *proxy.Proxy, far, near *zkstore.Store, srv *zktest.Server) {
	t.Helper()
	srv = shared(t)
	p, err := proxy.Listen(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	far, near = openAt(t, p.Addr()), openAt(t, srv.Addr())
	stopAtEnd(t, far)
	stopAtEnd(t, near)
	if far.Caps().MinTTL != near.Caps().MinTTL { // a proxy may end a connection of which one half was closed
		t.Errorf("through a proxy the tick is not told: %+v", far.Caps())
	}
	return p, far, near, srv
}

// stand returns how many stand in the line that has the test's name.
func stand(t *testing.T, s driver.Store) int {
	t.Helper()
	ln, err := s.Line(within(t, 10*time.Second), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if ln.Holder == nil {
		return 0
	}
	return 1 + len(ln.Waiters)
}

// Finding 9: go-zookeeper's Lock leaves its node behind when the connection is lost between the create and its answer, for as long as the session lives.
func TestALostAnswerLeavesNoGhost(t *testing.T) {
	p, far, near, _ := behind(t)
	l := grantAt(t, far, "a", 8*time.Second)
	keep(t, l)
	if err := l.Release(within(t, 10*time.Second), enterAt(t, l, t.Name(), "zero")); err != nil { // so that the line's node is there
		t.Fatal(err)
	}
	p.Hold(proxy.Down)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.Claim(ctx, driver.Claim{Name: t.Name(), ID: "one"}); err == nil {
		t.Fatal("Claim returned though no answer came")
	}
	if n := stand(t, near); n != 1 {
		t.Fatalf("%d stand, want the one whose answer was held", n)
	}
	p.Cut()
	p.Heal()
	if err := l.Release(within(t, 20*time.Second), driver.Place{Name: t.Name(), ID: "one"}); err != nil {
		t.Fatalf("Release: %v", err)
	}
	other := grantAt(t, near, "b", 8*time.Second)
	if q := enterAt(t, other, t.Name(), "two"); !q.Held {
		t.Errorf("the next claim = %+v, want it held: a ghost stands before it", q)
	}
	if err := l.Renew(within(t, 10*time.Second)); err != nil {
		t.Errorf("Renew after the connection came back: %v", err)
	}
}

// Section 3.9: go-zookeeper's protected create forgets its GUID when a second loss follows the first.
func TestTwoLossesInARowForgetNoClaim(t *testing.T) {
	p, far, near, _ := behind(t)
	l := grantAt(t, far, "a", 20*time.Second)
	keep(t, l)
	p.Hold(proxy.Down)
	type answer struct {
		places []driver.Place
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		places, err := l.Claim(within(t, 60*time.Second), driver.Claim{Name: t.Name(), ID: "one"})
		done <- answer{places, err}
	}()
	for range 3 {
		time.Sleep(200 * time.Millisecond)
		p.Cut()
		p.Heal()
		p.Hold(proxy.Down)
	}
	p.Cut()
	p.Heal()
	got := <-done
	if got.err != nil || !got.places[0].Held {
		t.Fatalf("Claim = %+v, %v, want its place", got.places, got.err)
	}
	if n := stand(t, near); n != 1 {
		t.Errorf("%d stand, want one", n)
	}
}

// A create that lay in a buffer while its outcome was looked for must not be done afterwards: nobody would ever release it.
func TestALateCreateDoesNotEnter(t *testing.T) {
	_, _, near, _ := behind(t)
	l := grantAt(t, near, "a", 8*time.Second)
	if err := zkstore.LateCreate(l, driver.Claim{Name: t.Name(), ID: "one"}); !errors.Is(err, zk.ErrBadVersion) {
		t.Errorf("a late create = %v, want it refused", err)
	}
	if n := stand(t, near); n != 0 {
		t.Errorf("%d stand, want nobody", n)
	}
	if p := enterAt(t, l, t.Name(), "two"); !p.Held { // and the lease goes on
		t.Errorf("a claim after it = %+v", p)
	}
}

// Finding 10, first half: a foreign child makes go-zookeeper's Lock fail, and leave a node each time.
func TestAForeignChildIsIgnoredAndShown(t *testing.T) {
	_, _, near, srv := behind(t)
	c := plain(t, srv.Addr())
	l := grantAt(t, near, "a", 8*time.Second)
	name := rand.Text()
	p := enterAt(t, l, name, "one")
	if err := l.Release(within(t, 10*time.Second), p); err != nil {
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
	ln, err := near.Line(within(t, 10*time.Second), name)
	if err != nil || ln.Holder == nil || len(ln.Waiters) != 4 || ln.Waiters[0].Note == "" || ln.Waiters[0].Held {
		t.Errorf("line = %+v, %v, want the others shown with a note", ln, err)
	}
}

// Finding 10, second half, CURATOR-460 and CURATOR-696: a holder whose session ended is told, has no right from its ttl on, and a new session works.
func TestASessionThatEndedIsToldAndANewOneWorks(t *testing.T) {
	t.Parallel()
	p, far, near, _ := behind(t)
	l := grantAt(t, far, "a", 2*time.Second)
	mine := enterAt(t, l, t.Name(), "one")
	if err := l.Renew(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	news := make(chan error, 1)
	go func() {
		_, err := l.News(within(t, 60*time.Second))
		news <- err
	}()
	other := grantAt(t, near, "b", 8*time.Second)
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
	if _, err := other.Wait(within(t, 30*time.Second), q); err != nil {
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
	if err := l.Renew(within(t, 5*time.Second)); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew = %v, want ErrGone", err)
	}
	if err := l.Release(within(t, 5*time.Second), mine); err != nil {
		t.Errorf("Release = %v", err)
	}
	again := grantAt(t, far, "a", 8*time.Second)
	if got := enterAt(t, again, t.Name(), "three"); got.Held || got.Token <= q.Token {
		t.Errorf("a claim of a new session = %+v, want it behind token %d", got, q.Token)
	}
}
