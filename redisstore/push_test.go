package redisstore

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/redistest"
)

// A push says that a place holds as of one history. Of another history than the lease's it says
// nothing: a former primary that lives on would make a second leader.
func TestAPushOfAnotherHistoryGrantsNothing(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	_, first := opened(t, srv, time.Minute)
	s, l := opened(t, srv, time.Minute)
	stand(t, first, "n", "1")
	held := func(id string) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.claims[id].held
	}
	granted := func(token uint64) { l.pushed([]string{"h", strconv.FormatUint(token, 10), "another", l.id}) }
	p := stand(t, l, "n", "2")
	l.Follow(p)
	granted(p.Token)
	if held("2") {
		t.Error("a place that waits holds by a push of another history")
	}
	// It overtakes the answer of the Claim.
	c := driver.Claim{Name: "n", Seat: "r", ID: "3"}
	mine, err := l.beginClaim([]driver.Claim{c})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.run(t.Context(), s.calls, claimScript, false, l.id, l.epoch, 0, 1, c.Name, c.Seat, 0, mine[0].n, c.ID,
		"", false)
	if err != nil || got.str(0) != "OK" {
		t.Fatal(got, err)
	}
	granted(uint64(got.num(3)))
	l.mu.Lock()
	places := l.enteredLocked(mine, got)
	l.mu.Unlock()
	if len(places) != 1 || places[0].Held || held("3") {
		t.Errorf("a place holds by a push of another history that overtook the answer: %+v", places)
	}
}

// A name is not handed to a claim whose lease has ended, though nobody has removed that yet: the
// leader would lose it to nobody, and who waits before that claim its place.
func TestNothingIsHandedToTheDead(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Options{})
	s, l := opened(t, srv, time.Minute)
	_, between := opened(t, srv, time.Minute)
	_, dead := opened(t, srv, time.Minute)
	p := stand(t, l, "n", "1")
	waits := stand(t, between, "n", "2")
	successor := stand(t, dead, "n", "3")
	srv.Do("HSET", "{primacy}:lease:"+dead.id, "x", 1)
	if err := l.Transfer(t.Context(), p, successor.Token); !errors.Is(err, driver.ErrNoSuccessor) {
		t.Errorf("Transfer to a claim whose lease has ended = %v, want ErrNoSuccessor", err)
	}
	ln, err := s.Line(t.Context(), "n")
	if err != nil || ln.Holder == nil || ln.Holder.Token != p.Token || len(ln.Waiters) != 1 ||
		ln.Waiters[0].Token != waits.Token {
		t.Errorf("after it Line = %+v, %v, want the holder and who waits", ln, err)
	}
}
