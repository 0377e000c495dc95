package zkstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
)

// lostTwice has the answer to a create lost, and the connection once more while it is looked for what became of it: in the request before which lostAt says so.
func lostTwice(t *testing.T, answer fate, lostAt func(opcode int32, request string) bool) (*teller, driver.Lease, driver.Store) {
	t.Helper()
	srv := shared(t)
	p := newTeller(t, srv.Addr())
	far := stopAtEnd(t, openAt(t, p.addr()))
	near := stopAtEnd(t, openAt(t, srv.Addr()))
	l := grantAt(t, far, "a", 20*time.Second)
	keep(t, l)
	if err := l.Release(within(t, 10*time.Second), enterAt(t, l, t.Name(), "zero")); err != nil { // so that the line's node is there
		t.Fatal(err)
	}
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

// A second loss, while the first one is looked into, must not have the claim entered again: it would wait behind itself for as long as the lease lives.
func TestALossWhileALostAnswerIsLookedForEntersNoSecondNode(t *testing.T) {
	for _, c := range []struct {
		what   string
		lostAt func(int32, string) bool
		fate   fate
	}{{"no loss but the first", func(int32, string) bool { return false }, pass}, {"look", looksAtLife, drop}, {"raise", raisesLife, loseAnswer}, {"children", looksAtLine, drop}} {
		t.Run(c.what, func(t *testing.T) {
			_, l, near := lostTwice(t, c.fate, c.lostAt)
			places, err := l.Claim(within(t, 30*time.Second), driver.Claim{Name: t.Name(), ID: "one"})
			if err != nil || !places[0].Held {
				t.Errorf("Claim = %+v, %v, want it held", places, err)
			}
			if n := stand(t, near); n != 1 {
				t.Errorf("%d stand, want one", n)
			}
			if err := l.Release(within(t, 20*time.Second), places...); err != nil {
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
	if err := l.Release(within(t, 30*time.Second), driver.Place{Name: t.Name(), ID: "one"}); err != nil {
		t.Errorf("Release: %v", err)
	}
	if n := stand(t, near); n != 0 {
		t.Errorf("%d stand after the release, want nobody", n)
	}
}

// Who has seen that only those it watches are left in front holds as soon as they have gone: a read then would wait for whatever the servers write.
func TestWhoIsNextHoldsWithoutARead(t *testing.T) {
	srv := shared(t)
	p := newTeller(t, srv.Addr())
	near, far := openAt(t, srv.Addr()), openAt(t, p.addr())
	stopAtEnd(t, near)
	stopAtEnd(t, far)
	leases := []driver.Lease{grantAt(t, near, "a", 20*time.Second), grantAt(t, near, "b", 20*time.Second), grantAt(t, far, "c", 20*time.Second)}
	var places []driver.Place
	for i, l := range leases {
		keep(t, l)
		places = append(places, enterAt(t, l, t.Name(), string(rune('a'+i))))
		if places[i].Held != (i == 0) {
			t.Fatalf("claim %d of three: %+v", i+1, places[i])
		}
	}
	held := make(chan error, 1)
	go func() {
		_, err := leases[2].Wait(within(t, 20*time.Second), places[2])
		held <- err
	}()
	time.Sleep(300 * time.Millisecond)
	p.decide(func(opcode int32, _ string) fate {
		if opcode == opGetChildren2 || opcode == opGetData {
			return swallow
		}
		return pass
	})
	for i := range 2 {
		if err := leases[i].Release(within(t, 10*time.Second), places[i]); err != nil {
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
	case <-time.After(3 * time.Second): // it looks also without an event, later
		t.Error("it has not held: it reads")
	}
	p.decide(nil)
}
