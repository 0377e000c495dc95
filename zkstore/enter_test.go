package zkstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/driver/drivertest"
	"github.com/primacy-go/primacy/internal/proxy"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/zkstore"
)

// behind returns a server, a store that reaches it through a proxy, and one that reaches it
// directly.
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
	ln, err := s.Line(within(t, time.Minute), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if ln.Holder == nil {
		return 0
	}
	return 1 + len(ln.Waiters)
}

// faulty returns a lease that is kept through a proxy which decides about each request, and a store
// that reaches the server directly.
func faulty(t *testing.T) (*faultProxy, driver.Lease, driver.Store) {
	t.Helper()
	srv := shared(t)
	p := newFaultProxy(t, srv.Addr())
	far := stopAtEnd(t, openAt(t, p.addr()))
	near := stopAtEnd(t, openAt(t, srv.Addr()))
	l := grantAt(t, far, "a", 20*time.Second)
	keep(t, l)
	return p, l, near
}

// hadLine has a claim enter and leave, so that the line's node is there.
func hadLine(t *testing.T, l driver.Lease, name string) {
	t.Helper()
	zero := enterAt(t, l, name, "zero"+name)
	if err := l.Release(within(t, time.Minute), zero); err != nil {
		t.Fatal(err)
	}
}

// lostTwice has the answer to a create lost, and the connection once more while it is looked for
// what became of it: in the request before which lostAt says so.
func lostTwice(t *testing.T, answer fate, lostAt func(opcode int32, request string) bool,
) (*faultProxy, driver.Lease, driver.Store) {
	t.Helper()
	p, l, near := faulty(t)
	hadLine(t, l, t.Name())
	create, look := once(enters, loseAnswer), once(lostAt, answer)
	began := false
	p.decide(func(opcode int32, request string) fate {
		f := create(opcode, request)
		if began && f == pass {
			f = look(opcode, request)
		}
		began = began || f == loseAnswer
		return f
	})
	return p, l, near
}

func looksAtLife(opcode int32, request string) bool {
	return opcode == opGetData && strings.Contains(request, "/@leases/")
}

func raisesLife(opcode int32, request string) bool {
	return opcode == opSetData && strings.Contains(request, "/@leases/")
}

func looksAtLine(opcode int32, request string) bool {
	return opcode == opGetChildren2 && strings.Contains(request, "/primacy/TestALoss")
}

// Finding 9: go-zookeeper's Lock leaves its node behind when the connection is lost between the
// create and its answer, for as long as the session lives.
func TestALostAnswerLeavesNoGhost(t *testing.T) {
	p, far, near, _ := behind(t)
	l := grantAt(t, far, "a", 20*time.Second)
	keep(t, l)
	hadLine(t, l, t.Name())
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
	if err := l.Release(within(t, time.Minute), driver.Place{Name: t.Name(), ID: "one"}); err != nil {
		t.Fatalf("Release: %v", err)
	}
	other := grantAt(t, near, "b", 20*time.Second)
	if q := enterAt(t, other, t.Name(), "two"); !q.Held {
		t.Errorf("the next claim = %+v, want it held: a ghost stands before it", q)
	}
	if err := l.Renew(within(t, time.Minute)); err != nil {
		t.Errorf("Renew after the connection came back: %v", err)
	}
}

// Section 3.9: go-zookeeper's protected create forgets its GUID when a second loss follows the
// first.
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
		places, err := l.Claim(within(t, time.Minute), driver.Claim{Name: t.Name(), ID: "one"})
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

// A create that lay in a buffer while its outcome was looked for must not be done afterwards:
// nobody would ever release it.
func TestALateCreateDoesNotEnter(t *testing.T) {
	_, _, near, _ := behind(t)
	l := grantAt(t, near, "a", 20*time.Second)
	if err := zkstore.LateCreate(l, driver.Claim{Name: t.Name(), ID: "one"}); !errors.Is(err, zkstore.ErrBadVersion) {
		t.Errorf("a late create = %v, want it refused", err)
	}
	if n := stand(t, near); n != 0 {
		t.Errorf("%d stand, want nobody", n)
	}
	if p := enterAt(t, l, t.Name(), "two"); !p.Held { // and the lease goes on
		t.Errorf("a claim after it = %+v", p)
	}
}

// A second loss, while the first one is looked into, must not have the claim entered again: it
// would wait behind itself for as long as the lease lives.
func TestALossWhileALostAnswerIsLookedForEntersNoSecondNode(t *testing.T) {
	for _, c := range []struct {
		what   string
		lostAt func(int32, string) bool
		fate   fate
	}{
		{"no loss but the first", func(int32, string) bool { return false }, pass},
		{"look", looksAtLife, drop}, {"raise", raisesLife, loseAnswer}, {"children", looksAtLine, drop},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, l, near := lostTwice(t, c.fate, c.lostAt)
			places, err := l.Claim(within(t, time.Minute), driver.Claim{Name: t.Name(), ID: "one"})
			if err != nil || !places[0].Held {
				t.Errorf("Claim = %+v, %v, want it held", places, err)
			}
			if n := stand(t, near); n != 1 {
				t.Errorf("%d stand, want one", n)
			}
			if err := l.Release(within(t, time.Minute), places...); err != nil {
				t.Errorf("Release: %v", err)
			}
			if n := stand(t, near); n != 0 {
				t.Errorf("%d stand after the release, want nobody", n)
			}
		})
	}
}

// Nor may a release take what is not looked into yet for something that never entered.
func TestAReleaseAfterALossWhileALostAnswerIsLookedForLeavesNothing(t *testing.T) {
	_, l, near := lostTwice(t, drop, looksAtLife)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.Claim(ctx, driver.Claim{Name: t.Name(), ID: "one"}); err == nil {
		t.Skip("the claim was faster")
	}
	if err := l.Release(within(t, time.Minute), driver.Place{Name: t.Name(), ID: "one"}); err != nil {
		t.Errorf("Release: %v", err)
	}
	if n := stand(t, near); n != 0 {
		t.Errorf("%d stand after the release, want nobody", n)
	}
}

// Who has seen that only those it watches are left in front holds as soon as they have gone: a read
// then would wait for whatever the servers write.
func TestWhoIsNextHoldsWithoutARead(t *testing.T) {
	srv := shared(t)
	p := newFaultProxy(t, srv.Addr())
	near, far := openAt(t, srv.Addr()), openAt(t, p.addr())
	stopAtEnd(t, near)
	stopAtEnd(t, far)
	const ttl = 20 * time.Second
	leases := []driver.Lease{grantAt(t, near, "a", ttl), grantAt(t, near, "b", ttl), grantAt(t, far, "c", ttl)}
	var places []driver.Place
	for i, l := range leases {
		keep(t, l)
		places = append(places, enterAt(t, l, t.Name(), string(rune('a'+i))))
		if places[i].Held != (i == 0) {
			t.Fatalf("claim %d of three: %+v", i+1, places[i])
		}
	}
	held, watches := make(chan error, 1), make(chan struct{})
	p.decide(func(opcode int32, request string) fate {
		switch {
		case zkstore.IsClosed(watches):
			if opcode == opGetChildren2 || opcode == opGetData {
				return swallow
			}
		case opcode == opSetWatches && strings.Contains(request, leases[0].ID()):
			close(watches) // on those in front, and on its own node with them or before
		}
		return pass
	})
	go func() {
		_, err := drivertest.Await(within(t, time.Minute), leases[2], places[2])
		held <- err
	}()
	select {
	case <-watches:
	case err := <-held:
		t.Fatalf("Wait returned %v behind one who holds", err)
	}
	for i := range 2 {
		if err := leases[i].Release(within(t, time.Minute), places[i]); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			select {
			case err := <-held:
				t.Fatalf("Wait returned %v behind one who holds", err)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	select {
	case err := <-held:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it has not held: it reads")
	}
	p.decide(nil)
}

// Our server may lag behind: it shows a shared claim that does not fit and has left. Who is refused
// for that is refused for good.
func TestASharedClaimIsNotRefusedByAnOldView(t *testing.T) {
	p, l, near := faulty(t)
	other := grantAt(t, near, "b", 20*time.Second)
	places, err := other.Claim(within(t, time.Minute), driver.Claim{Name: t.Name(), ID: "two", Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	leaves := once(func(opcode int32, request string) bool {
		return opcode == opSetData && strings.Contains(request, "/@sync")
	}, drop)
	p.decide(func(opcode int32, request string) fate {
		if leaves(opcode, request) == drop { // between the first look and the write before the second one
			left <- other.Release(within(t, time.Minute), places...)
		}
		return pass
	})
	places, err = l.Claim(within(t, time.Minute), driver.Claim{Name: t.Name(), ID: "three", Slots: 3})
	if err != nil || !places[0].Held {
		t.Errorf("Claim = %+v, %v, want it held: who did not fit had left", places, err)
	}
	select {
	case err := <-left:
		if err != nil {
			t.Error(err)
		}
	default:
		t.Error("it has not looked again")
	}
	p.decide(nil)
	places, err = other.Claim(within(t, time.Minute), driver.Claim{Name: t.Name(), ID: "four", Slots: 2})
	if !errors.Is(err, driver.ErrRefused) {
		t.Errorf("Claim beside one that does not fit = %+v, %v, want it refused", places, err)
	}
}
